"""Adam with weight decay

## What it measures
The settings of an `Adam` optimizer that stepped: a `weight_decay` above zero that is not decoupled.

## Why it is slow
No step time is claimed. Adam adds the decay to the gradient and divides both by the gradient's
running size, so weights with large gradients hardly decay. The decoupled form decays all alike.

## What to do
Use `torch.optim.AdamW`, which multiplies the weights by the decay directly.

## How the gain is computed
No gain is predicted: convergence may improve, the time of one step does not.

## When this advice is wrong
Keep Adam's own decay to reproduce a result that was tuned with it. The best value differs between
the two forms: AdamW's default is 0.01.
"""

from __future__ import annotations

from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count, text, where
from tdiag.rules.examples import optimizers

CODE = "TD002"
NAME = "adam-with-weight-decay"
CLASS = "compute"


def check(optimizers: Optimizers) -> Found | None:
    # Another maker's class with this name may decay differently; torch's has a fused form.
    coupled = [
        x for x in optimizers.optimizers if x.name == "Adam" and x.has_fused and _decay(x) > 0
    ]
    if not coupled:
        return None
    adam = coupled[0]
    return Found(
        summary=(
            f"Adam{where(adam.created_at)} applies weight_decay={_decay(adam):g} to the gradient,"
            " whose scaling then cancels much of it."
        ),
        evidence=(
            text("weight_decay", f"{_decay(adam):g}", "probe"),
            count("parameter tensors", adam.tensors, "probe"),
        ),
        fix=Fix(
            f"Create a torch.optim.AdamW{where(adam.created_at)} and tune its weight_decay again.",
            "review",
            action="Use AdamW instead of Adam",
        ),
        at=adam.created_at,
    )


def _decay(optimizer: Optimizer) -> float:
    """The coupled decay; 0 if it is decoupled, or in a tensor whose value is not known."""
    value = optimizer.config.get("weight_decay")
    if optimizer.config.get("decoupled_weight_decay") or not isinstance(value, (int, float)):
        return 0.0
    return float(value)


def fires() -> Evidence:
    return Evidence().add(optimizers("Adam", weight_decay=1e-4, fused=None))


def clear() -> Evidence:
    return Evidence().add(optimizers("AdamW", weight_decay=1e-2))
