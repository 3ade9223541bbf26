"""`python -m ddpjob_trainer.bootstrap train.py --epochs 3`: run a program as `python train.py --epochs 3` would.

How it works: the program's code is executed in a fresh `__main__` that stays in `sys.modules` for good (runpy would put
the old one back before threads and exit handlers run), with argv, `sys.path[0]`, `__file__` and `__spec__` of plain
Python. Before it, the instrumentation waits for torch to be imported. After it, what the interpreter does at its end is
done by hand, so that the exit code stands on the page before anything can abort: destructors of Gloo have been seen to
end a finished process with SIGABRT, and that is no failure of the training.

Must not: import torch, or leave a frame of ours in the traceback of an uncaught error. A program outside of a job runs
the same way.

Differs from plain Python: at the end, objects are not torn down one by one (open files are flushed); who prints the
stack of calls sees ours below the program's, and a traceback that the program prints itself has a frame of the
instrumentation where its call went through one; `-c` and `-m` are known, other options of the interpreter are refused
(set PYTHON… in `spec.env`).
"""

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from ddpjob_api.exits import Exit, exit_code
from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Slot, WorkerState
from ddpjob_trainer import boundary, error_file, instrumentation, worker
from ddpjob_trainer.errors import Refused, TrainerError
from ddpjob_trainer.instrumentation import frames
from ddpjob_trainer.page import BadPage

PR_SET_PDEATHSIG = 1
FLUSH_FAILED = 120
"""Python's exit code when standard output could not be flushed."""
STACKS_SIGNAL = signal.SIGRTMIN + 3
"""Asks for the stacks of all threads; SIGUSR1 and SIGUSR2 belong to Slurm and to frameworks."""
OURS = (__file__, os.path.join(os.path.dirname(instrumentation.__file__), ""), frames.FILE)
"""Where frames come from that a program's traceback has only because of us."""


def main(argv: list[str]) -> NoReturn:
    """Run the program in `argv` (what would follow `python`) and end the process as it ended."""
    restore_original_argv(argv)
    try:
        running = prepare()
    except (Refused, BadPage) as refusal:
        print(f"[ddpjob] refused: {refusal}", file=sys.stderr)
        record(refusal, None, Exit.REFUSED)
        os._exit(Exit.REFUSED)
    if running:
        running.page[Slot.STATE] = WorkerState.RUNNING
    error = outcome(run, argv)
    code, running = 0, still(running)
    if isinstance(error, SystemExit):
        code = code_of(error)
        refused = error_file.refused(error)
        if code:
            record(error, running, Exit.REFUSED if refused else code)
        if refused:
            code = Exit.REFUSED
    elif error is not None:
        code = failed(error, running)
    finish(code, running, interrupted=isinstance(error, KeyboardInterrupt))


def outcome(call: Callable[..., object], *args: object) -> BaseException | None:
    """What a call raised. It is not being handled when this returns: hooks must not find it where they look for that."""
    try:
        call(*args)
    except BaseException as error:
        return error
    return None


def still(running: worker.Worker | None) -> worker.Worker | None:
    """The rank that this process is; a child that the program forked gets here too and is none."""
    return running if running is not None and running.live else None


def restore_original_argv(argv: list[str]) -> None:
    """`sys.orig_argv` as without us, for programs that start themselves again."""
    given = sys.orig_argv
    if "-m" in given:
        sys.orig_argv = [*given[: given.index("-m")], *argv]


def prepare() -> worker.Worker | None:
    """Become a rank, where the environment says so.

    Raises:
        Refused, BadPage: as `worker.attach`.
    """
    running = worker.attach(os.environ)
    if running is None:
        return None
    die_with_launcher()
    instrumentation.install(running)
    warm = WorkerEnv.STANDBY in os.environ
    if warm:
        from ddpjob_trainer import standby

        standby.wait()
    dump_stacks_on_signal()
    running.begin(os.environ, warm=warm)
    return running


def die_with_launcher() -> None:
    """SIGKILL to this process when its launcher is killed: outside of a pod nothing else would end it."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def dump_stacks_on_signal() -> None:
    """Stacks of all threads go to the launcher's file; this works while the main thread waits in a collective."""
    path = os.environ.get(WorkerEnv.STACKS_FILE)
    if path:
        import faulthandler

        # Open for the life of the process: the handler writes to its descriptor.
        stacks = open(path, "a")  # noqa: SIM115
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
        # And on SIGSEGV, SIGABRT …, which leave no other trace; a program that enables its own takes this over.
        if not faulthandler.is_enabled():
            faulthandler.enable(file=stacks, all_threads=True)


def run(argv: list[str]) -> None:
    """Execute the program as `__main__`."""
    if not argv:
        raise Refused(
            "spec.script.args: empty; give what would follow `python`, e.g. [train.py, --epochs, '3']"
        )
    program = types.ModuleType("__main__")
    program.__dict__["__builtins__"] = builtins
    if "__annotations__" in sys.modules["__main__"].__dict__:
        program.__annotations__ = {}
    sys.modules["__main__"] = program
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = program  # multiprocessing was imported ahead, by a standby
    if argv[0] == "-m":
        run_module(argv)
    elif argv[0] == "-c":
        run_text(argv, program)
    elif argv[0].startswith("-"):
        raise Refused(
            f"spec.script.args: {argv[0]} is an option of the interpreter; begin with the script, -m or -c, and set "
            "options by their variables (PYTHONUNBUFFERED, PYTHONWARNINGS, …) in spec.env"
        )
    elif pkgutil.get_importer(argv[0]) is not None:
        run_folder(argv)
    else:
        run_file(argv, program)


def run_module(argv: list[str]) -> None:
    if len(argv) < 2:
        raise Refused("spec.script.args: a module's name must follow -m")
    sys.argv = ["-m", *argv[2:]]
    set_first_path(os.getcwd())
    run_as_main(argv[1], alter_argv=True)


def run_folder(argv: list[str]) -> None:
    """A directory or zip file with a `__main__.py`."""
    sys.argv = list(argv)
    set_first_path(os.path.abspath(argv[0]))
    run_as_main("__main__", alter_argv=False)


def run_as_main(name: str, *, alter_argv: bool) -> None:
    # What the interpreter itself calls for -m.
    run_module_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    run_module_as_main(name, alter_argv)


def run_text(argv: list[str], program: types.ModuleType) -> None:
    if len(argv) < 2:
        raise Refused("spec.script.args: a program must follow -c")
    sys.argv = ["-c", *argv[2:]]
    set_first_path("")
    program.__spec__ = None
    exec(compile(argv[1], "<string>", "exec", dont_inherit=True), program.__dict__)


def run_file(argv: list[str], program: types.ModuleType) -> None:
    path = os.path.abspath(argv[0])
    sys.argv = list(argv)
    set_first_path(os.path.dirname(os.path.realpath(argv[0])))
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    program.__file__ = path
    program.__spec__ = None
    program.__dict__["__cached__"] = None
    program.__loader__ = SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), program.__dict__)


def set_first_path(folder: str) -> None:
    """Replace what `-m ddpjob_trainer.bootstrap` put there; with -P Python puts nothing there."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def code_of(error: SystemExit) -> int:
    """What `sys.exit(value)` means."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def failed(error: BaseException, running: worker.Worker | None) -> int:
    """Show an uncaught exception as Python does, without our frames, and leave it for the launcher."""
    for each in error_file.related(error):
        each.__traceback__ = without_own_frames(each.__traceback__)
    code = code_after(error)
    record(error, running, code)
    if isinstance(error, Refused):
        print(f"[ddpjob] refused: {error}", file=sys.stderr)
        return code
    if isinstance(error, TrainerError):
        # It says all there is to know; where our loop found it helps nobody.
        print(f"[ddpjob] {type(error).__name__}: {error}", file=sys.stderr)
        return code
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if (
        running
        and error_file.peer_gone(error)
        and getattr(getattr(sys, "excepthook", None), "__module__", None) in PRINTING_HOOKS
    ):
        # After the culprit's traceback one of every other rank would bury it; the error file has it.
        print(f"[ddpjob] ended with its peers: {error_file.line(error)}", file=sys.stderr)
    else:
        asked = show(error)
        if asked is not None:
            return asked
    return code


def code_after(error: BaseException) -> int:
    """What a process ends with after an uncaught exception."""
    if isinstance(error, KeyboardInterrupt):
        return exit_code(-signal.SIGINT)
    return Exit.REFUSED if error_file.refused(error) else 1


PRINTING_HOOKS = frozenset({"sys", "torch.distributed.distributed_c10d"})
"""Where exception hooks come from that only print; a program's own is always called."""


def show(error: BaseException) -> int | None:
    """Call the exception hook as the interpreter does; an exit code where the hook itself asks for one."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        print("sys.excepthook is missing", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
        return None
    other = outcome(hook, type(error), error, error.__traceback__)
    if isinstance(other, SystemExit):
        return code_of(other)
    if other is not None:
        for each in error_file.related(other):
            each.__traceback__ = without_own_frames(each.__traceback__)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(other), other, other.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return None


def without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback as it would be without us."""
    kept: list[types.TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            kept.append(trace)
        trace = trace.tb_next
    for each, following in zip(kept, [*kept[1:], None], strict=False):
        each.tb_next = following
    return kept[0] if kept else None


def record(error: BaseException, running: worker.Worker | None, code: int) -> None:
    """Leave the last words for the launcher; nobody asks for those of a child."""
    if running is not None:
        path = running.error_file
    else:
        given = os.environ.get("TORCHELASTIC_ERROR_FILE")
        own = os.environ.get(WorkerEnv.WORKER_PID, str(os.getpid())) == str(os.getpid())
        path = Path(given) if given and own else None
    if path is None:
        return
    try:
        at = error_file.write(path, error, running, code=code)
    except Exception as problem:
        worker.speak(f"the error could not be written to {path}: {type(problem).__name__}: {problem}")
    else:
        if running is not None:
            running.page[Slot.ERROR_AT] = at


def finish(code: int, running: worker.Worker | None, *, interrupted: bool) -> NoReturn:
    """What the interpreter does at its end, then out, without C++ destructors."""
    if running:
        code = code_where_stopped(code, running)
        running.page[Slot.EXIT_CODE] = code & 0xFF
        if code and not running.page[Slot.ERROR_AT]:
            running.page[Slot.ERROR_AT] = time.monotonic()  # there is no file: it could not be written
        running.page[Slot.STATE] = WorkerState.EXITING
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with unraisable_without_us():
            error = outcome(step)
        if error is not None:
            show(error)
    if running and running.live:
        try:
            running.finish()
        except Exception as error:
            running.say(f"the last facts of this rank are not on its page: {type(error).__name__}: {error}")
    if running:
        code = code_where_stopped(code, running)  # a thread may have trained until now
    if not flush():
        code = FLUSH_FAILED
    if running:
        running.page[Slot.EXIT_CODE] = code & 0xFF
        running.page[Slot.STATE] = WorkerState.FINISHED
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def code_where_stopped(code: int, running: worker.Worker) -> int:
    """A training that stopped on request is not done, also where the program caught the stop or a thread ended by it."""
    if code or not boundary.has_stopped(running.page):
        return code
    running.say(
        "the training stopped on request, and the program went on to its end: the job counts as stopped"
    )
    return running.stop_code


@contextlib.contextmanager
def unraisable_without_us() -> Iterator[None]:
    """What an exit handler raises is shown without our frame, which is below all of them."""
    hook = sys.unraisablehook

    def trimmed(found: Any) -> None:
        trace = without_own_frames(found.exc_traceback)
        hook(type(found)((found.exc_type, found.exc_value, trace, found.err_msg, found.object)))

    sys.unraisablehook = trimmed
    yield
    sys.unraisablehook = hook


def flush() -> bool:
    """Write out what is buffered, in standard streams and in files the program left open; False as Python counts it."""
    good = True
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name, None)
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            good = False
            if name == "stdout":
                with contextlib.suppress(Exception):
                    print(
                        f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr
                    )
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for each in [each for each in gc.get_objects() if type(each) in kinds]:
        try:
            if not each.closed:
                each.flush()
        except Exception:
            continue  # closed below its buffer; Python's own teardown says nothing about it either
    return good


if __name__ == "__main__":
    # As a module of its own name: this __main__ is about to be replaced.
    importlib.import_module("ddpjob_trainer.bootstrap").main(sys.argv[1:])
