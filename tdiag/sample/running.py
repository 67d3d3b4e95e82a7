"""Finds training processes that already run: by pid, or below a shell or a launcher.

Nothing is changed in them; everything comes from ``/proc`` and psutil.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tdiag.errors import RunError, UsageError

# Set by torchrun and accelerate, by Slurm, by Open MPI, by MPICH and its relatives.
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
# Processes that Python and torch start for themselves. They have loaded torch but do not train, or
# they work for their parent: DataLoader workers, compilers, trackers.
_HELPER = re.compile(r"multiprocessing[./](spawn|forkserver|resource_tracker)|_inductor|-fork\b")
_DEVICE = (b"/dev/nvidia", b"/dev/kfd", b"/dev/dri/render")
_TORCH = re.compile(rb"(/\S*)/torch/lib/libtorch")


@dataclass(frozen=True)
class Running:
    """A process that has loaded torch. ``rank``: from its environment, None = unknown. ``device``:
    it has opened a GPU."""

    pid: int
    command: tuple[str, ...]
    rank: int | None
    environment: Mapping[str, str]
    device: bool
    torch_version: str

    @property
    def script(self) -> str:
        """The first ``.py`` word, or the module after ``-m``."""
        words = self.command
        found = next((word for word in words if word.endswith(".py")), "")
        if not found and "-m" in words[:-1]:
            found = words[words.index("-m") + 1]
        return found or (words[0] if words else "")


def find(pid: int) -> list[Running]:
    """The programs that have loaded torch, ``pid`` or below it, lowest rank first.

    For a launcher, the programs that it launched: a process counts if it is not a helper of its
    parent and no process below it counts. Raises UsageError if there is no such process, RunError
    if it may not be read.
    """
    if not Path("/proc/self/maps").exists():
        raise UsageError("tdiag attach needs Linux")
    try:
        asked = psutil.Process(pid)
        if pid == os.getpid():
            raise UsageError(f"process {pid} is tdiag itself", "name the training process")
        if asked.status() == psutil.STATUS_ZOMBIE:
            raise UsageError(f"process {pid} has ended already; its parent has not noticed yet")
        below = asked.children(recursive=True)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        raise UsageError(f"there is no process {pid}", _elsewhere(pid)) from None
    maps = {process.pid: _maps(process.pid) for process in (asked, *below)}
    if maps[pid] is None:
        if not psutil.pid_exists(pid):
            raise UsageError(f"process {pid} has just ended")
        raise _unreadable(asked)
    holding = [p for p in (asked, *below) if b"/libtorch" in (maps[p.pid] or b"")]
    if not holding:
        others = f", nor has one of the {len(below)} processes below it" if below else ""
        raise UsageError(
            f"process {pid} ({_name(asked)}) has not loaded torch{others}",
            "name the training process, or the launcher's: `pgrep -af python` lists them",
        )
    programs = _programs(holding)
    found = [_running(process, maps[process.pid] or b"") for process in programs]
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _programs(holding: list[psutil.Process]) -> list[psutil.Process]:
    """Without helpers, and without those that only launched others. The first is the one that was
    asked for, or the highest below it."""
    pids = {process.pid for process in holding}
    own = [p for p in holding if not _helps(p, pids)] or holding[:1]
    above: set[int] = set()
    for process in own:
        with contextlib.suppress(psutil.Error):
            above |= {parent.pid for parent in process.parents()}
    return [process for process in own if process.pid not in above] or own[:1]


def _helps(process: psutil.Process, holding: set[int]) -> bool:
    """Whether it was forked (same words as its parent), or is one of a library's processes."""
    command = _command(process)
    if _HELPER.search(" ".join(command[:4])):
        return True
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and parent.pid in holding and _command(parent) == command
    return False


def _running(process: psutil.Process, maps: bytes) -> Running:
    environment: dict[str, str] = {}
    with contextlib.suppress(psutil.Error, OSError):
        environment = process.environ()
    ranks = (environment.get(name, "") for name in RANKS)
    return Running(
        pid=process.pid,
        command=_command(process),
        rank=next((int(rank) for rank in ranks if rank.isdecimal()), None),
        environment=environment,
        device=any(device in maps for device in _DEVICE),
        torch_version=_torch_version(process.pid, maps),
    )


def _torch_version(pid: int, maps: bytes) -> str:
    """From the name of the folder that pip made for torch; "" if there is none."""
    match = _TORCH.search(maps)
    if match is None:
        return ""
    packages = Path(f"/proc/{pid}/root{match[1].decode(errors='replace')}")  # as the process sees
    with contextlib.suppress(OSError):
        for folder in packages.glob("torch-*.dist-info"):
            return folder.name.removeprefix("torch-").removesuffix(".dist-info")
    return ""


def _command(process: psutil.Process) -> tuple[str, ...]:
    with contextlib.suppress(psutil.Error):
        return tuple(process.cmdline())
    return ()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return "unknown"


def has_torch(pid: int) -> bool:
    return b"/libtorch" in (_maps(pid) or b"")


def _maps(pid: int) -> bytes | None:
    try:
        return Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return None


def _unreadable(process: psutil.Process) -> RunError:
    owner = "another user"
    with contextlib.suppress(psutil.Error):
        owner = f"user {process.username()}"
    allow = f"run tdiag as that user, or as root: sudo tdiag attach {process.pid}"
    if not os.geteuid():
        allow = "in a container, root needs a capability for it: `--cap-add SYS_PTRACE`"
    return RunError(f"process {process.pid} belongs to {owner} and may not be read", allow)


def _elsewhere(pid: int) -> str:
    """A process that has this number in its container, if there is one."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            numbers = re.search(r"^NSpid:\s+(.+)$", status.read_text(), re.MULTILINE)
            if numbers and numbers[1].split()[1:] and numbers[1].split()[-1] == str(pid):
                here = numbers[1].split()[0]
                return f"the process {pid} of a container is process {here} here"
    return "`pgrep -af python` lists the Python processes of this machine"
