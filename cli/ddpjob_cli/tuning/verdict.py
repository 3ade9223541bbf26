"""What measurements of several settings, in several rounds, allow to say.

Why apart: pure; noise is dealt with here and nowhere else. Must not: run anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob_cli.ranks import median

LEAST_PART = 0.02
"""A difference below this part of the step is none, whatever the rounds say."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is tried; None leaves a field as the file has it."""

    bucket_cap_mb: int | None = None
    gradient_as_bucket_view: bool | None = None

    def fields(self) -> dict[str, Any]:
        """By the resource's names, those that are given."""
        found = {"bucketCapMB": self.bucket_cap_mb, "gradientAsBucketView": self.gradient_as_bucket_view}
        return {name: value for name, value in found.items() if value is not None}


NOW = Setting()
"""As the file has it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One short run."""

    step_seconds: float
    exposed: float | None
    """Part of the time that waits for gradients, 0 … 1."""
    steps: float


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One setting over all rounds."""

    setting: Setting
    step_seconds: float
    """Median of the rounds."""
    exposed: float | None
    change: float
    """Median over the rounds of its step time against that of `NOW` in the same round: -0.1 is a tenth less."""
    differs: bool
    """In every round to the same side, and by more than the noise."""


def judge(rounds: Mapping[Setting, Sequence[Measured]]) -> list[Judged]:
    """The settings, shortest step first. Rounds are compared one by one, for a busy machine slows all that is in one."""
    base = rounds[NOW]
    ratios = {
        setting: [one.step_seconds / now.step_seconds for one, now in zip(found, base, strict=True)]
        for setting, found in rounds.items()
    }
    limit = max(LEAST_PART, noise([values for setting, values in ratios.items() if setting != NOW]))
    judged = []
    for setting, found in rounds.items():
        change = median(ratios[setting]) - 1
        one_side = all(value < 1 for value in ratios[setting]) or all(value > 1 for value in ratios[setting])
        exposed = [one.exposed for one in found if one.exposed is not None]
        judged.append(
            Judged(
                setting=setting,
                step_seconds=median([one.step_seconds for one in found]),
                exposed=median(exposed) if exposed else None,
                change=change,
                differs=setting != NOW and one_side and abs(change) > limit,
            )
        )
    return sorted(judged, key=lambda one: one.change)


def noise(ratios: Sequence[Sequence[float]]) -> float:
    """Half of how far the rounds of one setting lie apart, usually."""
    return median([(max(values) - min(values)) / 2 for values in ratios]) if ratios else 0.0


def best(judged: Sequence[Judged]) -> Judged | None:
    """The one to take; None where nothing is shorter than what the file has."""
    faster = [one for one in judged if one.differs and one.change < 0]
    return faster[0] if faster else None


def to_try(
    caps: Sequence[int], views: Sequence[bool], *, gradient_bytes: int | None, now: Mapping[str, Any]
) -> list[Setting]:
    """What is worth a run: of buckets that hold all gradients, where it is known what these are, the smallest; nothing twice."""
    mib = math.inf if gradient_bytes is None else gradient_bytes / (1 << 20)
    enough = [cap for cap in sorted(caps) if cap >= mib]
    useful = [cap for cap in sorted(set(caps)) if cap < mib or cap == enough[0]]
    found = [Setting(bucket_cap_mb=cap, gradient_as_bucket_view=view) for cap in useful for view in views]
    return [NOW, *(setting for setting in found if setting.fields() != dict(now))]
