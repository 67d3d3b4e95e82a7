"""Kernels by family, data type and use of matrix units, told by their names."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from tdiag.evidence.device import KernelFamily, Kernels
from tdiag.evidence.from_trace.intervals import clip, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, Rows, View

# First match wins. Names as cuBLAS, CUTLASS, cuDNN, MIOpen, rocBLAS/Tensile, Triton, ATen give, in
# lower case: a pattern that ignores case is a fifth as fast, and names have thousands of letters.
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
# AMD's MFMA. float32 without them: simt, sgemm, scudnn; Tensile writes the type as _S_.
TENSOR_CORE = re.compile(
    r"tensorop|tensor16x8x|[his](884|1688|16816|16832)|hmma|imma|[wh]gmma|nvjet|mfma|_MI\d+x|"
    r"xmma_(?!.*simt)|flash|fmha|gtcx|enable_3x_kernel|warpgroup",
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


def kernels(view: View, window: Window) -> Kernels | None:
    """None if no kernel ran in the window."""
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
    )


@cache
def family_of(name: str) -> str:
    """The family of a kernel that does not communicate."""
    lower = name.lower()
    return next((label for label, pattern in _FAMILIES if pattern.search(lower)), "other")


@cache
def is_float32(name: str) -> bool:
    """Whether the name tells that the kernel computes in float32."""
    return bool(FLOAT32.search(name)) and not NARROW.search(name)


def _of_family(view: View, family: str, rows: Rows, window: Window) -> KernelFamily:
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


def _occupancy(view: View, rows: Rows) -> float | None:
    percent = view.trace.occupancy[rows].astype(np.float64)
    known = np.isfinite(percent)
    lasted = view.trace.dur_ns[rows][known]
    return float(np.average(percent[known], weights=lasted)) / 100 if lasted.sum() else None
