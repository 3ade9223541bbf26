"""`ddpjob tune FILE`: short runs with several bucket sizes and gradient layouts, and which is the fastest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ddpjob_api.codec import render
from ddpjob_api.spec import DDPJob
from ddpjob_cli import table
from ddpjob_cli.commands.common import FILE_WIDTH
from ddpjob_cli.document import Document, load, one_job
from ddpjob_cli.errors import RefusedJob, Unusable
from ddpjob_cli.lint import examine, sentences
from ddpjob_cli.local.checks import check
from ddpjob_cli.options import option, settings_option
from ddpjob_cli.output import tell
from ddpjob_cli.tuning.rewriting import with_field
from ddpjob_cli.tuning.trial import Trial
from ddpjob_cli.tuning.verdict import NOW, Judged, Measured, Setting, best, judge, to_try

TUNE_EXIT_CODES = """\b
Exit codes:
    0  measured; with --write, written where something was faster
    2  the file or an option cannot be used, or a run ended before it could be measured
   86  refused: the configuration cannot work
  130  Ctrl-C"""
TUNED = ("bucketCapMB", "gradientAsBucketView")
BUCKETS = "1,5,25,100"


@click.command(epilog=TUNE_EXIT_CODES)
@click.argument("file", metavar="FILE")
@click.option("--name", help="Which DDPJob, where the file has several.")
@click.option(
    "--steps", type=click.IntRange(min=5), default=50, show_default=True, help="Measured in each run."
)
@click.option(
    "--rounds", type=click.IntRange(min=2), default=3, show_default=True, help="Runs of each setting."
)
@click.option(
    "--buckets", default=BUCKETS, show_default=True, help="Values of ddp.bucketCapMB to try, in MiB."
)
@click.option("--nodes", type=click.IntRange(min=1), help="Launchers on this machine instead of spec.nodes.")
@settings_option
@click.option("--write", is_flag=True, help="Put the fastest into FILE; comments stay.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout at the end; the rest on stderr."
)
def tune(
    file: str,
    *,
    name: str | None,
    steps: int,
    rounds: int,
    buckets: str,
    nodes: int | None,
    settings: Sequence[str],
    write: bool,
    as_json: bool,
) -> None:
    """Find the ddp.bucketCapMB and gradientAsBucketView with the shortest step, by short runs on this machine.

    Every setting runs once in each round, and rounds are compared one by one, so that what slows the whole machine for a
    while is no difference.
    """
    document = one_job(file, name)
    if file == "-":
        raise Unusable("-: a program runs in the folder of its file; name the file")
    caps = whole_numbers(buckets)
    job = judged_job(document, settings)
    check(job, Path(file).resolve().parent)
    options = [word for text in settings for word in ("--set", text)]
    options += ["--name", name] if name else []
    options += ["--nodes", str(nodes)] if nodes else []
    # Saving takes its own time at its own steps.
    options += ["--set", "checkpoint=null"] if job.spec.task is not None else []
    trial = Trial(file=Path(file), options=options, steps=steps)
    now = {key: value for key, value in render(job.spec.ddp).items() if key in TUNED}
    out = Console(stderr=as_json, highlight=False)
    if not out.is_terminal:
        out = Console(stderr=as_json, highlight=False, width=FILE_WIDTH)
    found = measure(trial, caps, now, rounds, out)
    ranking = judge(found)
    choice = best(ranking)
    show(ranking, choice, now, out)
    if write and choice is not None:
        rewrite(Path(file), document, choice.setting)
        out.print(f"{file}: {words(choice.setting, now)} written")
    if as_json:
        tell(numbers(ranking, choice, now, found))


def judged_job(document: Document, settings: Sequence[str]) -> DDPJob:
    """The job that is tuned.

    Raises:
        RefusedJob: it is refused, or has no DDP settings that we set.
    """
    for path, value, flag in map(option, settings):
        document = document.with_value(path, value, flag)
    examined = examine(document)
    if examined.refused or examined.job is None:
        raise RefusedJob(sentences(document, examined.remarks, "run"))
    return examined.job


def measure(
    trial: Trial, caps: Sequence[int], now: Mapping[str, Any], rounds: int, out: Console
) -> dict[Setting, list[Measured]]:
    """Every setting once per round; the first run, as the file has it, says how large the gradients are."""
    first, gradient_bytes = trial.run({})
    settings = to_try(caps, (False, True), gradient_bytes=gradient_bytes, now=now)
    size = f"{gradient_bytes / (1 << 20):.3g} MiB of gradients, " if gradient_bytes else ""
    out.print(f"{size}{len(settings)} settings × {rounds} rounds of {trial.steps} steps", style="dim")
    found: dict[Setting, list[Measured]] = {setting: [] for setting in settings}
    for number in range(rounds):
        for setting in settings:
            early = number == 0 and setting == NOW
            measured = first if early else trial.run(setting.fields())[0]
            found[setting].append(measured)
            step = table.milliseconds(measured.step_seconds)
            out.print(f"round {number + 1}: {words(setting, now)}: {step} a step", style="dim")
    return found


def show(ranking: Sequence[Judged], choice: Judged | None, now: Mapping[str, Any], out: Console) -> None:
    """The table, and what follows from it."""
    rows = table.new_table("SETTING", ">STEP TIME", ">EXPOSED COMM", "AGAINST NOW")
    for one in ranking:
        against = (
            "" if one.setting == NOW else f"{100 * one.change:+.0f} %" if one.differs else "no difference"
        )
        style = "bold green" if one is choice else ""
        rows.add_row(
            words(one.setting, now),
            table.milliseconds(one.step_seconds),
            table.share(one.exposed),
            against,
            style=style,
        )
    out.print(rows)
    if choice is None:
        out.print("nothing is faster than what the file has by more than the noise; leave it as it is")
    else:
        out.print(
            Text(
                f"fastest: {words(choice.setting, now)}, {-100 * choice.change:.0f} % less time a step",
                "bold green",
            )
        )


def words(setting: Setting, now: Mapping[str, Any]) -> str:
    """`bucketCapMB 25, gradientAsBucketView true`."""
    fields = setting.fields()
    if not fields:
        kept = ", ".join(f"{key} {json.dumps(value)}" for key, value in now.items())
        return f"now ({kept or 'torch’s defaults'})"
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in fields.items())


def rewrite(file: Path, document: Document, setting: Setting) -> None:
    """Put the fields into the file.

    Raises:
        Unusable: it cannot be written.
    """
    try:
        text = file.read_text(encoding="utf-8")
        index = [node.start_mark.line for node, _ in load(text, str(file))].index(
            document.root.start_mark.line
        )
        for key, value in setting.fields().items():
            text = with_field(text, index, ("spec", "ddp", key), value)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{file}: cannot be written: {error.strerror}") from error


def numbers(
    ranking: Sequence[Judged],
    choice: Judged | None,
    now: Mapping[str, Any],
    found: Mapping[Setting, Sequence[Measured]],
) -> dict[str, Any]:
    """For programs."""
    return {
        "now": dict(now),
        "best": choice.setting.fields() if choice is not None else None,
        "settings": [
            {
                "setting": one.setting.fields(),
                "stepSeconds": one.step_seconds,
                "exposedCommunicationShare": one.exposed,
                "change": one.change,
                "differs": one.differs,
                "rounds": [measured.step_seconds for measured in found[one.setting]],
            }
            for one in ranking
        ],
    }


def whole_numbers(text: str) -> list[int]:
    """`1,5,25`.

    Raises:
        Unusable: something in it is no whole number from 1 on.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise Unusable(
            f"--buckets {text}: expected whole numbers from 1 on, with commas: --buckets {BUCKETS}"
        )
    return [int(part) for part in parts]
