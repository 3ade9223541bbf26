"""Each alert fires when its series say so, for as long as they do, and not on healthy ones: by Prometheus' own promtool."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.generating.alerts import RULES, alerts
from tests.lacking import program

ALERTS = {rule["alert"]: rule for rule in alerts()}
JOB = 'namespace="ml",ddpjob_dev_name="digits"'
POD = f'{JOB},pod="digits-0"'
NAMED = {"namespace": "ml", "ddpjob_dev_name": "digits"}


def failed(values: str) -> dict[str, str]:
    return {'ddpjob_operator_jobs_by_condition{condition="Failed",reason="ProgramFailed"}': values}


def counted(restarts: str, disruptions: str = "0x180", *, lives: str = "1x180") -> dict[str, str]:
    return {
        f"ddpjob_trainer_restarts_total{{{POD}}}": restarts,
        f"ddpjob_trainer_disruptions_total{{{POD}}}": disruptions,
        f'ddpjob_trainer_info{{{POD},rank="0"}}': lives,
    }


def spent(**phases: int) -> dict[str, str]:
    """Seconds of each minute by phase, on two ranks."""
    return {
        f'ddpjob_trainer_phase_seconds_total{{{POD},rank="{rank}",phase="{phase}"}}': f"0+{seconds}x180"
        for phase, seconds in phases.items()
        for rank in (0, 1)
    }


LEADS = {'ddpjob_operator_leader{namespace="ddpjob-system",pod="a"}': "1x180"}
HEALTHY = {
    **LEADS,
    **failed("3x180"),
    **counted("0x60 1x120"),
    **spent(forward=25, backward_compute=25, comm_exposed=8, data_wait=2),
    'ddpjob_operator_incidents_total{reason="NoProgress"}': "7x180",
    'ddpjob_operator_incidents_total{reason="ProgramFailed"}': "0+1x180",
    f"ddpjob_trainer_hung{{{POD}}}": "0x180",
    f'ddpjob_trainer_checkpoint_failing{{{POD},rank="0"}}': "0x180",
    "ddpjob_operator_stale_checkpoint_jobs": "0x180",
    "ddpjob_operator_queue_oldest_seconds": "0 3 0 12 0x176",
}
"""Three hours, a value a minute: jobs that failed long ago, one restart, hangs of last week."""


@dataclass(frozen=True)
class Case:
    """Series over time, and when the alert fires on them (in minutes)."""

    why: str
    alert: str
    series: dict[str, str]
    fires: list[int]
    silent: list[int]
    labels: dict[str, str] = field(default_factory=dict)
    summary: str = ""


OTHER = {
    "release (ServiceMonitor)": 'namespace="ddpjob-system",job=',
    "release (annotations)": 'namespace="ddpjob-system",job="kubernetes-pods",app_kubernetes_io_instance=',
    "cluster": 'namespace="ddpjob-system",job="ddpjob",cluster=',
}
"""What tells two operators' series apart, as the beginning of a selector."""
CASES = [
    Case(
        "a job fails", "DDPJobFailed", failed("0x20 1x160"), [21, 33], [19, 40],
        {"reason": "ProgramFailed"}, "A DDPJob has failed (ProgramFailed)",
    ),
    Case(
        "another fails while an old one is deleted", "DDPJobFailed", failed("2x20 1 1 2x160"), [24], [22, 45],
        {"reason": "ProgramFailed"}, "A DDPJob has failed (ProgramFailed)",
    ),
    Case("the operator comes back and finds old failures", "DDPJobFailed", failed("3x10 _x60 3x60"), [], [5, 40, 71, 80]),
    Case(
        "one operator takes over from another, and both are scraped for a minute", "DDPJobFailed",
        {
            'ddpjob_operator_jobs_by_condition{condition="Failed",reason="ProgramFailed",namespace="ddpjob-system",pod="a"}':
                "3x40 stale",
            'ddpjob_operator_jobs_by_condition{condition="Failed",reason="ProgramFailed",namespace="ddpjob-system",pod="b"}':
                "_x39 3x80",
        },
        [], [39, 40, 41, 60],
    ),
    *(
        Case(
            f"a job of one operator fails, and another operator, of another {which}, has more that failed",
            "DDPJobFailed",
            {
                f'ddpjob_operator_jobs_by_condition{{condition="Failed",reason="ProgramFailed",{labels}"a"}}': "5x180",
                f'ddpjob_operator_jobs_by_condition{{condition="Failed",reason="ProgramFailed",{labels}"b"}}':
                    "1x20 2x160",
            },
            [21, 33], [19, 40], {"reason": "ProgramFailed"}, "A DDPJob has failed (ProgramFailed)",
        )
        for which, labels in OTHER.items()
    ),
    Case(
        "a hang is seen by a scrape", "DDPJobHung", {f"ddpjob_trainer_hung{{{POD}}}": "0x10 1 0x160"}, [12, 25], [9, 30],
        NAMED, "A DDPJob hung (ml/digits)",
    ),
    Case(
        "a hang is over before a scrape", "DDPJobHung",
        {'ddpjob_operator_incidents_total{reason="NoProgress"}': "0x10 1x160"}, [12, 25], [9, 30],
        {}, "A DDPJob hung",
    ),
    Case(
        "three restarts within an hour", "DDPJobRestartingOften", counted("0x10 1x10 2x10 3x150"), [40, 65], [20, 31, 100],
        NAMED, "ml/digits began again 3 times within an hour",
    ),
    Case("two restarts", "DDPJobRestartingOften", counted("0x10 1x10 2x160"), [], [15, 30, 60, 100]),
    Case("many, but it has ended", "DDPJobRestartingOften", counted("0x5 1x5 2x5 3x5 4x5", lives="1x25"), [], [35, 50]),
    Case(
        "disruptions count too", "DDPJobRestartingOften", counted("0x10 1x170", "0x10 1x10 2x160"), [40], [15],
        NAMED, "ml/digits began again 3 times within an hour",
    ),
    Case(
        "a slow rank", "DDPJobStraggler", {f'ddpjob_trainer_straggler{{{POD},rank="3",cause="data_wait"}}': "_x10 1x20 _x90"},
        [17, 30], [12, 40], {**NAMED, "rank": "3", "cause": "data_wait"}, "Rank 3 of ml/digits makes the others wait (data_wait)",
    ),
    Case(
        "waiting for others", "DDPJobLowEfficiency", spent(forward=15, comm_exposed=30, data_wait=15), [31, 90], [10],
        NAMED, "ml/digits waits 75% of its time",
    ),
    Case("much checkpointing is no waiting", "DDPJobLowEfficiency", spent(forward=10, checkpoint=50), [], [60]),
    Case(
        "a full disk", "DDPJobCheckpointFailing", {f'ddpjob_trainer_checkpoint_failing{{{POD},rank="0"}}': "0x10 1x20 0x60"},
        [13, 30], [11, 33], NAMED, "ml/digits cannot save checkpoints",
    ),
    Case(
        "no checkpoint", "DDPJobNoCheckpoint", {"ddpjob_operator_stale_checkpoint_jobs": "0x10 2x60"}, [22], [15],
        {}, "2 DDPJobs have saved no checkpoint for long",
    ),
    Case(
        "one operator takes over from another, and both tell of two jobs", "DDPJobNoCheckpoint",
        {
            'ddpjob_operator_stale_checkpoint_jobs{namespace="ddpjob-system",pod="a"}': "2x40 stale",
            'ddpjob_operator_stale_checkpoint_jobs{namespace="ddpjob-system",pod="b"}': "_x39 2x80",
        },
        [39, 40, 41], [5], {}, "2 DDPJobs have saved no checkpoint for long",
    ),
    *(
        Case(
            f"no checkpoint of jobs of two operators, each of its own {which}", "DDPJobNoCheckpoint",
            {f'ddpjob_operator_stale_checkpoint_jobs{{{labels}"{name}"}}': "0x10 2x60" for name in "ab"},
            [22], [15], {}, "4 DDPJobs have saved no checkpoint for long",
        )
        for which, labels in OTHER.items()
    ),
    Case("no operator is scraped", "DDPJobOperatorDown", {}, [6, 60], [4], {}, "No DDPJob operator serves"),
    Case(
        "it stands by", "DDPJobOperatorDown", {'ddpjob_operator_leader{namespace="ddpjob-system",pod="a"}': "1x10 0x60"},
        [17], [10, 14], {}, "No DDPJob operator serves",
    ),
    Case(
        "another one takes over", "DDPJobOperatorDown",
        {
            'ddpjob_operator_leader{namespace="ddpjob-system",pod="a"}': "1x10 _x60",
            'ddpjob_operator_leader{namespace="ddpjob-system",pod="b"}': "0x12 1x60",
        },
        [], [5, 11, 16, 30],
    ),
    Case(
        "it is behind", "DDPJobOperatorBehind", {"ddpjob_operator_queue_oldest_seconds": "1x10 90x60"}, [17], [13],
        {}, "A DDPJob has waited 1m 30s for the operator",
    ),
]  # fmt: skip


def expected(case: Case) -> dict[str, Any]:
    rule = ALERTS[case.alert]
    return {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }


def group(series: dict[str, str], tests: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": tests,
    }


def promtool(*words: str) -> str:
    """What it says; the test fails where it finds fault."""
    binary = program("promtool", "Debian's package prometheus, which the cluster of `make test` brings")
    result = subprocess.run([binary, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tried(folder: Path, *groups: dict[str, Any]) -> None:
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [*groups]}, sort_keys=False
        )
    )
    promtool("test", "rules", str(file))


def test_prometheus_reads_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_promtool_nothing_is_tried_and_ci_fails(
    ci: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ends, match="promtool is not installed"):
        promtool("--version")


def test_each_alert_fires_on_what_it_is_for(tmp_path: Path) -> None:
    groups = []
    for case in CASES:
        tests = [(minute, [expected(case)]) for minute in case.fires]
        tests += [(minute, []) for minute in case.silent]
        groups.append(
            {
                "name": f"{case.alert}: {case.why}",
                **group(
                    case.series,
                    [
                        {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": found}
                        for minute, found in sorted(tests, key=lambda test: test[0])
                    ],
                ),
            }
        )
    tried(tmp_path, *groups)
    assert {case.alert for case in CASES if case.fires} == {*ALERTS}, "an alert that no case causes"


def test_no_alert_fires_on_healthy_jobs(tmp_path: Path) -> None:
    minutes = (1, 16, 30, 61, 90, 120, 180)
    tried(
        tmp_path,
        group(
            HEALTHY,
            [
                {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
                for minute in minutes
                for alert in ALERTS
            ],
        ),
    )
