"""A `command` that is a launcher itself: `torchrun`, `accelerate launch` and their module forms, over several nodes.

Why apart: admission refuses what contradicts the resource, and each pod's launcher adds what is not given; both must
read a command line the same way. What is given stays as it is given.
Must not: know options other than those that say where a process runs, and which options have no value
(tests/trainer/launcher/test_nested.py compares these with the programs' own parsers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath


class Program(Enum):
    """A launcher whose arguments are known."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate launch"


SCRIPTS = {"torchrun": Program.TORCHRUN, "accelerate-launch": Program.ACCELERATE}
MODULES = {
    "torch.distributed.run": Program.TORCHRUN,
    "torch.distributed.launch": Program.TORCHRUN,
    "accelerate.commands.launch": Program.ACCELERATE,
}
FLAGS = {
    Program.TORCHRUN: frozenset(
        {"help", "module", "no_python", "run_path", "standalone", "use_env", "virtual_local_rank", "h", "m"}
    ),
    Program.ACCELERATE: frozenset(
        {
            "cpu", "debug", "downcast_bf16", "dynamo_use_dynamic", "dynamo_use_fullgraph",
            "dynamo_use_regional_compilation", "enable_cpu_affinity", "fp8_use_autocast_during_eval", "help", "module",
            "multi_gpu", "no_python", "no_tpu_cluster", "quiet", "same_network", "tpu", "tpu_cluster", "tpu_use_sudo",
            "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config", "h", "m", "q",
        }
    ),
}  # fmt: skip
"""Options without a value: the word after one is not its own."""
OTHER_KINDS = frozenset(
    {"cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file", "multi_gpu"}
)
"""Options of accelerate that say what kind of training it is."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one node's processes run."""

    node: int
    nodes: int
    processes: int
    """Per node."""
    address: str
    port: int
    run_id: str


@dataclass(frozen=True)
class Nested:
    """A known launcher in a command line."""

    program: Program
    start: int
    """Where its options begin."""
    given: Mapping[str, str]
    """Its options before the script, by their name with `_`; a flag's value is empty."""


def nested(command: Sequence[str]) -> Nested | None:
    """The launcher that a command line starts; None where it starts anything else."""
    found = program_of(command)
    if found is None:
        return None
    program, start = found
    return Nested(program, start, given(command[start:], FLAGS[program]))


def program_of(command: Sequence[str]) -> tuple[Program, int] | None:
    if not PurePath(command[0]).name.startswith("python"):
        return script_of(command, 0)
    position = 1
    while position < len(command) and command[position] != "-m":
        if not command[position].startswith("-"):
            return script_of(command, position)
        if command[position] in {"-c", "-"}:
            return None
        position += 2 if command[position] in {"-X", "-W"} else 1
    module = command[position + 1] if position + 1 < len(command) else ""
    return (MODULES[module], position + 2) if module in MODULES else None


def script_of(command: Sequence[str], position: int) -> tuple[Program, int] | None:
    name = PurePath(command[position]).name
    if name in SCRIPTS:
        return SCRIPTS[name], position + 1
    if name == "accelerate" and list(command[position + 1 : position + 2]) == ["launch"]:
        return Program.ACCELERATE, position + 2
    return None


def given(words: Sequence[str], flags: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        name, equals, value = words[position].lstrip("-").partition("=")
        name = name.replace("-", "_")
        position += 1
        if not equals and name not in flags and position < len(words):
            value = words[position]
            position += 1
        found[name] = value
    return found


def completed(command: Sequence[str], place: Place, *, kind_is_told: bool = False) -> list[str]:
    """The command line of one node: what is not given is added, in front of what is.

    `kind_is_told`: accelerate's own configuration says what kind of training it is.
    """
    found = nested(command)
    if found is None:
        return list(command)
    wanted = (
        torchrun_options(place)
        if found.program is Program.TORCHRUN
        else accelerate_options(place, kind_is_told=kind_is_told or bool(OTHER_KINDS & set(found.given)))
    )
    if "standalone" in found.given:
        wanted = {name: wanted[name] for name in ("nproc_per_node", "max_restarts")}
    added = [
        word
        for name, value in wanted.items()
        if name not in found.given
        for word in ((f"--{name}", value) if value else (f"--{name}",))
    ]
    return [*command[: found.start], *added, *command[found.start :]]


def torchrun_options(place: Place) -> dict[str, str]:
    return {
        "nnodes": str(place.nodes),
        "nproc_per_node": str(place.processes),
        "node_rank": str(place.node),
        "rdzv_backend": "static",
        "rdzv_id": place.run_id,
        "master_addr": place.address,
        "master_port": str(place.port),
        # The launcher restarts; a nested restart would be invisible and uncounted.
        "max_restarts": "0",
    }


def accelerate_options(place: Place, *, kind_is_told: bool) -> dict[str, str]:
    world = place.nodes * place.processes
    wanted = {
        "num_machines": str(place.nodes),
        "num_processes": str(world),
        "machine_rank": str(place.node),
        "main_process_ip": place.address,
        "main_process_port": str(place.port),
    }
    if world > 1 and not kind_is_told:
        # Also without a GPU: it is accelerate's word for "one process per rank", and each takes the device it finds.
        wanted["multi_gpu"] = ""
    return wanted


def contradictions(command: Sequence[str], *, nodes: int, processes: int) -> list[str]:
    """What a command line says otherwise than the resource, each with what to do; empty where nothing does."""
    found = nested(command)
    if found is None:
        return []
    told = found.given
    if found.program is Program.TORCHRUN:
        return [*against(told, "nnodes", nodes, "nodes"), *against(told, "nproc_per_node", processes, "processesPerNode"),
                *one_node(told, "node_rank", nodes), *rendezvous(told, nodes)]  # fmt: skip
    problems = [
        *against(told, "num_machines", nodes, "nodes"),
        *against(told, "num_processes", nodes * processes, "nodes × processesPerNode"),
        *one_node(told, "machine_rank", nodes),
    ]
    if "cpu" in told and processes > 1:
        problems.append(
            f"--cpu starts one process per node, processesPerNode is {processes}; take --cpu out (without a GPU the "
            "processes use the CPU by themselves)"
        )
    return problems


def against(told: Mapping[str, str], name: str, wanted: int, field: str) -> list[str]:
    value = told.get(name, "")
    counts = {int(part) for part in value.split(":") if part.isdecimal()}
    if not counts or counts == {wanted}:
        return []
    return [f"--{name} {value} contradicts {field}, which is {wanted}; take it out, it is added"]


def one_node(told: Mapping[str, str], name: str, nodes: int) -> list[str]:
    if name not in told or nodes == 1:
        return []
    return [f"--{name} {told[name]} is the same on every node; take it out, each node's own is added"]


def rendezvous(told: Mapping[str, str], nodes: int) -> list[str]:
    problems = []
    if "standalone" in told and nodes > 1:
        problems.append(f"--standalone is one node, nodes is {nodes}; take it out")
    backend = told.get("rdzv_backend", "static")
    if backend != "static":
        problems.append(
            f"--rdzv_backend {backend}: which ranks a node has is only known with static; take it out, the nodes find "
            "each other without"
        )
    return problems
