"""Says what a program finds at its start and after its imports, then makes steps until it is told to end.

`state.py '{"imports": ["yaml"], "torch": false, "until": "/tmp/x/end"}'`
"""

import argparse
import gc
import json
import locale
import os
import re
import signal
import sys
import threading
import time

plan = json.loads(sys.argv[1])


def look() -> dict[str, object]:
    import random

    main = sys.modules["__main__"]
    return {
        "environ": dict(os.environ),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": open("/proc/self/cmdline").read().split("\0"),
        "path": sys.path,
        "main": (main.__dict__ is globals(), main.__file__, str(main.__spec__), sorted(vars(main))),
        "prog": argparse.ArgumentParser().prog,
        "cwd": os.getcwd(),
        "umask": (os.umask(0o22), os.umask(0o22))[0],
        "signals": {str(each): str(signal.getsignal(each)).split(" at ")[0] for each in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "locale": (locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), sys.stdout.encoding),
        "streams": [(each.fileno(), each.isatty(), each.errors, each.line_buffering, each.write_through)
                    for each in (sys.stdin, sys.stdout, sys.stderr)],
        "descriptors": sorted(
            re.sub(r".*/run-.*/(\w+)-g\d+", r"\1", found) for name in os.listdir("/proc/self/fd") if (found := kind(name))
        ),
        "flags": str(sys.flags),
        "hooks": (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "threads": [thread.name for thread in threading.enumerate()],
        "daemon": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()),
        "nice": (os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))),
        "oom": open("/proc/self/oom_score_adj").read(),
        "mp_main": sys.modules.get("__mp_main__", main) is main,
        "os.environ": type(os.environ).__name__,
        "random differs": random.random() != random.Random(0).random(),
    }  # fmt: skip


def kind(descriptor: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0]
    except OSError:
        return None


def after_imports() -> dict[str, object]:
    import warnings

    found: dict[str, object] = {
        "warnings": sorted({str(each[:2]) + str(each[2]) for each in warnings.filters})
    }
    if plan.get("torch"):
        import torch
        import torch.distributed as dist

        found |= {
            "random": torch.rand(3, generator=torch.manual_seed(7)).tolist(),
            "dtype": str(torch.get_default_dtype()),
            "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
            "grad": torch.is_grad_enabled(),
            "hooked": (
                dist.init_process_group.__wrapped__ is not None,  # type: ignore[attr-defined]
                torch.nn.parallel.DistributedDataParallel.__init__.__code__.co_filename.rpartition("/")[2],
                torch.autograd.backward.__module__,
            ),
        }
    return found


at_start = look()
for name in plan["imports"]:
    __import__(name)
print("STATE", json.dumps({"start": at_start, "imported": after_imports()}), flush=True)

from ddpjob_api.page import Slot  # noqa: E402
from ddpjob_trainer import learned, worker  # noqa: E402

running = worker.current()
assert running is not None and running.imports_file is not None
if plan.get("torch"):
    import torch

    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    optimizer.step()
else:
    learned.write(running.imports_file)
running.page[Slot.GENERATION_STEPS] = 1
while not os.path.exists(plan["until"]):
    time.sleep(0.01)
