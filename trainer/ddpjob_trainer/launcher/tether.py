"""`tether.py COMMAND …`: become COMMAND, tied to the launcher's life.

Why apart: a `command` is no Python of ours that could ask for the parent-death signal itself, and it outlives a
killed launcher otherwise. The signal survives exec. Must not: import anything that is not needed for that.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGKILL)  # the launcher died before the tether was tied
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"ddpjob: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1:])
