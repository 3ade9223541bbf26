"""`ddpjob logs NAME`: the output of the ranks, from pods or from the folder of a local run, ended ones included."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ddpjob_cli.commands.common import (
    LOOK_EXIT_CODES,
    chosen,
    cluster_options,
    console,
    directory_option,
    json_option,
    needed,
    optional_name,
)
from ddpjob_cli.errors import Unusable
from ddpjob_cli.lines import Line, Wanted
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.output import tell

if TYPE_CHECKING:
    from ddpjob_cli.cluster.kubeconfig import Target


@click.command(epilog=LOOK_EXIT_CODES)
@optional_name
@click.option("--rank", type=click.IntRange(min=0), help="Only the lines of this rank.")
@click.option("--node", type=click.IntRange(min=0), help="Only this node (index of its pod).")
@click.option("--failed", is_flag=True, help="Only the rank that failed last, as status says.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the job ends.")
@click.option("--previous", is_flag=True, help="Of the pods before (replaced ones), or the run before.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines of each node.")
@directory_option
@cluster_options
@json_option
def logs(
    name: str | None,
    *,
    rank: int | None,
    node: int | None,
    failed: bool,
    follow: bool,
    previous: bool,
    tail: int | None,
    directory: Path | None,
    target: "Target",
    as_json: bool,
) -> None:
    """Show what the ranks print, each line with its rank.

    Pods that ended are read too, as long as they are kept.
    """
    needed(name, directory)
    if sum(value is not None for value in (rank, node)) + failed > 1:
        raise Unusable("--rank, --node and --failed exclude each other; give one")
    if follow and previous:
        raise Unusable("--follow and --previous exclude each other: what is over does not go on")
    wanted = Wanted(rank=rank, node=node, failed=failed, previous=previous, tail=tail)
    source = chosen(name, directory, target)
    if isinstance(source, LocalRun):
        from ddpjob_cli.local.logs import lines as local_lines

        show(local_lines(source, wanted, follow=follow), as_json=as_json)
        return
    from ddpjob_cli.cluster.logs import lines as cluster_lines

    assert name is not None  # `needed` and `chosen` saw to it
    show(cluster_lines(source, name, wanted, follow=follow), as_json=as_json)


def show(lines: Iterator[Line], *, as_json: bool) -> None:
    """Print them as they come."""
    out = console()
    try:
        for line in lines:
            if as_json:
                tell(line.json())
            elif out.is_terminal:
                text = Text.from_ansi(line.text)
                out.print(
                    Text.assemble((line.head, "dim" if line.rank is None else "cyan"), text), soft_wrap=True
                )
            else:
                click.echo(line.head + line.text)
            if not out.is_terminal:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return  # the way out of --follow
