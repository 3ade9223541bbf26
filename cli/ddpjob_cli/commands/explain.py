"""`ddpjob explain NAME`: why a job is not running, slow or failed, and what to do."""

import json
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
from ddpjob_cli.local.look import LocalRun

if TYPE_CHECKING:
    from ddpjob_cli.cluster.access import Target
    from ddpjob_cli.explain.observation import Observation

STYLES = {"stops": "bold red", "fails": "red", "slows": "yellow", "note": "cyan", "fine": "green"}


@click.command(epilog=LOOK_EXIT_CODES)
@optional_name
@directory_option
@cluster_options
@json_option
def explain(name: str | None, *, directory: Path | None, target: "Target", as_json: bool) -> None:
    """Say why a job does not run, is slow or has failed, in the cluster's own words, and what to do."""
    from ddpjob_cli.explain.findings import findings

    needed(name, directory)
    seen = look(name, directory, target)
    found = findings(seen)
    if as_json:
        entries = [finding.json() for finding in found]
        document = {"name": seen.name, "place": seen.place, "state": seen.state, "findings": entries}
        click.echo(json.dumps(document, indent=1))
        return
    out = console()
    out.print(Text.assemble((seen.name, "bold"), f" ({seen.place}): {seen.state or 'no status yet'}"))
    for finding in found:
        word = finding.weight.word
        where = f" [{finding.where}]" if finding.where else ""
        out.print(Text.assemble((f"{word:>5}", STYLES[word]), f"  {finding.what}", (where, "dim")))
        if finding.do:
            out.print(Text.assemble(("    →", "bold"), f"  {finding.do}"))


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
