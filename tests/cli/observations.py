"""Observations of jobs, for the tests of what `ddpjob explain` finds in them."""

from dataclasses import replace

from ddpjob_api.codec import parse_spec
from ddpjob_api.report import Failure
from ddpjob_cli.explain.finding import Weight
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import ConditionSeen, Observation
from ddpjob_cli.ranks import Pace, Rank

SPEC = parse_spec({"nodes": 2, "script": {"args": ["train.py"]}})
BASE = Observation(name="digits", place="namespace default", spec=SPEC, nodes=2, now=1000.0)


def conditions(**given: tuple[str, str, str]) -> dict[str, ConditionSeen]:
    return {k: ConditionSeen(status=s, reason=r, message=m) for k, (s, r, m) in given.items()}


def not_ready(reason: str, message: str) -> Observation:
    return replace(BASE, conditions=conditions(PodsReady=("False", reason, message)))


def failed(reason: str, message: str, failure: Failure | None = None) -> Observation:
    return replace(BASE, conditions=conditions(Failed=("True", reason, message)), last_failure=failure)


RUNNING = replace(
    BASE,
    state="Running",
    conditions=conditions(
        PodsReady=("True", "AllPodsReady", ""),
        RendezvousReady=("True", "AllRanksJoined", ""),
        Running=("True", "Training", ""),
    ),
    step=40,
    total_steps=100,
    samples_per_second=640.0,
    eta_seconds=12.0,
)


def rank(number: int, *, last: float = 999.0, phase: str = "forward", **phases: float) -> Rank:
    """Twenty steps of a tenth of a second each, unless the phases take longer."""
    seconds = max(2.0, sum(phases.values()))
    pace = Pace(steps=20, seconds=seconds, phases=phases, samples=320)
    return Rank(
        rank=number, node=number, pod=f"digits-{number}", host=f"node-{number}", step=40, phase=phase,
        last_step_at=last, pace=pace, usual=pace,
    )  # fmt: skip


def first_is(seen: Observation, weight: Weight, what: str, do: str) -> None:
    """The first finding has this weight and these words, and nothing is said to be well that is not."""
    found = findings(seen)
    assert (found[0].weight, what in found[0].what, do in found[0].do) == (weight, True, True), found[0]
    assert [finding.weight for finding in found] == sorted(finding.weight for finding in found)
    smooth = any("nothing is in its way" in finding.what for finding in found)
    assert not smooth or weight is Weight.FINE, found
