"""What the tables are drawn from in tests: one run with everything, one whose names are hostile."""

from __future__ import annotations

from collections.abc import Iterable

from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.machine import Strip, SyscallRow, Syscalls, SystemHistory
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls, HostOp, HostOps
from tdiag.model.place import Place
from tdiag.report import render
from tdiag.report.document import Document
from tdiag.report.page import Page
from tdiag.report.profilers import sections

HOME = "/home/ada/project"
PACKAGES = "/env/lib/python3.11/site-packages/"
MS, SECOND = 1e6, 10**9


def draw(names: Iterable[str], evidence: Evidence, page: Page) -> str:
    """As ``tdiag report --ops --calls`` prints them."""
    found = Document(name="tdiag", title="", data=None, sections=sections(names, evidence))
    return render("terminal", found, page)


def at(file: str, line: int, function: str) -> Place:
    return Place(file=file, line=line, function=function)


def op(name: str, count: float, self_ms: float, total_ms: float) -> HostOp:
    return HostOp(name=name, count=count, self_ns=self_ms * MS, total_ns=total_ms * MS)


def host_ops(*ops: HostOp) -> HostOps:
    return HostOps(per_step=1, total_per_step=2, ops=ops, backward_of={})


def traced(mean_ms: float = 20.0) -> TracedSteps:
    mean = round(mean_ms * MS)
    return TracedSteps(durations_ns=(mean, mean), mean_ns=mean, count=2, found_by="ProfilerStep")


def device_ops(*parts: tuple[str, float]) -> DeviceParts:
    ops = tuple(DevicePart(name=name, count=1, device_ns=ms * MS) for name, ms in parts)
    return DeviceParts(kernels=(), ops=ops, modules=(), functions=())


def call(file: str, line: int, function: str, own_ms: float = 1.0) -> CallRow:
    at_ = at(file, line, function)
    return CallRow(at=at_, calls=3.5, own_ns=own_ms * MS, total_ns=2 * own_ms * MS)


def stack_line(file: str, line: int, function: str, frac: float, leaf: str = "") -> StackLine:
    return StackLine(at=at(file, line, function), self_frac=frac, leaf=leaf, phase="backward")


def stacks(*training: StackLine, workers: tuple[StackLine, ...] = (), source: str = "py-spy",
           worker_samples: int = 0) -> Stacks:  # fmt: skip
    return Stacks(source=source, samples=812, training=training, workers=workers,
                  worker_samples=worker_samples)  # fmt: skip


def history(*strips: Strip, moments: int = 5, no_gpu: str = "") -> SystemHistory:
    """Samples a second apart."""
    return SystemHistory(
        t_ns=tuple(i * SECOND for i in range(moments)), strips=strips, no_gpu=no_gpu
    )


def everything(name: str = "plain") -> Evidence:
    """A run that holds all that a table shows; ``name`` is in each name that others gave."""
    evidence = Evidence(perturbation={"sample": 0.001, "trace": 0.384, "calls": 1.12})
    return evidence.add(
        host_ops(op("aten::mm", 12, 5, 5), op(f"my::{name}", 1, 0.02, 3.3)),
        traced(),
        device_ops(("aten::mm", 0.5), (f"my::{name}", 9.1)),
        Calls(steps=4, rows=(call(f"{HOME}/train.py", 8, name, 7), call("", 0, name))),
        stacks(
            stack_line(f"{HOME}/{name}.py", 30, name, 0.6, f"{name} (PIL/Image.py)"),
            workers=(stack_line(f"{HOME}/data.py", 12, name, 1.0, name),),
            worker_samples=31,
        ),
        Syscalls(steps=3, rows=(SyscallRow(name=name, calls=7.5, errors=1, ns=2e6),)),
        history(Strip(name="cores", unit="cores", values=(0, 1, 2, 2), limit=2), no_gpu=name),
    )


HOSTILE = "[red]wipe\x1b[2J\x9b1m\u202e\u200d\r\n[/red][link=file:///x]line[/link]"
