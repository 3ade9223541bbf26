"""What a standby must not do while it waits, and that it ends where it did."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trainer.worker.ranks import Waiting, environment

from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP
from ddpjob_trainer import learned
from ddpjob_trainer.page import Page

pytestmark = pytest.mark.timeout(120)

MakeStandby = Callable[..., Waiting]
PACKAGES = {
    "harmless": "import multiprocessing; VALUE = 1",
    "reads_port": "import os; PORT = os.environ.get('MASTER_PORT', '1')",
    "asks_for_port": "import os; CLUSTER = 'MASTER_PORT' in os.environ",
    "threads": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "starts": "import subprocess as s; CHILD = s.Popen(['sleep', '9'], stdout=s.DEVNULL, stderr=s.DEVNULL)",
    "moves": "import os; os.chdir('/')",
    "brings": "import beside",
    "fails": "raise RuntimeError('not today')",
    "device": "import sys, types; torch = types.ModuleType('torch'); torch.cuda = types.SimpleNamespace("
    "is_initialized=lambda: True); sys.modules['torch'] = torch",
}


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[MakeStandby]:
    """Makes a standby of `train.py`, in a folder with packages that misbehave."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    for name, text in PACKAGES.items():
        (installed / f"{name}.py").write_text(text)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "train.py").write_text(
        "import sys, multiprocessing; main = sys.modules['__main__']\n"
        "print('ran', 'harmless' in sys.modules, sys.modules['__mp_main__'] is main)"
    )
    made: list[Waiting] = []

    def make(*imports: str, without: tuple[str, ...] = ()) -> Waiting:
        env = environment(tmp_path, 0, 1, 1, DDP()) | {"PYTHONPATH": str(installed)}
        command = [sys.executable, "-m", "ddpjob_trainer.bootstrap", "train.py"]
        made.append(Waiting(command, env, tmp_path, imports, without))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("reads_port", "reads MASTER_PORT"),
        ("asks_for_port", "reads MASTER_PORT"),
        ("threads", "started the thread"),
        ("starts", "started a process"),
        ("moves", "changed the working directory"),
        ("brings", "brings beside, which is the program's own"),
        ("device", "initialised cuda"),
    ],
)
def test_an_import_that_must_not_be_made_ahead_ends_the_standby_and_is_named(
    package: str, why: str, standby: MakeStandby
) -> None:
    waiting = standby("harmless", package)
    said = waiting.heard()
    assert said["package"] == package
    assert why in said["unfit"]
    assert waiting.process.wait(60) == 1
    assert standby("harmless", package, without=(package,)).heard() == {"ready": True}


def test_what_cannot_be_imported_is_left_to_the_program(standby: MakeStandby) -> None:
    waiting = standby("fails", "no_such_module", "mpi4py.MPI", "harmless")
    assert waiting.heard() == {"ready": True}
    waiting.order()
    output, errors = waiting.process.communicate(timeout=60)
    assert (output, errors, waiting.process.returncode) == ("ran True True\n", "", 0)


def test_an_order_that_comes_while_it_imports_is_obeyed_after_the_module_at_hand(
    standby: MakeStandby, tmp_path: Path
) -> None:
    (tmp_path / "site-packages" / "slow.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.01)"
    )
    waiting = standby("slow", "harmless")
    waiting.channel.send(json.dumps({"set": waiting.set, "unset": []}).encode())
    (tmp_path / "go").touch()
    assert [waiting.heard(), waiting.heard()] == [{"ready": True}, {"taken": True}]
    assert waiting.process.communicate(timeout=60)[0] == "ran False True\n"
    with Page(tmp_path / "page-0") as page:
        assert page[Slot.WARM] == 1


def test_packages_installed_meanwhile_make_it_unfit(standby: MakeStandby, tmp_path: Path) -> None:
    waiting = standby("harmless")
    assert waiting.heard() == {"ready": True}
    (tmp_path / "site-packages" / "harmless-2.dist-info").mkdir()
    waiting.channel.send(json.dumps({"set": waiting.set, "unset": []}).encode())
    assert "installed or removed" in waiting.heard()["unfit"]
    assert waiting.process.wait(60) == 1


def test_it_ends_with_its_launcher(standby: MakeStandby) -> None:
    waiting = standby("harmless")
    assert waiting.heard() == {"ready": True}
    waiting.channel.close()
    assert waiting.process.wait(60) == 0


def test_only_installed_modules_are_learned_and_not_the_program_itself(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("")
    (package / "train.py").write_text(
        "import json, beside, package.helper, os.path\n"
        "import package.train\n"
        "from pathlib import Path\nfrom ddpjob_trainer import learned\nlearned.write(Path('list'))"
    )
    (tmp_path / "beside.py").write_text("")
    subprocess.run(
        [sys.executable, "-c", "import runpy; runpy._run_module_as_main('package.train', False)"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{package.parent}:{tmp_path}"},
        check=True,
    )
    names = learned.read(tmp_path / "list")
    assert [name for name in names if name.startswith("package")] == ["package", "package.helper"]
    assert {"ddpjob_trainer", "ddpjob_trainer.learned"} <= set(names)
    assert not {"beside", "json", "os", "posixpath", "__main__"} & set(names)
    (tmp_path / "list").write_text("good.name\nrm -rf\n\n..bad\n")
    assert learned.read(tmp_path / "list") == ["good.name"]
    assert learned.read(tmp_path / "none") == []
