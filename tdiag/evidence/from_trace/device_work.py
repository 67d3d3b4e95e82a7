"""Kernels, copies and memory of the device, by family and by origin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tdiag.evidence.device import Chains, Device, DevicePart, DeviceParts, KernelFamily, Kernels
from tdiag.evidence.from_trace.intervals import Ints, Spans, clip, covered, total
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.python_stacks import PythonStacks
from tdiag.evidence.from_trace.sorted_events import COMM, COMPUTE, Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.memory import DeviceMemory
from tdiag.model.place import Place
from tdiag.trace import MEMORY_COLUMNS
from tdiag.trace.decode import Interned

# First match wins. Names are those of cuBLAS, CUTLASS, cuDNN, MIOpen, rocBLAS/Tensile, Triton and
# ATen, in lower case: matching with IGNORECASE is five times slower, and names have thousands of
# characters.
FAMILIES = (
    ("attention", r"flash|fmha|attention|sdpa|mha_(fwd|bwd)|aiter::"),
    ("optimizer", r"multi_tensor_apply|adam|sgd|lamb_|fusedoptimizer|_foreach"),
    (
        "layout",
        r"nchwtonhwc|nhwcto|batched_transpose|(nchw|nhwc).*transform|converttensor|"
        r"subtensorop",
    ),
    (
        "conv",
        r"conv|[hs]cudnn_|implicit_?gemm|igemm|wgrad|dgrad|winograd|cudnn.*fprop|xmma_fprop|gcnasm|miopensp3",
    ),
    (
        "gemm",
        r"gemm|gemv|cublas|cutlass|cijk_|matmul|\bmm_|nvjet|splitk|_mm_|dot_kernel",
    ),
    ("norm", r"batch_?norm|layer_?norm|group_?norm|rms_?norm|bn_(fw|bw)|instance_?norm"),
    ("copy", r"memcpy|memset|copy_kernel|direct_copy|catarray|fillbuffer|copybuffer"),
    ("reduction", r"reduce|softmax|argmax|cumsum|scan|sum_"),
    (
        "elementwise",
        r"elementwise|pointwise|triton_poi|triton_per|fused|vectorized|unrolled|index|gather|"
        r"scatter|embedding|dropout|fill",
    ),
)
_FAMILIES = tuple((name, re.compile(pattern)) for name, pattern in FAMILIES)
LABELS = (*(name for name, _ in FAMILIES), "other", "comm")

# Matrix units: NVIDIA's tensor cores (tensorop, …884/16816/1688 shapes, hmma, wgmma, nvjet) and
# AMD's MFMA. float32 without them: simt, sgemm, scudnn, and of the xmma kernels those that name
# ffma or float32 as the type of the product (…f32f32_f32f32…, with TF32 …f32f32_tf32f32…); Tensile
# writes the type as _S_.
TENSOR_CORE = re.compile(
    r"tensorop|tensor16x8x|[his](884|1688|16816|16832)|hmma|imma|[wh]gmma|nvjet|mfma|_MI\d+x|"
    r"xmma_(?!.*(simt|ffma|f32f32_f32f32))|flash|fmha|gtcx|enable_3x_kernel|warpgroup",
    re.IGNORECASE,
)
FLOAT32 = re.compile(
    r"\bfloat\b|(?<![a-z])f32|fp32|sgemm|scudnn|simt_s|Cijk_[^_]+_[^_]+_S(SS)?_?B?_",
    re.IGNORECASE,
)
NARROW = re.compile(
    r"half|bfloat|bf16|f16|fp16|fp8|e4m3|int8|_h884|h1688|h16816|hgemm", re.IGNORECASE
)
MATRIX_FAMILIES = frozenset({"gemm", "conv", "attention"})


def kernels(view: TraceView, window: TracedWindow, updates: Spans) -> Kernels | None:
    """None if no kernel ran in the window. ``updates``: when the host was in the optimizer."""
    trace = view.trace
    rows = window.began(view, view.of_kind(COMPUTE, COMM))
    if not len(rows):
        return None
    comm = np.isin(rows, view.of_kind(COMM))
    names = trace.name[rows]
    used = np.unique(names)
    family = np.zeros(len(trace.names), np.int64)
    for number in used:
        family[number] = LABELS.index(family_of(trace.names[number]))
    of_row = np.where(comm, LABELS.index("comm"), family[names])
    found = []
    for index in np.unique(of_row):
        mine = rows[of_row == index]
        found.append(_of_family(view, LABELS[index], mine, window))
    found.sort(key=lambda entry: -entry.device_ns)
    spans = clip(view.spans(rows), window.begin, window.end)
    return Kernels(
        families=tuple(found),
        count=len(window.began(view, view.kernels)) / window.count,
        device_ns=total(spans) / window.count,
        chains=_chains(view, rows, of_row, window.count, updates),
    )


def _chains(view: TraceView, rows: Rows, family: Ints, steps: int, updates: Spans) -> Chains | None:
    """None if there are no such kernels."""
    trace = view.trace
    calls = view.launched_by(rows)
    moment = np.where(calls >= 0, trace.ts_ns[calls], 0)
    updating = (calls >= 0) & (covered(updates, moment, moment + 1) > 0)
    order = np.lexsort((trace.ts_ns[rows], trace.lane[rows]))
    order = order[family[order] != LABELS.index("copy")]
    fusing = (family[order] == LABELS.index("elementwise")) & ~updating[order]
    lane = trace.lane[rows[order]]
    first = fusing & ~(np.r_[False, fusing[:-1]] & (lane == np.r_[-1, lane[:-1]]))
    chain = np.cumsum(first)[fusing] - 1
    if not len(chain):
        return None
    lasted = trace.dur_ns[rows[order]][fusing]
    longest = np.zeros(chain[-1] + 1, np.int64)
    np.maximum.at(longest, chain, lasted)
    return Chains(
        kernels=len(chain) / steps,
        device_ns=float(lasted.sum()) / steps,
        longest_ns=float(longest.sum()) / steps,
    )


@cache
def family_of(name: str) -> str:
    """The family of a kernel that is not communication."""
    lower = name.lower()
    return next((label for label, pattern in _FAMILIES if pattern.search(lower)), "other")


@cache
def is_float32(name: str) -> bool:
    """Whether the name shows that the kernel computes in float32."""
    return bool(FLOAT32.search(name)) and not NARROW.search(name)


def _of_family(view: TraceView, family: str, rows: Rows, window: TracedWindow) -> KernelFamily:
    trace = view.trace
    float32 = trace.named(rows, is_float32)
    matrix = family in MATRIX_FAMILIES
    units = trace.named(rows, TENSOR_CORE.search) if matrix else None
    durations = trace.dur_ns[rows]
    return KernelFamily(
        family=family,
        count=len(rows) / window.count,
        device_ns=total(clip(view.spans(rows), window.begin, window.end)) / window.count,
        float32_ns=float(durations[float32].sum()) / window.count,
        tensor_core_ns=float(durations[units].sum()) / window.count if units is not None else None,
        occupancy_frac=_occupancy(view, rows),
    )


def _occupancy(view: TraceView, rows: Rows) -> float | None:
    percent = view.trace.occupancy[rows].astype(np.float64)
    known = np.isfinite(percent)
    lasted = view.trace.dur_ns[rows][known]
    return float(np.average(percent[known], weights=lasted)) / 100 if lasted.sum() else None


TOP = 1000  # as documented at DeviceParts: more than most traces have names


def issuing_ops(view: TraceView, ops: Nested, work: Rows) -> Rows:
    """For each row of work the innermost op around the call that launched it: index into
    ``ops.rows``, −1 if none."""
    calls = view.launched_by(work)
    known = calls >= 0
    found = np.full(len(work), -1, np.int64)
    rows = calls[known]
    found[known] = ops.around(view.trace.lane[rows].astype(np.int64), view.trace.ts_ns[rows])
    return found


def device_parts(
    view: TraceView, ops: Nested, stacks: PythonStacks, window: TracedWindow
) -> DeviceParts:
    trace = view.trace
    work = window.began(view, view.work)
    durations, steps = trace.dur_ns[work], window.count
    issuers = issuing_ops(view, ops, work)
    by_op = issuers >= 0
    calls = view.launched_by(work)
    called = calls >= 0
    modules, module = stacks.modules(calls[called])
    places, place = stacks.locate(calls[called])
    functions = [f"{at.function} ({at.file})" if at else None for at in places]
    return DeviceParts(
        kernels=_by_name(trace.names, trace.name[work], durations, steps),
        ops=_by_name(trace.names, trace.name[ops.rows[issuers[by_op]]], durations[by_op], steps),
        modules=_by_text(modules, module, durations[called], steps),
        functions=_by_text(functions, place, durations[called], steps, places),
    )


def _by_name(
    names: Sequence[str], numbers: npt.NDArray[Any], durations: Ints, steps: int
) -> tuple[DevicePart, ...]:
    counts = np.bincount(numbers, minlength=1)
    total = np.bincount(numbers, durations, len(counts))
    top = [i for i in np.argsort(-total, kind="stable")[:TOP].tolist() if counts[i]]
    return tuple(
        DevicePart(name=names[i], count=int(counts[i]) / steps, device_ns=float(total[i]) / steps)
        for i in top
    )


def _by_text(
    texts: Sequence[str | None],
    which: Rows,
    durations: Ints,
    steps: int,
    places: Sequence[Place | None] | None = None,
) -> tuple[DevicePart, ...]:
    """Work grouped by ``texts[which]``; rows without a text are left out. ``places``: parallel to
    ``texts``."""
    numbers: Interned[str] = Interned()
    number = np.array([-1 if text is None else numbers[text] for text in texts], np.int64)[which]
    known = number >= 0
    parts = _by_name(list(numbers), number[known], durations[known], steps)
    at = dict(zip(texts, places or [], strict=False))
    return tuple(
        DevicePart(name=p.name, count=p.count, device_ns=p.device_ns, at=at.get(p.name))
        for p in parts
    )


def device_of(view: TraceView) -> Device:
    """The device with the most work in this trace, as ``deviceProperties`` describes it."""
    rows = view.work[view.trace.device[view.work] >= 0]
    number = int(np.bincount(view.trace.device[rows]).argmax()) if len(rows) else 0
    about = next((d for d in view.trace.device_properties if d.get("id") == number), {})
    major, minor = about.get("computeMajor"), about.get("computeMinor")
    size = about.get("totalGlobalMem")
    version = (major, minor) if isinstance(major, int) and isinstance(minor, int) else None
    return Device(
        kind="cuda" if version else "",
        name=str(about.get("name") or ""),
        capability=version,
        memory_bytes=size if isinstance(size, int) else None,
    )


CPU = 0  # c10::DeviceType


def device_memory(view: TraceView, window: TracedWindow) -> DeviceMemory | None:
    """None if the trace has no device allocator events with running totals."""
    table = dict(zip(MEMORY_COLUMNS, view.trace.memory.T, strict=True))
    inside = (table["ts_ns"] >= window.begin) & (table["ts_ns"] < window.end)
    mine = inside & (table["device_type"] > CPU) & (table["allocated"] > 0)
    if not mine.any():
        return None
    most_used = np.bincount(table["device"][mine].clip(0)).argmax()
    mine &= table["device"].clip(0) == most_used
    sizes = [
        d.get("totalGlobalMem") for d in view.trace.device_properties if d.get("id") == most_used
    ]
    return DeviceMemory(
        peak_allocated_bytes=int(table["allocated"][mine].max()),
        peak_reserved_bytes=int(table["reserved"][mine].max()),
        capacity_bytes=sizes[0] if sizes and isinstance(sizes[0], int) else None,
    )
