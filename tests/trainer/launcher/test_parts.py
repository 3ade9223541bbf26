"""The launcher's smaller parts: lines, last words, environment, addresses, ports."""

import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.launcher.local import eventually

from ddpjob_api.codec import load
from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Start
from ddpjob_api.names import MEMORY_FOLDER, TORCHRUN_ENV, LauncherEnv, WorkerEnv
from ddpjob_api.page import Slot
from ddpjob_api.report import (
    MAX_TERMINATION_BYTES,
    Failure,
    InEffect,
    Outcome,
    Override,
    TerminationMessage,
)
from ddpjob_trainer.files import Files
from ddpjob_trainer.launcher import autopsy
from ddpjob_trainer.launcher.cause import STACKS_SIGNAL
from ddpjob_trainer.launcher.config import Config, Unusable, address, read
from ddpjob_trainer.launcher.environment import command_line, worker_env
from ddpjob_trainer.launcher.output import MAX_PIECE_BYTES, Splitter
from ddpjob_trainer.launcher.progress import Gauge
from ddpjob_trainer.launcher.rendezvous import free_port
from ddpjob_trainer.launcher.termination import fit
from ddpjob_trainer.loop.told import told
from ddpjob_trainer.page import Page

LOOKS: list[tuple[str, list[tuple[float, int, int, int]], float | None, float | None]] = [
    # (seconds, GENERATION_STEPS, STEP, SAMPLES of one of two ranks), …: samples per second of the job, seconds left
    ("a first step took long, and says nothing", [(0, 0, 0, 0), (20, 1, 1, 32)], None, None),
    ("from then on it counts", [(0, 0, 0, 0), (20, 1, 1, 32), (21, 11, 11, 352)], 640.0, 8.9),
    ("resumed steps were not made here", [(0, 0, 50, 0), (9, 1, 51, 32), (11, 5, 55, 160)], 128.0, 22.5),
    ("steps longer than the window", [(0, 1, 1, 32), (60, 2, 2, 64), (119, 2, 2, 64)], 1.067, 5880.0),
    ("a step that does not come", [(0, 1, 1, 32), (1, 2, 2, 64), (100, 2, 2, 64)], 0.64, 9800.0),
    (
        "old looks are forgotten",
        [(0, 1, 1, 10), (50, 2, 2, 20), (90, 3, 3, 30), (91, 13, 13, 130)],
        5.366,
        324.3,
    ),
]


@pytest.mark.parametrize(
    ("looks", "rate", "eta"), [case[1:] for case in LOOKS], ids=[case[0] for case in LOOKS]
)
def test_rates_are_of_steps_that_were_made_here(
    tmp_path: Path, looks: list[tuple[float, int, int, int]], rate: float | None, eta: float | None
) -> None:
    page = Page(tmp_path / "page", create=True)
    gauge = Gauge(world_size=2)
    page[Slot.TOTAL_STEPS] = 100
    for at, own, step, samples in looks:
        page[Slot.GENERATION_STEPS], page[Slot.STEP], page[Slot.SAMPLES] = own, step, samples
        gauge.read(page, at)
    assert (gauge.progress.samples_per_second, gauge.progress.eta) == (rate, eta)
    page.close()


def through(chunks: list[bytes]) -> list[bytes]:
    splitter = Splitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n", b"c"], [b"ab", b"c"]),
        ([b"50%\r100%\r\ndone"], [b"50%", b"100%", b"done"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"]),
        ([b"a\r", b"b\n"], [b"a", b"b"]),
        ([b"\n\n"], [b"", b""]),
        ([b"\xff\x00\n"], [b"\xff\x00"]),
    ],
)
def test_output_is_split_at_every_kind_of_line_end(chunks: list[bytes], lines: list[bytes]) -> None:
    assert through(chunks) == lines


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_how_output_is_cut_into_reads_changes_nothing(chunks: list[bytes]) -> None:
    assert through(chunks) == through([b"".join(chunks)])


def test_a_line_without_an_end_is_passed_on_in_pieces_and_whole() -> None:
    pieces = through([b"x" * 70_000] * 5)
    assert b"".join(pieces) == b"x" * 350_000
    assert all(len(piece) <= MAX_PIECE_BYTES for piece in pieces)


@given(st.text(max_size=1024), st.text(max_size=512), st.integers(0, 64))
def test_a_termination_message_always_fits_and_can_be_read(text: str, place: str, size: int) -> None:
    message = TerminationMessage(
        protocol=1,
        outcome=Outcome.FAILED,
        exit_code=1,
        node=0,
        term=1,
        generation=1,
        restarts=0,
        disruptions=0,
        message=text,
        failure=Failure(reason=Reason.PROGRAM_FAILED, message=text, location=place, rank=1),
        result={str(index): "y" * 200 for index in range(size)},
        ddp=InEffect(
            bucket_bytes=(2**40,) * size,
            overrides=(Override(setting="bucketCapMB", asked="1", effective="2", where=place),) * 16,
            warnings=("w" * 300,) * 16,
        ),
    )
    encoded = fit(message)
    assert len(encoded) <= MAX_TERMINATION_BYTES
    found = load(TerminationMessage, json.loads(encoded))
    assert found.failure is not None
    assert (found.exit_code, found.failure.rank) == (1, 1)


@pytest.mark.parametrize(
    ("text", "expected"), [("h:29400", ("h", 29400)), ("[fd00::1]:29400", ("fd00::1", 29400))]
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


def environ(tmp_path: Path, spec: dict[str, object], **more: str) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("secret\n")
    return {
        LauncherEnv.SPEC.value: json.dumps(spec),
        LauncherEnv.NODE_INDEX.value: "1",
        LauncherEnv.COORDINATOR.value: "h0:29400",
        LauncherEnv.TOKEN_FILE.value: str(token),
        LauncherEnv.RUN_DIR.value: str(tmp_path),
        **more,
    }


def config(tmp_path: Path, spec: dict[str, object]) -> Config:
    return read(environ(tmp_path, spec))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"DDPJOB_SPEC": "{"}, "DDPJOB_SPEC: no spec of a DDPJob"),
        ({"DDPJOB_SPEC": '{"nods": 1}'}, "did you mean nodes"),
        ({"DDPJOB_NODE_INDEX": "x"}, "DDPJOB_NODE_INDEX='x': expected a whole number"),
        ({"DDPJOB_COORDINATOR": ""}, "DDPJOB_COORDINATOR is not set"),
        ({"DDPJOB_COORDINATOR": "h"}, "expected host:port"),
        ({"DDPJOB_TOKEN_FILE": "/nonexistent"}, "/nonexistent: No such file"),
    ],
)
def test_a_wrong_environment_is_named(tmp_path: Path, more: dict[str, str], words: str) -> None:
    with pytest.raises(Unusable, match=words.replace("(", r"\(")):
        read(environ(tmp_path, {"nodes": 2, "script": {"args": ["t.py"]}}, **more))


def test_what_is_known_of_the_checkpoint_folder_is_known_to_every_part_of_a_launcher(tmp_path: Path) -> None:
    told = config(tmp_path, {"nodes": 2, "script": {"args": ["t.py"]}, "checkpoint": {}})
    assert told.shelf is told.shelf


START = Start(
    term=2,
    generation=3,
    master_address="h0",
    master_port=29503,
    restarts=1,
    disruptions=0,
    resume_step=40,
)


def test_a_worker_is_told_torchruns_names_and_ours_and_nothing_of_the_launchers(tmp_path: Path) -> None:
    spec: dict[str, object] = {
        "nodes": 2,
        "processesPerNode": 2,
        "script": {"args": ["t.py", "--x"]},
        "ddp": {"bucketCapMB": 1},
    }
    job = config(tmp_path, spec)
    files = Files.of(tmp_path, 3, 3)
    env = worker_env(
        job,
        START,
        local_rank=1,
        files=files,
        base={"PATH": "/bin", "DDPJOB_TOKEN_FILE": "x", "DDPJOB_WORKER_PID": "1"},
    )
    assert set(TORCHRUN_ENV) <= set(env)
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["GROUP_RANK"]) == ("3", "1", "4", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("h0", "29503")
    assert env["OMP_NUM_THREADS"] == "1"
    assert env[WorkerEnv.RESUME_STEP] == "40"
    assert env[WorkerEnv.TERM] == "2"
    assert json.loads(env[WorkerEnv.SETTINGS]) == {"bucketCapMB": 1}, (
        "Auto stays Auto: an empty field touches nothing"
    )
    assert "TORCHELASTIC_USE_AGENT_STORE" not in env
    assert not {"DDPJOB_TOKEN_FILE", "DDPJOB_SPEC", "DDPJOB_WORKER_PID"} & set(env)
    assert command_line(job, START)[1:] == ["-m", "ddpjob_trainer.bootstrap", "t.py", "--x"]


@pytest.mark.parametrize(
    ("more", "listed"),
    [
        ({"script": {"args": ["t.py"]}}, True),
        ({"script": {"args": ["t.py"]}, "recovery": {"warmStandby": False}}, False),
        ({"command": ["torchrun", "t.py"]}, False),
    ],
)
def test_a_worker_lists_its_imports_where_a_standby_will_read_them(
    tmp_path: Path, more: dict[str, Any], listed: bool
) -> None:
    job = config(tmp_path, {"nodes": 2, **more})
    env = worker_env(job, START, local_rank=0, files=Files.of(tmp_path, 3, 2), base={})
    assert (WorkerEnv.IMPORTS_FILE.value in env) is listed


TASK: dict[str, object] = {"task": {"entrypoint": "x:y", "maxSteps": 1, "globalBatchSize": 2}}
COPIES: list[tuple[str, dict[str, object], bool]] = [
    ("a task", {**TASK, "checkpoint": {"inMemoryEverySteps": 5}}, True),
    ("a task that does not ask for it", {**TASK, "checkpoint": {"everySteps": 5}}, False),
    ("a script", {"script": {"args": ["t.py"]}, "checkpoint": {"inMemoryEverySteps": 5}}, False),
]


@pytest.mark.parametrize(("spec", "copied"), [case[1:] for case in COPIES], ids=[case[0] for case in COPIES])
def test_a_task_is_told_where_its_copies_go_and_they_are_looked_for_there(
    tmp_path: Path, spec: dict[str, object], copied: bool
) -> None:
    job = config(tmp_path, {"nodes": 2, **spec})
    folder = tmp_path / MEMORY_FOLDER if copied else None
    assert job.shelf.memory == folder
    env = worker_env(job, START, local_rank=0, files=Files.of(tmp_path, 3, 2), base={}, resume_dir=folder)
    assert env.get(WorkerEnv.MEMORY_DIR) == (str(folder) if copied else None)
    if job.spec.task is not None:
        heard = told(env)
        assert (heard.memory_dir, heard.copies, heard.resumes_from_memory) == (folder, copied, copied)


@pytest.mark.parametrize("program", [{"script": {"args": ["t.py"]}}, {"command": ["torchrun", "t.py"]}])
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"habana.ai/gaudi": 8}, "habana.ai/gaudi"),
        ({"nvidia.com/mig-1g.5gb": 1}, "nvidia.com/gpu"),
        ({"cpu": 4}, None),
    ],
)
def test_a_worker_is_told_which_accelerator_its_pod_asks_for(
    tmp_path: Path, program: dict[str, Any], limits: dict[str, Any], told: str | None
) -> None:
    job = config(tmp_path, {"nodes": 2, **program, "resourcesPerNode": {"limits": limits}})
    base = {"DDPJOB_ACCELERATOR": "of a launcher further up"}
    env = worker_env(job, START, local_rank=0, files=Files.of(tmp_path, 3, 2), base=base)
    assert env.get(WorkerEnv.ACCELERATOR) == told


def test_a_command_gets_what_it_needs_to_span_nodes(tmp_path: Path) -> None:
    job = config(tmp_path, {"nodes": 2, "processesPerNode": 2, "command": ["torchrun", "t.py"]})
    line = command_line(job, START)[4:]
    assert line[0] == "torchrun"
    assert line[-1] == "t.py"
    assert " ".join(line).count("--node_rank 1 ") == 1
    base = {"PYTHONPATH": "/own", "PATH": "/usr/bin"}
    env = worker_env(job, START, local_rank=0, files=Files.of(tmp_path, 3, 2), base=base)
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"], env["PET_NODE_RANK"]) == ("2", "2", "1")
    assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    injected, own = env["PYTHONPATH"].split(":")
    assert (Path(injected) / "sitecustomize.py").is_file()
    assert own == "/own"
    assert env["PATH"] == f"/usr/bin:{Path(job.python).parent}"
    assert WorkerEnv.PAGE.value not in env, "which of its processes is a rank is not known yet"


@pytest.mark.parametrize(("node", "said"), [("0", 1), ("1", 0)])
def test_a_command_begins_with_the_checkpoint_it_may_go_on_from(tmp_path: Path, node: str, said: int) -> None:
    job = config(tmp_path, {"nodes": 2, "command": ["sh", "-c", 'echo "<$DDPJOB_RESUME>"']})
    directory = tmp_path / "checkpoints"

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(job, START), env={"PATH": "/usr/bin:/bin", "GROUP_RANK": node, **env}, cwd=tmp_path,
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip

    assert run().stdout == "<>\n"
    assert run(DDPJOB_CHECKPOINT_DIR=str(directory)).stdout == "<>\n"
    directory.mkdir()
    with zipfile.ZipFile(directory / "last.pt", "w") as archive:
        archive.writestr("last/data.pkl", b"")
    os.utime(directory / "last.pt", (1, 1))
    (directory / "half.pt").write_bytes(b"PK\3\4")
    done = run(DDPJOB_CHECKPOINT_DIR=str(directory))
    assert done.stdout == f"<{directory}/last.pt>\n"
    assert done.stderr.count(f"[ddpjob] checkpoint {directory}/half.pt is passed over: ") == said


def test_a_taken_port_is_skipped() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        base = port - 5
        found = free_port("127.0.0.1", base, 5)
    assert found is not None
    assert found != port


def test_stacks_are_there_when_their_handler_is_done(tmp_path: Path) -> None:
    """Asked again and again while the handler runs: what is taken for whole is whole."""
    stacks = tmp_path / "stacks"
    program = (
        "import faulthandler, signal, sys, threading, time\n"
        f"file = open({str(stacks)!r}, 'a')\n"
        f"faulthandler.register({int(STACKS_SIGNAL)}, file=file, all_threads=True, chain=False)\n"
        "for _ in range(90): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert not autopsy.answered(process.pid, STACKS_SIGNAL, stacks)
        process.send_signal(STACKS_SIGNAL)
        eventually(lambda: autopsy.answered(process.pid, STACKS_SIGNAL, stacks), "the stacks")
        assert stacks.read_text().count("hread 0x") == 91
        assert autopsy.innermost(stacks.read_text())
    finally:
        process.kill()
        process.communicate()
    stacks.unlink()
    assert autopsy.answered(process.pid, STACKS_SIGNAL, stacks), "it is gone"
