"""What the resource asks for is in effect in real programs: the rows of `make settings-matrix`."""

from pathlib import Path

import pytest
from tests.trainer.programs.matrix import ROWS, Row, lines, run, there

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.bounded else pytest.mark.slow) for row in ROWS],
)
def test_no_setting_differs_without_a_word(row: Row, tmp_path: Path) -> None:
    if not there(row.needs):
        pytest.skip(f"{row.needs} is not installed")
    outcome = run(row, tmp_path)
    assert not outcome.problem and not outcome.silent, "\n".join(lines(outcome))
