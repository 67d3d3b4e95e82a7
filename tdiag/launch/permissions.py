"""What tdiag can measure on this machine: each capability is tried, not looked up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tdiag.errors import RunError, TdiagError
from tdiag.launch import rundir
from tdiag.launch.ask import version
from tdiag.launch.preflight import ask
from tdiag.sample import limits, tachyon
from tdiag.sample.attached import Attached
from tdiag.sample.gpu import Gpus
from tdiag.sample.pyspy import PySpy, allow_hint
from tdiag.sample.strace import Strace

# py-spy reads the symbols of a plain Python in well under a second; the probe waits 8 s too.
ATTACH_WITHIN_S = 8.0
# A process that lets anyone attach to it, as the probe does in the user's process
# (PR_SET_PTRACER, ANY), and prints a line when it has done so.
SLEEPER = (
    "import ctypes, time; ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0);"
    "print(flush=True); time.sleep(60)"
)
VIEWER = "TensorBoard plugin"


@dataclass(frozen=True)
class Check:
    """``ok`` None: a fact, neither good nor bad. ``cost``: what the diagnosis lacks without it.
    ``allow``: how to get it. ``vital``: nothing works without it."""

    name: str
    ok: bool | None
    found: str
    cost: str = ""
    allow: str = ""
    vital: bool = False


def checks(python: str | None) -> Iterator[Check]:
    """Every check, in the order of a run: the environment, the samplers, the machine, GPUs."""
    answer, torch = _torch(python or sys.executable)
    yield torch
    yield _writable()
    yield _py_spy(str(answer.get("python") or ""))
    yield _strace()
    yield _disk_reads()
    yield _run_queue()
    yield _cores()
    yield _memory()
    yield from _gpu(answer)
    yield _viewer()


def _torch(python: str) -> tuple[dict[str, Any], Check]:
    cost, allow = "no training can run here", "tdiag doctor --python PATH names another Python"
    try:
        answer = ask(python, "none", "-") or {}
    except TdiagError as error:
        return {}, Check("torch", False, error.message, cost, allow, vital=True)
    if not answer.get("torch"):
        return answer, Check("torch", False, f"not in {python}", cost, allow, vital=True)
    found = f"{answer['torch_version'] or 'version unknown'}, Python {answer['python']}"
    return answer, Check("torch", True, found, vital=True)


def _writable() -> Check:
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".tdiag-doctor-") as folder:
            rundir.create("doctor", Path(folder) / "run")
    except OSError as error:
        failure = rundir.unwritable(rundir.RUNS, error)
    except RunError as error:
        failure = error
    else:
        return Check("run directory", True, f"{rundir.RUNS} can be written here", vital=True)
    cost = "nothing can be stored"
    return Check("run directory", False, failure.message, cost, failure.hint, vital=True)


def _py_spy(python: str) -> Check:
    """``python``: the version that runs trainings."""
    name, cost = (
        "py-spy attach",
        "stacks are sampled inside the process: without workers, less accurate",
    )
    tool = PySpy(Path())
    if tool.program is None and tachyon.has_sampler(python):
        found = f"py-spy is not installed; Python {python} has a sampler of its own"
        return Check(name, None, found)
    if tool.program is None:
        return Check(name, False, "py-spy is not installed", cost, "pip install py-spy")
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        with tempfile.TemporaryDirectory() as folder, child.stdout:
            child.stdout.readline()
            output = Path(folder) / "doctor.json"
            attached = Attached(tool.command(tool.program, child.pid, output), child.pid, output)
            until = time.monotonic() + ATTACH_WITHIN_S
            while not (tool.watching(attached.text()) or attached.ended()):
                if time.monotonic() > until:
                    break
                time.sleep(0.05)
            sampling = tool.watching(attached.text())
            attached.stop()
            attached.wait()
            why = tool.refusal(attached.text(), attached.process.returncode)
    except OSError as error:
        sampling, why = False, str(error)
    finally:
        child.kill()
        child.wait()
    if sampling:
        return Check(name, True, "tried on a child process: it works")
    return Check(name, False, why.partition("; to allow")[0], cost, allow_hint())


def _strace() -> Check:
    name, program = "strace", Strace(Path()).program
    if program is None:
        return Check(name, None, "not installed; only `tdiag run --syscalls` needs it")
    return Check(name, None, f"{program}, for `tdiag run --syscalls`")


def _disk_reads() -> Check:
    name = "bytes read (/proc/…/io)"
    try:
        psutil.Process().io_counters()
    except (AttributeError, OSError, psutil.Error) as error:
        cost = "storage reads are inferred from waiting only"
        return Check(name, False, f"not readable: {error}", cost, "run as the script's own user")
    return Check(name, True, "readable")


def _run_queue() -> Check:
    name = "run queue (schedstat)"
    cost = "waiting for a core cannot be distinguished from waiting for storage"
    try:
        fields = Path("/proc/self/schedstat").read_text().split()
    except OSError:
        return Check(
            name, False, "no /proc/self/schedstat", cost, "a kernel with CONFIG_SCHED_INFO"
        )
    if fields[:1] == ["0"]:
        return Check(
            name, False, "counts nothing", cost, "sudo sysctl -w kernel.sched_schedstats=1"
        )
    return Check(name, True, "readable")


def _cores() -> Check:
    allowed, machine, quota = limits.cores_allowed(), psutil.cpu_count() or 1, limits.cpu_quota()
    why = "" if quota is None else f", cgroup quota {quota:g}"
    return Check("cores allowed", None, f"{allowed:g} of {machine}{why}")


def _memory() -> Check:
    limit, total = limits.memory_limit(), psutil.virtual_memory().total
    bound = f", cgroup limit {limit / 2**30:.3g} GiB" if limit and limit < total else ""
    return Check("memory", None, f"{total / 2**30:.3g} GiB{bound}")


def _gpu(answer: dict[str, Any]) -> Iterator[Check]:
    gpus = Gpus()
    try:
        devices, missing = gpus.describe(), gpus.missing
    finally:
        gpus.close()
    build = str(answer.get("torch_version") or "")
    if devices is None:
        cost = "no GPU use, memory or clocks; not needed on a machine without a GPU"
        yield Check("NVIDIA GPU (NVML)", None, missing, cost)
        return
    names = ", ".join(str(device["name"]) for device in devices)
    yield Check("NVIDIA GPU (NVML)", True, names)
    if "+cpu" in build:
        cost = "the GPU is not used"
        yield Check("CUDA build of torch", False, build, cost, "install a CUDA build of torch")
        return
    cupti = _cupti(answer.get("torch"))
    cost = "no kernels, copies or synchronisations: device time cannot be split"
    yield Check("CUPTI", bool(cupti), cupti or "libcupti not found with torch", cost if not cupti
                else "", "pip install the nvidia-cuda-cupti package of your CUDA")  # fmt: skip


def _cupti(torch_file: str | None) -> str:
    """The CUPTI library that torch.profiler would load, or "" if there is none."""
    if not torch_file:
        return ""
    package = Path(torch_file).parent
    places = (package / "lib", package.parent / "nvidia", Path("/usr/local/cuda/extras/CUPTI"))
    found = (path for place in places for path in place.rglob("libcupti.so*"))
    return next((path.name for path in found), "")


def _viewer() -> Check:
    packages = ("torch-tb-profiler", "tensorboard")
    found = {p: v for p in packages if (v := version(p))}
    missing = [p for p in packages if p not in found]
    if missing:
        cost = "traces cannot be shown in TensorBoard; the diagnosis does not need it"
        names = " ".join(missing)
        return Check(VIEWER, False, f"{names} is missing", cost, f"pip install {names}")
    return Check(VIEWER, True, ", ".join(f"{p} {v}" for p, v in found.items()))
