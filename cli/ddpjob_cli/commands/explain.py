"""`ddpjob explain NAME`: why a job is not running, slow or failed, and what to do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
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
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.output import tell

if TYPE_CHECKING:
    from ddpjob_cli.cluster.kubeconfig import Target
    from ddpjob_cli.explain.finding import Finding
    from ddpjob_cli.explain.observation import Observation

STYLES = {"stops": "bold red", "fails": "red", "slows": "yellow", "note": "cyan", "fine": "green"}


@click.command(epilog=LOOK_EXIT_CODES)
@optional_name
@click.option("--stacks", is_flag=True, help="What each rank did when the job hung last: its stacks.")
@directory_option
@cluster_options
@json_option
def explain(
    name: str | None, *, stacks: bool, directory: Path | None, target: "Target", as_json: bool
) -> None:
    """Say why a job does not run, is slow or has failed, in the cluster's own words, and what to do."""
    from ddpjob_cli.explain.findings import findings

    needed(name, directory)
    if stacks:
        from ddpjob_cli.commands.stacks import show

        show(name, directory, target, as_json=as_json)
        return
    seen = look(name, directory, target)
    found = findings(seen)
    if as_json:
        entries = [finding.json() for finding in found]
        document = {"name": seen.name, "place": seen.place, "state": seen.state, "findings": entries}
        tell(document, indent=1)
        return
    out = console()
    out.print(Text.assemble((seen.name, "bold"), f" ({seen.place}): {seen.state or 'no status yet'}"))
    rows = [row for finding in found for row in sentences(finding)]
    if out.is_terminal:
        out.print(beside(rows))
    else:
        for word, text in rows:
            out.print(Text(" " * (5 - len(word))), word, "  ", text, sep="")


def sentences(finding: "Finding") -> Iterator[tuple[Text, Text]]:
    """What is the matter, and what to do."""
    word = finding.weight.word
    where = f" [{finding.where}]" if finding.where else ""
    yield Text(word, STYLES[word]), Text.assemble(finding.what, (where, "dim"))
    if finding.do:
        yield Text("→", "bold"), Text(finding.do)


def beside(rows: Sequence[tuple[Text, Text]]) -> Table:
    """Sentences that break within their own column."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(justify="right", no_wrap=True, min_width=5)
    lines.add_column(overflow="fold")
    for row in rows:
        lines.add_row(*row)
    return lines


def look(name: str | None, directory: Path | None, target: "Target") -> "Observation":
    """The job, wherever it is.

    Raises:
        CommandError: it cannot be read.
    """
    source = chosen(name, directory, target)
    if isinstance(source, LocalRun):
        return source.observe(source.scraper())
    from ddpjob_cli.cluster.observe import observe

    assert name is not None  # `needed` and `chosen` saw to it
    return observe(source, name)
