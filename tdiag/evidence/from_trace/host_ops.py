"""What the host dispatched: ops per step, their self time, the source of backward time, shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np

from tdiag.evidence.from_trace.device_work import issuing_ops
from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.torch_ops import HostOp, HostOps, MatrixOp, MatrixOps
from tdiag.trace.columns import Mask

Phase = tuple[str, int, int]  # name, start, end on the trace's clock, ns

TOP_OPS = 1000  # more than most traces have names
COLLECTION = "gc"
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
ZEROES = re.compile(r"^aten::(_foreach_)?zero_$")
BACKWARD_NODE = re.compile(r"^autograd::engine::evaluate_function: ")


def host_ops(
    view: TraceView, nested: Nested, window: TracedWindow, phases: Sequence[Phase]
) -> HostOps | None:
    """``nested``: the ops of the window. None if there are none."""
    if not len(nested.rows):
        return None
    outermost = nested.outermost
    return HostOps(
        per_step=len(outermost) / window.count,
        total_per_step=len(nested.rows) / window.count,
        ops=_by_name(view, nested, window.count),
        backward_of=_backward_of(view, nested, phases, window.count),
        calls_of=_by_phase(nested.start[outermost], np.ones_like(outermost), phases, window.count)
        if phases
        else {},
        zero_grad_frac=_zero_grad_frac(view, window, phases),
        zeroing=_zeroing(view, nested, window),
    )


def _by_name(view: TraceView, nested: Nested, steps: int) -> tuple[HostOp, ...]:
    names = view.trace.name[nested.rows]
    size = len(view.trace.names)
    counts = np.bincount(names, minlength=size)
    own = np.bincount(names, nested.self_ns, size)
    calls = view.runtime
    callers = nested.around(view.trace.lane[calls].astype(np.int64), view.trace.ts_ns[calls])
    alone = np.ones(len(nested.rows), np.bool_)
    alone[callers[callers >= 0]] = False
    on_host = np.bincount(names[alone], nested.self_ns[alone], size)
    total = np.bincount(names, nested.end - nested.start, size)
    dtypes = _dtypes(view, nested)
    top = [i for i in np.argsort(-own, kind="stable")[:TOP_OPS] if counts[i]]
    return tuple(
        HostOp(
            name=view.trace.names[i],
            count=float(counts[i] / steps),
            self_ns=float(own[i] / steps),
            total_ns=float(total[i] / steps),
            on_host_ns=float(on_host[i] / steps),
            dtype=dtypes.get(int(i), ""),
        )
        for i in top
    )


def _dtypes(view: TraceView, nested: Nested) -> dict[int, str]:
    """Number of an op's name → the data type of its first tensor, in its first call with shapes."""
    rows = nested.rows[view.trace.shapes[nested.rows] >= 0]
    names, first = np.unique(view.trace.name[rows], return_index=True)
    found = {}
    for name, row in zip(names.tolist(), rows[first].tolist(), strict=True):
        _, kinds = tensors(*view.trace.shape_texts[view.trace.shapes[row]])
        if kinds:
            found[name] = DTYPES.get(kinds[0], (kinds[0], 0))[0]
    return found


def _backward_of(
    view: TraceView, nested: Nested, phases: Sequence[Phase], steps: int
) -> dict[str, float]:
    """Backward ns per step by the phase in which the forward op was called."""
    if not phases:
        return {}
    nodes, makers = created(view, nested)
    durations = (nested.end - nested.start)[nodes]
    return _by_phase(nested.start[makers], durations, phases, steps)


def created(view: TraceView, nested: Nested) -> tuple[Ints, Ints]:
    """Backward nodes, and for each the forward op that created it: indices into ``nested.rows``.
    Nodes whose op was not traced are left out.

    A backward node carries the sequence number of the forward op that created it. Ops that create
    none carry the next number, so the last forward op with the number is the creator.
    """
    trace, rows = view.trace, nested.rows
    sequence = trace.sequence[rows]
    node = trace.named(rows, BACKWARD_NODE.match) & (sequence >= 0)
    forward = (sequence >= 0) & (trace.forward_thread[rows] <= 0) & ~node
    made = np.flatnonzero(forward)
    made = made[np.lexsort((nested.start[made], sequence[made]))]
    nodes = np.flatnonzero(node)
    if not len(made) or not len(nodes):
        return nodes[:0], made[:0]
    # The last forward op with this number that began before the node ran.
    numbers = np.unique(sequence[made])
    origin = int(nested.start.min())
    scale = int(nested.end.max()) - origin + 1
    keys = np.searchsorted(numbers, sequence[made]) * scale + (nested.start[made] - origin)
    wanted = np.searchsorted(numbers, sequence[nodes]) * scale + (nested.start[nodes] - origin)
    at = np.searchsorted(keys, wanted, side="right") - 1
    found = (at >= 0) & (sequence[made[at]] == sequence[nodes])
    return nodes[found], made[at[found]]


def _by_phase(
    moments: Ints, durations: Ints, phases: Sequence[Phase], steps: int
) -> dict[str, float]:
    phases = without_gc(phases)
    begins = np.array([begin for _, begin, _ in phases], np.int64)
    at = np.searchsorted(begins, moments, side="right") - 1
    totals: dict[str, float] = {}
    for index in np.unique(at[at >= 0]):
        name, _, end = phases[index]
        inside = (at == index) & (moments < end)
        if inside.any():
            totals[name] = totals.get(name, 0.0) + float(durations[inside].sum()) / steps
    return totals


def _zero_grad_frac(
    view: TraceView, window: TracedWindow, phases: Sequence[Phase]
) -> dict[str, float]:
    """The share of each phase in the window, by name, spent freeing or zeroing gradients."""
    rows = view.matching(view.annotations, ZERO_GRAD)
    starts = view.trace.ts_ns[rows]
    seen = [phase for phase in phases if window.begin <= phase[1] < window.host_end]
    spent = _by_phase(starts, view.trace.ends(rows) - starts, seen, 1) if seen else {}
    whole = {name: sum(end - begin for n, begin, end in seen if n == name) for name in spent}
    return {name: min(1.0, ns / whole[name]) for name, ns in spent.items() if whole[name]}


def _zeroing(view: TraceView, nested: Nested, window: TracedWindow) -> HostOp | None:
    """None if no optimizer's ``zero_grad`` was seen."""
    spans = view.spans(view.matching(view.annotations, ZERO_GRAD))
    if not len(spans):
        return None
    rows = nested.outermost
    rows = rows[view.trace.named(nested.rows[rows], ZEROES.match)]
    at = np.searchsorted(spans[:, 0], nested.start[rows], side="right") - 1
    rows = rows[(at >= 0) & (nested.end[rows] <= spans[at, 1])]
    spent = float((nested.end - nested.start)[rows].sum()) / window.count
    return HostOp(name="zero_grad", count=len(rows) / window.count, self_ns=spent, total_ns=spent)


def without_gc(phases: Sequence[Phase]) -> list[Phase]:
    """Sorted by start. Garbage collection counts as part of the phase that it interrupts."""
    kept: list[Phase] = []
    for name, begin, end in sorted(phases, key=lambda phase: phase[1]):
        if name == COLLECTION and kept:
            kept[-1] = (kept[-1][0], kept[-1][1], max(end, kept[-1][2]))
        else:
            kept.append((name, begin, end))
    return kept


# Products, convolutions and attention, by torch's names in a trace.
MATRIX = re.compile(
    r"^(aten::(mm|addmm|bmm|baddbmm|linear|(cudnn_|miopen_|mkldnn_|thnn_|slow_)?conv\w*|"
    r"_scaled_dot_product_\w*attention\w*|mkldnn_rnn_layer\w*)|mkldnn::\w+)$"
)
# torch's name and bytes per element, by the name in a trace.
DTYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2), "long int": ("int64", 8), "long": ("int64", 8),
    "int": ("int32", 4), "short": ("int16", 2), "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1), "bool": ("bool", 1), "c10::complex<float>": ("complex64", 8),
}  # fmt: skip
NOT_A_TENSOR = frozenset({"", "Scalar", "ScalarList", "Int", "Bool", "GenericList", "Float"})


def matrix_rows(view: TraceView, ops: Nested) -> tuple[Rows, Mask]:
    """Indices into ``ops.rows`` of the matrix ops with shapes that call no other matrix op
    (``aten::linear`` calls ``aten::addmm``), and the mask of all matrix ops."""
    trace = view.trace
    known = (trace.shapes[ops.rows] >= 0) & trace.named(ops.rows, MATRIX.match)
    inner = known & ~wrapping(ops, np.flatnonzero(known))
    return np.flatnonzero(inner), inner


def matrix_ops(view: TraceView, ops: Nested, window: TracedWindow) -> MatrixOps | None:
    """None if no shapes were recorded (``record_shapes``)."""
    trace = view.trace
    shaped, _ = matrix_rows(view, ops)
    if not any(dims for dims, _ in trace.shape_texts) or not len(shaped):
        return None
    device = np.zeros(len(ops.rows))
    work = window.began(view, view.work)
    issuers = issuing_ops(view, ops, work)
    np.add.at(device, issuers[issuers >= 0], trace.dur_ns[work][issuers >= 0])
    names, shapes = trace.name[ops.rows[shaped]], trace.shapes[ops.rows[shaped]]
    host = (ops.end - ops.start)[shaped]
    found = []
    for name, shape in sorted(set(zip(names.tolist(), shapes.tolist(), strict=True))):
        mine = (names == name) & (shapes == shape)
        dims, dtypes = tensors(*trace.shape_texts[shape])
        found.append(
            MatrixOp(
                name=trace.names[name],
                dims=dims,
                dtypes=dtypes,
                count=int(mine.sum()) / window.count,
                host_ns=float(host[mine].sum()) / window.count,
                device_ns=float(device[shaped[mine]].sum()) / window.count if len(work) else None,
            )
        )
    found.sort(key=lambda op: -(op.device_ns or op.host_ns))
    return MatrixOps(ops=tuple(found))


def wrapping(ops: Nested, inner: Rows) -> Mask:
    """The ops that call one of ``inner``."""
    found = np.zeros(len(ops.rows), np.bool_)
    above = ops.parent[inner]
    while len(above := np.unique(above[above >= 0])):
        found[above] = True
        above = ops.parent[above]
    return found


def tensors(dims: str, types: str) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Dimensions and data types of the tensor inputs; empty if the trace cut off a text."""
    try:
        sizes, kinds = json.loads(dims or "[]"), json.loads(types or "[]")
    except json.JSONDecodeError:
        return (), ()
    if len(kinds) != len(sizes):
        return (), ()
    kept = [
        (tuple(size), kind)
        for size, kind in zip(sizes, kinds, strict=True)
        if kind not in NOT_A_TENSOR and size and all(isinstance(n, int) for n in size)
    ]
    return tuple(size for size, _ in kept), tuple(kind for _, kind in kept)
