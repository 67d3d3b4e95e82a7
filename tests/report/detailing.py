"""What a page is drawn from in tests: a run with everything, each name in it the given one."""

from __future__ import annotations

import msgspec

from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.sources import Excerpt
from tdiag.evidence.steps import EventLane, StepEvent, StepEvents, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Component, Diagnosis, RankStep
from tests.tables.building import at, everything

from .building import HOME, MS

STEPS = 60
OUTLIER = 40
SOURCE = HOME / "train.py"


def details(name: str = "plain") -> Evidence:
    """Sixty steps, a median step of every kind of lane, two trees, all tables, eight ranks."""
    return everything(name).add(
        steps(),
        CallTrees(training=tree(name), workers=tree(name)[:3]),
        step_events(name),
        DeviceParts(
            kernels=(DevicePart(name=f"gemm_{name}", count=3, device_ns=4 * MS),),
            ops=(DevicePart(name=f"my::{name}", count=1, device_ns=MS),),
            modules=(),
            functions=(),
        ),
        Ops(
            steps=2,
            lines=(
                OpLine(
                    at=at(str(SOURCE), 41, name),
                    phase="loss",
                    calls=6650,
                    grad_calls=10,
                    conversions={"item": 392.0, name: 1.0},
                    constructions=0,
                    elapsed_ns=1.0,
                    in_loop=True,
                ),
            ),
        ),
    )


def with_source(*lines: str) -> tuple[Excerpt, ...]:
    """These lines of ``train.py`` around line 41."""
    return (Excerpt(file=str(SOURCE), first=40, lines=lines),)


def ranked(diagnosis: Diagnosis, name: str = "plain") -> Diagnosis:
    """The same of eight ranks."""
    return msgspec.structs.replace(diagnosis, ranks=tuple(rank(n, name) for n in range(8)))


def steps() -> StepHistory:
    """Ten to warm up, then judged ones but for five under py-spy; one takes ten times as long."""
    times = [20 * MS + n % 7 * MS // 10 for n in range(STEPS)]
    times[OUTLIER] = 200 * MS
    windows = ["warmup"] * 10 + ["baseline"] * 20 + ["sample"] * 5 + ["baseline"] * 25
    ends = tuple(sum(times[: n + 1]) for n in range(STEPS))
    return StepHistory(
        end_ns=ends,
        durations_ns=tuple(times),
        windows=tuple(windows),
        clean=tuple(name == "baseline" for name in windows),
        epochs_ns=(0, ends[29]),
    )


def tree(name: str) -> tuple[CallFrame, ...]:
    """<module> calls train, which spends 60 % in ``name`` and 30 % in backward."""
    file = str(SOURCE)
    return (
        CallFrame(name="<module>", file=file, line=90, parent=-1, frac=1.0, user=True),
        CallFrame(name="train", file=file, line=41, parent=0, frac=0.95, user=True),
        CallFrame(name=name, file=f"{HOME}/{name}.py", line=8, parent=1, frac=0.6, user=True),
        CallFrame(name="backward", file="/env/torch/_tensor.py", line=0, parent=1, frac=0.3,
              user=False),
        CallFrame(name="dust", file=file, line=9, parent=2, frac=0.0001, user=True),
    )  # fmt: skip


def step_events(name: str) -> StepEvents:
    def event(what: str, begin: int, end: int, merged: int = 1) -> StepEvent:
        return StepEvent(name=what, begin_ns=begin * MS, end_ns=end * MS, merged=merged)

    events = (event(name, 2, 9), event("b", 9, 12, 5))
    lanes = [
        EventLane(name=f"{role} {name}", role=role, events=events, partial=role == "worker")
        for role in ("host", "worker", "device", "comm", "copies")
    ]
    phases = EventLane(name="host", role="phases", events=(event("data_wait", 0, 15),))
    return StepEvents(
        number=2, of=3, begin_ns=0, duration_ns=20 * MS, lanes=(phases, *lanes)
    )  # fmt: skip


def rank(number: int, name: str) -> RankStep:
    parts = {"compute": 10 * MS, "comm": (1 + number) * MS, name: MS // 2}
    return RankStep(
        rank=number,
        step_ns=sum(parts.values()),
        communication_ns=parts["comm"],
        components=tuple(Component(name, ns) for name, ns in parts.items()),
    )
