"""Matrix sizes that do not suit matrix units

## What it measures
Matrix products in 16-bit types, on an NVIDIA device, whose result has a row length that is not
divisible by 8, from the recorded shapes; and the device time of their kernels.

## Why it is slow
Matrix units read 16 bytes at a time. Rows that do not start at a multiple of 16 bytes are read and
written in smaller pieces, by slower kernels.

## What to do
Pad the size to the next multiple of 8: the vocabulary, the features of a layer, or the sequence
length.

## How the gain is computed
From the operations of these products, if the device's data sheet is known: at 82 % of its rate
(high end) or at half of it (low end), which suitable sizes reach. Otherwise no gain is claimed: how
much slower such kernels are depends on the device and library version. It is reported if these
products take a noticeable part of the step.

## When this advice is wrong
Newer libraries lose little where the product is bound by memory. Padding must be kept out of the
result: ignored targets for a padded vocabulary, a mask for padded positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.machine import Environment
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import MatrixOp, MatrixOps
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, ns, text
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, budget, device_time, environment, matrix_op
from tdiag.rules.thresholds import PRODUCTS_HIGH_FRAC, PRODUCTS_LOW_FRAC
from tdiag.units import per_step

CODE = "TD609"
NAME = "matrix-sizes-off-multiples"
CLASS = "compute"
UNTRIED = "the model's sizes must be changed"

MULTIPLE = Threshold(
    8,
    "numbers of 16 bits",
    "NVIDIA's Matrix Multiplication Background guide: matrix units work best with 16-bit sizes"
    " that are multiples of 8 (16 bytes), and before cuBLAS 11 only then.",
)
LEAST_SIZE = Threshold(
    64,
    "rows or columns",
    "By arithmetic: padding a larger size adds at most an eighth of the work (7 to 64); smaller"
    " products are bound by memory or fit one tile.",
)
# 16-bit types, and the products whose shapes are fully recorded, by torch's names in a trace.
NARROW = ("c10::Half", "c10::BFloat16")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# Name prefixes of NVIDIA devices with matrix units; newer names all begin with the first.
NVIDIA = ("NVIDIA", "Tesla V100", "Tesla T4")


def check(
    budget: Budget,
    matrices: MatrixOps,
    device: DeviceTime,
    environment: Environment,
    roof: Roof | None,
    kernels: Kernels | None,
    work: Work | None,
) -> Found | None:
    if not environment.device.startswith(NVIDIA):
        raise Abstain(f"which sizes suit {environment.device or 'this device'} is unknown")
    off = [op for op in matrices.ops if op.device_ns and _off(op)]
    traced = sum(op.device_ns or 0.0 for op in off)
    cost = traced * busy_scale(budget, device)
    if not off or cost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    most = max(off, key=lambda op: op.device_ns or 0.0)
    left, right = most.dims[-2:]
    size = right[-1]
    padded = int(-(-size // MULTIPLE) * MULTIPLE)
    largest = f"{most.name} of {_by(left)} and {_by(right)}"
    return Found(
        summary=(
            f"16-bit matrix products whose row length is not divisible by {MULTIPLE} take"
            f" {per_step(cost, budget.step_ns)}. The slowest is {largest}."
        ),
        evidence=(
            ns("products with unsuitable sizes", traced, "trace"),
            count("such products", sum(op.count for op in off), "trace", "per_step"),
            text("the slowest", largest, "trace"),
            ns("its kernels", most.device_ns or 0.0, "trace"),
        ),
        fix=Fix(
            f"Pad {size} (a vocabulary, the features of a layer, or a sequence length) to"
            f" {padded}, and keep the padding out of the result.",
            "review",
            action=f"Pad the matrix size {size} to {padded}",
        ),
        gain=_gain(off, busy_scale(budget, device), roof, kernels, work),
        at=work.heaviest(lambda op: (op.name, op.dims) == (most.name, most.dims)) if work else None,
    )


def _gain(
    off: Sequence[MatrixOp],
    scale: float,
    roof: Roof | None,
    kernels: Kernels | None,
    work: Work | None,
) -> Gain | None:
    """``scale``: clean step ÷ traced step. None where the rates are unknown."""
    if roof is None or kernels is None or work is None:
        return None
    sizes = {(op.name, op.dims) for op in off}
    products = [op for op in work.ops if (op.name, op.dims) in sizes]
    whole = sum(x.device_ns for x in kernels.families if x.family == "gemm")
    now, at_best = sum(op.device_ns or 0.0 for op in products), sum(map(roof.compute_ns, products))
    if not at_best or not whole:
        return None
    low, high = (max(0.0, now - at_best / x) for x in (PRODUCTS_LOW_FRAC, PRODUCTS_HIGH_FRAC))
    return Gain(
        low * scale,
        high * scale,
        f"high end: the products reach {PRODUCTS_HIGH_FRAC:.0%} of the {roof.source}; low end:"
        f" {PRODUCTS_LOW_FRAC:.0%}.",
        ("compute",),
        {"gemm": 1 - low / whole},
        {"gemm": 1 - high / whole},
    )


def _off(op: MatrixOp) -> bool:
    """Whether the row length of the result, which is contiguous, is not divisible by the multiple.

    Whether the other sizes matter depends on the operands' strides, which a trace does not record.
    """
    if op.name not in PRODUCTS or len(op.dims) < 2 or len(op.dtypes) != len(op.dims):
        return False
    left, right = op.dims[-2:]
    if not set(op.dtypes[-2:]) <= set(NARROW) or min(len(left), len(right)) < 2:
        return False
    large = min(*left[-2:], *right[-2:]) >= LEAST_SIZE
    return large and right[-1] % MULTIPLE != 0


def _by(dims: tuple[int, ...]) -> str:
    return "×".join(str(size) for size in dims)


def fires() -> Evidence:
    """A language model's vocabulary of 50,257."""
    return _training(50257)


def clear() -> Evidence:
    """The same vocabulary, padded."""
    return _training(50264)


def _training(vocabulary: int) -> Evidence:
    hidden = matrix_op("aten::mm", (8192, 768), (768, 3072), device_ns=6.0 * MS)
    logits = matrix_op("aten::mm", (8192, 768), (768, vocabulary), device_ns=9.0 * MS)
    return Evidence().add(
        budget(device=True, compute=50), device_time(50), MatrixOps(ops=(logits, hidden)),
        environment(device="NVIDIA A100-SXM4-40GB", device_count=1),
    )  # fmt: skip
