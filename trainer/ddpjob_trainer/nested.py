"""Ranks below a `command`, which no launcher of ours started: what bootstrap does for a script, from inside.

How it works: `injected/sitecustomize.py` calls `begin` in every Python below the command. A process is a rank when the
environment gives it RANK and LOCAL_RANK, the launcher made a page for that rank, no living process has claimed it, and
it is about to import torch; nothing below a rank is one. A launcher itself (torchrun, accelerate) is not: it only
leaves word of how its ranks ended, which its own exit code does not say.

A rank that stopped on request is half trained, and what a command runs after it (an evaluation, an export) must not
take it for a whole one: a launcher whose ranks stopped ends with 85, and a later rank or launcher of the generation at
once.

Must not: import torch, or else change how a program ends: what bootstrap does after a program (its exit code on the
page, no C++ destructors) is the interpreter's here.
"""

import atexit
import fcntl
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from ddpjob_api.exits import Exit
from ddpjob_api.names import WorkerEnv
from ddpjob_api.nested import nested
from ddpjob_api.page import LAUNCHERS_WORDS, SLOT_COUNT, Slot, WorkerState
from ddpjob_trainer import bootstrap, boundary, error_file, worker
from ddpjob_trainer.errors import Refused, TrainerError
from ddpjob_trainer.files import Files, agent_file, pages_of
from ddpjob_trainer.instrumentation import install
from ddpjob_trainer.instrumentation.imports import PostImport
from ddpjob_trainer.page import BadPage, Page


def begin() -> None:
    """Find out what this process is, and act on it. Called before any code of the program."""
    environ = os.environ
    run_dir = Path(environ[WorkerEnv.RANK_DIR])
    generation = int(environ.get(WorkerEnv.GENERATION, "0"))
    if WorkerEnv.WORKER_PID in environ:
        return
    if nested(sys.orig_argv) is not None:
        if any_stopped(run_dir, generation):
            leave(Exit.STOPPED, "torchrun or accelerate")
        told = agent_file(run_dir, generation)
        tell_ends(told)
        end_as_ranks(run_dir, generation, told)
        environ[WorkerEnv.AGENT_PID] = str(os.getpid())
        return
    rank = environ.get("RANK", "")
    if not rank.isdecimal() or not environ.get("LOCAL_RANK", "").isdecimal():
        return
    files = Files.of(run_dir, generation, int(rank))
    if files.page.exists():
        candidate = Candidate(files)
        sys.excepthook = candidate.excepthook
        sys.meta_path.insert(0, candidate)


class Candidate(MetaPathFinder):
    """A process that will be a rank when it imports torch; its own failure before that is the rank's."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._before = sys.excepthook
        self.running: worker.Worker | None = None
        self._claim: int | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        self.become_rank()
        # The finders that were there when this search began are no longer those that should see it.
        found = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path))
        return next((spec for spec in found if spec is not None), None)

    def become_rank(self) -> None:
        if not self.claimed():
            return
        if restarted(os.environ):
            # The command began with what was newest then; its ranks go on from what they have saved since.
            os.environ.pop(WorkerEnv.RESUME, None)
        os.environ[WorkerEnv.PAGE] = str(self._files.page)
        os.environ[WorkerEnv.STACKS_FILE] = str(self._files.stacks)
        self._files.error.unlink(missing_ok=True)
        self._files.stacks.unlink(missing_ok=True)
        try:
            running = worker.attach(os.environ)
        except (Refused, BadPage) as error:
            self.refuse(error)
        if running is None:
            return
        if os.environ.get(WorkerEnv.AGENT_PID) == str(os.getppid()):
            bootstrap.die_with_launcher()
            # torchrun kills the other ranks when one ends with an error, which 85 is to it.
            running.stop_code = 0
        if boundary.has_stopped(running.page):
            leave(running.stop_code, f"a program of rank {running.rank}")
        forget_predecessor(running.page)
        bootstrap.dump_stacks_on_signal()
        install(running)
        running.begin(os.environ)
        running.page[Slot.STATE] = WorkerState.RUNNING
        self.running = running
        atexit.register(self.finish)

    def claimed(self) -> bool:
        """Whether this process is the rank now; the lock goes with it, and its children do not have it."""
        descriptor = os.open(self._files.claim, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._claim = descriptor
        return True

    def finish(self) -> None:
        running = self.running
        if running is None or not running.live:
            return
        running.page[Slot.STATE] = WorkerState.EXITING
        try:
            running.finish()
        except Exception as error:
            running.say(f"the last facts of this rank are not on its page: {type(error).__name__}: {error}")

    def excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Leave the error for the launcher, then show it as the program would."""
        if isinstance(error, KeyboardInterrupt):
            self._before(kind, error, trace)
            return
        if error_file.refused(error):
            self.refuse(error)
        self.record(error)
        if isinstance(error, TrainerError):
            print(f"[ddpjob] {kind.__name__}: {error}", file=sys.stderr)
        elif self.running is not None and error_file.peer_gone(error):
            print(f"[ddpjob] ended with its peers: {error_file.line(error)}", file=sys.stderr)
        else:
            self._before(kind, error, trace)

    def refuse(self, error: BaseException) -> None:
        self.record(error)
        print(f"[ddpjob] refused: {error}", file=sys.stderr)
        bootstrap.flush()
        os._exit(Exit.REFUSED)

    def record(self, error: BaseException) -> None:
        """For the launcher, and for a torchrun above, which shows it in its table."""
        paths = {self._files.error}
        if os.environ.get(WorkerEnv.AGENT_PID) and "TORCHELASTIC_ERROR_FILE" in os.environ:
            paths.add(Path(os.environ["TORCHELASTIC_ERROR_FILE"]))
        for path in paths:
            try:
                error_file.write(path, error, self.running)
            except OSError as problem:
                print(f"[ddpjob] the error could not be written to {path}: {problem}", file=sys.stderr)


def restarted(environment: Mapping[str, str]) -> bool:
    """Whether a torchrun has ended all its ranks and begun them again; it tells all of them alike."""
    count = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return WorkerEnv.AGENT_PID in environment and count.isdecimal() and int(count) > 0


def forget_predecessor(page: Page) -> None:
    """Take away what an ended process of this rank has counted: torchrun may restart its ranks, a shell run another.

    Its steps would deny the new one the time that a start takes, and its phase would be the new one's. What it
    reported stays.
    """
    for index in range(SLOT_COUNT):
        if index not in LAUNCHERS_WORDS:
            page.slots[index] = 0.0


def any_stopped(run_dir: Path, generation: int) -> bool:
    """Whether a rank of this node has."""
    for path in pages_of(run_dir, generation):
        try:
            page = Page(path)
        except (BadPage, OSError):
            continue
        if boundary.has_stopped(page):
            return True
    return False


def leave(code: int, what: str) -> NoReturn:
    """End before the program begins: the training it follows has stopped half way."""
    worker.speak(f"the training has stopped on request: {what} that the command runs after it ends at once")
    bootstrap.flush()
    os._exit(code)


def end_as_ranks(run_dir: Path, generation: int, told: Path) -> None:
    """Have a nested launcher end with 85, not with 0, where its ranks stopped and none failed: `&&` goes on after 0."""
    owner = os.getpid()

    def end() -> None:
        raised = getattr(sys, "last_type", None) is not None
        if os.getpid() != owner or raised or json.loads(told.read_text()):
            return
        if any_stopped(run_dir, generation):
            bootstrap.flush()
            os._exit(Exit.STOPPED)

    atexit.register(end)  # the first to be registered is the last to be called


def tell_ends(path: Path) -> None:
    """Leave word, from inside a nested launcher, of every rank of this node that failed, the first one first."""
    path.write_text("[]")

    def patch(module: Any) -> None:
        failed = module.ChildFailedError
        original: Callable[..., None] = failed.__init__

        def __init__(self: Any, name: str, failures: Any) -> None:  # noqa: N807
            ends = sorted(failures.items(), key=lambda item: item[1].timestamp)
            told = [{"rank": rank, "exitCode": end.exitcode} for rank, end in ends]
            path.write_text(json.dumps(told))
            original(self, name, failures)

        failed.__init__ = __init__

    PostImport(lambda module, error: None).add("torch.distributed.elastic.multiprocessing.errors", patch)
