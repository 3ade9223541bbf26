"""Vendors' packages are imported where they are installed, and their faults do not become the program's."""

import sys
from pathlib import Path

import pytest

from ddpjob_api.spec import Backend
from ddpjob_trainer import plugins


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torch_npu", "torch_mlu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_an_installed_plugin_is_imported_and_another_vendors_is_not(installed: Path) -> None:
    (installed / "torch_npu.py").write_text("HERE = True")
    (installed / "torch_mlu.py").write_text("raise SystemError('not asked for')")
    assert plugins.load(Backend.HCCL) == {}
    assert sys.modules.pop("torch_npu").HERE


def test_nothing_is_imported_where_nothing_is_installed() -> None:
    assert plugins.load(Backend.HCCL, Backend.CNCL, Backend.XCCL, Backend.NCCL) == {}


def test_a_plugin_that_cannot_be_imported_is_named(installed: Path) -> None:
    (installed / "torch_mlu.py").write_text("import a_driver_that_is_not_there")
    (installed / "torch_npu.py").write_text("raise RuntimeError('no driver')")
    assert plugins.load(Backend.CNCL, Backend.HCCL) == {
        "torch_mlu": "No module named 'a_driver_that_is_not_there'",
        "torch_npu": "RuntimeError: no driver",
    }
