"""Adam with weight decay

## What it measures
The scalar settings of an `Adam` that stepped: a `weight_decay` above zero that is not decoupled.

## Why it is slow
It is not: no step time is claimed. Adam divides the decay by the running size of the gradient, with
the rest of it, so that weights with large gradients hardly decay; the same setting needs more
epochs, or another value, than with the decoupled form.

## What to do
`torch.optim.AdamW`, whose decay is a factor on the weights.

## How the gain is computed
Nothing is predicted: it is about how training converges, not about how long a step takes.

## When this advice is wrong
To reproduce a result that was tuned with Adam's own decay, keep it. The best value differs between
the two forms: AdamW's default is 0.01.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Optimizer, Optimizers
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, where
from tdiag.rules.examples import optimizers
from tdiag.rules.measures import count, text

CODE = "TD002"
NAME = "adam-with-weight-decay"
CLASS = "compute"


def check(optimizers: Optimizers) -> Found | None:
    coupled = [x for x in optimizers.optimizers if x.name == "Adam" and _decay(x) > 0]
    if not coupled:
        return None
    adam = coupled[0]
    return Found(
        summary=(
            f"Adam{where(adam.created_at)} applies weight_decay={_decay(adam):g} to the gradient,"
            " where its own scaling undoes much of it."
        ),
        evidence=(
            text("weight_decay", f"{_decay(adam):g}", "probe"),
            count("parameter tensors", adam.tensors, "probe"),
        ),
        fix=Fix(
            f"torch.optim.AdamW(..., weight_decay=…){where(adam.created_at)}, with the decay tuned"
            " anew.",
            "review",
        ),
        at=adam.created_at,
    )


def _decay(optimizer: Optimizer) -> float:
    """The coupled decay; 0 where it is decoupled, or held in a tensor whose value is not known."""
    value = optimizer.config.get("weight_decay")
    if optimizer.config.get("decoupled_weight_decay") or not isinstance(value, (int, float)):
        return 0.0
    return float(value)


def fires() -> Evidence:
    return Evidence().add(optimizers("Adam", weight_decay=1e-4))


def clear() -> Evidence:
    return Evidence().add(optimizers("AdamW", weight_decay=1e-2))
