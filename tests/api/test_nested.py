"""Command lines of launchers that a `command` may start."""

from __future__ import annotations

import pytest

from ddpjob_api.nested import Place, Program, completed, contradictions, nested

TORCHRUN_ADDED = (
    "--nnodes 2 --nproc_per_node 4 --node_rank 1 --rdzv_backend static --rdzv_id u1 --master_addr h0 "
    "--master_port 29503 --max_restarts 0"
)
ACCELERATE_ADDED = (
    "--num_machines 2 --num_processes 8 --machine_rank 1 --main_process_ip h0 --main_process_port 29503"
)


def place(**other: int) -> Place:
    return Place(**{"node": 1, "nodes": 2, "processes": 4, "port": 29503, **other}, address="h0", run_id="u1")


@pytest.mark.parametrize(
    ("command", "program", "start"),
    [
        ("torchrun t.py", Program.TORCHRUN, 1),
        ("/opt/venv/bin/torchrun t.py", Program.TORCHRUN, 1),
        ("python -m torch.distributed.run t.py", Program.TORCHRUN, 3),
        ("python3.11 -u -X dev -m torch.distributed.launch t.py", Program.TORCHRUN, 6),
        ("/opt/venv/bin/python /opt/venv/bin/torchrun t.py", Program.TORCHRUN, 2),
        ("accelerate launch t.py", Program.ACCELERATE, 2),
        ("accelerate-launch t.py", Program.ACCELERATE, 1),
        ("python -m accelerate.commands.launch t.py", Program.ACCELERATE, 3),
        ("/usr/bin/python3 /usr/local/bin/accelerate launch t.py", Program.ACCELERATE, 3),
        ("accelerate env", None, 0),
        ("accelerate", None, 0),
        ("python", None, 0),
        ("python -m", None, 0),
        ("python train.py -m torch.distributed.run", None, 0),
        ("python -c torchrun", None, 0),
        ("bash run.sh torchrun", None, 0),
    ],
)
def test_a_launcher_is_known(command: str, program: Program | None, start: int) -> None:
    found = nested(command.split())
    assert (found.program, found.start) == (program, start) if found else program is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun t.py --lr 1", f"torchrun {TORCHRUN_ADDED} t.py --lr 1"),
        (
            "torchrun --nnodes=2 --max-restarts 3 --master_port 1234 t.py",
            (
                "torchrun --nproc_per_node 4 --node_rank 1 --rdzv_backend static --rdzv_id u1 --master_addr h0 --nnodes=2 "
                "--max-restarts 3 --master_port 1234 t.py"
            ),
        ),
        ("torchrun --no-python t.sh --nnodes 9", f"torchrun {TORCHRUN_ADDED} --no-python t.sh --nnodes 9"),
        ("accelerate launch t.py", f"accelerate launch {ACCELERATE_ADDED} --multi_gpu t.py"),
        (
            "accelerate launch --mixed_precision bf16 --num-machines 2 -m pkg --num_processes 3",
            (
                "accelerate launch --num_processes 8 --machine_rank 1 --main_process_ip h0 --main_process_port 29503 "
                "--multi_gpu --mixed_precision bf16 --num-machines 2 -m pkg --num_processes 3"
            ),
        ),
        ("accelerate launch --use_fsdp t.py", f"accelerate launch {ACCELERATE_ADDED} --use_fsdp t.py"),
        (
            "accelerate launch --config_file c.yaml t.py",
            f"accelerate launch {ACCELERATE_ADDED} --config_file c.yaml t.py",
        ),
        ("bash run.sh", "bash run.sh"),
    ],
)
def test_what_is_not_given_is_added(command: str, expected: str) -> None:
    assert " ".join(completed(command.split(), place())) == expected


def test_a_kind_that_accelerates_own_configuration_says_is_left_to_it() -> None:
    """With --multi_gpu it would not look there, and FSDP would be DDP without a word."""
    expected = f"accelerate launch {ACCELERATE_ADDED} t.py"
    assert " ".join(completed(["accelerate", "launch", "t.py"], place(), kind_is_told=True)) == expected


def test_one_rank_needs_no_multi_gpu_and_standalone_no_rendezvous() -> None:
    alone = place(node=0, nodes=1, processes=1)
    assert "--multi_gpu" not in completed(["accelerate", "launch", "t.py"], alone)
    assert completed(["torchrun", "--standalone", "t.py"], alone) == [
        "torchrun", "--nproc_per_node", "1", "--max_restarts", "0", "--standalone", "t.py"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("torchrun --nnodes 3 t.py", "--nnodes 3 contradicts nodes, which is 2"),
        ("torchrun --nnodes 1:2 t.py", "--nnodes 1:2 contradicts nodes"),
        ("torchrun --nproc-per-node=8 t.py", "--nproc_per_node 8 contradicts processesPerNode, which is 4"),
        ("torchrun --node_rank 0 t.py", "--node_rank 0 is the same on every node"),
        ("torchrun --standalone t.py", "--standalone is one node, nodes is 2"),
        ("torchrun --rdzv-backend c10d t.py", "--rdzv_backend c10d"),
        ("accelerate launch --num_machines 1 t.py", "--num_machines 1 contradicts nodes, which is 2"),
        (
            "accelerate launch --num_processes 4 t.py",
            "--num_processes 4 contradicts nodes × processesPerNode, which is 8",
        ),
        ("accelerate launch --machine_rank 0 t.py", "--machine_rank 0 is the same on every node"),
        ("accelerate launch --cpu t.py", "--cpu starts one process per node, processesPerNode is 4"),
    ],
)
def test_a_contradiction_is_named(command: str, words: str) -> None:
    (problem,) = contradictions(command.split(), nodes=2, processes=4)
    assert words in problem


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 --nproc-per-node gpu --master_addr h0 t.py --nnodes 7",
        "accelerate launch --num_processes 8 t.py --num_processes 1",
        "python train.py --nnodes 7",
    ],
)
def test_what_agrees_is_no_contradiction(command: str) -> None:
    assert contradictions(command.split(), nodes=2, processes=4) == []
