"""What the kernel's files say of the limit of a container, in both cgroup versions."""

from pathlib import Path

import pytest

from ddpjob_trainer.cgroup import lowest_limit, quantity

MIB = 1 << 20
LIMITS: list[tuple[str, dict[str, str], int | None]] = [
    ("nothing is known", {}, None),
    ("version 2", {"cgroup": "0::/\n", "mount/memory.max": "7\n", "mount/memory.current": "1\n"}, 7),
    ("version 2, none", {"cgroup": "0::/\n", "mount/memory.max": "max\n", "mount/memory.current": "1\n"}, None),
    (
        "version 2, the group around has a lower one",
        {
            "cgroup": "0::/pod/trainer\n",
            "mount/pod/trainer/memory.max": f"{3 * MIB}\n",
            "mount/pod/trainer/memory.current": "1\n",
            "mount/pod/memory.max": f"{2 * MIB}\n",
            "mount/pod/memory.current": "1\n",
        },
        2 * MIB,
    ),
    (
        "version 1, and none around",
        {
            "cgroup": "4:memory:/pod/trainer\n0::/\n",
            "mount/memory/pod/trainer/memory.limit_in_bytes": f"{3 * MIB}\n",
            "mount/memory/pod/trainer/memory.usage_in_bytes": "1\n",
            "mount/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "mount/memory/memory.usage_in_bytes": "1\n",
        },
        3 * MIB,
    ),
    (
        "version 1, none",
        {
            "cgroup": "4:memory:/pod/trainer\n",
            "mount/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "mount/memory/memory.usage_in_bytes": "1\n",
        },
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "limit"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_the_limit_is_the_lowest_that_counts_for_this_container(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert lowest_limit(tmp_path / "cgroup", tmp_path / "mount") == limit


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (2500 << 20, "2500Mi"),
        (2 << 30, "2Gi"),
        (2048 << 20, "2Gi"),
        (999_997_440, "953.7Mi"),  # 1G in whole pages
        (0, "0.0Mi"),
    ],
)
def test_a_limit_is_written_as_in_a_pod(count: int, written: str) -> None:
    assert quantity(count) == written
