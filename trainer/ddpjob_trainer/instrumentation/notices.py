"""What the user should know about the settings: overrides and warnings, each said once.

Why apart: log line, counter on the page and `InEffect` must never disagree. Must not: judge.
"""

from collections.abc import Callable

from ddpjob_api.page import Slot
from ddpjob_api.report import Override
from ddpjob_trainer.worker import Worker

MAX_KEPT = 16
MAX_WARNING = 512


class Notices:
    """The overrides and warnings of this process so far."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.overrides: list[Override] = []
        self.warnings: list[str] = []
        self.begins_anew: str | None = None
        """Why the program does not go on from a checkpoint, where it should."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each new one."""

    def override(self, *, setting: str, asked: str, resource: str, where: str, applied: bool) -> None:
        """The script asked for a value other than the resource's."""
        found = Override(
            setting=setting,
            asked=asked[:128],
            effective=(resource if applied else asked)[:128],
            where=where[-512:],
            applied=applied,
        )
        if found in self.overrides or len(self.overrides) == MAX_KEPT:
            return
        self.overrides.append(found)
        self._worker.page[Slot.OVERRIDES] = len(self.overrides)
        kept = "" if applied else ", kept the script's (overrides: Report)"
        self._worker.say(f"override {setting}: script {asked}, resource {resource}{kept} ({where})")
        self.changed()

    def not_resuming(self, sentence: str) -> None:
        """A later generation began at step 0."""
        self.begins_anew = sentence[:MAX_WARNING]
        self.warn(f"not resuming: {sentence}")

    def warn(self, sentence: str) -> None:
        """A setting that works and costs something, or has no effect."""
        sentence = sentence[:MAX_WARNING]
        if sentence in self.warnings or len(self.warnings) == MAX_KEPT:
            return
        self.warnings.append(sentence)
        self._worker.page[Slot.WARNINGS] = len(self.warnings)
        self._worker.say(f"warning: {sentence}")
        self.changed()

    def withdraw(self, sentence: str) -> None:
        """What was warned of does not hold any more."""
        sentence = sentence[:MAX_WARNING]
        if sentence in self.warnings:
            self.warnings.remove(sentence)
            self._worker.page[Slot.WARNINGS] = len(self.warnings)
            self._worker.say(f"does not hold any more: {sentence}")
            self.changed()
