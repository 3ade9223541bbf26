"""Python processes below a `command`: which are ranks, and what they leave for the launcher.

A package named torch that does nothing stands in for torch: what is tried here happens before torch's code runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ddpjob_trainer
from ddpjob_api.exits import Exit
from ddpjob_api.page import Phase, Slot, WorkerState
from ddpjob_trainer.files import Files, agent_file
from ddpjob_trainer.page import Page

INJECTED = Path(ddpjob_trainer.__file__).parent / "injected"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `python -c TEXT` as rank 3 of a node that has ranks 2 and 3."""
    (tmp_path / "fake" / "torch").mkdir(parents=True)
    (tmp_path / "fake" / "torch" / "__init__.py").write_text("")
    for rank in (2, 3):
        Page(Files.of(tmp_path, 1, rank).page, create=True).close()

    def run_text(text: str, *, argv: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DDPJOB_")},
            "PYTHONPATH": os.pathsep.join((str(INJECTED), str(tmp_path / "fake"))),
            "RANK": "3",
            "LOCAL_RANK": "1",
            "DDPJOB_RANK_DIR": str(tmp_path),
            "DDPJOB_GENERATION": "1",
            **env,
        }
        command = [sys.executable, *(argv or ("-c", text))]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    return run_text


@pytest.fixture
def page(tmp_path: Path, run: Run) -> Page:
    return Page(Files.of(tmp_path, 1, 3).page)


def test_a_process_that_imports_torch_is_the_rank_until_its_end(run: Run, page: Page) -> None:
    done = run("import os, torch, ddpjob_trainer; ddpjob_trainer.report(accuracy=0.5); print(os.getpid())")
    assert (done.returncode, done.stderr) == (0, "")
    assert page[Slot.PID] == int(done.stdout)
    assert (page[Slot.RANK], page[Slot.STATE]) == (3, WorkerState.EXITING)
    assert page.facts()["result"] == {"accuracy": 0.5}


def test_a_rank_keeps_the_checkpoint_its_command_began_with(run: Run, tmp_path: Path, page: Page) -> None:
    with zipfile.ZipFile(tmp_path / "new.pt", "w") as archive:
        archive.writestr("new/data.pkl", b"")
    text = "import os, torch; print(os.environ['DDPJOB_RESUME'])"
    job = {"DDPJOB_CHECKPOINT": "{}", "DDPJOB_CHECKPOINT_DIR": str(tmp_path)}
    assert run(text, **job, DDPJOB_RESUME="/old.pt").stdout == "/old.pt\n"
    assert run(text, **job, DDPJOB_RESUME="").stdout == "\n"
    assert run(text, **job).stdout == f"{tmp_path}/new.pt\n"
    restarted = {"DDPJOB_AGENT_PID": "1", "TORCHELASTIC_RESTART_COUNT": "1", "DDPJOB_RESUME": "/old.pt"}
    assert run(text, **job, **restarted).stdout == f"{tmp_path}/new.pt\n", "torchrun began it again"


CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("print('no torch')", {}),
        ("import torch", {"RANK": ""}),
        ("import torch", {"LOCAL_RANK": ""}),
        ("import torch", {"RANK": "7"}),  # another node's
        ("import torch", {"DDPJOB_WORKER_PID": "1"}),  # a child of a rank
        ("import torch", {"DDPJOB_GENERATION": "2"}),
    ],
)
def test_other_processes_are_no_ranks(run: Run, page: Page, text: str, env: dict[str, str]) -> None:
    done = run(text, **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert page[Slot.PID] == 0


def test_what_a_rank_starts_is_no_rank(run: Run, page: Page) -> None:
    done = run(f"import os, torch; print(os.getpid()); {CHILD}")
    assert done.returncode == 0, done.stderr
    assert page[Slot.PID] == int(done.stdout)


def test_one_process_at_a_time_is_the_rank(run: Run, page: Page) -> None:
    """A shell's second program is the rank when the first has ended, and not while it lives."""
    second = "import torch, os; print(os.getpid())"
    both = (
        "import os, subprocess, sys; env = dict(os.environ); import torch; print(os.getpid(), flush=True);"
        f"subprocess.run([sys.executable, '-c', {second!r}], env=env)"
    )
    first, other = run(both).stdout.split()
    assert page[Slot.PID] == int(first)
    assert page[Slot.PID] != int(other)
    later = run(second)
    assert page[Slot.PID] == int(later.stdout)


def test_the_next_process_of_a_rank_begins_its_page_anew(run: Run, tmp_path: Path, page: Page) -> None:
    """As below a torchrun that restarts its ranks; what the launcher asks for stays asked."""
    old = {Slot.PID: 1, Slot.GENERATION_STEPS: 70, Slot.PHASE: Phase.CHECKPOINT, Slot.PROCESS_GROUP_AT: 5}
    for slot, value in {**old, Slot.UNMEASURED: 1, Slot.LAST_STEP_AT: 9, Slot.STOP_AT: 80}.items():
        page[slot] = value
    stacks = Files.of(tmp_path, 1, 3).stacks
    stacks.write_text("of the one before")
    done = run("import os, torch; print(os.getpid())")
    assert page[Slot.PID] == int(done.stdout)
    assert [page[slot] for slot in (*old, Slot.UNMEASURED, Slot.LAST_STEP_AT)][1:] == [0, 0, 0, 0, 0]
    assert page[Slot.STOP_AT] == 80
    assert stacks.read_text() == ""


def stopped(page: Page) -> None:
    page[Slot.STOP_AT], page[Slot.EXIT_CODE] = 80, Exit.STOPPED


@pytest.mark.parametrize(("agent", "code"), [({}, 85), ({"DDPJOB_AGENT_PID": str(os.getpid())}, 0)])
def test_what_a_shell_runs_after_a_training_that_stopped_ends_at_once(
    run: Run, page: Page, agent: dict[str, str], code: int
) -> None:
    """Else the job would be done with half a training; below a torchrun 0 is what does not end the others."""
    stopped(page)
    done = run("import torch; print('evaluated')", **agent)
    assert (done.returncode, done.stdout) == (code, "")
    assert "the training has stopped on request: a program of rank 3" in done.stderr
    assert page[Slot.EXIT_CODE] == Exit.STOPPED, "for the launcher"


@pytest.mark.parametrize("asked", [0, 80])
def test_a_program_goes_on_after_one_that_only_ended_with_85_or_was_only_asked(
    run: Run, page: Page, asked: int
) -> None:
    page[Slot.STOP_AT], page[Slot.EXIT_CODE] = asked, 0 if asked else 85
    assert run("import torch; print('evaluated')").stdout == "evaluated\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 85),
        ("sys.exit(0)", 85),
        ("raise ValueError('of torchrun itself')", 1),
        ("leave_word()", 0),
        ("page[Slot.STOP_AT] = 0", 0),
    ],
)
def test_a_torchrun_whose_ranks_stopped_ends_with_85(
    run: Run, tmp_path: Path, page: Page, end: str, code: int
) -> None:
    """So that `torchrun train.py && python export.py` exports no half trained model."""
    (tmp_path / "torchrun").write_text(
        "import atexit, sys\n"
        "from pathlib import Path\n"
        "from ddpjob_api.page import Slot\n"
        "from ddpjob_trainer.files import Files, agent_file\n"
        "from ddpjob_trainer.page import Page\n"
        'def leave_word(): agent_file(Path.cwd(), 1).write_text(\'[{"rank": 2, "exitCode": 1}]\')\n'
        "atexit.register(print, 'its own exit handler')\n"
        "page = Page(Files.of(Path.cwd(), 1, 3).page)\n"
        "page[Slot.STOP_AT], page[Slot.EXIT_CODE] = 80, 85\n"
        f"{end}\n"
    )
    done = run("", argv=("torchrun", "train.py"))
    assert (done.returncode, done.stdout) == (code, "its own exit handler\n")


def test_a_torchrun_after_ranks_that_stopped_starts_nothing(run: Run, tmp_path: Path, page: Page) -> None:
    stopped(page)
    (tmp_path / "torchrun").write_text("print('started')\n")
    done = run("", argv=("torchrun", "eval.py"))
    assert (done.returncode, done.stdout) == (85, "")


@pytest.mark.parametrize("imported", ["import torch; ", ""])
def test_an_error_is_left_and_shown_as_python_shows_it(run: Run, tmp_path: Path, imported: str) -> None:
    (tmp_path / "train.py").write_text(f"{imported}raise ValueError('bad sample 17')\n")
    done = run("", argv=("train.py",))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n  File")
    assert done.stderr.endswith("ValueError: bad sample 17\n")
    assert "ddpjob" not in done.stderr
    left = json.loads(Files.of(tmp_path, 1, 3).error.read_text())["ddpjob"]
    assert (left["type"], left["message"], left["location"]) == ("ValueError", "bad sample 17", "train.py:1")


def test_torchrun_above_gets_the_error_too(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "elastic.json"
    run("raise ValueError('x')", TORCHELASTIC_ERROR_FILE=str(file), DDPJOB_AGENT_PID="1")
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: x"


def test_a_refusal_ends_with_86(run: Run, tmp_path: Path) -> None:
    done = run("import torch; from ddpjob_trainer.errors import Refused; raise Refused('cannot work')")
    assert (done.returncode, done.stderr) == (86, "[ddpjob] refused: cannot work\n")
    assert json.loads(Files.of(tmp_path, 1, 3).error.read_text())["ddpjob"]["refused"] is True


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import torch, sys; sys.exit(3)", 3),
        ("import torch, os; os._exit(9)", 9),
        # (a job in a shell's background begins with SIGINT ignored)
        (
            (
                "import torch, os, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
                "os.kill(os.getpid(), signal.SIGINT)"
            ),
            -signal.SIGINT,
        ),
        ("import torch, os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_a_rank_ends_as_plain_python_does(run: Run, text: str, code: int) -> None:
    assert run(text).returncode == code


def test_a_torchrun_is_no_rank_and_tells_how_its_ranks_ended(run: Run, tmp_path: Path, page: Page) -> None:
    errors = tmp_path / "fake/torch/distributed/elastic/multiprocessing/errors.py"
    errors.parent.mkdir(parents=True)
    errors.write_text(
        "class ChildFailedError(Exception):\n"
        "    def __init__(self, name, failures):\n"
        "        super().__init__(name)\n"
    )
    (tmp_path / "torchrun").write_text(
        "from types import SimpleNamespace as End\n"
        "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError\n"
        "ends = {2: End(timestamp=9, exitcode=1), 3: End(timestamp=8, exitcode=-9)}\n"
        "raise ChildFailedError('train.py', ends)\n"
    )
    done = run("", argv=("torchrun", "train.py"))
    assert done.stderr.endswith("ChildFailedError: train.py\n")
    assert page[Slot.PID] == 0
    assert json.loads(agent_file(tmp_path, 1).read_text()) == [
        {"rank": 3, "exitCode": -9},
        {"rank": 2, "exitCode": 1},
    ]


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_the_users_customisation_runs_too(run: Run, tmp_path: Path, page: Page, name: str) -> None:
    (tmp_path / "fake" / f"{name}.py").write_text("import builtins; builtins.customised = __file__")
    done = run(f"import torch, {name}; print(customised == {name}.__file__)", PYTHONNOUSERSITE="")
    # a virtual environment without its own user site has no usercustomize: plain Python decides
    plain = run(f"import {name}; print('plain')", DDPJOB_RANK_DIR="")
    assert (done.stdout == "True\n") is (plain.stdout == "plain\n")
    assert name == "usercustomize" or page[Slot.PID] > 0


def test_a_broken_customisation_of_the_user_is_pythons_to_report(
    run: Run, tmp_path: Path, page: Page
) -> None:
    (tmp_path / "fake" / "sitecustomize.py").write_text("1 / 0")
    done = run("import torch; print('goes on')")
    assert done.stdout == "goes on\n"
    assert "ZeroDivisionError" in done.stderr
    assert page[Slot.PID] > 0
