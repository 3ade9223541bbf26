"""How fast a checkpoint goes from launcher to launcher, beside `cp`, and what it costs the launchers in memory.

`.venv/bin/python benchmarks/peer_restore.py`. Two launchers' sides as processes of their own on loopback: one gives a
checkpoint (1 GiB by default), one takes it: sealed channel, SHA-256 while it comes, fsync. Then `cp` and `sync` of the
same files on the same disk. In turn, medians. What both read is in the page cache.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddpjob_trainer.checkpoint_writing import write_step
from ddpjob_trainer.checkpoints import Position, step_path
from ddpjob_trainer.fence import Fence
from ddpjob_trainer.launcher.peers.giver import Giver
from ddpjob_trainer.launcher.peers.shelf import Shelf
from ddpjob_trainer.launcher.peers.taker import Address, Watch, take_step

TOKEN = b"benchmark"
STEP = 40


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mebibytes", type=int, default=1024)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument(
        "--directory", type=Path, default=None, help="on the disk to measure; default: TMPDIR"
    )
    options.add_argument("--side", choices=["give", "take"], help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side == "give":
        return give(given.directory)
    if given.side == "take":
        return take(given.directory, given.port)
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        return measure(Path(name), given.mebibytes, given.runs)


def measure(folder: Path, mebibytes: int, runs: int) -> int:
    source = folder / "source"
    save(source, mebibytes)
    fetched, copied, hashed, peaks = [], [], [], []
    for run in range(runs):
        giver = subprocess.Popen(
            side("give", source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert giver.stdout is not None
        port = int(giver.stdout.readline())
        target = folder / f"taken-{run}"
        taken = json.loads(subprocess.check_output(side("take", target, port), text=True))
        given = json.loads(giver.communicate("\n")[0])
        fetched.append(taken["seconds"])
        peaks.append((given["grown"], taken["grown"], given["peak"], taken["peak"]))
        shutil.rmtree(target)
        began = time.monotonic()
        subprocess.run(["cp", "-r", str(source), str(folder / "copy")], check=True)
        subprocess.run(["sync", "-f", str(folder)], check=True)
        copied.append(time.monotonic() - began)
        shutil.rmtree(folder / "copy")
        began = time.monotonic()
        with (step_path(source, STEP) / "state.pt").open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
        hashed.append(time.monotonic() - began)
    megabytes = mebibytes * 1.048576
    fetch, copy, check = (statistics.median(each) for each in (fetched, copied, hashed))
    print(f"peer restore: {megabytes / fetch:.0f} MB/s ({fetch:.2f} s for {mebibytes} MiB)")
    print(f"cp and sync:  {megabytes / copy:.0f} MB/s ({copy:.2f} s); ratio of times {fetch / copy:.2f}")
    print(f"SHA-256 alone: {megabytes / check:.0f} MB/s")
    grown = [max(each) for each in zip(*peaks, strict=True)]
    print(
        f"memory: giving {grown[0]:.1f} MB more (peak {grown[2]:.0f} MB), taking {grown[1]:.1f} MB more "
        f"(peak {grown[3]:.0f} MB)"
    )
    print(f"medians of {runs} runs, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


def save(folder: Path, mebibytes: int) -> None:
    position = Position(
        step=STEP, epoch=0, samples_consumed=0, global_batch_size=1, world_size=1, dataset_size=1, seed=0
    )
    block = os.urandom(1 << 20)

    def content(stream: object) -> None:
        for number in range(mebibytes):
            stream.write(number.to_bytes(8, "big") + block[8:])  # type: ignore[attr-defined]

    write_step(folder, position, {"state.pt": content})


def side(name: str, folder: Path, port: int = 0) -> list[str]:
    return [sys.executable, __file__, "--side", name, "--directory", str(folder), "--port", str(port)]


def give(folder: Path) -> int:
    giver = Giver(Shelf(folder=folder), TOKEN)
    giver.start("127.0.0.1")
    before = peak()
    print(giver.port, flush=True)
    sys.stdin.readline()
    print(json.dumps({"grown": peak() - before, "peak": peak()}))
    giver.close()
    return 0


def take(folder: Path, port: int) -> int:
    folder.mkdir()
    before, began = peak(), time.monotonic()
    source = Address(node=0, host="127.0.0.1", port=port)
    watch = Watch()
    failed = take_step(
        step_path(folder, STEP).name, folder, [source], token=TOKEN, fence=Fence(), watch=watch
    )
    assert not failed, failed
    seconds = time.monotonic() - began
    print(json.dumps({"seconds": seconds, "grown": peak() - before, "peak": peak()}))
    return 0


def peak() -> float:
    """Highest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
