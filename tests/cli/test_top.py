"""`ddpjob top`: two answers of a launcher are a rate, and a table says where the time goes."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.jobs import inside, write
from tests.cli.running import Running
from tests.trainer.launcher.conftest import PROGRAM

from ddpjob_api.efficiency import Efficiency
from ddpjob_cli import ranks
from ddpjob_cli.cluster.observe import observation
from ddpjob_cli.errors import Unreachable
from ddpjob_cli.explain.observation import Observation
from ddpjob_cli.ranks import Place, parse
from ddpjob_cli.scraping import Scraper
from ddpjob_cli.table import Overview, RanksView


def metrics(steps: int, *, data: float, comm: float, rank: int = 3) -> str:
    """What a launcher serves for one rank whose steps take 0.1 s."""
    r = f'rank="{rank}"'
    return f"""# HELP ddpjob_trainer_step …
ddpjob_trainer_step{{{r}}} {steps + 5}
ddpjob_trainer_state{{{r},state="data"}} 1
ddpjob_trainer_state{{{r},state="forward"}} 0
ddpjob_trainer_optimizer_steps_total{{{r}}} {steps}
ddpjob_trainer_step_seconds_total{{{r}}} {steps * 0.1}
ddpjob_trainer_samples_total{{{r}}} {32 * steps}
ddpjob_trainer_phase_seconds_total{{{r},phase="data_wait"}} {data}
ddpjob_trainer_phase_seconds_total{{{r},phase="backward_compute"}} {steps * 0.05}
ddpjob_trainer_phase_seconds_total{{{r},phase="comm_exposed"}} {comm / 2}
ddpjob_trainer_loss{{{r}}} 0.25
ddpjob_trainer_last_step_timestamp_seconds{{{r}}} {time.time()}
other_metric 7
broken line
"""


PACES: list[tuple[str, str, str, tuple[float, float, float]]] = [
    # first and last answer; step seconds, data share, exposed share
    ("between two answers", metrics(10, data=0.9, comm=0.1), metrics(20, data=1.0, comm=0.5), (0.1, 0.1, 0.2)),
    ("no step between: since the start", metrics(20, data=1.0, comm=0.4), metrics(20, data=1.0, comm=0.4), (0.1, 0.5, 0.1)),
    ("the pod is another: its own start", metrics(90, data=1.0, comm=0.4), metrics(20, data=1.0, comm=0.4), (0.1, 0.5, 0.1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "wanted"), [case[1:] for case in PACES], ids=[case[0] for case in PACES]
)
def test_a_pace_is_of_the_time_between(first: str, last: str, wanted: tuple[float, float, float]) -> None:
    place = Place(node=1, pod="digits-1", host="n", scrapes=(parse(first, 0.0), parse(last, 1.0)))
    (rank,) = ranks.ranks([place])
    assert (rank.rank, rank.node, rank.step, rank.phase, rank.loss) == (3, 1, 25, "data", 0.25)
    assert rank.pace is not None
    assert (rank.pace.step_seconds, rank.pace.share("data_wait"), rank.pace.exposed) == pytest.approx(wanted)


def test_a_launcher_that_does_not_answer_is_said_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob_cli.scraping.FIRST_SECONDS", 0.01)
    answers: list[str | None] = [
        metrics(10, data=0.1, comm=0.1),
        metrics(12, data=0.1, comm=0.1),
        None,
        "",
        "",
        "",
    ]

    def fetch(place: Place) -> str:
        answer = answers.pop(0)
        if answer is None:
            raise Unreachable("gone")
        return answer

    scraper = Scraper(fetch)
    assert len(scraper.look([Place(node=0, pod="a")])[0].scrapes) == 2
    assert scraper.look([Place(node=0, pod="a")])[0].problem == "gone"
    assert scraper.look([Place(node=0, pod="a")])[0].problem == ""


JOB = {
    "metadata": {"name": "digits", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"nodes": 2, "script": {"args": ["a.py"]}},
    "status": {
        "state": "Running",
        "nodes": {"desired": 2, "ready": 2},
        "restarts": 1,
        "disruptions": 2,
        "goodputPercent": 93.4,
        "time": {"usefulSeconds": 93, "queueingSeconds": 0, "restartSeconds": 7},
        "progress": {
            "step": 41,
            "totalSteps": 180,
            "loss": 0.4123,
            "samplesPerSecond": 1234.5,
            "etaSeconds": 75,
        },
        "somethingNewer": {"a": 1},
    },
}


def seen(*found: ranks.Rank) -> Observation:
    return observation(JOB, (), (), found, (), namespace="team", now=2e9)


def text(view: Overview | RanksView, height: int | None = None) -> list[str]:
    console = Console(width=200, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(view.render(height))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_jobs_are_a_table() -> None:
    assert text(Overview(jobs=[seen()], problem="half of it")) == [
        "NAME WHERE STATE READY PROGRESS ETA SAMPLES/S LOSS RESTARTS GOODPUT",
        "digits team Running 2/2 41/180 22 % 1 min 15 s 1234 0.4123 1 +2 93 %",
        "half of it",
    ]


def test_ranks_are_a_table_and_the_slow_one_is_named() -> None:
    places = [
        Place(node=n, pod=f"digits-{n}", host="w1", scrapes=(parse(metrics(20, data=1.5 if n == 2 else 0.2, comm=0.0 if n == 2 else 2.0, rank=n), 0.0),) * 2)
        for n in range(3)
    ]  # fmt: skip
    view = RanksView(job=seen(*ranks.ranks(places)))
    assert text(view)[1:] == [
        "time: useful 1 min 33 s, restart 7 s",
        "RANK POD NODE STEP PHASE STEP TIME DATA EXPOSED COMM SAMPLES/S LOSS",
        "0 digits-0 w1 25 data 100 ms 10 % 50 % 320 0.25",
        "1 digits-1 w1 25 data 100 ms 10 % 50 % 320 0.25",
        "2 digits-2 w1 25 data 100 ms 75 % – 320 0.25",
        "rank 2 is the slowest: data_wait 75 ms a step, the others 10 ms",
    ]
    assert view.json()["ranks"][2]["dataShare"] == pytest.approx(0.75)
    cleared = replace(view.job, efficiency=Efficiency(exposed_communication_percent=50))
    assert text(RanksView(job=cleared))[1:] == text(view)[1:-1]
    measured = replace(
        view.job, efficiency=Efficiency(exposed_communication_percent=50, ddp_efficiency_percent=49)
    )
    assert text(RanksView(job=measured))[0] == f"{text(view)[0]} · DDP efficiency 49 %"
    assert RanksView(job=measured).json()["efficiency"] == {
        "exposedCommunicationPercent": 50,
        "ddpEfficiencyPercent": 49,
    }


def test_more_ranks_than_lines_are_counted() -> None:
    places = [
        Place(node=n, pod="p", scrapes=(parse(metrics(20, data=0.2, comm=0.4, rank=n), 0.0),))
        for n in range(40)
    ]
    assert text(RanksView(job=seen(*ranks.ranks(places))), height=20)[-1].startswith("… 29 more ranks")


def test_a_run_is_seen_from_outside_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    """The program makes steps without torch, so that the two ranks are there at once."""
    spec = {"nodes": 2, "script": {"args": [str(PROGRAM), json.dumps({"steps": 100000})]}}
    with Running(write(tmp_path, spec, "digits"), cwd=tmp_path) as run:
        run.wait_for("[rank 0] generation 1")
        run.wait_for("step ")
        found = json.loads(inside("top", "digits", "--json", cwd=tmp_path).stdout)
        (job,) = json.loads(inside("top", "--json", cwd=tmp_path, KUBECONFIG="/nowhere").stdout)
        explained = inside("explain", "digits", cwd=tmp_path).stdout
        run.signal(2)
        assert run.end()[0] == 85
    assert (found["state"], [rank["rank"] for rank in found["ranks"]]) == ("Running", [0, 1])
    assert all(rank["step"] > 0 and rank["stepSeconds"] > 0 for rank in found["ranks"])
    assert (job["name"], job["local"], job["state"]) == ("digits", True, "Running")
    assert "digits (.ddpjob/digits): Running" in explained
    after = json.loads(inside("top", "digits", "--json", cwd=tmp_path).stdout)
    assert (after["state"], after["step"] > 0) == ("Stopped", True)
    rows = [
        json.loads(line)
        for line in (tmp_path / ".ddpjob/digits/node-0/history.jsonl").read_text().splitlines()
    ]
    assert rows[0]["job"] == "digits"
    assert rows[-1]["row"]["step"] == after["step"]
