"""Matrix products in float32 while matrix units are idle

## What it measures
Device time of matrix products, convolutions and attention whose kernels compute in float32 without
matrix units (tensor cores, MFMA).

## Why it is slow
Matrix units multiply 16-bit or TF32 numbers several times faster than the ordinary units multiply
float32. 16-bit numbers also halve the memory traffic.

## What to do
From compute capability 8.0 (A100): autocast to bfloat16, or allow TF32 for what stays float32.
Before that (V100, T4) there is neither in the matrix units: autocast to float16 with a GradScaler.

## How the gain is computed
From the float32 kernels' time and, if shapes were recorded and the device's data sheet is known,
from the time that the same products need on its matrix units. High end: with 16-bit numbers at the
data sheet's rates. Low end: with TF32 (where there is none: 16 bits) at half of them. Otherwise,
high end: three times as fast; low end: 1.5 times if the trace shows matrix units in use on this
device, else nothing.

## When this advice is wrong
Devices older than Volta (NVIDIA, compute capability 7.0) or MI100 (AMD) have no matrix units: for
NVIDIA's the rule is silent. If the capability is unknown, the fix names both. Reductions over very
long axes and losses with large exponents need float32: autocast keeps the ones it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tdiag.evidence.device import Device, DeviceTime, KernelFamily, Kernels
from tdiag.evidence.machine import Environment
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags, Settings
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, ns, version
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, budget, device_time, family, kernels
from tdiag.rules.thresholds import PRODUCTS_LOW_FRAC
from tdiag.units import per_step

CODE = "TD601"
NAME = "float32-matrix-kernels"
CLASS = "compute"

# Kernel families that matrix units can compute.
MATRIX = ("gemm", "conv", "attention")
# Settings that keep matrix products in full float32.
_FULL = (("float32_matmul_precision", "highest"), ("cudnn.allow_tf32", False))
FASTER_HIGH = Threshold(
    3.0,
    "times as fast",
    'NVIDIA, "Train With Mixed Precision": up to 3× overall on arithmetic-bound models.',
)
FASTER_LOW = Threshold(
    1.5, "times as fast", "Heuristic: half of the high end, for kernels partly bound by memory."
)


_GUIDE = "CUDA C++ Programming Guide, features and specifications per compute capability:"
MATRIX_UNITS = Threshold(7, "(major compute capability)", f"{_GUIDE} the first with tensor cores.")
BFLOAT16 = Threshold(
    8,
    "(major compute capability)",
    f"{_GUIDE} the first whose tensor cores take bfloat16 and TF32.",
)
FP32_PRECISION_SINCE = Threshold(
    9,
    "(minor release of torch 2)",
    "torch 2.9's documentation deprecates cudnn.allow_tf32 for fp32_precision by operator.",
)


def check(
    budget: Budget,
    kernels: Kernels,
    device: DeviceTime,
    flags: Flags | None,
    which: Device | None,
    environment: Environment | None,
    settings: Settings | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    major = which.capability[0] if which and which.capability else None
    if major is not None and major < MATRIX_UNITS:
        return None
    matrix = [x for x in kernels.families if x.family in MATRIX and x.tensor_core_ns is not None]
    cost = _float32(matrix) * busy_scale(budget, device)
    if not cost or (flags is not None and flags.autocast_dtype):
        return None
    units = sum(x.tensor_core_ns or 0.0 for x in matrix)
    low, high, why = _left(work, roof, major) or (
        1 / FASTER_LOW if units else 1.0,
        1 / FASTER_HIGH,
        "high end: three times as fast on matrix units; low end: "
        + ("1.5 times." if units else "nothing, because none were seen in use."),
    )
    return Found(
        summary=(
            f"Matrix kernels in float32 without matrix units take {per_step(cost, budget.step_ns)}."
        ),
        evidence=(
            ns("float32 matrix kernels", _float32(matrix), "trace"),
            ns("matrix kernels on matrix units", units, "trace"),
            *(ns(f"{x.family} kernels", x.device_ns, "trace") for x in matrix),
        ),
        fix=_fix(matrix, major, environment.torch if environment else ""),
        gain=Gain(
            cost * (1 - low),
            cost * (1 - high),
            why,
            ("compute",),
            {f"{family} float32": low for family in MATRIX if low < 1},
            {f"{family} float32": high for family in MATRIX},
        ),
        at=_kept_at(settings) or (work.heaviest(_product) if work else None),
    )


def _left(
    work: Work | None, roof: Roof | None, major: int | None
) -> tuple[float, float, str] | None:
    """What is left of the float32 products' time at the low and at the high end, 0..1, and why;
    None where shapes or rates are unknown."""
    products = [op for op in work.ops if _product(op) and op.device_ns] if work else []
    if roof is None or not products or major is None:
        return None
    tf32 = major >= BFLOAT16
    narrow = "bfloat16" if tf32 and "bfloat16" in roof.flops_per_s else "float16"
    now = sum(op.device_ns or 0.0 for op in products)
    at_best = sum(roof.best_ns(replace(op, dtype=narrow, moved=op.moved / 2)) for op in products)
    slower = sum(roof.best_ns(op) for op in products) if tf32 else at_best
    low = min(1.0, slower / now / PRODUCTS_LOW_FRAC)
    at_rates = f"at the rates in the {roof.source}"
    why = (
        f"high end: with {narrow} {at_rates}; low end: with {'TF32' if tf32 else narrow} at"
        f" {PRODUCTS_LOW_FRAC:.0%} of them."
    )
    return low, min(low, at_best / now), why


def _product(op: OpWork) -> bool:
    return op.dtype == "float32" and op.flops > 0


def _kept_at(settings: Settings | None) -> Place | None:
    """The line that keeps matrix products in full float32; None if that is torch's default."""
    found = [settings.last(name, value) for name, value in _FULL] if settings else []
    return next((setting.at for setting in found if setting is not None), None)


def _fix(matrix: Sequence[KernelFamily], major: int | None, torch: str) -> Fix:
    if major is not None and major < BFLOAT16:
        return Fix(
            "Run forward and loss under torch.autocast with float16, and scale the loss with a"
            " GradScaler: this device's matrix units support neither bfloat16 nor TF32.",
            "review",
            "torch.autocast=float16",
            action="Run matrix products in float16 with a GradScaler",
            code="scaler = torch.amp.GradScaler()  # once\n"
            "with torch.autocast(device.type, dtype=torch.float16):\n"
            "    loss = loss_fn(model(inputs), targets)\n"
            "scaler.scale(loss).backward()\n"
            "scaler.step(optimizer)\n"
            "scaler.update()",
        )
    older = "" if major else " (on a V100 or T4 with float16 and a GradScaler)"
    return Fix(
        f"Run forward and loss under torch.autocast with bfloat16{older}. To keep float32,"
        f" {_tf32(matrix, torch)}.",
        "review",
        None if major is None else "torch.autocast=bfloat16",
        action="Run matrix products in bfloat16",
        code="with torch.autocast(device.type, dtype=torch.bfloat16):\n"
        "    loss = loss_fn(model(inputs), targets)",
    )


def _tf32(matrix: Sequence[KernelFamily], torch: str) -> str:
    """The switches that allow TF32 in the kernels seen; convolutions have their own."""
    slow = {family.family for family in matrix if _float32((family,)) > 0}
    switches = []
    if slow - {"conv"}:
        switches.append("call torch.set_float32_matmul_precision('high')")
    if "conv" in slow:
        new = not torch or version(torch) >= (2, FP32_PRECISION_SINCE)
        switch = "conv.fp32_precision = 'tf32'" if new else "allow_tf32 = True"
        switches.append(f"set torch.backends.cudnn.{switch} for convolutions")
    return " and ".join(switches)


def _float32(families: Iterable[KernelFamily]) -> float:
    """Device time in float32 without matrix units, ns per traced step."""
    return sum(min(x.float32_ns, x.device_ns - (x.tensor_core_ns or 0.0)) for x in families)


def fires() -> Evidence:
    slow = family("gemm", 40, float32_ns=36 * MS, tensor_core_ns=2.0 * MS)
    ampere = Device(kind="cuda", name="NVIDIA A100", capability=(8, 0))
    return Evidence().add(budget(device=True, compute=50), kernels(slow), device_time(50), ampere)


def clear() -> Evidence:
    """The same products on tensor cores."""
    fast = family("gemm", 12, float32_ns=0.0, tensor_core_ns=12.0 * MS)
    return Evidence().add(budget(device=True, compute=20), kernels(fast), device_time(20))
