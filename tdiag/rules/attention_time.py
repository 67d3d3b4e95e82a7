"""What attention without the fused kernel takes on a device, and what the fused kernel takes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from msgspec.structs import replace

from tdiag.evidence.device import DeviceParts, DeviceTime
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.torch_ops import Attention
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Gain
from tdiag.rules.device_waits import busy_scale

ON_DEVICE_HIGH = Threshold(
    3.0,
    "times as fast",
    'Dao et al., "FlashAttention" (2022): up to 3× as fast as the PyTorch implementation of'
    " attention.",
)
FUSED_HIGH_FRAC = Threshold(
    0.73,
    "of the data sheet's rate",
    'Dao, "FlashAttention-2" (2023): 50 to 73 % of the theoretical maximum on an A100.',
)
FUSED_LOW_FRAC = Threshold(
    0.34,
    "of the data sheet's rate",
    'Dao, "FlashAttention-2" (2023): up to 335 TFLOP/s on an H100, whose data sheet has 989.',
)
RECOMPUTED = Threshold(
    7 / 6,
    "times the products",
    'Dao, "FlashAttention-2" (2023): the backward computes five products, one of them again;'
    " written out, forward and backward have six.",
)
NARROW = ("float16", "bfloat16")  # what flash attention takes
# The ops of attention written out, forward and backward, by torch's own names.
_SOFTMAX = "aten::_softmax"
PARTS = (_SOFTMAX, "aten::_softmax_backward_data", "aten::bmm", "aten::baddbmm")
_PRODUCTS = ("aten::bmm", "aten::baddbmm")
Dims = tuple[int, ...]
_COPIES = ("aten::copy_", "aten::clone")
# What torch's slow form does with queries and keys before their product.
_SCALES = ("aten::mul",)


def kernels_ns(budget: Budget, parts: DeviceParts | None, device: DeviceTime | None) -> float:
    """Kernels launched by the ops of unfused attention, ns per clean step; 0 where unknown."""
    if not budget.has_device or parts is None or device is None:
        return 0.0
    traced = sum(part.device_ns for part in parts.ops if part.name in PARTS)
    return traced * busy_scale(budget, device)


def gain_on_device(
    spent_ns: float, work: Work | None, roof: Roof | None, scale: float, given: str = ""
) -> Gain:
    """``spent_ns``: of :func:`kernels_ns`, used where shapes or rates are unknown. ``scale``: clean
    step ÷ traced step. ``given``: the data type of queries, keys and values, if the kernels may
    compute in another: torch's own slow form computes half precision in float32."""
    found = _by_shapes(work, roof, given) if work and roof else None
    if found is None:
        return Gain(
            0.0,
            spent_ns * (1 - 1 / ON_DEVICE_HIGH),
            "high end: three times as fast; low end: nothing, as for short sequences.",
            ("compute",),
        )
    low, high = found
    return Gain(
        low * scale,
        high * scale,
        "from all kernels that read or write the scores. High end: the fused kernel reaches"
        f" {FUSED_HIGH_FRAC:.0%} of the {roof.source if roof else ''}, and takes its operands as"
        f" they lie; low end: {FUSED_LOW_FRAC:.0%}, or nothing in float32.",
        ("compute",),
    )


def written_out(work: Work) -> Attention | None:
    """Softmaxes of a matrix product's result that another product takes, by shapes alone, as a bare
    trace shows them; None if there are none."""
    products = [op for op in _products(work) if not op.backward]
    made = {_shape(_matrices(op)[2]) for op in products}
    taken = {_shape(x) for op in products for x in _matrices(op)[:2]}
    softmaxes = [
        op for op in work.ops if op.name == _SOFTMAX and _shape(op.dims[0]) in made & taken
    ]
    if not softmaxes:
        return None
    at = work.heaviest(lambda op: op in softmaxes)
    return Attention(at=at, per_step=sum(op.count for op in softmaxes))


def _by_shapes(work: Work, roof: Roof, given: str) -> tuple[float, float] | None:
    """ns per traced step that the fused kernel saves, low and high end; None without a softmax of
    a product's result."""
    products = _products(work)
    made = {_shape(x) for op in products for x in _matrices(op)}
    scores = made & {_shape(op.dims[0]) for op in work.ops if op.name == _SOFTMAX}
    products = [op for op in products if scores & set(map(_shape, _matrices(op)))]
    if not products:
        return None
    heads = {op.dims[0][:-2] for op in work.ops if op.name == _SOFTMAX}
    # Queries, keys, values and the result, in any order of their axes: (batch, n, heads, d), …
    sides = {dims[-2:] for op in products for dims in _matrices(op)}
    operands = {tuple(sorted((*lead, *side))) for lead in heads for side in sides}
    others = [op for op in work.ops if op.name not in _PRODUCTS]
    touching = [op for op in others if scores & set(map(_shape, op.dims))]
    around = (*_COPIES, *_SCALES) if given else _COPIES
    copying = [op for op in others if op.name in around and op not in touching]
    passes = _spent(touching)
    copies = _spent(op for op in copying if tuple(sorted(op.dims[0])) in operands)
    if given in NARROW:
        arithmetic = sum(roof.compute_ns(replace(op, dtype=given)) for op in products)
    else:
        arithmetic = sum(map(roof.compute_ns, products))
    arithmetic *= RECOMPUTED
    if given not in NARROW and not all(op.dtype in NARROW for op in products):
        return 0.0, passes + copies
    whole = passes + _spent(products)
    high = whole + copies - arithmetic / FUSED_HIGH_FRAC
    return max(0.0, whole - arithmetic / FUSED_LOW_FRAC), max(0.0, high)


def _products(work: Work) -> list[OpWork]:
    return [op for op in work.ops if op.name in _PRODUCTS and len(op.dims) > 1]


def _matrices(product: OpWork) -> tuple[Dims, Dims, Dims]:
    """Both operands and the result of a batched product."""
    left, right = product.dims[-2:]
    return left, right, (*left[:-1], right[-1])


def _shape(dims: Dims) -> tuple[int, frozenset[int]]:
    """The same for (batch, heads, n, m), (batch × heads, n, m) and their transposes."""
    return prod(dims), frozenset(dims[-2:])


def _spent(ops: Iterable[OpWork]) -> float:
    return sum(op.device_ns or 0.0 for op in ops)
