"""What the process may use: cores by affinity and cgroup quota, memory by cgroup limit.

``os.cpu_count()`` counts the machine's cores: in a container with two of sixty-four it returns 64.
Both cgroup versions, nested groups (each ancestor's limit applies) and containers that see only
their own part of the tree are supported. ``root`` lets tests use a made-up ``/proc`` and ``/sys``.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst (``cpu.max``, ``memory.max``) and
cgroup-v1/memory.rst, scheduler/sched-bwc.rst (``cpu.cfs_quota_us``, ``memory.limit_in_bytes``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# cgroup v1 says "no limit" as the largest page-aligned signed 64-bit number.
V1_UNLIMITED_BYTES = 1 << 62


def cores_allowed(pid: int = 0, root: Path = Path("/")) -> float:
    """min(affinity, CPU quota of every enclosing cgroup), in cores; may be fractional."""
    affinity = float(len(os.sched_getaffinity(pid)))
    quota = cpu_quota(pid, root)
    return affinity if quota is None else min(affinity, quota)


def cpu_quota(pid: int = 0, root: Path = Path("/")) -> float | None:
    """The smallest CPU quota of the process's cgroups, in cores; None if there is none."""
    quotas = []
    for group, version in _groups("cpu", pid, root):
        if version == 2:
            fields = (_read(group / "cpu.max") or "max").split()
            quota, period = fields[0], fields[1] if len(fields) > 1 else "100000"
        else:
            quota = _read(group / "cpu.cfs_quota_us") or "-1"
            period = _read(group / "cpu.cfs_period_us") or "100000"
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(pid: int = 0, root: Path = Path("/")) -> int | None:
    """The smallest memory limit of the process's cgroups, bytes; None if there is none."""
    return min((limit for limit, _ in _memory(pid, root)), default=None)


def memory_left(pid: int = 0, root: Path = Path("/")) -> int | None:
    """Bytes until the tightest limit; page cache that can be dropped does not count as used."""
    return min((max(0, limit - used) for limit, used in _memory(pid, root)), default=None)


def _memory(pid: int, root: Path) -> Iterator[tuple[int, int]]:
    """``(limit, used)`` of each cgroup that has a limit."""
    for group, version in _groups("memory", pid, root):
        if version == 2:
            limit, usage, cache = "memory.max", "memory.current", "inactive_file"
        else:
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        bound = _read(group / limit) or "max"
        if bound == "max" or int(bound) >= V1_UNLIMITED_BYTES:
            continue
        used = int(_read(group / usage) or 0)
        statistics = dict(
            line.split()[:2] for line in (_read(group / "memory.stat") or "").splitlines()
        )
        yield int(bound), used - int(statistics.get(cache, 0))


def _groups(controller: str, pid: int, root: Path) -> Iterator[tuple[Path, int]]:
    """The process's cgroup folders for a controller, innermost first, each with its version.

    If a machine mounts both versions, a controller is in one of them; in the other its files do not
    exist and read as "no limit".
    """
    who = str(pid) if pid else "self"
    mounts = list(_mounts(root / "proc" / who / "mountinfo"))
    for line in (_read(root / "proc" / who / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, options, mount_root, point in mounts:
            if mount_version == version and (version == 2 or controller in options):
                top = root / point.lstrip("/")
                yield from ((group, version) for group in _upwards(top, mount_root, path))
                break


def _mounts(mountinfo: Path) -> Iterator[tuple[int, set[str], str, str]]:
    """``(cgroup version, super options, root, mount point)`` of each cgroup mount (proc(5))."""
    for line in (_read(mountinfo) or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if kind and kind[0] in ("cgroup", "cgroup2"):
            options = set(kind[2].split(",")) if len(kind) > 2 else set()
            yield (2 if kind[0] == "cgroup2" else 1), options, fields[3], fields[4]


def _upwards(top: Path, mount_root: str, path: str) -> Iterator[Path]:
    """From the process's group up to the mount point. A container may see only its own part: a
    group outside the mount's root, or one that does not exist, becomes the mount point itself."""
    try:
        inside = PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        inside = PurePosixPath()
    group = top / inside
    if ".." in inside.parts or not group.is_dir():
        group = top
    while group != top:
        yield group
        group = group.parent
    yield top


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None
