"""What the harness's own tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness import paths


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records and cache of a machine where nothing ran yet."""
    monkeypatch.setattr(paths, "RUN", tmp_path / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path
