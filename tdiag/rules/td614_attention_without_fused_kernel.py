"""scaled_dot_product_attention uses its slow form, without a fused kernel

## What it measures
How many calls of `scaled_dot_product_attention` ran as matmul, softmax, matmul
(`_scaled_dot_product_attention_math` in the trace) instead of a fused kernel, and the time of these
ops.

## Why it is slow
The slow form stores the score matrix (n² numbers per head for a sequence of length n), and reads it
again for the softmax, dropout, and backward. torch chooses it silently if a fused kernel does not
support the inputs.

## What to do
Pass values as wide as the keys, a mask that needs no gradient and, before torch 2.14, four
dimensions (batch, heads, sequence, size). On a CPU, dropout on the attention weights alone forces
the slow form. Do not switch the fused backends off (`sdpa_kernel(SDPBackend.MATH)`,
`enable_flash_sdp(False)`).

## How the gain is computed
On a CPU, from the time of these calls, and of their backward in proportion to the step's. Low end:
the fused kernel was at least 1.14 times as fast. High end: 2.3 times, or 3.56 times if dropout has
to be removed for it, too. If dropout alone is in the way, no gain is claimed: it is a choice of how
to train. On a device as for TD608: from the kernels that read or write the scores, and from what
the fused kernel needs for the same products.

## When this advice is wrong
Dropout on attention weights regularises; training without it gives other results (dropout after the
layers stays). Under double backward (gradient penalties) only the slow form works.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.device import DeviceParts, DeviceTime
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import FusedAttention, HostOps, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.attention_time import gain_on_device, kernels_ns
from tdiag.rules.base import Found, Gain, count, held, ns, text, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, at, budget, host_op, host_ops, ops, traced
from tdiag.units import plural

CODE = "TD614"
NAME = "attention-without-fused-kernel"
CLASS = "compute"
UNTRIED = "the arguments of the call must change"

_MEASURED = (
    "Measured, CPU time of forward and backward on one core, torch 2.13, eight shapes with"
    " sequences of 32 to 1,024:"
)
_DIMENSIONS = (
    "Measured, CPU time of forward and backward on one core, torch 2.13, four dimensions against"
    " three, 18 shapes with sequences of 32 to 1,024 and heads of 16 to 128:"
)
FUSED_LOW = Threshold(
    1.14,
    "times as fast",
    f"{_DIMENSIONS} 1.14 times at least (benchmarks/rule_constants.py td614).",
)
FUSED_HIGH = Threshold(
    2.3,
    "times as fast",
    f"{_DIMENSIONS} 2.3 times at most (benchmarks/rule_constants.py td614).",
)
NO_DROPOUT_HIGH = Threshold(
    3.56,
    "times as fast",
    f"{_MEASURED} fused without dropout against slow with: 2.18 to 3.56"
    " (benchmarks/rule_constants.py td614).",
)
SLOW = "aten::_scaled_dot_product_attention_math"
DROPOUT = "dropout"


def check(
    budget: Budget,
    host_ops: HostOps,
    traced: TracedSteps,
    ops: Ops | None,
    parts: DeviceParts | None,
    device: DeviceTime | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    slow = [op for op in host_ops.ops if op.name == SLOW]
    if not slow:
        return None
    times = sum(op.count for op in slow)
    inside = sum(op.total_ns for op in slow) * budget.step_ns / traced.mean_ns
    on_device = kernels_ns(budget, parts, device)
    call = _call(ops)
    why = [] if call is None else [x for x in call.unfused if x in _cures(budget)]
    place = None if call is None else call.at
    gain = None
    if on_device and device is not None:
        gain = gain_on_device(on_device, work, roof, busy_scale(budget, device), slow[0].dtype)
    # Dropout alone is a choice of how to train, and the default of many models.
    elif not budget.has_device and why != [DROPOUT]:
        gain = _gain(budget, inside, NO_DROPOUT_HIGH if DROPOUT in why else FUSED_HIGH)
    return Found(
        summary=(
            f"{plural(round(times), 'call')} of scaled_dot_product_attention per step{where(place)}"
            f" {'runs' if round(times) == 1 else 'run'} as matmul, softmax, matmul, without a fused"
            " kernel."
        ),
        evidence=(
            count("calls without a fused kernel", times, "trace", "per_step"),
            *((text("why", ", ".join(why), "ops"),) if why else ()),
            ns("host time of these calls, forward", inside, "trace"),
            *((ns("kernels of these ops", on_device, "trace"),) if on_device else ()),
        ),
        fix=_fix(budget, place, why),
        gain=gain,
        at=place,
    )


def _gain(budget: Budget, inside: float, most: Threshold) -> Gain:
    forward, backward = held(budget, "forward"), held(budget, "backward")
    cost = inside * (1 + backward / forward) if forward else inside
    return Gain(
        cost * (1 - 1 / FUSED_LOW),
        cost * (1 - 1 / most),
        f"the fused kernel was {FUSED_LOW} to {most} times as fast in measurements on a CPU.",
        ("forward", "backward"),
    )


def _cures(budget: Budget) -> dict[str, str]:
    """Why no fused kernel was used → what to do, as a sentence."""
    cures = {
        "dimensions": "Give query, key and value four dimensions (unsqueeze(1) for one head).",
        "sizes": "Make the head size of the values that of the keys.",
        "mask with gradient": "Detach the mask, unless it is learned.",
    }
    if not budget.has_device:
        cures[DROPOUT] = "Set the dropout of the attention weights to 0: no CPU kernel fuses it."
    return cures


def _fix(budget: Budget, place: Place | None, why: list[str]) -> Fix:
    cures = [_cures(budget)[one] for one in why]
    unknown = "Find out why no fused kernel is used: backends switched off, or unsupported inputs."
    return Fix(
        f"{' '.join(cures) or unknown} The call is{where(place)}." if place else unknown,
        "review" if not why or DROPOUT in why or "mask with gradient" in why else "safe",
        action="Let attention use the fused kernel",
        code=(
            "from torch.nn.attention import SDPBackend, sdpa_kernel\n\n"
            "# fails, and warns why, where the fused kernel cannot be used\n"
            "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n"
            "    loss = compute_loss(model, batch)"
        ),
    )


def _call(ops: Ops | None) -> FusedAttention | None:
    """The call made most often; calls with a reason come first. Calls that return weights do not
    use scaled_dot_product_attention: TD608."""
    calls = [x for x in ops.fused_attention if "weights" not in x.unfused] if ops else []
    return max(calls, key=lambda call: (bool(call.unfused), call.per_step), default=None)


def fires() -> Evidence:
    """Attention of one head, without an axis for it, on a CPU."""
    return _attending(SLOW)


def clear() -> Evidence:
    """The same calls take the fused kernel."""
    return _attending("aten::_scaled_dot_product_flash_attention_for_cpu")


def _attending(kernel: str) -> Evidence:
    products = (host_op("aten::bmm", 36, 60 * MS), host_op("aten::_softmax", 6, 30 * MS))
    call = FusedAttention(at=at(18, "forward"), per_step=6.0, unfused=("dimensions",))
    return Evidence().add(
        budget(forward=60, backward=90),
        host_ops(host_op(kernel, 6, 40 * MS), *products),
        traced(150),
        replace(ops(), fused_attention=(call,)),
    )
