"""The directory of a local job: its lock, token, checkpoints, and what the last run left.

    <dir>/lock  state.json  last.json  ddpjob.yaml  token  run -> /dev/shm/…  checkpoints/ (with a claim)
    node-0/{checkpoints,log,log.before,history.jsonl}  node-1/…
    checkpoints of a run that finished, or that --fresh put aside: previous/

Why apart: whether a run goes on or starts anew is decided here, before any process starts. Must not: start or end
processes.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeGuard

import yaml

from ddpjob_api.codec import render
from ddpjob_api.plan import plan
from ddpjob_api.postmortem import FOLDER
from ddpjob_api.spec import DDPJob
from ddpjob_cli.errors import RefusedJob, Unusable
from ddpjob_cli.local.environment import NodePaths

STEP = re.compile(r"^step-(\d+)$")
"""Complete checkpoints of the loop, by name."""
SHARED_MEMORY = Path("/dev/shm")
LIVE = "live.json"
"""In the run folder: where the launchers of the run that goes on can be asked."""
LAST = "last.json"
"""How the last run ended."""
SPEC = "ddpjob.yaml"
"""The resource as it ran, options of the command included."""
HISTORY = "history.jsonl"
"""In a node's folder: its launcher's rows over time."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """How a run begins, and the sentence that says so."""

    sentence: str | None
    step: int | None = None
    """The newest checkpoint that any node has, in task mode."""


class JobDirectory:
    """A job's directory, locked while this object is entered."""

    def __init__(self, path: Path, job: DDPJob) -> None:
        self.path = path
        """Absolute: launchers have another working directory."""
        self.shown = shown(path)
        self.job = job
        self.nodes = plan(job.spec).nodes
        self.run = Path()
        """Set while entered."""
        self.lock_descriptor = -1
        """Launchers inherit it: the directory stays locked while one of them lives, whatever became of us."""

    def __enter__(self) -> Self:
        """Lock it.

        Raises:
            Unusable: it cannot be written, or another run has it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock_descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unusable(
                f"{self.shown}: cannot be written ({error.strerror}); choose another place with --dir"
            ) from error
        try:
            fcntl.flock(self.lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self.lock_descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self.lock_descriptor)
            raise Unusable(
                f"{self.shown}: another run of this job has it (ddpjob run, pid {owner or 'unknown'}); "
                "wait for it or end it, or give this one its own place with --dir"
            ) from error
        try:
            with self.in_words():
                os.ftruncate(self.lock_descriptor, 0)
                os.pwrite(self.lock_descriptor, f"{os.getpid()}\n".encode(), 0)
                self._make_run_directory()
        except Unusable:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.run != Path():
            shutil.rmtree(self.run, ignore_errors=True)
        for name in ("run", "token"):
            with contextlib.suppress(OSError):  # the directory went away, or became read-only
                (self.path / name).unlink(missing_ok=True)
        os.close(self.lock_descriptor)

    @contextlib.contextmanager
    def in_words(self) -> Iterator[None]:
        """What the file system refuses while a run is prepared, as a sentence.

        Raises:
            Unusable: instead of an OSError.
        """
        try:
            yield
        except OSError as error:
            name = error.filename2 or error.filename  # of two, the one that was to be made
            at = f"{shown(Path(os.fsdecode(name)))}: " if name else ""
            raise Unusable(
                f"{self.shown}: cannot be used ({at}{error.strerror}); "
                "make room or take away what is in the way, or choose another place with --dir"
            ) from error

    def begin(self, *, fresh: bool) -> Beginning:
        """Decide how this run begins, and put aside what it must not see.

        Raises:
            RefusedJob: an unfinished run left checkpoints of a job that this one is not.
        """
        state = self.state()
        kept = self.kept_checkpoints()
        if not kept or fresh or state.get("finished"):
            self._forget_history()
        if not kept:
            return Beginning(sentence=None)
        if fresh or state.get("finished"):
            self._put_aside()
            why = "the earlier run had finished" if state.get("finished") and not fresh else "starting over"
            return Beginning(sentence=f"{why}; its checkpoints are now in {self.shown}/previous")
        changed = differences(state.get("identity"), identity(self.job))
        if changed:
            raise RefusedJob(
                f"{self.shown}: an unfinished run with other settings left checkpoints here "
                f"({'; '.join(changed)}), and this one cannot go on from them; "
                "give the old settings, or start over with --fresh, or choose another place with --dir"
            )
        step = self.newest_step()
        if step is not None:
            return Beginning(sentence=f"resuming from step {step}; --fresh starts over", step=step)
        if self.job.spec.task is not None:
            return Beginning(
                sentence="no checkpoint of the earlier run is complete; the training begins anew"
            )
        return Beginning(
            sentence=f"the earlier run did not finish; the program finds what it saved in {shown(kept[0])}; "
            "--fresh starts over"
        )

    def state(self) -> dict[str, Any]:
        """What the last run wrote; empty where there is none, or nothing that can be read."""
        try:
            found = json.loads((self.path / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def started(self) -> int:
        """Note that a run of this job began; returns its number, which outranks every earlier one.

        It becomes the launchers' incarnation, and with it the coordinator's term: a checkpoint writer left over from
        a run whose processes could not be ended does not overwrite ours. Where `state.json` was lost, the term that
        stands beside the checkpoints is outranked all the same.

        Raises:
            OSError: it cannot be written down.
        """
        before = self.state().get("run")
        number = max(before if is_whole(before) else -1, self._newest_writer()) + 1
        self._write_state({"run": number, "finished": False, "identity": identity(self.job)})
        return number

    def note_live(self, ports: Sequence[int]) -> None:
        """Say where the launchers can be asked (`ddpjob top`); how an earlier run ended is no news any more.

        Raises:
            OSError: it cannot be written down.
        """
        (self.path / LAST).unlink(missing_ok=True)
        spec = yaml.safe_dump(render(self.job), sort_keys=False, allow_unicode=True)
        (self.path / SPEC).write_text(spec, encoding="utf-8")
        (self.run / LIVE).write_text(json.dumps({"name": self.job.metadata.name, "ports": list(ports)}))

    def note_end(self, summary: Mapping[str, Any]) -> None:
        """Keep how the run ended (`ddpjob explain`); a full disk must not fail it."""
        with contextlib.suppress(OSError):
            (self.path / LAST).write_text(json.dumps(summary) + "\n")

    def finished(self) -> None:
        """Note that the job is done: the next run starts anew."""
        self._write_state({**self.state(), "finished": True})

    def paths(self, node: int) -> NodePaths:
        """Where a node's files are; its folders exist afterwards."""
        own = self.path / f"node-{node}"
        paths = NodePaths(
            run=self.run / f"node-{node}",
            checkpoints=self.checkpoints(node),
            termination=self.run / f"termination-{node}.json",
            log=own / "log",
            history=own / HISTORY,
        )
        for folder in (own, paths.run, paths.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        turn_over(paths.log, own / "log.before")
        return paths

    def checkpoints(self, node: int) -> Path:
        """Its own, or one for all where the resource names a claim."""
        checkpoint = self.job.spec.checkpoint
        shared = checkpoint is not None and checkpoint.persistent_volume_claim is not None
        return self.path / "checkpoints" if shared else self.path / f"node-{node}" / "checkpoints"

    def new_token(self) -> bytes:
        """A token for one run, in a file that only the user can read."""
        token = secrets.token_hex(32).encode()
        file = self.path / "token"
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, token)
        finally:
            os.close(descriptor)
        return token

    def kept_checkpoints(self) -> list[Path]:
        """Folders in which something was saved, of any node."""
        folders = [self.path / "checkpoints", *sorted(self.path.glob("node-*/checkpoints"))]
        return [folder for folder in folders if folder.is_dir() and any(visible(folder))]

    def newest_step(self) -> int | None:
        """The newest step whose checkpoint any node has; the others get it from that one."""
        folders = {self.checkpoints(node) for node in range(self.nodes)}
        found = {
            int(match[1])
            for folder in folders
            if folder.is_dir()
            for entry in folder.iterdir()
            if (match := STEP.match(entry.name)) and is_complete(entry)
        }
        return max(found, default=None)

    def _newest_writer(self) -> int:
        """The run of the highest term that stands in the shared directory; -1 where none does."""
        try:
            return int((self.path / "checkpoints" / "term").read_text()) - 1
        except (OSError, ValueError):
            return -1

    def _forget_history(self) -> None:
        """Another training begins; one that goes on keeps what was recorded."""
        for file in self.path.glob(f"node-*/{HISTORY}"):
            file.unlink(missing_ok=True)
        for folder in self.path.glob(f"node-*/{FOLDER}"):
            shutil.rmtree(folder, ignore_errors=True)

    def _put_aside(self) -> None:
        aside = self.path / "previous"
        shutil.rmtree(aside, ignore_errors=True)
        for folder in self.kept_checkpoints():
            target = aside / folder.relative_to(self.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)

    def _write_state(self, state: dict[str, Any]) -> None:
        file = self.path / "state.json"
        beside = file.with_suffix(".tmp")
        beside.write_text(json.dumps(state, indent=1) + "\n")
        beside.replace(file)

    def _make_run_directory(self) -> None:
        """A new folder in memory, or in the job's directory where there is no memory file system.

        `run` points to it, so that what a killed run left in memory is found and removed here.
        """
        link = self.path / "run"
        if link.is_symlink():
            shutil.rmtree(link.readlink(), ignore_errors=True)
            link.unlink()
        usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
        self.run = Path(tempfile.mkdtemp(prefix="ddpjob-", dir=SHARED_MEMORY if usable else self.path))
        link.symlink_to(self.run)


def turn_over(log: Path, before: Path) -> None:
    """The log of the run before is kept once (`ddpjob logs --previous`), with the part that was turned over."""
    for suffix in (".1", ""):
        part = log.with_name(log.name + suffix)
        kept = before.with_name(before.name + suffix)
        kept.unlink(missing_ok=True)
        if part.is_dir():
            part.unlink()  # which the file system refuses in its words
        if part.exists():
            part.rename(kept)


def shown(path: Path) -> str:
    """Relative to where the user is, if below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def is_complete(checkpoint: Path) -> bool:
    """Whether every file that its manifest names has its size, as the launchers ask before they resume from it."""
    try:
        files = json.loads((checkpoint / "manifest.json").read_text())["files"]
        return all((checkpoint / name).stat().st_size == file["size_bytes"] for name, file in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def visible(folder: Path) -> list[Path]:
    """What was saved there, without fences and half-written files of ours."""
    return [
        entry for entry in folder.iterdir() if entry.name not in {"term", FOLDER} and ".tmp" not in entry.name
    ]


def identity(job: DDPJob) -> dict[str, str]:
    """What must be equal for a run to go on from another's checkpoints, as `field: value`."""
    spec = render(job.spec)
    claim = (spec.get("checkpoint") or {}).get("persistentVolumeClaim")
    task = spec.get("task") or {}
    kept = ("entrypoint", "params", "globalBatchSize", "seed")
    found = {
        # The position is counted in samples over all ranks, so a shared directory serves any number of nodes.
        "nodes": None if claim else plan(job.spec).nodes,
        "checkpoint.persistentVolumeClaim": claim,
        "script.args": (spec.get("script") or {}).get("args"),
        "command": spec.get("command"),
        **{f"task.{name}": task.get(name) for name in kept},
    }
    return {
        name: short(json.dumps(value, sort_keys=True)) for name, value in found.items() if value is not None
    }


def short(text: str) -> str:
    """Long values by their hash: they are compared, and shown only in a sentence."""
    return text if len(text) <= 80 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def differences(before: object, now: dict[str, str]) -> list[str]:
    """`task.seed was 0 and is 1`; empty where nothing is known of the earlier run."""
    if not isinstance(before, dict):
        return []
    names = sorted({*before, *now})
    return [
        f"{name} was {before.get(name, 'not given')} and is {now.get(name, 'not given')}"
        for name in names
        if before.get(name) != now.get(name)
    ]
