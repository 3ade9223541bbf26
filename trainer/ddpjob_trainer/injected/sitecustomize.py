"""Found on PYTHONPATH by every Python below a `command`; makes those that are ranks of the job known to it.

Must not: fail or delay a program that is none, hide the `sitecustomize` that would be found without us, or need more
than any Python 3 at its import.
"""

import os
import sys


def without_us() -> "list[str]":
    """The folders of sys.path, without this file's."""
    own = os.path.dirname(os.path.abspath(__file__))
    return [folder for folder in sys.path if os.path.abspath(folder) != own]


def run_the_other() -> None:
    """Import the `sitecustomize` that this one stands before, in its place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def begin() -> None:
    if "DDPJOB_RANK_DIR" not in os.environ:
        return
    first_rank = os.environ.get("LOCAL_RANK") == "0" and "DDPJOB_WORKER_PID" not in os.environ
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - this may be another Python than ours
            raise ImportError("Python %d.%d is older than 3.11" % sys.version_info[:2])  # noqa: UP031
        from ddpjob_trainer import nested
    except ImportError as error:
        if first_rank:
            told = "[ddpjob] %s: not instrumented (%s): settings and steps are not seen here\n"
            sys.stderr.write(told % (sys.executable, error))
        return
    nested.begin()


sys.path[:] = without_us()
try:
    run_the_other()
finally:
    begin()
