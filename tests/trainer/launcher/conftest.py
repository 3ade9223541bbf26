"""A factory of jobs whose launchers are ended with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launcher.local import LocalJob

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., LocalJob]]:
    made: list[LocalJob] = []

    def make(nodes: int, program: dict[str, Any], **spec: Any) -> LocalJob:
        made.append(LocalJob(tmp_path, nodes=nodes, program=program, **spec))
        return made[-1]

    yield make
    for each in made:
        each.close()
