"""Facts about the process, torch, its switches, and the cost of one op here."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import accelerator, dynamo, frameworks, thread_pools
from .patches import hidden
from .wire import DEBUGGING, is_user_file

if TYPE_CHECKING:
    from .core import Probe


# Libraries that agents act in or are trained with; no other program imports them.
AGENTS = {
    "ale_py", "brax", "dm_control", "dm_env", "gym", "gymnasium", "minigrid", "pettingzoo",
    "procgen", "stable_baselines3", "tianshou", "torchrl",
}  # fmt: skip
# gloo's transport reports this if a rank is gone. It also reports a mismatch of sizes there, and
# without gloo the same words belong to another connection: both are failures of the rank itself.
LOST = re.compile(r"gloo/transport/.*(by peer|Broken pipe|imed out)", re.DOTALL)
PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
PR_SET_PTRACER_ANY = -1


def write_process(probe: Probe) -> None:
    """The `process` record: which process this is, and one pair of the monotonic and unix
    clocks."""
    t, unix_ns = clocks()
    probe.recorder.write(
        "process",
        pid=os.getpid(),
        ppid=os.getppid(),
        t=t,
        started=probe.started_ns,
        import_torch=probe.import_ns,
        unix_ns=unix_ns,
        argv=list(sys.argv) if hasattr(sys, "argv") else [],
        cwd=_cwd(),
        python=platform.python_version(),
        executable=sys.executable,
        rank=env_int("RANK", 0),
        world_size=env_int("WORLD_SIZE", 1),
    )


def clocks() -> tuple[int, int]:
    """Both clocks at one moment, ns. Between two readings the process may lose its core for
    milliseconds, so the attempt with the shortest delay is used."""
    tries = []
    for _ in range(5):
        before, unix_ns, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        tries.append((after - before, (before + after) // 2, unix_ns))
    return min(tries)[1:]


def write_training(probe: Probe) -> None:
    """The `role` and `torch` records, once the process has trained a step."""
    write_role(probe)
    affinity = getattr(os, "sched_getaffinity", None)
    probe.recorder.write(
        "torch",
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        devices=accelerator.names(),
        device=accelerator.describe(),
        intra_op=torch.get_num_threads(),
        inter_op=torch.get_num_interop_threads(),
        omp=os.environ.get("OMP_NUM_THREADS", ""),
        cpus_allowed=len(affinity(0)) if affinity else os.cpu_count(),
        framework=probe.guard(frameworks.driver)(),
        debug=debug_variables(),
        pools=probe.guard(thread_pools.counts)(),
    )


def debug_variables() -> dict[str, str]:
    """The variables of :data:`DEBUGGING` that are on, and Python's development mode, however
    set."""
    values = {name: os.environ.get(name, "") for name in DEBUGGING}
    on = {name: value for name, value in values.items() if value not in DEBUGGING[name]}
    return {**on, **({"PYTHONDEVMODE": "1"} if sys.flags.dev_mode else {})}


def write_role(probe: Probe) -> None:
    """The `role` record of a process that trains, again when it has joined a process group."""
    rank, world, _ = ranks()
    probe.recorder.write(
        "role", role="training", tid=threading.get_native_id(), rank=rank, world_size=world
    )


def write_died(probe: Probe) -> bool:
    """Whether an exception ended the process; if so, write the `died` record: which, where, and
    whether it had lost other ranks. Python keeps the exception for post-mortem
    debuggers."""
    if getattr(sys, "last_type", None) is None:
        return False
    error, trace, at = sys.last_value, sys.last_traceback, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user_file(code.co_filename):
            at = [os.path.abspath(code.co_filename), trace.tb_lineno, code.co_name]
        trace = trace.tb_next
    rank, world, _ = ranks()
    probe.recorder.write(
        "died", t=time.perf_counter_ns(), step=probe.step, rank=rank, world_size=world, at=at,
        what=type(error).__name__, peers=lost_peers(error),
    )  # fmt: skip
    return True


def lost_peers(error: BaseException | None) -> str:
    """How an exception says that other ranks were lost: "closed" (they ended), "timed out" (they
    did not come), or ""."""
    if isinstance(error, getattr(torch.distributed, "DistError", ())) or LOST.search(str(error)):
        return "timed out" if "imed out" in str(error) else "closed"
    return ""


def watch_profiler(probe: Probe) -> None:
    """Remember whether a torch profiler is prepared. One with a schedule is prepared long before it
    records, and a second preparation would destroy its recording."""
    profiler = torch.autograd.profiler

    def watched(name: str, prepared: bool) -> None:
        original = getattr(profiler, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            probe.profiler_prepared = prepared
            return original(*args, **kwargs)

        probe.patches.set(profiler, name, hidden(call))

    watched("_prepare_profiler", True)
    watched("_disable_profiler", False)


def flags(autocast: str, scaled: bool) -> dict[str, Any]:
    """Torch's switches that cost time, as they are now. ``autocast``: dtype of the last region
    seen; ``scaled``: an enabled GradScaler has stepped."""
    trace = sys.gettrace()
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "profiler": profiler_is_on(),
        "trace": _own_tracer() or tracer_name(trace),
        "autocast": autocast,
        "compiled": dynamo.compiled_frames() > 0,
        "scaler": scaled,
        "agent": sorted(AGENTS & sys.modules.keys())[:1],
    }


def profiler_is_on() -> bool:
    """Whether a torch profiler (the script's own, unless tdiag's is running) is recording."""
    return bool(torch._C._autograd._profiler_enabled())


def config_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The scalar entries of the first parameter group."""
    return _settings(optimizer.param_groups[0])


def groups_of(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """How many parameter groups it has, and how many different settings these have."""
    groups = optimizer.param_groups
    return {"groups": len(groups), "settings": len({repr(_settings(x)) for x in groups})}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.item() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else
        value if isinstance(value, (int, float, bool, str, type(None))) else str(value)[:80]
        for key, value in group.items()
        if key not in ("params", "param_names")
    }  # fmt: skip


def allow_sampling(by: int = PR_SET_PTRACER_ANY) -> None:
    """Let py-spy, a sibling, attach under Yama's ptrace_scope 1 without root; ``by`` 0: only
    ancestors may attach again."""
    if sys.platform.startswith("linux"):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(by), 0, 0, 0)


def profiled_by() -> str:
    """The name of whatever profiles this thread's Python, or empty."""
    return monitored_by() or tracer_name(sys.getprofile())


def monitored_by() -> str:
    """The name of whatever profiles Python through ``sys.monitoring``, as cProfile does from 3.12
    on: ``sys.getprofile`` does not show it."""
    monitoring = getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring else None
    return tool or ""


def _own_tracer() -> str:
    """:func:`profiled_by`, except for the Python part of a torch profiler (``with_stack=True``)."""
    part_of_torchs = type(sys.getprofile()).__name__ == "TraceContext"
    return "" if part_of_torchs and profiler_is_on() else profiled_by()


def tracer_name(tracer: Any) -> str:
    if tracer is None:
        return ""
    kind = type(tracer)
    if kind.__module__ in ("cProfile", "_lsprof"):
        return "cProfile"
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else (
        getattr(tracer, "__module__", None) or "settrace"
    )  # fmt: skip


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def env_int(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


def ranks() -> tuple[int, int, int]:
    """Rank of this process, number of ranks, and of ranks on this machine.

    The process group is authoritative: `torch.multiprocessing.spawn` and Lightning's launchers set
    no RANK or WORLD_SIZE. Before there is a group, the launcher's environment is used.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, world = env_int("RANK", 0), env_int("WORLD_SIZE", 1)
    return rank, world, env_int("LOCAL_WORLD_SIZE", world)


OPS, ROUNDS = 100, 5


def measure_dispatch() -> dict[str, float]:
    """The fields of the `dispatch` record: ns per op on one element, on the CPU, without and with
    gradients (forward and backward together). The best of a few rounds: noise only adds.

    If the script's own torch profiler is on, also without it: ``op_unprofiled_ns``, from a new
    thread, which no other thread's profiler records. Within a function that is transformed
    (``vmap``), where nothing may call backward, all of it is measured in such a thread. Takes about
    a millisecond, between two windows; touches no random state.
    """
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    price = _on_a_new_thread(_prices) if transformed else _prices()
    if profiler_is_on():
        price["op_unprofiled_ns"] = _on_a_new_thread(_prices)["op_ns"]
    return price


def _prices() -> dict[str, float]:
    value = torch.ones(1, device="cpu")
    with torch.no_grad():
        plain = min(_time_plain(value) for _ in range(ROUNDS))
    with torch.enable_grad():
        graded = min(_time_graded(value) for _ in range(ROUNDS))
    return {"op_ns": plain / OPS, "grad_op_ns": graded / OPS}


def _on_a_new_thread(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    found: list[dict[str, float]] = []
    thread = threading.Thread(target=lambda: found.append(measure()))
    thread.start()
    thread.join()
    return found[0]


def _time_plain(value: torch.Tensor) -> int:
    began = time.perf_counter_ns()
    for _ in range(OPS):
        torch.add(value, value)
    return time.perf_counter_ns() - began


def _time_graded(value: torch.Tensor) -> int:
    leaf = value.clone().requires_grad_()
    began = time.perf_counter_ns()
    result = leaf
    for _ in range(OPS):
        result = torch.add(result, value)
    result.backward()
    return time.perf_counter_ns() - began
