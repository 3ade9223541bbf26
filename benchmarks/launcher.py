"""How soon a launcher starts its first worker, and how much memory it holds.

`.venv/bin/python benchmarks/launcher.py`. All is read from /proc: start times of launcher and first worker in clock
ticks, the launcher's processor time until then (what does not depend on the machine's load), its resident memory while
a worker runs. Median of several runs. Exit 1 where a goal is missed.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_SECONDS = 0.5
GOAL_MEGABYTES = 40.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=7)
    runs = [measure() for _ in range(options.parse_args().runs)]
    spawn = statistics.median(run[0] for run in runs)
    processor = statistics.median(run[1] for run in runs)
    resident = statistics.median(run[2] for run in runs)
    load = os.getloadavg()[0]
    print(f"start to first worker: {spawn:.2f} s, {processor:.2f} s of processor (goal {GOAL_SECONDS} s)")
    print(f"resident: {resident:.1f} MB (goal {GOAL_MEGABYTES:.0f} MB)")
    print(f"medians of {len(runs)} runs, load average {load:.1f} on {os.cpu_count()} cores")
    return 0 if spawn <= GOAL_SECONDS and resident <= GOAL_MEGABYTES else 1


def measure() -> tuple[float, float, float]:
    """Seconds to the first worker, processor seconds until then, peak resident megabytes of one launcher."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text("benchmark")
        coordinator, metrics = free_port(), free_port()
        spec = {
            "command": ["sleep", "60"],
            "ports": {"coordinator": coordinator, "metrics": metrics, "rendezvous": 20000},
        }
        launcher = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_trainer.launcher"],
            env=os.environ
            | {
                "DDPJOB_SPEC": json.dumps(spec),
                "DDPJOB_NODE_INDEX": "0",
                "DDPJOB_COORDINATOR": f"127.0.0.1:{coordinator}",
                "DDPJOB_BIND_HOST": "127.0.0.1",
                "DDPJOB_ADVERTISE_HOST": "127.0.0.1",
                "DDPJOB_TOKEN_FILE": str(token),
                "DDPJOB_RUN_DIR": folder,
                "DDPJOB_TERMINATION_LOG": str(Path(folder, "termination")),
            },
            stdout=subprocess.DEVNULL,
        )
        try:
            worker = first_child(launcher.pid)
            seconds = (started(worker) - started(launcher.pid)) / TICKS_PER_SECOND
            processor = spent(launcher.pid) / TICKS_PER_SECOND
            time.sleep(1.2)  # a beat and a look at the page are part of what it holds
            return seconds, processor, peak_megabytes(launcher.pid)
        finally:
            launcher.kill()
            launcher.wait()


def first_child(pid: int) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.002)
    raise SystemExit("the launcher started no worker within 30 s")


def started(pid: int) -> int:
    """Start time of a process in ticks since boot (proc(5), field 22)."""
    return fields(pid)[19]


def spent(pid: int) -> int:
    """User and system time in ticks (fields 14 and 15)."""
    return sum(fields(pid)[11:13])


def fields(pid: int) -> list[int]:
    """`/proc/PID/stat` from field 3 on; what is no number is 0."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(word) if word.lstrip("-").isdecimal() else 0 for word in words]


def peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
