"""Options that several commands share, and the choice between a cluster and a run on this machine.

Why apart: they must mean the same everywhere, and the same as kubectl's. Must not: import a client before a command
needs it.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from ddpjob_api.rules import rule, valid_name
from ddpjob_cli.errors import CommandError, Unusable
from ddpjob_cli.local.look import LocalRun, every, find

if TYPE_CHECKING:
    from ddpjob_cli.cluster.access import Access
    from ddpjob_cli.cluster.kubeconfig import Target

F = TypeVar("F", bound=Callable[..., Any])
FILE_WIDTH = 400
"""Columns where there is no terminal to end them."""
LOOK_EXIT_CODES = """\b
Exit codes:
    0  said
    2  no such job, or a file, folder, option or kubeconfig that cannot be used
   69  the cluster does not answer
   77  the cluster does not let this user do it; the sentence names the right"""


def cluster_options(command: F) -> F:
    """`--kubeconfig`, `--context`, `-n`, as kubectl has them; the command gets one `target`."""

    @click.option("--kubeconfig", help="Instead of KUBECONFIG or ~/.kube/config.")
    @click.option("--context", "context_name", help="Context of the kubeconfig.")
    @click.option("-n", "--namespace", help="Namespace; default: the context's.")
    @functools.wraps(command)
    def wrapped(
        *args: Any, kubeconfig: str | None, context_name: str | None, namespace: str | None, **options: Any
    ) -> Any:
        from ddpjob_cli.cluster.kubeconfig import Target

        target = Target(kubeconfig=kubeconfig, context=context_name, namespace=namespace)
        return command(*args, target=target, **options)

    return wrapped  # type: ignore[return-value]


directory_option = click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Folder of a local run instead of a job."
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of local runs and of the namespace's jobs; none where the cluster does not answer."""
    names = [run.name for run in every()]
    try:
        from ddpjob_cli.cluster.access import Access, jobs_path
        from ddpjob_cli.cluster.kubeconfig import Target

        given = context.params
        access = Access(
            Target(
                kubeconfig=given.get("kubeconfig"),
                context=given.get("context_name"),
                namespace=given.get("namespace"),
            )
        )
        jobs = access.items(jobs_path(access.namespace), "jobs")
        names += [job["metadata"]["name"] for job in jobs]
    except CommandError:
        pass  # completion says nothing of its own; the command itself will
    return sorted({name for name in names if name.startswith(incomplete)})


name_argument = click.argument("name", shell_complete=complete_names)
optional_name = click.argument("name", required=False, shell_complete=complete_names)


def chosen(name: str | None, directory: Path | None, target: "Target") -> "LocalRun | Access":
    """A run on this machine or a cluster: `--dir` or a name below .ddpjob is local, unless a cluster is named.

    Raises:
        CommandError: neither can be used.
    """
    from ddpjob_cli.cluster.access import Access
    from ddpjob_cli.cluster.kubeconfig import NoCluster

    if directory is not None or not target.given:
        run = find(name, directory)
        if run is not None:
            return run
    if name is not None and not valid_name(name):
        raise Unusable(f"{name!r} is no name of a job: it {rule('name').sentence}")
    try:
        return Access(target)
    except NoCluster as error:
        if target.given:
            raise
        raise Unusable(f"there is no run {name} in .ddpjob of this folder, and {error}") from error


def needed(name: str | None, directory: Path | None) -> None:
    """A name or a folder.

    Raises:
        Unusable: neither is given.
    """
    if name is None and directory is None:
        raise Unusable("which job? give its NAME, or the folder of a local run with --dir")


def console() -> Console:
    """Standard output: colours only on a terminal; in a file a line stays a line."""
    found = Console(highlight=False)
    if not found.is_terminal:
        found = Console(highlight=False, width=FILE_WIDTH)
        found.soft_wrap = True
    return found
