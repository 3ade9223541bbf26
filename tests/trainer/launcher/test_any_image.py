"""A launcher in an image that knows nothing of DDPJob: handed out, entered, and made at home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_api.codec import load
from ddpjob_api.report import Outcome, TerminationMessage
from ddpjob_trainer.handout import hand_out
from ddpjob_trainer.launcher import surroundings

NODE = {
    "DDPJOB_NODE_INDEX": "1",
    "DDPJOB_GENERATION": "4",
    "DDPJOB_RESTARTS": "2",
    "DDPJOB_DISRUPTIONS": "0",
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    hand_out(tmp_path / "code")
    return tmp_path / "code"


def enter(code: Path, tmp_path: Path, **env: str) -> tuple[int, str, TerminationMessage]:
    log = tmp_path / "termination"
    done = subprocess.run(
        ["/bin/sh", str(code / "enter.sh")],
        env={"DDPJOB_TERMINATION_LOG": str(log), **NODE, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, load(TerminationMessage, json.loads(log.read_text()))


def python(folder: Path, name: str, *, probed: int, text: str = "") -> Path:
    """A program by that name that answers the probe, and otherwise says that it was taken."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(
        f'#!/bin/sh\ncase "$*" in *probe.py) exit {probed};; esac\n{text or f"echo taken {name} $*"}\n'
    )
    file.chmod(0o755)
    return file


def test_only_our_two_packages_are_put_on_the_programs_path(code: Path) -> None:
    assert {path.name for path in (code / "lib").iterdir()} == {"ddpjob_api", "ddpjob_trainer"}
    assert not list(code.rglob("__pycache__"))
    assert all(path.stat().st_mode & 0o004 for path in code.rglob("*"))


def test_what_is_handed_out_needs_the_standard_library_only(code: Path) -> None:
    text = (
        f"import sys; sys.path.insert(0, {str(code / 'lib')!r}); before = set(sys.modules);"
        "import ddpjob_trainer.launcher.node, ddpjob_trainer.bootstrap, ddpjob_trainer.nested;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "ours = {'ddpjob_api', 'ddpjob_trainer'}; new -= sys.stdlib_module_names | ours;"
        "print([name for name in new if not name.startswith('_sysconfigdata')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("programs", "taken"),
    [
        ({"python3": 0}, "python3"),
        ({"python3": 3, "python": 0}, "python"),  # the one that has torch
        ({"python3": 4, "python": 3}, "python"),
        ({"python3": 127, "python": 3}, "python"),
    ],
)
def test_the_first_python_that_will_do_is_taken(
    code: Path, tmp_path: Path, programs: dict[str, int], taken: str
) -> None:
    for name, probed in programs.items():
        python(tmp_path / "bin", name, probed=probed)
    done = subprocess.run(
        ["/bin/sh", str(code / "enter.sh")],
        env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.stdout.startswith("taken"):
        assert done.stdout == f"taken {taken} -I {code}/enter.py\n"
    else:  # this machine's own, in a place that every image is looked into, has torch
        assert programs[taken] == 3, done.stderr


def test_a_python_that_is_too_old_is_refused_in_words(code: Path, tmp_path: Path) -> None:
    """As Python 3.9 would say it: the same file, told of another version."""
    text = (code / "enter.py").read_text().replace("sys.version_info <", "(3, 9) <")
    (code / "enter.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(code / "enter.py")],
        env={**NODE, "DDPJOB_TERMINATION_LOG": str(tmp_path / "log")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 86
    message = load(TerminationMessage, json.loads((tmp_path / "log").read_text()))
    assert (message.outcome, message.node, message.generation) == (Outcome.REFUSED, 1, 4)
    assert "DDPJob needs 3.11 or newer" in message.message


def test_an_image_without_python_is_refused_in_words(code: Path, tmp_path: Path) -> None:
    text = (code / "enter.sh").read_text()
    for place in ("/opt/conda", "/opt/venv", "/usr/local", "/usr/bin"):
        text = text.replace(f" {place}/", f" {tmp_path}/none/")
    (code / "enter.sh").write_text(text)
    status, said, message = enter(code, tmp_path, PATH=str(tmp_path / "empty"))
    assert status == message.exit_code == 86
    assert (message.outcome, message.node, message.restarts) == (Outcome.REFUSED, 1, 2)
    assert "the image has no Python" in message.message
    assert said.strip().endswith(message.message)


def test_what_can_be_written_stays(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "new"), "HF_HOME": str(tmp_path), "USER": "me", "LOGNAME": "me"}
    assert surroundings.usable(environ) == {}
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("home", [None, "", "/proc/none"])
def test_what_cannot_be_written_is_replaced(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.setattr(surroundings, "named", lambda: False)
    environ = {"MPLCONFIGDIR": "/proc/none", "HF_HOME": "/proc", "TORCH_HOME": "/proc/none"}
    if home is not None:
        environ["HOME"] = home
    assert surroundings.usable(environ) == {
        "HOME": "/tmp",
        "MPLCONFIGDIR": "/tmp/.config/matplotlib",
        "TORCH_HOME": "/tmp/.cache/torch",
        "USER": "ddpjob",
        "LOGNAME": "ddpjob",
    }, "an HF_HOME that is there may have models"


def test_the_trainers_own_name_is_known() -> None:
    assert surroundings.named() is True
    assert os.getuid() >= 0
