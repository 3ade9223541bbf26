"""`tether.py COMMAND …`: become COMMAND, tied to the launcher's life, with what it may go on from in `DDPJOB_RESUME`.

Why apart: a `command` is no Python of ours that could ask for the parent-death signal itself, and it outlives a
killed launcher otherwise. The signal survives exec. The launcher itself must not wait for a volume to find a checkpoint.
Must not: import anything before it is tied, or fail for the sake of a checkpoint.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main(command: list[str]) -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGKILL)  # the launcher died before the tether was tied
    offer_checkpoint()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"ddpjob: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def offer_checkpoint() -> None:
    directory = os.environ.get("DDPJOB_CHECKPOINT_DIR")
    if not directory:
        return
    try:
        sys.path.insert(0, PACKAGES)
        from pathlib import Path

        from ddpjob_trainer.script_checkpoints import offer

        found = offer(Path(directory), say if os.environ.get("GROUP_RANK") == "0" else None)
    except Exception as error:
        say(f"the command begins without DDPJOB_RESUME: {type(error).__name__}: {error}")
    else:
        os.environ["DDPJOB_RESUME"] = found


def say(message: str) -> None:
    print(f"[ddpjob] {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
