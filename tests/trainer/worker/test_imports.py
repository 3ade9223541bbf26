"""A module that is waited for is seen right after its code ran, and quickly."""

import gc
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddpjob_trainer.instrumentation.imports import PostImport


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_rests_during_the_import_and_is_as_before_after_it(
    collects: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"waited_for_{collects}_{fails}"
    (tmp_path / f"{name}.py").write_text(
        f"import gc\nrested = not gc.isenabled()\nassert rested and not {fails}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[ModuleType] = []
    PostImport(lambda module, error: None).add(name, seen.append)
    if not collects:
        gc.disable()
    try:
        if fails:
            with pytest.raises(AssertionError):
                importlib.import_module(name)
        else:
            assert importlib.import_module(name).rested
        assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert [module.__name__ for module in seen] == ([] if fails else [name])
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, PostImport)]
