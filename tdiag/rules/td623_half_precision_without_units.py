"""Half precision on a CPU without units for it

## What it measures
Matrix products and convolutions of a traced step in bfloat16 or float16, and the rate that a
product of each type reaches on this machine, measured after the run. It is reported if float32
reaches at least twice the rate of the narrow type.

## Why it is slow
Half precision is faster where the processor multiplies it directly (AMX, AVX512-BF16, a GPU's
matrix units). Other processors convert every value, or compute one by one. Models that are stored
in half precision, and scripts written for a GPU, compute in it on a CPU too.

## What to do
Compute in float32 on such a CPU: leave out autocast, load the weights as float32 (`dtype=` or
`torch_dtype=` of `from_pretrained`), remove `.half()` and `.bfloat16()`.

## How the gain is computed
High end: these calls run at the float32 rate. Low end: half of what that saves, because the rates
are those of a square product, and float32 reads twice the bytes.

## When this advice is wrong
If the training was moved to this CPU only for a test: measure where it will run. If float32 does
not fit into memory.
"""

from __future__ import annotations

from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import MODEL_PHASES, Abstain, Found, Gain, frac, held, ns, text, where
from tdiag.rules.examples import budget, flags
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step, significant

CODE = "TD623"
NAME = "half-precision-without-units"
CLASS = "compute"
UNTRIED = "the types are the script's: its weights, its autocast"

NARROW = ("bfloat16", "float16")
SLOWER = Threshold(
    2.0,
    "times as fast",
    "By arithmetic: with units of its own a type of half the width is twice as fast as float32, on"
    " float32's units as fast; half as fast is neither.",
)


def check(
    budget: Budget, work: Work | None, roof: Roof | None, flags: Flags | None
) -> Found | None:
    if budget.has_device or work is None or roof is None:
        return None
    if roof.certainty < MAJORITY_FRAC:
        raise Abstain("other programs kept the cores while this machine's best rates were measured")
    wide = roof.flops_per_s.get("float32", 0.0)
    slow = {
        x: roof.flops_per_s[x] for x in NARROW if 0 < roof.flops_per_s.get(x, 0.0) * SLOWER <= wide
    }
    mine = [op for op in work.ops if op.dtype in slow and op.flops]
    traced = sum(op.host_ns for op in work.ops)
    if not mine or not traced:
        return None
    computing = held(budget, *MODEL_PHASES)
    spent = computing * sum(op.host_ns for op in mine) / traced
    saved = computing * sum(op.host_ns * (1 - slow[op.dtype] / wide) for op in mine) / traced
    if spent < NOTICEABLE_FRAC * budget.step_ns:
        return None
    name = max(slow, key=lambda x: sum(op.host_ns for op in mine if op.dtype == x))
    at = work.heaviest(lambda op: op in mine and not op.backward) or work.heaviest(
        mine.__contains__
    )
    autocast = flags is not None and flags.autocast_dtype.endswith(name)
    return Found(
        summary=(
            f"Products in {name} take {per_step(spent, budget.step_ns)}, on a CPU that multiplies"
            f" float32 {significant(wide / slow[name])} times as fast."
        ),
        evidence=(
            _rate(name, slow[name]),
            _rate("float32", wide),
            frac(f"{name} products, share of the traced time", _share(mine, traced), "trace"),
            ns("their time, per step", spent, "budget"),
        ),
        fix=Fix(
            f"Compute in float32 on this CPU{where(at)}: "
            + (
                "leave out torch.autocast."
                if autocast
                else f"load the weights as float32, and remove what makes them {name}."
            ),
            "review",
            action=f"Compute in float32 instead of {name} on this CPU",
            code="model = model.float()  # from_pretrained(..., dtype=torch.float32)\n"
            "with torch.autocast(device.type, enabled=device.type == 'cuda'):\n    ...",
        ),
        gain=Gain(
            saved * LOW_END_FRAC,
            saved,
            "high end: the products run at float32's rate; low end: half of what that saves.",
            MODEL_PHASES,
        ),
        at=at,
    )


def _rate(name: str, flops_per_s: float) -> Measure:
    return text(f"{name} product, best rate", f"{significant(flops_per_s / 1e9)} GFLOP/s", "system")


def _share(mine: list[OpWork], traced: float) -> float:
    return sum(op.host_ns for op in mine) / traced


def fires() -> Evidence:
    """A model stored in bfloat16, on a CPU that multiplies it twenty times as slowly."""
    return _training(bfloat16=4e9)


def clear() -> Evidence:
    """On a CPU with units for it."""
    return _training(bfloat16=3e11)


def _training(bfloat16: float) -> Evidence:
    roof = Roof(
        flops_per_s={"float32": 8e10, "bfloat16": bfloat16}, bytes_per_s=(), source="measured"
    )
    product = OpWork(
        name="aten::mm", dims=((64, 512), (512, 512)), dtype="bfloat16", count=12.0, flops=4e8,
        moved=1e6, host_ns=80e6, device_ns=None,
    )  # fmt: skip
    rest = OpWork(
        name="aten::add", dims=((64, 512),), dtype="bfloat16", count=12.0, flops=0.0, moved=1e5,
        host_ns=20e6, device_ns=None,
    )  # fmt: skip
    step = budget(forward=40, backward=60, optimizer=5)
    return Evidence().add(step, Work(ops=(product, rest), calls=24.0), roof, flags())
