"""What the rows that refuse come to: a device that is gone is a node's failure only where nothing else is refused."""

import pytest

from ddpjob_api.rules import OF_THE_NODE, Finding, Verdict
from ddpjob_trainer.errors import DeviceGone, Refused, TrainerError, refusal


def finding(rule: str, verdict: Verdict = Verdict.REFUSE) -> Finding:
    return Finding(rule=rule, verdict=verdict, path=("spec", rule), message="no")


GONE = finding(min(OF_THE_NODE))
WRONG = finding("wrong")
WARNED = finding("warned", Verdict.WARN)


@pytest.mark.parametrize(
    ("findings", "generation", "kind"),
    [
        ((), 2, None),
        ((WARNED,), 2, None),
        ((GONE, WARNED), 1, Refused),
        ((GONE, WARNED), 2, DeviceGone),
        ((WRONG,), 2, Refused),
        ((GONE, WRONG), 2, Refused),
    ],
)
def test_a_missing_device_is_the_nodes_only_after_a_restart_and_alone(
    findings: tuple[Finding, ...], generation: int, kind: type[TrainerError] | None
) -> None:
    assert type(refusal(findings, generation)) is (kind or type(None))


def test_all_that_is_refused_is_said() -> None:
    assert str(refusal((GONE, WRONG, WARNED), 2)) == f"spec.{GONE.rule}: no; spec.wrong: no"
