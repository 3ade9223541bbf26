"""`kubectl_complete-ddpjob`: what `kubectl ddpjob <Tab>` offers.

Why apart: kubectl asks a program of this name and reads cobra's form, one choice a line and a directive at the end
(https://github.com/kubernetes/kubernetes/pull/105867); other shells ask `ddpjob` itself.
"""

import sys
from collections.abc import Iterator, Sequence

import click
from click.shell_completion import ShellComplete

from ddpjob_cli.main import cli

FILES, NO_FILES = ":0", ":4"
"""Directives: the shell adds names of files, or does not."""


def offered(words: Sequence[str]) -> Iterator[str]:
    """The lines for the last word, which may be empty."""
    *before, last = words or [""]
    directive = NO_FILES
    for item in ShellComplete(cli, {}, "ddpjob", "_DDPJOB_COMPLETE").get_completions(before, last):
        if item.type == "plain":
            yield f"{item.value}\t{item.help}" if item.help else str(item.value)
        else:
            directive = FILES
    yield directive


def main() -> None:
    """The entry point."""
    for line in offered(sys.argv[1:]):
        click.echo(line)
