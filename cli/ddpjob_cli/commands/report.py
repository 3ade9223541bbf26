"""`ddpjob report NAME -o report.html`: a run as one page that needs nothing beside it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpjob_cli.commands.common import (
    LOOK_EXIT_CODES,
    chosen,
    cluster_options,
    directory_option,
    json_option,
    needed,
    optional_name,
)
from ddpjob_cli.errors import Unusable
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.output import tell

if TYPE_CHECKING:
    from ddpjob_cli.cluster.kubeconfig import Target
    from ddpjob_cli.report.data import ReportData


@click.command(epilog=LOOK_EXIT_CODES)
@optional_name
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The file to write.  [default: NAME.html]"
)
@directory_option
@cluster_options
@json_option
def report(
    name: str | None, *, output: Path | None, directory: Path | None, target: "Target", as_json: bool
) -> None:
    """Write a page about a run: loss, throughput, where the time of each rank went, incidents, settings.

    Jobs that run and jobs that ended, as long as their pods are kept; local runs by their folder. With --json the numbers
    behind the figures are printed instead.
    """
    from ddpjob_cli.report.page import numbers, page

    needed(name, directory)
    if as_json and output is not None:
        raise Unusable("-o and --json exclude each other: the numbers go to standard output")
    data = collect(name, directory, target)
    if as_json:
        tell(numbers(data))
        return
    file = output or Path(f"{data.seen.name}.html")
    try:
        file.write_text(page(data), encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{file}: cannot be written: {error.strerror}") from error
    click.echo(f"{file}: {data.seen.name}, {data.seen.state}, {file.stat().st_size // 1024} KiB")


def collect(name: str | None, directory: Path | None, target: "Target") -> "ReportData":
    """What there is to show.

    Raises:
        CommandError: the job cannot be read.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    source = chosen(name, directory, target)
    if isinstance(source, LocalRun):
        from ddpjob_cli.local.remembering import collect as collect_local

        return collect_local(source, now)
    from ddpjob_cli.cluster.remembering import collect as collect_cluster

    assert name is not None  # `needed` and `chosen` saw to it
    return collect_cluster(source, name, now)
