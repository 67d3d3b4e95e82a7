"""Cores and memory allowed: the tightest limit of every enclosing group, in both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdiag.sample import limits

V2 = "30 20 0:26 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "31 20 0:27 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 20 0:28 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


class System:
    """A made-up /proc and /sys."""

    def __init__(self, root: Path, mounts: str, groups: str, mount_root: str = "/") -> None:
        self.root = root
        self.write("proc/self/mountinfo", "29 1 8:1 / / rw - ext4 /dev/x rw\n"
                   + mounts.format(root=mount_root))  # fmt: skip
        self.write("proc/self/cgroup", groups)

    def write(self, path: str, text: object) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"{text}\n")

    def read(self) -> tuple[float | None, int | None, int | None]:
        return (
            limits.cpu_quota(root=self.root),
            limits.memory_limit(root=self.root),
            limits.memory_left(root=self.root),
        )


def test_no_limit_is_none_not_zero(tmp_path: Path) -> None:
    system = System(tmp_path, V2, "0::/\n")
    assert system.read() == (None, None, None)
    system.write("sys/fs/cgroup/cpu.max", "max 100000")
    system.write("sys/fs/cgroup/memory.max", "max")
    assert system.read() == (None, None, None)


def test_version_2_takes_the_tightest_of_nested_groups(tmp_path: Path) -> None:
    system = System(tmp_path, V2, "0::/a/b\n")
    for group, quota, memory, used in (("a", "150000 100000", 900, 500), ("a/b", "max", 800, 100)):
        base = f"sys/fs/cgroup/{group}"
        system.write(f"{base}/cpu.max", quota)
        system.write(f"{base}/memory.max", memory)
        system.write(f"{base}/memory.current", used)
        system.write(f"{base}/memory.stat", "anon 1\ninactive_file 50")
    assert system.read() == (1.5, 800, 900 - 500 + 50)


def test_version_1_reads_quota_period_and_its_word_for_unlimited(tmp_path: Path) -> None:
    system = System(tmp_path, V1, "4:cpu,cpuacct:/job\n3:memory:/job\n0::/\n")
    system.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", 50000)
    system.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", 200000)
    system.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", -1)
    system.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 1000)
    system.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 700)
    system.write("sys/fs/cgroup/memory/job/memory.stat", "cache 9\ntotal_inactive_file 100")
    system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    assert system.read() == (0.25, 1000, 400)


@pytest.mark.parametrize("path", ["/docker/abc", "/elsewhere", "/../.."])
def test_a_container_sees_its_own_group_at_the_mount_point(path: str, tmp_path: Path) -> None:
    """Docker with version 1 mounts the container's group, but /proc names it from the host."""
    system = System(tmp_path, V2, f"0::{path}\n", mount_root="/docker/abc")
    system.write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert system.read()[0] == 2.0


def test_quota_and_affinity_both_bind(tmp_path: Path) -> None:
    affinity = len(os.sched_getaffinity(0))
    system = System(tmp_path, V2, "0::/\n")
    assert limits.cores_allowed(root=tmp_path) == affinity
    system.write("sys/fs/cgroup/cpu.max", "50000 100000")
    assert limits.cores_allowed(root=tmp_path) == 0.5
    system.write("sys/fs/cgroup/cpu.max", f"{(affinity + 5) * 100000} 100000")
    assert limits.cores_allowed(root=tmp_path) == affinity


def test_a_system_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    assert limits.cpu_quota(root=tmp_path) is None
    assert limits.memory_limit(root=tmp_path) is None
