"""What a launcher keeps of hangs: files, and lines of its log."""

import json
import os
from dataclasses import replace
from pathlib import Path

from ddpjob_api.codec import load
from ddpjob_api.conditions import Reason
from ddpjob_api.postmortem import LOG_MARK, RankKept, unpack
from ddpjob_api.report import Failure, RankView
from ddpjob_trainer.launcher.postmortems import KEPT, PostMortems

HANG = Failure(
    reason=Reason.NO_PROGRESS,
    rank=0,
    node=0,
    message="no step for 9 s",
    generation=7,
    at="2026-01-01T00:00:00Z",
)
RANK = RankKept(view=RankView(rank=3, step=8), node=1, page={"step": 8.0}, stacks="Current thread 0x1:\n")


def keeper(folder: Path, *, in_log: bool = True) -> tuple[PostMortems, list[str]]:
    said: list[str] = []
    return PostMortems(folder, in_log=in_log, say=said.append), said


def test_stacks_pages_and_the_verdict_lie_in_the_folder_of_the_generation(tmp_path: Path) -> None:
    found, said = keeper(tmp_path, in_log=False)
    found.examined(7, [RANK])
    found.judged([Failure(reason=Reason.KILLED, generation=6), HANG])
    target = tmp_path / "generation-7"
    assert {path.name for path in target.iterdir()} == {"rank-3.txt", "rank-3.json", "verdict.json"}
    assert (target / "rank-3.txt").read_text() == RANK.stacks
    assert load(RankKept, json.loads((target / "rank-3.json").read_text())).view == RANK.view
    assert load(Failure, json.loads((target / "verdict.json").read_text())) == HANG
    assert said == [f"stacks and pages of the ranks here are kept in {target}"]


def test_the_newest_five_are_kept_also_when_a_new_run_counts_from_1(tmp_path: Path) -> None:
    for generation in range(11, 11 + KEPT + 2):
        keeper(tmp_path)[0].examined(generation, [RANK])
        os.utime(tmp_path / f"generation-{generation}", (generation, generation))
    keeper(tmp_path)[0].examined(1, [RANK])
    assert {path.name for path in tmp_path.iterdir()} == {
        "generation-1",
        *(f"generation-{n}" for n in range(14, 18)),
    }


def test_a_verdict_of_an_earlier_run_does_not_stay_beside_new_stacks(tmp_path: Path) -> None:
    first, verdict = replace(RANK, node=0), tmp_path / "generation-7" / "verdict.json"
    earlier, again = keeper(tmp_path)[0], keeper(tmp_path)[0]
    earlier.examined(7, [first])
    earlier.judged([HANG])
    again.examined(7, [first])
    assert not verdict.exists()
    again.judged([HANG])
    again.examined(7, [first])
    keeper(tmp_path)[0].examined(7, [RANK])
    assert verdict.exists(), (
        "only node 0 hears verdicts, so that no other one in a shared folder takes away a new one"
    )


def test_the_newest_is_said_again_at_the_end_and_a_verdict_once(tmp_path: Path) -> None:
    found, said = keeper(tmp_path)
    found.examined(6, [RANK])
    found.examined(7, [RANK])
    found.judged([HANG])
    found.judged([HANG])
    before = [line for line in said if line.startswith(LOG_MARK)]
    said.clear()
    found.repeat()
    parts = [unpack(line.removeprefix(LOG_MARK)) for line in said]
    assert len(before) == 3 and said == before[1:]
    assert [(part.generation, part.ranks, part.verdict) for part in parts if part] == [
        (7, (RANK,), None),
        (7, (), HANG),
    ]


def test_a_folder_that_cannot_be_written_is_said_and_the_log_has_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found, said = keeper(tmp_path / "file")
    found.examined(7, [RANK])
    found.judged([HANG])
    assert said[0].startswith(f"stacks and pages cannot be kept in {tmp_path / 'file'}/generation-7: ")
    assert said[2].startswith("the verdict cannot be kept in ")
    assert [line.startswith(LOG_MARK) for line in said] == [False, True, False, True]
