"""A log that is read again from a second on: what was given before is told from what is new, whatever the node's clock did."""

import pytest

from ddpjob_cli.cluster.given import Given

CASES = [
    # what happened, the stamps of the lines of a log, and how many had come when the connection broke
    ("nothing had come", (1.0, 2.0), 0),
    ("all had come", (1.0, 2.0), 2),
    ("several have one stamp, on both sides", (0.2, 1.1, 1.4, 1.4, 1.4, 1.6), 4),
    ("the clock had been set back", (10.2, 12.1, 9.8, 9.8, 9.9), 3),
    ("and had passed where it was", (10.2, 12.1, 9.8, 12.5, 12.6), 4),
    ("and had not quite", (10.2, 12.1, 12.8, 9.8, 12.3, 12.4, 13.0), 5),
    ("it had been set back twice", (10.0, 12.0, 9.0, 11.0, 8.0, 8.5, 13.0), 5),
    ("it is set back within the second", (1.1, 1.4, 1.2), 2),
]


def text(number: int, stamp: float) -> str:
    return f"2026-01-01T00:00:{stamp:012.9f}Z line {number}"


@pytest.mark.parametrize(
    ("stamps", "had_come"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_line_is_given_once(stamps: tuple[float, ...], had_come: int) -> None:
    given = Given()
    log = [text(number, stamp) for number, stamp in enumerate(stamps)]
    shown = [given.new(line) for line in log[:had_come]]
    second = int(given.since[17:19]) if given.since else 0
    given.again()
    shown += [
        given.new(line) for line, stamp in zip(log, stamps, strict=True) if stamp >= second or not given.since
    ]
    assert [line for line in shown if line is not None] == [f"line {number}" for number in range(len(stamps))]


def test_a_log_of_which_the_beginning_is_gone_goes_on() -> None:
    given = Given()
    given.new(text(0, 1.0))
    given.again()
    assert given.new(text(1, 1.5)) == "line 1"


@pytest.mark.parametrize(
    "remark", ["unable to retrieve container logs for x", "2026-01-01 it is", "failed", ""]
)
def test_what_has_no_stamp_is_no_place_to_begin_at(remark: str) -> None:
    given = Given()
    given.new(text(0, 1.0))
    before = given.since
    shown = [given.new(remark), given.new(remark)]
    assert shown == ([remark, None] if remark else [None, None])
    assert given.since == before
