"""Matrix products, convolutions and attention by shape and data type."""

from __future__ import annotations

import json

import numpy as np

from tdiag.evidence.device import MatrixOp, MatrixOps
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.parts import issuing_ops
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import View
from tdiag.trace import Trace
from tdiag.trace.columns import Mask

NOT_A_TENSOR = frozenset({"", "Scalar", "ScalarList", "Int", "Bool", "GenericList", "Float"})


def matrix_ops(view: View, ops: Nested, window: Window) -> MatrixOps | None:
    """None where no shapes were recorded (``record_shapes``)."""
    trace = view.trace
    shaped = np.flatnonzero((trace.shapes[ops.rows] >= 0) & ~_wrapping(trace, ops))
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
        dims, dtypes = _tensors(*trace.shape_texts[shape])
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


def _wrapping(trace: Trace, ops: Nested) -> Mask:
    """Ops that only call another shaped op (aten::linear calls aten::addmm)."""
    found = np.zeros(len(ops.rows), np.bool_)
    above = ops.parent[trace.shapes[ops.rows] >= 0]
    while len(above := np.unique(above[above >= 0])):
        found[above] = True
        above = ops.parent[above]
    return found


def _tensors(dims: str, types: str) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Dimensions and data types of the inputs that are tensors; nothing if a text was cut."""
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
