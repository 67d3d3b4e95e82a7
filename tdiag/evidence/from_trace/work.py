"""Floating-point operations and bytes of the traced ops, from their recorded shapes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import starmap

import numpy as np

from tdiag.evidence.from_trace.device_time import COMPUTES_NS
from tdiag.evidence.from_trace.device_work import issuing_ops
from tdiag.evidence.from_trace.host_ops import (
    DTYPES,
    MATRIX,
    NOT_A_TENSOR,
    Phase,
    created,
    matrix_rows,
    without_gc,
    wrapping,
)
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.python_stacks import PythonStacks
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.roofline import OpWork, Work
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.trace.columns import Ints, Mask

Dims = tuple[int, ...]

COMPUTING = ("forward", "loss", "backward", "optimizer")

# Ops of torch and of a library; not nodes of autograd, nor functions written in Python.
OPERATOR = re.compile(r"^(?!autograd::)\w+::")
# Indexing moves the rows it picks, not the whole table.
PICKS = re.compile(r"::(index|embedding|gather|scatter|take|_index_put|masked_)\w*$")
ONLY_WRITES = re.compile(r"::(fill|zero|uniform|normal|random|bernoulli|exponential)_$")
ONLY_READS = re.compile(r"::(sum|mean|max|min|amax|argmax|var|std|norm|linalg_vector_norm|dot)$")
IN_PLACE = re.compile(r"_$")


def work(
    view: TraceView,
    ops: Nested,
    window: TracedWindow,
    stacks: PythonStacks,
    phases: Sequence[Phase],
) -> Work | None:
    """The work in ``COMPUTING`` phases, or in all if phases are unknown. None if no shapes were
    recorded (``record_shapes``)."""
    trace = view.trace
    computing = _computing(ops, phases)
    kernels = window.began(view, view.work)
    issuing = issuing_ops(view, ops, kernels)
    rows = _counted(view, ops, issuing)
    taking = ops.end - ops.start
    if not len(kernels):
        rows, taking = _with_own_work(view, ops, rows, taking)
    rows = rows[computing[rows]]
    if not len(rows):
        return None
    device = np.zeros(len(ops.rows))
    issuers = _enclosing(ops, rows)[issuing]
    np.add.at(device, issuers[issuers >= 0], trace.dur_ns[kernels][issuers >= 0])
    makers = _makers(view, ops)[rows]
    backward = makers >= 0
    places, at = stacks.locate(ops.rows[np.where(backward, makers, rows)])
    keys = np.stack([trace.name[ops.rows[rows]], trace.shapes[ops.rows[rows]], at, backward])
    kinds, member = np.unique(keys, axis=1, return_inverse=True)
    counts = np.bincount(member)
    host = np.bincount(member, taking[rows])
    on_device = np.bincount(member, device[rows])
    shapes = [_tensors(*texts) for texts in trace.shape_texts]
    outputs = _outputs(trace.names, shapes, kinds)
    found = []
    for number, (name, shape, place, in_backward) in enumerate(kinds.T.tolist()):
        dims, dtypes = shapes[shape]
        if not dims:
            continue
        times = int(counts[number]) / window.count
        found.append(
            OpWork(
                name=trace.names[name],
                dims=dims,
                dtype=DTYPES.get(dtypes[0], (dtypes[0], 0))[0],
                count=times,
                flops=times * flops(trace.names[name], dims, outputs),
                moved=moved(trace.names[name], dims, dtypes, outputs),
                host_ns=float(host[number]) / window.count,
                device_ns=float(on_device[number]) / window.count if len(kernels) else None,
                at=places[place],
                backward=bool(in_backward),
            )
        )
    found.sort(key=lambda op: -(op.device_ns or op.host_ns))
    calls = int(computing[ops.outermost].sum()) / window.count
    return Work(ops=tuple(found), calls=calls) if found else None


def _computing(ops: Nested, phases: Sequence[Phase]) -> Mask:
    """Which ops were called in a computing phase."""
    ordered = without_gc(phases)
    if not ordered:
        return np.ones(len(ops.rows), np.bool_)
    begins = np.array([begin for _, begin, _ in ordered], np.int64)
    ends = np.array([end for _, _, end in ordered], np.int64)
    chosen = np.array([name in COMPUTING for name, _, _ in ordered])
    at = np.searchsorted(begins, ops.start, side="right") - 1
    inside: Mask = (at >= 0) & chosen[at] & (ops.start < ends[at])
    return inside


def _counted(view: TraceView, ops: Nested, issuing: Rows) -> Rows:
    """Of ops that call one another, the one that does the work: a matrix op counts with all it
    calls, else the innermost, and each other that issues kernels itself (``issuing``: for each
    kernel its op, else −1). The backward of an index sorts by other ops, then adds by its own."""
    shaped = view.trace.shapes[ops.rows] >= 0
    matrices, counted = matrix_rows(view, ops)
    leaf = shaped & ~wrapping(ops, np.flatnonzero(shaped))
    above = ops.parent.copy()
    while (above >= 0).any():
        leaf &= ~((above >= 0) & counted[above])
        above = np.where(above >= 0, ops.parent[above], -1)
    innermost = np.union1d(matrices, np.flatnonzero(leaf))
    # An op around a matrix product would count that product's arithmetic again.
    own = np.unique(issuing[(issuing >= 0) & (_enclosing(ops, innermost)[issuing] < 0)])
    return np.union1d(innermost, own[shaped[own] & ~view.trace.named(ops.rows[own], MATRIX.match)])


def _with_own_work(view: TraceView, ops: Nested, counted: Rows, taking: Ints) -> tuple[Rows, Ints]:
    """On a CPU also ops that do most of the work themselves between the ops they call, as a matrix
    decomposition copies its input before; these take what they do not leave to others. Most calls
    of the shape must: a single one may have been interrupted."""
    trace = view.trace
    own = trace.shapes[ops.rows] >= 0
    own &= (ops.self_ns >= COMPUTES_NS) & (ops.self_ns > MAJORITY_FRAC * taking)
    own &= trace.named(ops.rows, OPERATOR.match)
    own &= _enclosing(ops, counted)[:-1] < 0
    if not own.any():
        return counted, taking
    keys = trace.name[ops.rows].astype(np.int64) * (len(trace.shape_texts) + 1)
    _, kind = np.unique(keys + trace.shapes[ops.rows], return_inverse=True)
    own &= (np.bincount(kind, own) > MAJORITY_FRAC * np.bincount(kind))[kind]
    return np.union1d(counted, np.flatnonzero(own)), np.where(own, ops.self_ns, taking)


def _makers(view: TraceView, ops: Nested) -> Rows:
    """For each op that runs in a backward node the forward op that created the node, else −1."""
    found = np.full(len(ops.rows), -1, np.int64)
    nodes, makers = created(view, ops)
    found[nodes] = makers
    above = ops.parent.copy()
    while (above >= 0).any():
        inner = (found < 0) & (above >= 0)
        found[inner] = found[above[inner]]
        above = np.where(above >= 0, ops.parent[above], -1)
    return found


def _enclosing(ops: Nested, counted: Rows) -> Rows:
    """For each op the op in ``counted`` that is or contains it, −1 if none. One extra −1 at the end
    serves the index −1."""
    found = np.full(len(ops.rows) + 1, -1, np.int64)
    found[counted] = counted
    above = ops.parent.copy()
    while (above >= 0).any():
        open_ = (found[:-1] < 0) & (above >= 0)
        found[:-1][open_] = found[above[open_]]
        above = np.where(above >= 0, ops.parent[above], -1)
    return found


def _tensors(dims: str, types: str) -> tuple[tuple[Dims, ...], tuple[str, ...]]:
    """Dimensions and data types of the inputs, with lists of tensors flattened; empty if the trace
    cut off a text."""
    try:
        sizes, kinds = json.loads(dims or "[]"), json.loads(types or "[]")
    except json.JSONDecodeError:
        return (), ()
    if len(kinds) != len(sizes):
        return (), ()
    kept = []
    for size, kind in zip(sizes, kinds, strict=True):
        if kind in NOT_A_TENSOR or not isinstance(size, list) or not size:
            continue
        if all(isinstance(n, int) for n in size):
            kept.append((tuple(size), kind))
    return tuple(size for size, _ in kept), tuple(kind for _, kind in kept)


Outputs = dict[tuple[Dims, Dims], Dims]


def _outputs(
    names: Sequence[str], shapes: Sequence[tuple[tuple[Dims, ...], tuple[str, ...]]], kinds: Rows
) -> Outputs:
    """A convolution's output dimensions by those of its input and weight, read from its backward:
    the first input of backward is the output's gradient."""
    found = {}
    for name, shape, *_ in kinds.T.tolist():
        dims = shapes[shape][0]
        if "convolution_backward" in names[name] and len(dims) >= 3:
            found[dims[1], dims[2]] = dims[0]
    return found


def flops(name: str, dims: tuple[Dims, ...], outputs: Outputs) -> float:
    """Multiplications and additions of one call; 0 for an op that is not a matrix op.

    A convolution whose backward was not traced is assumed to keep the size of its input."""
    op = name.rpartition("::")[2]
    if op in ("mm", "bmm", "addmm", "baddbmm"):
        if len(dims) < 2 or len(dims[-1]) < 2 or len(dims[-2]) < 2:
            return 0.0
        return 2.0 * math.prod(dims[-2]) * dims[-1][-1]
    if op in ("linear", "_linear_pointwise"):
        return 2.0 * math.prod(dims[0]) * dims[1][0] if len(dims) > 1 else 0.0
    if "conv" in op:
        return _convolution(op, dims, outputs)
    if "attention" in op and len(dims) >= 3:
        return _attention(op, dims)
    if op.startswith("mkldnn_rnn_layer") and len(dims) >= 3 and len(dims[0]) == 3:
        steps, batch, _ = dims[0]
        once = 2.0 * steps * batch * (math.prod(dims[1]) + math.prod(dims[2]))
        return 2 * once if "backward" in op else once
    return 0.0


def _convolution(op: str, dims: tuple[Dims, ...], outputs: Outputs) -> float:
    backward = "backward" in op
    if len(dims) < (3 if backward else 2):
        return 0.0
    given, weight = dims[1:3] if backward else dims[:2]
    out = dims[0] if backward else outputs.get((given, weight))
    if out is None:
        out = (given[0], weight[0], *given[2:])
    once = 2.0 * math.prod(out) * math.prod(weight[1:])
    return 2 * once if backward else once  # the gradients of the input and of the weight


def _attention(op: str, dims: tuple[Dims, ...]) -> float:
    """For [batch, heads, length, width]; backward has five products where forward has two."""
    backward = "backward" in op
    inputs = dims[1:] if backward else dims
    if len(inputs) < 3 or min(len(d) for d in inputs[:3]) < 4:
        return 0.0
    query, keys, values = inputs[:3]
    pairs = math.prod(query[:3]) * keys[2]
    products = (3, 2) if backward else (1, 1)
    return 2.0 * pairs * (products[0] * query[3] + products[1] * values[3])


def moved(name: str, dims: tuple[Dims, ...], dtypes: Sequence[str], outputs: Outputs) -> float:
    """Lower bound of the bytes that one call reads and writes."""
    width = [DTYPES.get(kind, ("", 0))[1] for kind in dtypes]
    sizes = list(starmap(lambda size, each: math.prod(size) * each, zip(dims, width, strict=True)))
    if PICKS.search(name):
        return 2.0 * _picked(dims, sizes, width)
    if ONLY_WRITES.search(name):
        return float(sizes[0])
    if ONLY_READS.search(name):
        return float(sizes[0])
    if IN_PLACE.search(name):
        return float(sum(sizes) + sizes[0])
    op = name.rpartition("::")[2]
    if op in ("mm", "bmm", "addmm", "baddbmm") and len(dims) >= 2 and len(dims[-1]) >= 2:
        written = math.prod(dims[-2][:-1]) * dims[-1][-1] * width[-1]
        return float(sum(sizes[-2:]) + written)
    if (op in ("linear", "_linear_pointwise")) and len(dims) >= 2:
        return float(sum(sizes) + math.prod(dims[0][:-1]) * dims[1][0] * width[0])
    if "conv" in op and (out := outputs.get((dims[0], dims[1]) if len(dims) > 1 else ((), ()))):
        return float(sum(sizes) + math.prod(out) * width[0])
    return float(sum(sizes) + max(sizes))


def _picked(dims: tuple[Dims, ...], sizes: Sequence[int], width: Sequence[int]) -> float:
    """Bytes of the rows picked by an index, if it was recorded; else of the smallest input: a mask,
    or the values written."""
    if len(dims) > 1 and len(dims[0]) == 2 and width[1] == 8:
        return float(math.prod(dims[1]) * dims[0][1] * width[0])
    return float(min(sizes))
