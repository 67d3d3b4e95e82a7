"""The model: its layers, its inputs, and the order of its calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

from tdiag.evidence.feeding import Inputs, InputTensor, PaddedLookup, PaddedLookups
from tdiag.evidence.from_run.counted_records import CallsRecord, FrozenFields, OpsRecord
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import (
    At,
    DdpRecord,
    InputRecord,
    InspectionRecord,
    ModuleRecord,
    WindowRecord,
    location,
)
from tdiag.evidence.memory import GrowingGraph, Kept, MemoryGrowth
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.training import (
    Activation,
    BiasedLayer,
    Clip,
    ClipCalls,
    EmbeddingTable,
    EmbeddingTables,
    FrozenLayers,
    Layers,
    Recomputations,
)
from tdiag.model.kind import Kind
from tdiag.probe.wire import BASELINE, MOST_GRAPH_NODES

# A loop's variables hold the last step's tensors until the next step assigns them.
STEPS_UNTIL_REBOUND = 2

_PADDED = ("sequences", "positions", "longest", "tokens")

W = TypeVar("W", OpsRecord, CallsRecord)


def whole(records: list[W]) -> list[W]:
    """Without passes that the end of the run cut off within their first step."""
    return [r for r in records if r.steps > 0]


def longest(records: list[W]) -> W | None:
    """The pass that covers more steps; the later one if both cover as many."""
    return max(whole(records), key=lambda r: (r.steps, r.number), default=None)


def make_model(lead: Process) -> list[Kind]:
    """Layers; the facts of the counted steps, if there were any; Ddp, if there is one."""
    ops, calls = longest(lead.all(OpsRecord)), longest(lead.all(CallsRecord))
    kinds: list[Kind] = [_layers(lead.all(ModuleRecord), ops)]
    if ops is not None:
        kinds += [_clips(ops, calls), _recomputations(ops, calls), _tables(ops)]
    if ops is not None and ops.frozen is not None:
        kinds.append(_frozen(ops, whole(lead.all(OpsRecord))))
    if (padding := _padding(whole(lead.all(OpsRecord)))) is not None:
        kinds.append(padding)
    looks = lead.all(InspectionRecord)
    if ddp := lead.last(DdpRecord):
        kinds.append(_ddp(ddp, looks, ops))
    late = [x for x in looks if x.kept_of and x.kept_since >= STEPS_UNTIL_REBOUND]
    if late:
        kinds.append(_growth(max(late, key=lambda look: look.kept_since), lead))
    return kinds


def _layers(modules: list[ModuleRecord], ops: OpsRecord | None) -> Layers:
    classes: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for module in modules:
        classes.update(module.classes)
        dtypes.update(module.dtypes)
    return Layers(
        classes=dict(classes),
        mode_dependent=tuple(sorted({n for m in modules for n in m.mode_dependent})),
        dtypes=dict(dtypes),
        conv_bytes=sum(m.conv_bytes for m in modules),
        channels_last_bytes=sum(m.channels_last_bytes for m in modules),
        bias_before_norm=None if ops is None else tuple(
            BiasedLayer(name=name, cls=cls, at=location(at), features=features,
                        calls=times / ops.steps)
            for name, cls, at, features, times in ops.bias_before_norm
        ),
        out_of_place=None if ops is None else tuple(
            Activation(name=name, at=location(at), calls=calls / ops.steps,
                       bytes=size / ops.steps, held_bytes=held / ops.steps)
            for name, at, calls, size, held in ops.out_of_place
        ),
    )  # fmt: skip


def _clips(ops: OpsRecord, calls: CallsRecord | None) -> ClipCalls:
    return ClipCalls(
        clips=tuple(
            Clip(
                name=clip.name,
                at=location(clip.at),
                calls=clip.calls / ops.steps,
                elapsed_ns=clip.elapsed / ops.steps,
                total_ns=_profiled(calls, "clip_grad.py", clip.name)[1],
                tensors=clip.tensors or 0,
                foreach=clip.foreach,
            )
            for clip in ops.clips
        )
    )


def _recomputations(ops: OpsRecord, calls: CallsRecord | None) -> Recomputations:
    at, reentrant = ops.checkpoints[0] if ops.checkpoints else (None, None)
    times, inside = _profiled(calls, "checkpoint.py", "checkpoint")
    return Recomputations(at=location(at), reentrant=reentrant, calls=times, forward_ns=inside)


def _frozen(ops: OpsRecord, passes: list[OpsRecord]) -> FrozenLayers:
    """Names and features of ``ops``; a change or a random number seen in any pass counts."""
    own = ops.frozen or FrozenFields()
    seen = [one.frozen for one in passes if one.frozen]
    return FrozenLayers(
        names=tuple(own.names),
        feature_bytes=own.features / ops.steps,
        modes=tuple(sorted({mode for one in seen for mode in one.modes})),
        random=any(one.random for one in seen),
        changing=any(one.changed for one in seen),
    )


def _tables(ops: OpsRecord) -> EmbeddingTables:
    return EmbeddingTables(
        tables=tuple(
            EmbeddingTable(
                name=table.name, at=location(table.at), rows=table.rows, bytes=table.bytes,
                looked_up=table.looked_up / ops.steps, sparse=table.sparse,
                elsewhere=table.elsewhere, highest=table.highest,
                distinct=(table.looked_up if table.distinct is None else table.distinct)
                / ops.steps,
            )
            for table in ops.tables
        )
    )  # fmt: skip


def _padding(counted: list[OpsRecord]) -> PaddedLookups | None:
    """Over all counted steps, because more batches give a better estimate. None for older runs."""
    known = [record for record in counted if record.padding is not None]
    sums: Counter[tuple[At, str, str]] = Counter()
    places: dict[tuple[At, str], None] = {}
    for record in known:
        for at, by, *numbers in record.padding or ():
            places[at, by] = None
            for name, number in zip(_PADDED, numbers, strict=True):
                sums[at, by, name] += number
    if not known:
        return None
    lookups = tuple(
        PaddedLookup(at=location(at), by=by, **{name: sums[at, by, name] for name in _PADDED})
        for (at, by) in places
    )
    return PaddedLookups(lookups=lookups, packed=any(record.packed for record in known))


def _profiled(
    calls: CallsRecord | None, file: str, function: str
) -> tuple[float | None, float | None]:
    """(calls, total ns) per step of a torch function, from cProfile."""
    if calls is None:
        return None, None
    rows = [r for r in calls.rows if r[2] == function and r[0].endswith(f"utils/{file}")]
    if not rows:
        return 0.0, 0.0
    return sum(r[3] for r in rows) / calls.steps, sum(r[5] for r in rows) / calls.steps


def _ddp(record: DdpRecord, looks: list[InspectionRecord], ops: OpsRecord | None) -> Ddp:
    unused = [look.unused for look in looks if look.unused is not None]
    later = [look for look in looks if look.unused is not None][1:]
    counted = ops is not None and ops.synced is not None
    return Ddp(
        find_unused_parameters=record.find_unused_parameters,
        static_graph=record.static_graph,
        gradient_as_bucket_view=record.gradient_as_bucket_view,
        bucket_bytes=record.bucket_bytes,
        comm_hook=record.comm_hook,
        parameter_bytes=record.parameter_bytes,
        unused_parameters=max(unused, default=None),
        buffer_bytes=max((look.buffers[0] for look in later), default=0),
        constant_buffer_bytes=min((look.buffers[1] for look in later), default=0),
        backwards=ops.backwards / ops.steps if ops is not None and counted else None,
        synced=(ops.synced or 0) / ops.steps if ops is not None and counted else None,
    )


def _growth(look: InspectionRecord, lead: Process) -> MemoryGrowth:
    rows = sorted(look.kept, key=lambda row: -row[2])
    steps = look.kept_of
    kept = tuple(
        Kept(at=location(at), tensors=tensors / steps, bytes=size / steps, graphs=graphs / steps)
        for at, tensors, size, graphs in rows
    )
    return MemoryGrowth(
        kept=kept,
        bytes_per_step=sum(line.bytes for line in kept),
        since_steps=look.kept_since,
        graphs=_growing(whole(lead.all(OpsRecord))),
        device_bytes_per_step=_allocated(lead.all(WindowRecord)),
    )


def _growing(counted: list[OpsRecord]) -> tuple[GrowingGraph, ...]:
    """Lines whose graph was larger in the last counted step than in the first, by at least a node
    per step between them (or up to the limit of the count), and by more than that step's own calls
    make, because sequences and episodes grow longer, too."""
    if len(counted) < 2:
        return ()
    first, last = counted[0], counted[-1]
    steps = last.step - first.step
    before = dict(first.graphs)
    # The last step of a window, whose graph is counted, makes at most as many calls as all its
    # steps.
    own = last.steps * _recording(last) / max(1.0, _recording(first))
    found = []
    for at, nodes in last.graphs:
        if at not in before or steps <= 0:
            continue
        gained = nodes - before[at]
        if (gained >= steps or nodes >= MOST_GRAPH_NODES) and nodes > before[at] * max(1.0, own):
            found.append(GrowingGraph(at=location(at), nodes=gained / steps))
    return tuple(found)


def _recording(counted: OpsRecord) -> float:
    """Calls that recorded gradients, per step."""
    return sum(line.grad_calls for line in counted.lines) / counted.steps


def _allocated(windows: list[WindowRecord]) -> float | None:
    """Growth of the memory allocated on the device from the begin to the end of the last clean
    window, bytes per step."""
    mine = [w for w in windows if w.name == BASELINE and w.allocated is not None]
    begins = [w for w in mine if w.state == "begin"]
    ends = [w for w in mine if w.state == "end"]
    if not begins or not ends or ends[-1].step <= begins[-1].step:
        return None
    grown = (ends[-1].allocated or 0) - (begins[-1].allocated or 0)
    return grown / (ends[-1].step - begins[-1].step)


def make_inputs(lead: Process) -> Inputs | None:
    """The inputs; None if no outermost module was inspected."""
    modules = {m.id: m for m in lead.all(ModuleRecord)}
    seen: dict[tuple[int, str], list[InputRecord]] = defaultdict(list)
    for record in lead.all(InputRecord):
        seen[record.module, record.name].append(record)
    if not any(m.parameters for m in modules.values()):
        return None
    return Inputs(
        tensors=tuple(
            _tensor(modules[number], looks)
            for (number, _), looks in seen.items()
            if number in modules
        )
    )


def _tensor(module: ModuleRecord, looks: list[InputRecord]) -> InputTensor:
    last = looks[-1]
    same = [x for x in looks if len(x.mean) == len(last.mean)]
    mean = _mean([x.mean for x in same])
    # Var X = E[X²] − (E X)², over the batches.
    squares = _mean([[s * s + m * m for s, m in zip(x.std, x.mean, strict=True)] for x in same])
    return InputTensor(
        name=last.name,
        module=module.name,
        module_at=location(module.at),
        dtype=last.dtype,
        shape=tuple(last.shape),
        channel_mean=mean,
        channel_std=tuple(
            max(0.0, square - m * m) ** 0.5 for square, m in zip(squares, mean, strict=True)
        ),
        minimum=min(x.min for x in looks),
        maximum=max(x.max for x in looks),
        first=last.first,
        binary=all(x.binary for x in looks),
    )


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
