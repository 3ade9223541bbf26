"""`python -m ddpjob_trainer.launcher`: the main process of a pod.

Why apart: the way out. Whatever happens, the termination message is written, the output is flushed, and the exit code
is the message's. Must not: hold any logic of the job (`node.py`).
"""

import os
import signal

if __name__ == "__main__":
    # The kernel drops signals that a PID 1 has no handler for (a template may take the shared process namespace back):
    # a pod deleted while the imports below run, tenths of a second, would stay for its whole grace period. Nothing has
    # begun, so there is nothing to save.
    for early in (signal.SIGTERM, signal.SIGINT):
        signal.signal(early, lambda *_: os._exit(85))

import asyncio
import sys
import traceback
from pathlib import Path

from ddpjob_api.exits import Exit
from ddpjob_api.messages import PROTOCOL
from ddpjob_api.report import Outcome, TerminationMessage
from ddpjob_trainer.launcher import termination
from ddpjob_trainer.launcher.config import Config, Unusable, read, termination_log
from ddpjob_trainer.launcher.node import CannotStart, Launcher
from ddpjob_trainer.launcher.output import Sink
from ddpjob_trainer.launcher.surroundings import usable


def main() -> int:
    """Run the launcher; returns its exit code."""
    path = termination_log(os.environ)
    try:
        config = read(os.environ)
    except Unusable as error:
        return leave(path, last_words(Outcome.REFUSED, Exit.REFUSED, str(error), config=None))
    if config.on_cluster:
        make_usable()
    try:
        message = asyncio.run(launch(config))
    except CannotStart as error:
        message = last_words(Outcome.FAILED, 1, str(error), config=config)
    except Exception as error:
        traceback.print_exc()
        text = f"the launcher itself failed, which is a bug: {type(error).__name__}: {error}"
        message = last_words(Outcome.FAILED, 1, text, config=config)
    else:
        termination.write(path, message, complain)
        return message.exit_code
    return leave(path, message)


def make_usable() -> None:
    """HOME, caches and a name for the user, where the image has none that can be used (`surroundings.py`)."""
    changed = usable(os.environ)
    unusable = [f"{name}={os.environ[name]}" for name in changed if name in os.environ]
    if unusable:
        complain(f"uid {os.getuid()} cannot write {', '.join(unusable)}: folders in /tmp are used instead")
    os.environ.update(changed)


async def launch(config: Config) -> TerminationMessage:
    sink = Sink(asyncio.get_running_loop())
    try:
        return await Launcher(config, sink).run()
    finally:
        sink.flush()


def last_words(outcome: Outcome, code: int, text: str, *, config: Config | None) -> TerminationMessage:
    return TerminationMessage(
        protocol=PROTOCOL,
        outcome=outcome,
        exit_code=int(code),
        node=config.node if config is not None else 0,
        term=0,
        generation=config.generation if config is not None else 0,
        restarts=config.restarts if config is not None else 0,
        disruptions=config.disruptions if config is not None else 0,
        message=termination.clip(text, 1024),
    )


def leave(path: Path, message: TerminationMessage) -> int:
    """Say why, leave the message."""
    complain(message.message)
    termination.write(path, message, complain)
    return message.exit_code


def complain(text: str) -> None:
    print(f"[ddpjob] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
