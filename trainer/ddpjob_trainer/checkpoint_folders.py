"""Whether a folder that a framework wrote is a complete checkpoint: what it writes last is there, and each file whole.

Hugging Face's Trainer writes its state last. Accelerate writes the random states of a rank after all but the objects of
`register_for_checkpointing`, whose number nobody knows from outside; so our hook marks a folder while it is written.
Of the sharded layouts, torch.distributed.checkpoint (FSDP) writes `.metadata` last and DeepSpeed `latest`.

Why apart: layouts of frameworks, whichever of them is the newest. Must not: import torch.
"""

import json
import os
import re
from pathlib import Path

from ddpjob_trainer.checkpoint_files import of_file, saved_by_torch

TRAINER_STATE = "trainer_state.json"
RANDOM_STATES = "random_states_0.pkl"
"""Of the rank that writes all but its peers' random states, which are no loss: Accelerate goes on without them."""
WRITING = ".ddpjob-writing"
"""In a folder of Accelerate's while `save_state` writes there."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
ADAPTERS = frozenset(name for name in WEIGHTS if name.startswith("adapter_"))
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TENSORS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".npz", ".h5", ".msgpack")
NO_WEIGHTS = re.compile(r"^(optimizer|scheduler|scaler|rng_state|training_args)(_\d+)?(\.|$)")
"""What the Trainer writes beside the weights."""
OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
FILE = re.compile(
    r"^(model|pytorch_model|adapter_model|pytorch_model_fsdp|optimizer|scheduler|sampler|dl_state_dict|scaler|rng_state|"
    r"random_states|custom_checkpoint)(_\d+)?(_rank\d+)?\.(bin|pt|pth|pkl|safetensors)$"
)
SHARDED = re.compile(r"^(pytorch_model_fsdp|optimizer)_\d+$")
FSDP_WEIGHTS = re.compile(r"^pytorch_model_fsdp(_\d+)?(_rank\d+)?(\.bin)?$")
FSDP_OPTIMIZER = re.compile(r"^optimizer_\d+(_rank\d+\.bin)?$")
METADATA = ".metadata"
SHARD_SUFFIX = ".distcp"
SHARD = re.compile(rb"(?<!/)__\d+_\d+\.distcp")
"""As names stand in the metadata, a pickle."""
DEEPSPEED = re.compile(r"^(global_step\d+|pytorch_model(_\d+)?|latest)$")
ACCELERATE = re.compile(
    rf"^(optimizer\.bin|random_states_\d+\.pkl|pytorch_model_fsdp.*|{re.escape(WRITING)})$"
)
"""By which a folder of `save_state` is known."""


def names_in(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except OSError:
        return set()


def is_accelerate(path: Path) -> bool:
    return any(ACCELERATE.match(name) for name in names_in(path))


def is_sharded(path: Path) -> bool:
    """Whether torch.distributed.checkpoint has written there, or begun to."""
    return any(name == METADATA or name.endswith(SHARD_SUFFIX) for name in names_in(path))


def lacks_optimizer(names: set[str]) -> bool:
    """Whether the Trainer was told to save its model only, where its state is there: that is written last."""
    return names.isdisjoint(OPTIMIZERS) and not any(FSDP_OPTIMIZER.match(name) for name in names)


def of_trainer(path: Path, step: int, *, only_model: bool = False) -> str | None:
    """What is wrong with a folder of the Trainer's, or None; `only_model`: it may lack the optimizer."""
    try:
        state = json.loads((path / TRAINER_STATE).read_bytes())
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE}: {error}"
    if not isinstance(state, dict) or state.get("global_step") != step:
        return f"{TRAINER_STATE} is not of step {step}"
    names = names_in(path)
    if any(DEEPSPEED.match(name) for name in names):
        return of_deepspeed(path) or of_files(path, names)
    if names.isdisjoint(WEIGHTS + INDEXES) and not any(FSDP_WEIGHTS.match(name) for name in names):
        others = other_weights(path)
        if not others:
            return f"none of {', '.join(WEIGHTS)}"
        if problem := next(filter(None, map(of_other, others)), None):
            return problem
    if lacks_optimizer(names) and not only_model:
        return f"none of {', '.join(OPTIMIZERS)}"
    return of_files(path, names)


def other_weights(path: Path) -> list[Path]:
    """Where a Trainer may have its weights that saves them in a way of its own, named adapters of PEFT for one."""
    files = (each for each in path.rglob("*") if each.suffix in TENSORS)
    return sorted(each for each in files if not NO_WEIGHTS.match(each.relative_to(path).parts[0]))


def of_other(path: Path) -> str | None:
    """What is wrong with a file whose format is known by its suffix or by its first bytes."""
    if path.suffix == ".safetensors":
        return of_file(path)
    saved = saved_by_torch(path)
    return saved.problem if saved is not None else None


def transformers_finds_weights(path: Path) -> bool:
    """Whether Hugging Face's own Trainer would take the folder for a checkpoint; a subclass may load it nevertheless."""
    names = names_in(path)
    if not names.isdisjoint(WEIGHTS + INDEXES) or any(
        FSDP_WEIGHTS.match(name) or DEEPSPEED.match(name) for name in names
    ):
        return True
    return any(not ADAPTERS.isdisjoint(names_in(path / name)) for name in names)


def of_accelerate(path: Path) -> str | None:
    """What is wrong with a folder of `save_state`, or None. A program may save its weights there in a way of its own."""
    names = names_in(path)
    if WRITING in names:
        return "save_state did not come to its end"
    if RANDOM_STATES not in names:
        return f"no {RANDOM_STATES}, which is written after models, optimizers and schedulers"
    deepspeed = any(DEEPSPEED.match(name) for name in names)
    return (of_deepspeed(path) if deepspeed else None) or of_files(path, names)


def of_files(path: Path, names: set[str]) -> str | None:
    """Each known file and folder of shards that is there is whole."""
    for name in INDEXES:
        if name in names:
            problem = of_index(path, name)
            if problem is not None:
                return problem
    for name in sorted(names):
        problem = None
        if FILE.match(name):
            problem = of_file(path / name)
        elif SHARDED.match(name):
            problem = of_shards(path / name)
        if problem is not None:
            return problem
    return None


def of_shards(path: Path) -> str | None:
    try:
        named = set(SHARD.findall((path / METADATA).read_bytes()))
    except OSError:
        return f"{path.name} has no {METADATA}, which is written last"
    # Where nodes have folders of their own, each has its ranks' shards, and rank 0's the metadata.
    missing = sorted({name.decode() for name in named} - names_in(path))
    return f"{path.name} has no {missing[0]}, which its {METADATA} names" if missing else None


def of_index(path: Path, name: str) -> str | None:
    try:
        shards = set(json.loads((path / name).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{name}: {error!r}"
    return next((problem for shard in sorted(shards) if (problem := of_file(path / shard))), None)


def of_deepspeed(path: Path) -> str | None:
    """`latest` has the name of the folder with the shards, and is written when all ranks have theirs there."""
    try:
        tag = (path / "latest").read_text().strip()
    except (OSError, ValueError) as error:
        return f"latest, which is written last: {error}"
    return None if tag and names_in(path / tag) else f"latest names {tag}, which is not there"
