"""A standby imports freely only while the kernel says that nobody waits for a core."""

from pathlib import Path

import pytest

from ddpjob_trainer.launcher.pressure import Pressure

FILES = [
    # what the kernel has; the file that counts
    ("our own group", {"cgroup": "0::/pod/trainer\n"}, "mount/pod/trainer/cpu.pressure"),
    ("a namespace of its own", {"cgroup": "0::/../other\n"}, "mount/cpu.pressure"),
    ("no groups are counted", {"cgroup": "4:cpu:/pod\n"}, "machine"),
]


def write(path: Path, microseconds: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"some avg10=1.00 avg60=2.00 avg300=3.00 total={microseconds}\nfull avg10=0.00 total=7\n")


def pressure(folder: Path) -> Pressure:
    return Pressure(cgroup=folder / "cgroup", mount=folder / "mount", machine=folder / "machine")


@pytest.mark.parametrize(("files", "counts"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_cores_are_idle_when_nobody_has_waited_for_some_time(
    files: dict[str, str], counts: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    counter = tmp_path / counts
    if counter.name != "machine":
        write(tmp_path / "machine", 99_000_000)
    seen = pressure(tmp_path)
    write(counter, 5_000_000)
    assert not seen.low(10.0), "not known yet"
    write(counter, 5_010_000)
    assert seen.low(10.2), "waited for 0.01 of 0.2 s"
    write(counter, 5_110_000)
    assert seen.low(10.3), "it is not looked at more often"
    assert not seen.low(10.4), "waited for half of the time"
    assert not seen.low(12.3), "not yet for long"
    assert seen.low(12.4)
    write(counter, 9_000_000)
    assert not seen.low(12.6)


def test_where_the_kernel_does_not_count_cores_are_busy(tmp_path: Path) -> None:
    seen = pressure(tmp_path)
    assert not any(seen.low(second / 10) for second in range(100))
