"""`ddpjob submit train.py`: a script becomes a job on the cluster, and is followed to its end."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpjob_api.rules import Verdict
from ddpjob_cli.commands.common import cluster_options
from ddpjob_cli.document import Document, load, one_job
from ddpjob_cli.errors import RefusedJob, Unusable
from ddpjob_cli.explain.observation import argument
from ddpjob_cli.invocation import Invocation
from ddpjob_cli.lint import examine, sentences
from ddpjob_cli.options import option, settings_option

if TYPE_CHECKING:
    from ddpjob_cli.cluster.access import Access
    from ddpjob_cli.cluster.kubeconfig import Target
    from ddpjob_cli.submission import Shape

SUBMIT_EXIT_CODES = """\b
Exit codes:
    0  done; with --detach or --dry-run: sent, printed
    1  the job failed
    2  a file, option or kubeconfig that cannot be used, or a job of that name is there
   69  the cluster does not answer
   77  the cluster does not let this user do it; the sentence names the right
   86  refused: the configuration cannot work, or the code does not fit
  130  Ctrl-C: the job goes on"""
YAML = (".yaml", ".yml")


@click.command(epilog=SUBMIT_EXIT_CODES)
@click.argument("file", metavar="SCRIPT|FILE")
@click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1)
@click.option("--name", help="Of the job; default: the script's.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Pack this folder, not only the script in it."
)
@click.option("--nodes", type=click.IntRange(min=1), help="Pods.  [default: 1]")
@click.option("--processes-per-node", type=click.IntRange(min=1), help="Ranks per pod; default: its GPUs.")
@click.option("--gpus", type=click.IntRange(min=1), help="nvidia.com/gpu per pod; others with --set.")
@click.option("--cpu", help="Limit per pod, e.g. 4.")
@click.option("--memory", help="Limit per pod, e.g. 16Gi.")
@click.option("--image", help="With what the script imports; default: the operator's.")
@settings_option
@click.option(
    "--dry-run", is_flag=True, help="Print the resources and send nothing: YAML, or a List with --json."
)
@click.option("--detach", is_flag=True, help="Do not wait for the end.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON line on stdout at the end; the rest on stderr."
)
@cluster_options
@click.pass_context
def submit(
    context: click.Context,
    file: str,
    arguments: Sequence[str],
    *,
    name: str | None,
    folder: Path | None,
    nodes: int | None,
    processes_per_node: int | None,
    gpus: int | None,
    cpu: str | None,
    memory: str | None,
    image: str | None,
    settings: Sequence[str],
    dry_run: bool,
    detach: bool,
    as_json: bool,
    target: "Target",
) -> None:
    """Send a script, or a DDPJob in a YAML file, to the cluster and follow it to its end.

    The script (with --folder, its folder) travels in a ConfigMap that goes with the job. Ctrl-C leaves the job running.
    """
    from ddpjob_cli.submission import Shape, as_list, as_yaml

    invocation = context.ensure_object(Invocation)
    invocation.job = name
    given: dict[str, Any] = {
        "--nodes": nodes, "--processes-per-node": processes_per_node, "--gpus": gpus, "--cpu": cpu,
        "--memory": memory, "--image": image, "--folder": folder,
    }  # fmt: skip
    if file.endswith(YAML):
        foreign = [flag for flag, value in given.items() if value is not None]
        if foreign or arguments:
            raise Unusable(
                f"{file}: {(foreign or ['arguments'])[0]} is for a script; a resource takes --set FIELD=VALUE"
            )
        document, code = one_job(file, name), None
    else:
        shape = Shape(
            nodes=nodes or 1,
            processes_per_node=processes_per_node,
            gpus=gpus,
            cpu=cpu,
            memory=memory,
            image=image,
        )
        document, code = from_script(Path(file), arguments, name, folder, shape)
    invocation.job = document.name
    for path, value, flag in map(option, settings):
        document = document.with_value(path, value, flag)
    examined = examine(document)
    if examined.refused or examined.job is None:
        raise RefusedJob(sentences(document, examined.remarks, "sent"))
    for remark in examined.remarks:
        if remark.verdict is Verdict.WARN:
            click.echo(str(remark), err=True)
    body = document.value
    assert isinstance(body, Mapping)  # `examine` took it for a job
    target = aimed(target, body["metadata"].get("namespace"), file)
    if dry_run:
        resources = [code, document.value] if code else [document.value]
        if as_json:
            invocation.tell(as_list(resources))
        else:
            click.echo(as_yaml(resources), nl=False)
        return
    from ddpjob_cli.cluster.access import Access
    from ddpjob_cli.cluster.following import follow

    access = Access(target)
    job = send(access, dict(body), code)
    invocation.job, invocation.namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    if detach:
        made = f"{invocation.job} in namespace {invocation.namespace}"
        shows = f"ddpjob top {argument(invocation.job, invocation.namespace)} shows it"
        click.echo(f"{made}: sent; {shows}", err=as_json)
        if as_json:
            invocation.tell({"name": invocation.job, "namespace": invocation.namespace})
        return
    code_of_exit, ending = follow(access, job, sys.stderr if as_json else sys.stdout)
    if as_json:
        invocation.tell(ending)
    context.exit(code_of_exit)


def aimed(target: "Target", named: str | None, file: str) -> "Target":
    """The target with the namespace that a resource names, if it does.

    Raises:
        Unusable: another one was asked for.
    """
    if named and target.namespace and target.namespace != named:
        raise Unusable(
            f"{file}: metadata.namespace is {named}, not {target.namespace}; leave out one of them, or use -n {named}"
        )
    return replace(target, namespace=target.namespace or named)


def from_script(
    script: Path, arguments: Sequence[str], name: str | None, folder: Path | None, shape: "Shape"
) -> tuple[Document, dict[str, Any]]:
    """The job of a script, and the ConfigMap with it.

    Raises:
        CommandError: it cannot be packed.
    """
    from ddpjob_cli.packing import pack_folder, pack_script, unreadable
    from ddpjob_cli.submission import as_yaml, code_name, document_of, job_name

    if folder is None:
        pack, entry = pack_script(script), script.name
    else:
        pack = pack_folder(folder)
        try:
            entry = script.resolve().relative_to(folder.resolve()).as_posix()
        except ValueError as error:
            raise Unusable(f"{script}: not in {folder}, which --folder names") from error
        if entry not in pack.files:
            raise Unusable(
                f"{script}: not among the files of {folder} (is it there, hidden, or ignored by git?)"
            )
    warning = unreadable(script, pack.files[entry])
    if warning is not None:
        click.echo(warning, err=True)
    called = name or job_name(script.stem)
    value = document_of(called, [entry, *arguments], pack, shape)
    ((node, plain),) = load(as_yaml([value]), str(script))
    return Document(file=str(script), value=plain, root=node), pack.config_map(code_name(called, pack))


def send(access: "Access", body: dict[str, Any], code: dict[str, Any] | None) -> dict[str, Any]:
    """Make the job and its code; returns the job as the cluster has it.

    Raises:
        Unusable: there is a job of that name.
        CommandError: the cluster does not take it.
    """
    from ddpjob_cli.cluster.access import NotThere, core_path, jobs_path
    from ddpjob_cli.submission import owned

    name = body["metadata"]["name"]
    path = jobs_path(access.namespace, name)
    try:
        access.get(path, f"DDPJob {name}")
    except NotThere:
        pass
    else:
        raise Unusable(
            f"there is a DDPJob {name} in namespace {access.namespace}; choose another --name, "
            f"or kubectl delete ddpjob {argument(name, access.namespace)}"
        )
    access.apply(path, f"DDPJob {name}", body, dry_run=True)
    if code is not None:
        # Before the job, so that its pods need not wait for it; the job's once there is one.
        where = core_path(access.namespace, "configmaps", code["metadata"]["name"])
        access.apply(where, f"ConfigMap {code['metadata']['name']}", code)
        job = access.apply(path, f"DDPJob {name}", body)
        access.apply(where, f"ConfigMap {code['metadata']['name']}", owned(code, job))
        return job
    return access.apply(path, f"DDPJob {name}", body)
