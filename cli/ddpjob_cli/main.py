"""`ddpjob` (also `kubectl ddpjob`): the commands, their options, and the one place where errors become exit codes.

Must not: do a command's work; that is in the modules beside it.
"""

import asyncio
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from ddpjob_api.codec import Path as FieldPath
from ddpjob_api.rules import Verdict
from ddpjob_api.spec import Backend
from ddpjob_cli.commands.explain import explain
from ddpjob_cli.commands.logs import logs
from ddpjob_cli.commands.report import report
from ddpjob_cli.commands.submit import submit
from ddpjob_cli.commands.top import top
from ddpjob_cli.commands.tune import tune
from ddpjob_cli.document import jobs, one_job
from ddpjob_cli.errors import (
    BUG,
    KILLED,
    UNUSABLE,
    CommandError,
    Forbidden,
    OutputLost,
    RefusedJob,
    Unreachable,
    Unusable,
)
from ddpjob_cli.invocation import Invocation
from ddpjob_cli.lint import count, examine, sentences
from ddpjob_cli.options import option, settings_option
from ddpjob_cli.output import abandon, prepare, tell
from ddpjob_cli.version import versions

LINT_EXIT_CODES = """\b
Exit codes:
    0  fine, or warnings only
    1  refused (with --strict also: warned of)
    2  a file cannot be used: not there, not YAML, no DDPJob in it"""
RUN_EXIT_CODES = """\b
Exit codes:
    0  done
    2  the file, an option or the directory cannot be used
   85  stopped on request; saved where a checkpoint is configured
   86  refused: the configuration cannot work
   87  hung
  130  killed by a second Ctrl-C
  otherwise that of the rank to blame (128 + signal where it died of one)"""

FILE = click.argument("file", metavar="FILE")
FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """PyTorch DistributedDataParallel training from one resource.

    Shell completion: eval "$(_DDPJOB_COMPLETE=bash_source ddpjob)" (or zsh_source, fish_source).
    """


@cli.command(epilog=LINT_EXIT_CODES)
@FILES
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON list: file, line, field, verdict, rule, message."
)
@click.pass_context
def lint(context: click.Context, files: Sequence[str], *, strict: bool, as_json: bool) -> None:
    """Say what is wrong with each DDPJob in the files, with line and field; - reads standard input."""
    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    code = 0
    entries: list[dict[str, Any]] = []
    for file in files:
        try:
            remarks = [remark for document in jobs(file) for remark in examine(document).remarks]
        except Unusable as error:
            code = error.exit_code
            unusable = {"file": file, "line": None, "field": "", "verdict": "Unusable", "rule": "file"}
            entries.append({**unusable, "message": str(error)})
            if not as_json:
                console.print(str(error), style="red", markup=False)
            continue
        entries += [remark.json() for remark in remarks]
        bad = {Verdict.REFUSE, Verdict.WARN} if strict else {Verdict.REFUSE}
        if any(remark.verdict in bad for remark in remarks):
            code = max(code, 1)
        if not as_json:
            for remark in remarks:
                console.print(remark.text())
            console.print(f"{'<stdin>' if file == '-' else file}: {count(remarks)}", markup=False)
    if as_json:
        tell(entries, indent=1)
    context.exit(code)


@cli.command(epilog=RUN_EXIT_CODES)
@FILE
@click.option("--name", help="Which DDPJob, where the file has several.")
@click.option("--nodes", type=click.IntRange(min=1), help="Launchers to start instead of spec.nodes.")
@click.option("--processes-per-node", type=click.IntRange(min=1), help="Ranks per launcher.")
@click.option(
    "--backend",
    type=click.Choice([backend.value for backend in Backend], case_sensitive=False),
    help="Instead of spec.ddp.backend.",
)
@settings_option
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where checkpoints and state are kept.  [default: .ddpjob/NAME]",
)
@click.option("--fresh", is_flag=True, help="Start over; checkpoints of an earlier run are put aside.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON line on stdout at the end; the rest on stderr."
)
@click.pass_context
def run(
    context: click.Context,
    file: str,
    *,
    name: str | None,
    nodes: int | None,
    processes_per_node: int | None,
    backend: str | None,
    settings: Sequence[str],
    directory: Path | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Train the DDPJob of FILE on this machine: one launcher per node, all on loopback.

    Programs run in the folder of FILE. Ctrl-C saves at the next step and stops; the same command goes on from there.
    """
    # Imported here: `ddpjob lint` and shell completion answer at once.
    from ddpjob_cli.local.checks import check
    from ddpjob_cli.local.session import Request, Session
    from ddpjob_cli.local.view import View

    stream = sys.stderr if as_json else sys.stdout
    invocation: Invocation = context.obj
    invocation.job = name
    document = one_job(file, name)
    invocation.job = document.name
    given: list[tuple[FieldPath, object, str]] = [option(item) for item in settings]
    overrides: tuple[tuple[FieldPath, object, str], ...] = (
        (("spec", "nodes"), nodes, "--nodes"),
        (("spec", "processesPerNode"), processes_per_node, "--processes-per-node"),
        (("spec", "ddp", "backend"), backend, "--backend"),
    )
    given += [item for item in overrides if item[1] is not None]
    for path, value, flag in given:
        document = document.with_value(path, value, flag)
    examined = examine(document)
    if examined.refused or examined.job is None:
        raise RefusedJob(sentences(document, examined.remarks, "run"))
    work = Path.cwd() if file == "-" else Path(file).resolve().parent
    check(examined.job, work)
    session = Session(
        Request(
            job=examined.job,
            command=" ".join(["ddpjob", "run", *shell_words(invocation.arguments[1:])]),
            work=work,
            state=(directory or Path(".ddpjob") / examined.job.metadata.name).absolute(),
            fresh=fresh,
        )
    )
    with View(stream, title=examined.job.metadata.name, on_gone=session.lose_terminal) as view:
        for remark in examined.remarks:
            view.say(str(remark), "yellow" if remark.verdict is Verdict.WARN else "")
            view.warned.append(remark.message)
        summary = asyncio.run(session.run(view))
        *before, last = summary.lines()
        for line in before:
            view.say(line)
        view.end(last, good=summary.exit_code == 0)
    if as_json:
        invocation.tell(summary.json())
    context.exit(summary.exit_code)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def version(*, as_json: bool) -> None:
    """Versions of ddpjob, its protocol, Python and torch."""
    found = versions()
    if as_json:
        tell(found)
        return
    for key, value in found.items():
        click.echo(f"{key} {value if value is not None else 'not installed'}")


for command in (submit, explain, top, logs, report, tune):
    cli.add_command(command)


def shell_words(arguments: Sequence[str]) -> list[str]:
    """The command's arguments as they were typed, without --fresh: what to type to go on."""
    return [shlex.quote(word) for word in arguments if word != "--fresh"]


def main() -> NoReturn:
    """The entry point: every way out has an exit code of docs/command-line.md."""
    prepare()
    code = 0
    try:
        code = guarded(Invocation(arguments=sys.argv[1:]))
        sys.stdout.flush()
    except OutputLost as error:
        abandon()
        if words := str(error):
            click.echo(words, err=True)
        code = code or error.exit_code  # a run that was stopped for it has said so
    sys.exit(code)


def guarded(invocation: Invocation) -> int:
    """Run the command; what it raises becomes a sentence, an exit code and the line of `--json`."""
    try:
        code: int = cli.main(
            args=list(invocation.arguments), prog_name="ddpjob", standalone_mode=False, obj=invocation
        )
    except OutputLost:
        raise
    except CommandError as error:
        click.echo(str(error), err=True)
        return ending(invocation, outcome(error), error.exit_code, str(error))
    except click.ClickException as error:
        error.show()
        return ending(invocation, "Unusable", UNUSABLE, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return ending(invocation, "Killed", KILLED, "interrupted")
    except Exception as error:
        traceback.print_exc()
        text = "this is a bug in ddpjob; please report it with the lines above"
        click.echo(text, err=True)
        return ending(invocation, "Failed", BUG, f"a bug in ddpjob: {type(error).__name__}: {error}")
    return code


def outcome(error: CommandError) -> str:
    """The word of the line for what went wrong."""
    if isinstance(error, RefusedJob):
        return "Refused"
    return type(error).__name__ if isinstance(error, Unreachable | Forbidden) else "Unusable"


def ending(invocation: Invocation, outcome: str, code: int, message: str) -> int:
    """The exit code of what was not done, or not to its end; where a line is owed, it is printed."""
    if invocation.owe_line() and invocation.command == "submit":
        where = {"name": invocation.job, "namespace": invocation.namespace}
        invocation.tell({**where, "outcome": outcome, "message": message})
    elif invocation.owe_line():
        from ddpjob_cli.local.summary import not_run

        invocation.tell(not_run(invocation.job, outcome, code, message))
    return code
