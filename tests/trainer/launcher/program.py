"""A training without torch: steps on the page, boundaries, a resume file; it misbehaves as it is told.

`program.py '{"steps": 20, "faults": {"1": {"0": "raise"}}}'`: in generation 1, rank 0 raises at its third step.
"""

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ddpjob_api.page import Fact, Phase, Slot
from ddpjob_trainer import boundary, worker

plan = json.loads(sys.argv[1])
rank, generation = int(os.environ["RANK"]), os.environ["DDPJOB_GENERATION"]
fault = plan.get("faults", {}).get(generation, {}).get(str(rank))
running = worker.current()
assert running is not None
page = running.page
running.own_steps()
state = Path(plan.get("state", "/nonexistent")) / f"state-{rank}"
step = int(state.read_text()) if state.exists() else 0
page[Slot.PROCESS_GROUP_AT] = time.monotonic()
page[Slot.TOTAL_STEPS] = plan["steps"]
print(f"generation {generation} from step {step}", flush=True)


def meet(step: int) -> None:
    """What a collective is to the others: nobody goes on before all are here, or the time-out is over."""
    folder, ranks = Path(plan["state"]), range(int(os.environ["WORLD_SIZE"]))
    page[Slot.MICRO_BATCHES] += 1
    page[Slot.PHASE], page[Slot.PHASE_SINCE] = Phase.BACKWARD, time.monotonic()
    mine = folder / f"at-{generation}-{rank}"
    mine.with_suffix(".new").write_text(str(step))
    mine.with_suffix(".new").replace(mine)
    # Afterwards nobody misbehaves: a busy machine must not look like it.
    end = time.monotonic() + (plan["together"] if generation == "1" else 60)
    for other in ranks:
        theirs = folder / f"at-{generation}-{other}"
        while not theirs.exists() or int(theirs.read_text()) < step:
            if time.monotonic() > end:
                raise RuntimeError("[gloo] Timed out waiting 1000ms for recv operation to complete")
            time.sleep(0.005)
    page[Slot.COLLECTIVE_SEQUENCE] += 1
    page[Slot.PHASE], page[Slot.PHASE_SINCE] = Phase.BETWEEN, time.monotonic()


def told_to_end(*_: object) -> None:
    raise RuntimeError("told to end")


def misbehave(what: str) -> None:
    if what == "raise once the others are deaf":
        while not list(Path(plan["state"]).glob("deaf")):
            time.sleep(0.01)
        what = "raise"
    if what == "raise and upload":

        def upload() -> None:
            time.sleep(3)
            (Path(plan["state"]) / "uploaded").touch()

        atexit.register(upload)
        what = "raise"
    if what in {"raise and stay", "raise and finish slowly"}:
        # as a pool of threads or an exit handler that waits for a peer does
        if what == "raise and stay":
            threading.Thread(target=time.sleep, args=(600,)).start()
        else:
            atexit.register(time.sleep, 600)
            # the last one runs first, after the error file is written
            atexit.register((Path(plan["state"]) / "failed").touch)
        what = "raise"
    if what == "lose the one that raises":
        while not (Path(plan["state"]) / "failed").exists():
            time.sleep(0.01)
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711")
    if what == "raise":
        raise ValueError(f"bad sample {step}")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "crash":
        ctypes.string_at(0)
    if what == "terminate":
        ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
    if what == "throw":
        print("terminate called after throwing an instance of 'std::runtime_error'", file=sys.stderr)
        print("  what():  no such kernel", file=sys.stderr, flush=True)
        os.abort()
    if what == "abort":
        os.abort()
    if what == "evaluate":
        page[Slot.PHASE] = Phase.EVALUATION
    if what.startswith("exit"):
        sys.exit(int(what.split()[1]))
    if what == "refuse":
        from ddpjob_trainer.errors import Refused

        raise Refused("this cannot work")
    if what in {"deaf", "orphan"}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what == "orphan":
        # one child in the group, one that left it; both keep the pipe open
        for session in (False, True):
            child = subprocess.Popen(["sleep", "600"], start_new_session=session)
            print(f"child {child.pid}", flush=True)
        sys.exit(5)
    if what == "save alone":
        page[Slot.PHASE] = Phase.CHECKPOINT
        time.sleep(6)
        page[Slot.PHASE] = Phase.BETWEEN
    if what == "answer with an exit code":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if what == "answer with an exception":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if what == "answer with an error":
        signal.signal(signal.SIGTERM, told_to_end)
    if what in {"deaf", "hang", "evaluate"} or what.startswith("answer"):
        print(what, flush=True)
        if "state" in plan:
            (Path(plan["state"]) / what).touch()
        time.sleep(600)


if fault == "abort":
    # As NCCL's watchdog does it, from a thread of its own: nothing of Python's answers a SIGTERM before.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if fault == "wait":
    # for a test that asks about the job while this generation lives
    while not (Path(plan["state"]) / "go").exists():
        time.sleep(0.01)
made = 0
while step < plan["steps"] and not Path(plan.get("until", "/nonexistent")).exists():
    if fault and made == plan.get("after", 2):
        misbehave(fault)
    if "together" in plan:
        meet(step + 1)
    begun = time.monotonic()
    time.sleep(plan.get("step_seconds", 0.01))
    step, made = step + 1, made + 1
    page[Slot.FIRST_STEP_AT] = page[Slot.FIRST_STEP_AT] or time.monotonic()
    page[Slot.LAST_STEP_AT] = time.monotonic()
    page[Slot.STEP], page[Slot.GENERATION_STEPS] = step, made
    page[Slot.STEP_SECONDS] += page[Slot.LAST_STEP_AT] - begun
    page[Slot.SAMPLES] += 8
    if step == plan.get("saves_at"):
        page[Slot.PHASE] = Phase.CHECKPOINT
        state.with_suffix(".half").write_text("")
        print(f"saving step {step}", flush=True)
        time.sleep(1.5)
        state.with_suffix(".half").write_text(str(step))
        state.with_suffix(".half").replace(state.with_suffix(".whole"))
        print(f"step {step} is whole", flush=True)
        page[Slot.PHASE] = Phase.BETWEEN
    if boundary.reach(page, step):
        if state.parent.is_dir():
            state.write_text(str(step))
        print(f"saved at {step}", flush=True)
        sys.exit(85)
if rank == 0:
    running.put_fact(Fact.RESULT, {"accuracy": 0.97})
print(f"finished at {step}", flush=True)
