"""A program under the bootstrap behaves as under plain python, and ends with an exit code that is known before its end."""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.page import Slot, WorkerState
from ddpjob_api.spec import DDP, Backend

pytestmark = pytest.mark.timeout(200)
AT_ONCE = 3

LOOK = """
import argparse, json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path[:2], "prog": argparse.ArgumentParser().prog,
    "name": __name__, "file": globals().get("__file__"), "spec": __spec__ and (__spec__.name, __spec__.origin, __spec__.parent), "package": __package__,
    "doc": __doc__, "cached": globals().get("__cached__"), "loader": type(__loader__).__name__,
    "builtins": type(__builtins__).__name__, "main": main.__dict__ is globals(), "names": sorted(globals()),
    "flags": str(sys.flags), "cwd": os.getcwd(), "hook": sys.excepthook is sys.__excepthook__,
}))
"""

CHILDREN = """
import multiprocessing
class Mine:
    value = 17
def child(mine, queue):
    from ddpjob_trainer import worker
    queue.put((type(mine) is Mine, mine.value, worker.current() is None))
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(Mine(), queue))
        process.start()
        print(method, queue.get())
        process.join()
"""

PROGRAMS = {
    "end": "print('done')",
    "module names": LOOK,
    "exit 3": "import sys; sys.exit(3)",
    "exit 85 of its own": "import sys; sys.exit(85)",
    "exit text": "import sys; sys.exit('bad dataset')",
    "exit None": "import sys; sys.exit(None)",
    "exit -1": "import sys; sys.exit(-1)",
    "hard exit": "import os; os._exit(9)",
    "killed": "import os; os.kill(os.getpid(), 11)",
    "uncaught": "def f(x):\n    return 1 / x\nf(0)",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('outer') from e",
    "syntax error": "print('never'\n",
    "missing import": "import nowhere_to_be_found",
    "interrupt": "raise KeyboardInterrupt",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\nraise ValueError",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "atexit": "import atexit\natexit.register(print, 'first')\natexit.register(print, 'second')\nprint('body')",
    "atexit and error": "import atexit\natexit.register(print, 'bye')\n1/0",
    "no newline": "import sys; sys.stdout.write('x' * 100000)",
    "main in a thread": "import sys, threading\nt = threading.Thread(target=lambda: print(sys.modules['__main__'].V))\n"
    "V = 5\nt.start()",
    "pool": "from concurrent.futures import ThreadPoolExecutor as P\np = P(2)\np.submit(print, 'pooled')",
    "children": CHILDREN,
    "hook that fails": "import sys\nsys.excepthook = lambda *a: 1 / 0\nraise ValueError('first')",
    "hook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(5)\nraise ValueError",
    "no hook": "import sys\ndel sys.excepthook\nraise ValueError('first')",
    "closed stdout": "import sys\nprint('said')\nsys.stdout.close()",
    "stdout gone": "import os, sys\nsys.stdout.write('kept back')\nos.close(1)",
    "no streams": "import sys\nsys.stdout = sys.stderr = None\nprint('unheard')\nsys.exit(4)",
    "environment gone": "import os\nos.environ.clear()\nraise ValueError('after')",
    "folder gone": "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\nraise ValueError('after')",
    "folder changed": "import os\nos.chdir('/')\ndef f():\n    raise ValueError('after')\nf()",
    "forked child that ends": "import os, sys\nchild = os.fork()\nif child == 0:\n    sys.exit(7)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "forked child that fails": "import os\nchild = os.fork()\nif child == 0:\n    raise ValueError('child')\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "warnings": "import warnings\nprint(warnings.filters)\nwarnings.warn('old', DeprecationWarning)\n"
    "def f():\n    warnings.warn('odd', stacklevel=2)\nf()",
    "state": "import gc, os, signal, sys, threading\nprint(gc.get_threshold(), gc.isenabled(), sys.getrecursionlimit(), "
    "threading.active_count(), [signal.getsignal(n) for n in (2, 10, 12, 13, 15)], os.umask(0), sys.gettrace(), "
    "sys.getswitchinterval(), len(sys.path_hooks), type(sys.stdout), sys.stdout.line_buffering)",
    "error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()",
    "group": "raise ExceptionGroup('both', [ValueError('one'), KeyError('two')])",
    "notes and no words": "class Mute(Exception):\n    def __str__(self):\n        return 1 / 0\n"
    "e = Mute()\ne.add_note('noted')\nraise e",
    "debugger": "import io, pdb, sys\nx = 3\n"
    "pdb.Pdb(stdin=io.StringIO('p x\\nn\\nn\\nc\\n'), stdout=sys.stdout, nosigint=True).set_trace()\nx = 4\nprint(x)",
    "breakpoint": "import sys\nsys.breakpointhook = lambda: print('here')\nbreakpoint()",
    "raises in atexit": "import atexit\natexit.register(int, 'no number')",
    "recursion": "def f():\n    f()\ntry:\n    f()\nexcept RecursionError:\n    print('deep')",
}


MODULES = [
    ["-m", "pkg.train", "a", "b"],
    ["-m", "pkg"],
    ["-m", "pkg.missing"],
    ["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "x"],
    ["pkg"],
    ["missing.py"],
    ["link.py"],
    ["-m", "pdb", "-c", "n", "-c", "q", "link.py"],
    ["-m", "timeit", "-n", "1", "-r", "1", "-s", "import sys; print(sys.argv)", "raise ValueError"],
]


def run_script(name: str, folder: Path) -> tuple[Rank, Rank, Rank]:
    (folder / "folder").mkdir()
    (folder / "folder" / "train.py").write_text(PROGRAMS[name])
    return each_way(folder, ["folder/train.py", "--epochs", "3"])


def run_module(args: list[str], folder: Path) -> tuple[Rank, Rank, Rank]:
    package = folder / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 7")
    (package / "train.py").write_text(
        "from .helper import VALUE\nprint(VALUE)" + LOOK + "\nraise ValueError(VALUE)"
    )
    (package / "__main__.py").write_text(LOOK)
    (folder / "link.py").symlink_to(package / "__main__.py")
    (package / "__pycache__").mkdir()
    return each_way(folder, args)


def each_way(folder: Path, args: list[str]) -> tuple[Rank, Rank, Rank]:
    """The program under plain python, under the bootstrap, and in a standby, in the same folder."""
    return (
        run(folder, args, world_size=1, bootstrap=False)[0],
        run(folder, args, world_size=1)[0],
        run(folder, args, world_size=1, standby=["yaml"])[0],
    )


def assert_alike(plain: Rank, ours: Rank) -> None:
    assert ours.returncode == plain.returncode, ours.stderr
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr


@pytest.fixture(scope="module")
def ways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[tuple[Rank, Rank, Rank]]]]:
    """The chosen programs, some at once: each is a few short processes that leave a core idle half of the time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {}
        for item in request.session.items:
            if item.path == request.path and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
                given = item.callspec.params
                if "name" in given:
                    found[item.nodeid] = pool.submit(
                        run_script, given["name"], tmp_path_factory.mktemp("script")
                    )
                elif "args" in given:
                    found[item.nodeid] = pool.submit(
                        run_module, given["args"], tmp_path_factory.mktemp("module")
                    )
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_behaves_as_under_plain_python(
    name: str, ways: Mapping[str, Future[tuple[Rank, Rank, Rank]]], request: pytest.FixtureRequest
) -> None:
    plain, *ours = ways[request.node.nodeid].result()
    for each in ours:
        assert_alike(plain, each)
        if plain.returncode >= 0 and name != "hard exit":
            assert each[Slot.EXIT_CODE] == plain.returncode
            assert each[Slot.STATE] == WorkerState.FINISHED


@pytest.mark.parametrize("args", MODULES, ids=" ".join)
def test_modules_folders_and_links_behave_as_under_plain_python(
    args: list[str], ways: Mapping[str, Future[tuple[Rank, Rank, Rank]]], request: pytest.FixtureRequest
) -> None:
    plain, *ours = ways[request.node.nodeid].result()
    for each in ours:
        assert_alike(plain, each)


def test_a_program_that_a_worker_starts_is_no_worker(tmp_path: Path) -> None:
    """Also through the bootstrap, with the worker's whole environment."""
    (tmp_path / "child.py").write_text(
        "from ddpjob_trainer import worker; print(worker.current()); raise SystemExit(3)"
    )
    (tmp_path / "train.py").write_text(
        "import subprocess, sys\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'ddpjob_trainer.bootstrap', 'child.py']) - 3)"
    )
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert (rank.returncode, rank.stdout, rank[Slot.EXIT_CODE]) == (0, "None\n", 0)
    assert not rank.error_file.exists()


def test_a_file_left_open_is_written_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "f = open('out', 'w')\nf.write('kept')\nb = open('raw', 'wb')\nb.write(b'too')"
    )
    assert run(tmp_path, ["train.py"], world_size=1)[0].returncode == 0
    assert (tmp_path / "out").read_text() == "kept"
    assert (tmp_path / "raw").read_bytes() == b"too"


def test_a_program_without_torch_never_imports_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys; print([m for m in ('torch', 'numpy', 'ctypes') if m in sys.modules][:1])"
    )
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert rank.stdout.strip() in ("[]", "['ctypes']")
    assert rank[Slot.TORCH_IMPORTED_AT] == 0


@pytest.mark.parametrize(
    ("program", "message", "where"),
    [
        ("def f():\n    raise ValueError('bad sample 17')\nf()", "ValueError: bad sample 17", "train.py:2"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name", "train.py:2"),
        ("import sys\nsys.exit('bad dataset')", "SystemExit: bad dataset", "train.py:2"),
    ],
)
def test_the_error_file_has_the_programs_own_words_and_line(
    program: str, message: str, where: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert rank.error["message"]["message"].startswith(message)
    assert rank.error["message"]["extraInfo"]["timestamp"].isdigit()
    assert rank.error["ddpjob"]["location"] == where
    assert (rank.error["ddpjob"]["peerLost"], rank.error["ddpjob"]["refused"]) == (False, False)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_error_inside_of_a_package_is_the_programs_line_wherever_packages_lie(
    folder: str, tmp_path: Path
) -> None:
    packages = tmp_path / folder
    packages.mkdir()
    (packages / "elsewhere.py").write_text("def call():\n    raise ValueError('bad shape')")
    (tmp_path / "train.py").write_text("import elsewhere\n\nelsewhere.call()")
    [rank] = run(tmp_path, ["train.py"], world_size=1, extra={"PYTHONPATH": str(packages)})
    assert rank.error["message"]["message"] == "ValueError: bad shape"
    assert rank.error["ddpjob"]["location"] == "train.py:3"


GONE = "RuntimeError('[/w/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.7]:4711')"
LATE = (
    "RuntimeError('[/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation')"
)
NCCL = (
    "type('DistBackendError', (RuntimeError,), {})('NCCL error in: NCCLUtils.cpp:93, invalid usage, NCCL version 2.28.9\\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\\nLast error:\\n"
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 901000')"
)
HOOK = "import sys\nsys.excepthook = lambda *error: print('the hook of the program', file=sys.stderr)\n"


@pytest.mark.parametrize(
    ("program", "said", "traceback"),
    [
        (
            f"raise {GONE}",
            "[ddpjob] ended with its peers: RuntimeError: Connection closed by peer [10.0.0.7]:4711 (train.py:1)\n",
            False,
        ),
        (f"raise {LATE}", "Timed out waiting 6000ms", True),
        (f"raise {NCCL}", "Duplicate GPU detected : rank 1", True),
        (f"{HOOK}raise {GONE}", "the hook of the program", False),
        ("raise ConnectionResetError('Connection reset by peer')", "Connection reset by peer", True),
    ],
)
def test_a_rank_whose_peer_is_gone_says_so_in_a_line(
    program: str, said: str, traceback: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert rank.returncode == 1
    assert said in rank.stderr
    assert ("Traceback" in rank.stderr) is traceback


def test_what_the_loop_found_is_a_sentence_and_not_its_insides(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from ddpjob_trainer.errors import Diverged\nraise Diverged('lower the learning rate')"
    )
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert rank.returncode == 1
    assert rank.stderr.endswith("[ddpjob] Diverged: lower the learning rate\n")
    assert "Traceback" not in rank.stderr
    assert rank.error["ddpjob"]["type"] == "Diverged"


def test_an_option_of_the_interpreter_is_refused_in_words(tmp_path: Path) -> None:
    [rank] = run(tmp_path, ["-u", "train.py"], world_size=1)
    assert rank.returncode == 86
    assert "spec.script.args: -u is an option of the interpreter" in rank.stderr
    assert "Traceback" not in rank.stderr
    assert rank.error["ddpjob"]["refused"] is True


def test_settings_of_another_version_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never')")
    [rank] = run(tmp_path, ["train.py"], world_size=1, extra={"DDPJOB_SETTINGS": '{"quantum": true}'})
    assert (rank.returncode, rank.stdout) == (86, "")
    assert "spec.ddp.quantum: unknown field" in rank.stderr


REFUSED = """
import torch.distributed as dist
try:
    dist.init_process_group("gloo")
except Exception as error:
    raise SystemExit(1)
"""

SYNC_BATCH_NORM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2)))
print("never")
"""


def test_what_cannot_work_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Also where the program catches everything."""
    (tmp_path / "caught.py").write_text(REFUSED)
    [rank] = run(tmp_path, ["caught.py"], world_size=1, ddp=DDP(backend=Backend.NCCL))
    assert rank.returncode == rank[Slot.EXIT_CODE] == 86
    assert rank.error["ddpjob"]["refused"] is True

    (tmp_path / "bn").mkdir()
    (tmp_path / "bn" / "train.py").write_text(SYNC_BATCH_NORM)
    [rank] = run(tmp_path / "bn", ["train.py"], world_size=1)
    assert (rank.returncode, rank.stdout) == (86, "")
    assert "[ddpjob] refused: spec.ddp.backend: SyncBatchNorm needs an accelerator" in rank.stderr
    assert "Traceback" not in rank.stderr
    assert rank[Slot.STEP] == 0


def test_stacks_of_all_threads_are_written_on_a_signal(tmp_path: Path) -> None:
    program = "import os, signal, json\ndef deep():\n    os.kill(os.getpid(), signal.SIGRTMIN + 3)\ndeep()"
    (tmp_path / "train.py").write_text(program)
    assert run(tmp_path, ["train.py"], world_size=1)[0].returncode == 0
    assert "in deep" in (tmp_path / "stacks-0").read_text()


def test_a_worker_dies_with_its_launcher(tmp_path: Path) -> None:
    program = """
import ctypes
asked = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(asked))
print(asked.value)
"""
    (tmp_path / "train.py").write_text(program)
    assert run(tmp_path, ["train.py"], world_size=1)[0].stdout == "9\n"


def test_outside_of_a_job_the_public_functions_do_nothing(tmp_path: Path) -> None:
    import ddpjob_trainer

    ddpjob_trainer.report(accuracy=0.5)
    assert ddpjob_trainer.on_stop(len) is len
    assert json.dumps(sys.version_info[:1])


def test_a_result_is_bounded_and_of_scalars(tmp_path: Path) -> None:
    program = """
import ddpjob_trainer
ddpjob_trainer.report(loss=float("nan"), steps=3)
ddpjob_trainer.report(steps=4, note="x")
for wrong in ({"a": [1]}, {"b": "x" * 300}, {"c" * 65: 1}, {f"d{i}": i for i in range(40)}):
    try:
        ddpjob_trainer.report(**wrong)
    except (TypeError, ValueError) as error:
        print(error)
"""
    (tmp_path / "train.py").write_text(program)
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert rank.facts["result"] == {"loss": "nan", "steps": 4, "note": "x"}
    assert rank.stdout.splitlines() == [
        "report: a is a list; give a number, a string, a boolean or None",
        "report: b is a text of 300 characters; at most 256",
        "report: the name cccccccccccccccccccc… has 65 characters; at most 64",
        "report: 43 values; a job's result holds 32",
    ]
