"""A module that is waited for is seen right after its code ran, and quickly."""

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddpjob_trainer import learned
from ddpjob_trainer.instrumentation.imports import PostImport


def test_what_an_import_made_is_not_young_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first few objects that the program makes have the collector look through all of them."""
    (tmp_path / "waited_for_many.py").write_text("many = [[each] for each in range(50_000)]")
    monkeypatch.syspath_prepend(str(tmp_path))
    PostImport(lambda module, error: None).add("waited_for_many", lambda module: None)
    frozen = gc.get_freeze_count()
    gc.collect()
    importlib.import_module("waited_for_many")
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < 10_000
    assert gc.get_freeze_count() == frozen
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, PostImport)]


def test_a_module_is_told_of_when_its_code_begins_and_not_when_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "looked_for.py").write_text("import sys\nsys.told.append('code')")
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[str] = []
    monkeypatch.setattr(sys, "told", told, raising=False)
    PostImport(lambda module, error: None).add(
        "looked_for", lambda module: told.append("after"), before=lambda: told.append("before")
    )
    assert importlib.util.find_spec("looked_for") is not None
    assert told == []
    importlib.import_module("looked_for")
    assert told == ["before", "code", "after"]


def test_to_list_the_modules_makes_no_work_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5000):
        monkeypatch.setitem(sys.modules, f"one_of_many_{number}", ModuleType("one"))
    collected: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        assert learned.installed()
    finally:
        gc.callbacks.remove(note)
    assert collected == []


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
