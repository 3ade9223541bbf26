"""`ddpjob top`: the jobs there are; `ddpjob top NAME`: the ranks of one."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ddpjob_cli.commands.common import (
    LOOK_EXIT_CODES,
    chosen,
    cluster_options,
    console,
    directory_option,
    json_option,
    optional_name,
)
from ddpjob_cli.errors import CommandError, Unreachable
from ddpjob_cli.local.look import LocalRun, every
from ddpjob_cli.output import tell
from ddpjob_cli.table import Overview, RanksView

if TYPE_CHECKING:
    from ddpjob_cli.cluster.kubeconfig import Target


@click.command(epilog=LOOK_EXIT_CODES)
@optional_name
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("--once", is_flag=True, help="Print once and end; so it is where there is no terminal.")
@click.option(
    "--every",
    "seconds",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@directory_option
@cluster_options
@json_option
def top(
    name: str | None,
    *,
    all_namespaces: bool,
    once: bool,
    seconds: float,
    directory: Path | None,
    target: "Target",
    as_json: bool,
) -> None:
    """Show the jobs: state, progress, rates. With NAME, its ranks: step, phase, step time, where the time goes.

    Local runs of this folder are in the list too. On a terminal it goes on until Ctrl-C.
    """
    look: Callable[[], Overview | RanksView]
    look = ranks_look(name, directory, target) if name or directory else jobs_look(target, all_namespaces)
    out = console()
    if as_json:
        seen = look()
        tell(seen.json(), indent=1)
        if isinstance(seen, Overview) and seen.problem:
            click.echo(seen.problem, err=True)  # the list has no place for it
        return
    if once or not out.is_terminal:
        out.print(look().render(width=out.width))
        return
    shown = look()
    problem = Text("")
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                table = shown.render(height=out.height, width=out.width)
                live.update(Group(table, problem), refresh=True)
                time.sleep(seconds)
                try:
                    shown, problem = look(), Text("")
                except Unreachable as error:
                    problem = Text(f"{error}; trying again", style="yellow")
        except KeyboardInterrupt:
            sys.exit(0)


def jobs_look(target: "Target", all_namespaces: bool) -> "Callable[[], Overview]":
    """Jobs of the cluster and runs of this folder; a cluster that nobody named may be missing where there are runs."""
    from ddpjob_cli.cluster.access import Access
    from ddpjob_cli.cluster.kubeconfig import kubeconfigs
    from ddpjob_cli.cluster.observe import all_jobs

    local = not target.given and not all_namespaces
    access: Access | CommandError
    try:
        access = Access(target)
    except CommandError as error:
        access = error

    def look() -> Overview:
        runs = [run.observe() for run in every()] if local else []
        try:
            if isinstance(access, CommandError):
                raise access
            jobs = all_jobs(access, None if all_namespaces else access.namespace)
        except CommandError as error:
            if not runs:
                raise
            # Who has no kubeconfig does not miss a cluster.
            said = f"jobs of a cluster are not shown: {error}" if kubeconfigs() else ""
            return Overview(jobs=runs, problem=said)
        return Overview(jobs=[*runs, *jobs])

    return look


def ranks_look(name: str | None, directory: Path | None, target: "Target") -> "Callable[[], RanksView]":
    """The ranks of one job; each look's rates are of the time since the last."""
    source = chosen(name, directory, target)
    if isinstance(source, LocalRun):
        run, scraper = source, source.scraper()
        return lambda: RanksView(job=run.observe(scraper))
    from ddpjob_cli.cluster.observe import observe, scraper_of

    assert name is not None  # `chosen` needs one
    access, wanted, cluster_scraper = source, name, scraper_of(source)
    return lambda: RanksView(job=observe(access, wanted, cluster_scraper))
