"""`ddpjob report`: pods that followed each other are one line, and the page shows all there is."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure
from tests.cli.jobs import inside

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Times
from ddpjob_api.history import History, RankSums, Row
from ddpjob_api.metrics import PHASES
from ddpjob_api.report import Failure, InEffect, Override
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import ConditionSeen, Observation
from ddpjob_cli.report import figures, series
from ddpjob_cli.report.data import ReportData, incidents_of
from ddpjob_cli.report.page import page

BEGIN = 1_800_000_000.0


def row(at: float, step: int, *, rank: int = 0, generation: int = 1) -> Row:
    phases = (0.1 * at, 0.0, 0.2 * at, 0.3 * at, 0.2 * at, 0.1 * at, 0.0, 0.0, 0.1 * at)
    sums = RankSums(
        rank=rank,
        steps=step,
        samples=32 * step,
        seconds=at,
        phases=phases,
    )
    return Row(at=BEGIN + at, generation=generation, step=step, loss=1 / (1 + step), ranks=(sums,))


def history(node: int, *rows: Row, incidents: tuple[Failure, ...] = ()) -> History:
    return History(job="j", node=node, rows=rows, incidents=incidents)


FIRST = (row(0, 0), row(10, 100), row(20, 200))
LATER = tuple(replace(row(10 * n, 100 * n, generation=2), at=BEGIN + 40 + 10 * n) for n in range(3))


def test_a_replaced_pod_goes_on_where_the_first_ended() -> None:
    rows = series.joined([history(0, *LATER), history(0, *FIRST)])[0]
    assert [one.ranks[0].samples for one in rows] == [0, 3200, 6400, 6400, 9600, 12800]
    assert series.times({0: rows})[0].seconds[0] == pytest.approx(4.0)
    assert [(life.generation, life.end - life.begin) for life in series.lives({0: rows})] == [
        (1, 20),
        (2, 20),
    ]


def test_a_pod_with_a_shared_claim_has_all_already() -> None:
    whole = (*FIRST, *LATER)
    assert series.joined([history(0, *FIRST), history(0, *whole)])[0] == list(whole)


def test_rates_are_summed_over_nodes() -> None:
    rows = series.joined([history(n, *(row(10 * k, 100 * k, rank=n) for k in range(3))) for n in range(2)])
    assert [value for _, value in series.throughput(rows)] == [640.0, 640.0]
    assert [one.rank for one in series.times(rows)] == [0, 1]


def test_where_the_time_went_is_said_by_phase() -> None:
    found = dict(zip(PHASES, series.split(row(10, 1).ranks[0]).seconds, strict=True))
    assert (found["backward_compute"], found["comm_exposed"]) == pytest.approx((3.0, 2.0))


FAILURE = Failure(
    reason=Reason.PROGRAM_FAILED,
    rank=1,
    node=1,
    generation=1,
    step=120,
    at="2027-01-15T08:00:25Z",
    exit_code=1,
)


def test_an_incident_is_told_once_with_its_words() -> None:
    said = replace(FAILURE, message="ValueError: <bad> sample")
    assert incidents_of((history(0, incidents=(FAILURE,)),), said) == (said,)


def data() -> ReportData:
    ddp = InEffect(
        backend="gloo",
        bucket_cap_mb=1,
        bucket_bytes=(4096, 1 << 20),
        overrides=(Override(setting="bucketCapMB", asked="50", effective="1", where="train.py:7"),),
    )
    said = replace(FAILURE, message="ValueError: <bad> sample")
    seen = Observation(
        name="digits",
        place="namespace team",
        state="Complete",
        conditions={"Complete": ConditionSeen(status="True", reason="AllRanksSucceeded", message="")},
        restarts=1,
        step=400,
        loss=0.01,
        goodput_percent=90,
        efficiency=Efficiency(exposed_communication_percent=9, ddp_efficiency_percent=87),
        time=Times(useful_seconds=90, restart_seconds=10),
        last_failure=said,
        ddp=ddp,
    )
    histories = (
        history(0, *FIRST, *LATER, incidents=(said,)),
        history(1, *(row(10 * k, 100 * k, rank=1) for k in range(3))),
    )
    return ReportData(
        seen=seen,
        findings=tuple(findings(seen)),
        histories=histories,
        incidents=(said,),
        spec="nodes: 2\n",
        result={"accuracy": 0.98},
        environment={"image": "trainer:1"},
        gaps=("pod digits-3 is gone",),
        made_at="now",
    )


def test_the_page_is_whole_and_needs_nothing_beside_it() -> None:
    text = page(data())
    assert [re.sub("<.*?>", "", part) for part in re.findall(r"<h2>(.*?)</h2>", text)] == [
        "Loss",
        "Throughput",
        "Progress",
        "Incidents",
        "What the time of the job went to",
        "Where the time of each rank went",
        "DDP settings in effect",
        "Environment",
        "The resource",
        "Not in this report",
    ]
    assert not re.search(r'(?:src|href)="(?!#)', text), "something is loaded from elsewhere"
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 6
    assert all(len(list(ET.fromstring(figure).iter())) > 50 for figure in figures)
    for words in (
        "ValueError: &lt;bad&gt; sample",
        "bucketCapMB",
        "train.py:7",
        "rank 1",
        "0.98",
        "trainer:1",
        "digits-3",
        "<span>DDP efficiency</span><b>87 %</b>",
        "generation 2",
    ):
        assert words in text, words
    assert "<bad>" not in text
    assert len(text) < 500_000


@pytest.mark.parametrize(
    ("values", "bottom"),
    [([-0.2, -0.69], None), ([1.0, -0.5], None), ([0.5, 0.3], 0.0), ([-1.0], None)],
    ids=["below zero", "across zero", "above zero", "one"],
)
def test_a_curve_is_within_its_axes(
    monkeypatch: pytest.MonkeyPatch, values: list[float], bottom: float | None
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "svg", lambda figure: drawn.append(figure) or "")
    points = [(BEGIN + at, value) for at, value in enumerate(values)]
    figures.lines([points], label="loss", span=(BEGIN, BEGIN + 9), incidents=(), log=True)
    low, high = drawn[0].axes[0].get_ylim()
    assert low <= min(values) <= max(values) <= high and low < high
    assert bottom is None or low == bottom


def test_a_run_without_a_step_has_a_page_too() -> None:
    text = page(replace(data(), histories=(), incidents=()))
    assert "Nothing was recorded" in text and "svg" not in text.partition("<body>")[2]


def test_a_run_that_failed_before_its_first_step_has_no_empty_figures() -> None:
    sums = RankSums(rank=0, phases=(0.0,) * len(PHASES))
    rows = tuple(Row(at=BEGIN + at, generation=1, step=0, ranks=(sums,)) for at in range(3))
    text = page(replace(data(), histories=(history(0, *rows),)))
    assert re.findall(r"<h2>(.*?)</h2>", text)[:3] == [
        "Over time",
        "Incidents",
        "What the time of the job went to",
    ]
    assert "No step was recorded." in text and "Where the time of each rank went" not in text


def test_a_folder_without_a_history_is_reported(tmp_path: Path) -> None:
    run = tmp_path / ".ddpjob" / "digits"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    (run / "last.json").write_text('{"name": "digits", "outcome": "Stopped", "message": "stopped: 1 step"}')
    result = inside("report", "digits", "-o", "out.html", cwd=tmp_path)
    assert (result.returncode, result.stdout.startswith("out.html: digits, Stopped")) == (0, True), (
        result.stderr
    )
    assert "Nothing was recorded" in (tmp_path / "out.html").read_text()
