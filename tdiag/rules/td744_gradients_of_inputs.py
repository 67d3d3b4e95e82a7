"""Gradients of inputs or activations are computed that nothing reads

## What it measures
Tensors that are no parameters, belong to no optimizer and require gradients: data, or the result of
a frozen layer. The nodes of the graph that lead to them and to no parameter are counted in the
counted steps, and the time of the calls that made them is compared with that of all calls in the
graph, if the script does not read these gradients.

## Why it is slow
Backward goes through all layers down to such a tensor. Below the last trained layer nothing needs
that: with a frozen encoder, it is the whole backward of the encoder, whose forward also keeps all
activations for it.

## What to do
Do not make it require gradients: remove `x.requires_grad_()`, or
`model.enable_input_require_grads()`, which only gradient checkpointing of a model with adapters
needs. Call a frozen encoder under `torch.no_grad()`.

## How the gain is computed
These calls' share of the time of all calls in the graph is their share of backward. High end: their
backward takes four times as long as that of other calls; low end: the others' does.

## When this advice is wrong
If the script reads these gradients in some steps that were not counted: a saliency map, an
adversarial example.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import InputGradient, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, count, frac, held, ns, where
from tdiag.rules.call_parts import BACKWARD_TIMES, least_of_backward, most_of_backward
from tdiag.rules.examples import at, budget, op_line, ops
from tdiag.units import duration, percent

CODE = "TD744"
NAME = "gradients-of-inputs"
CLASS = "compute"
UNTRIED = "the script must not ask for these gradients"


def check(budget: Budget, ops: Ops) -> Found | None:
    if not ops.input_gradients:
        return None
    most = max(ops.input_gradients, key=lambda x: x.alone)
    if not most.ns:
        raise Abstain("the calls of the graph were too many to time each")
    share = most.alone_ns / most.ns
    backward = 0.0 if budget.has_device else held(budget, "backward")
    return Found(
        summary=(
            f"Backward computes gradients of tensors that are no parameters and were made to"
            f" require them{where(most.at)}; nothing reads them. {percent(share)} of the forward"
            " time that records gradients leads to them alone."
        ),
        evidence=(
            count("nodes of the graph for them alone", most.alone, "ops"),
            count("nodes of the graph", most.nodes, "ops"),
            frac("their share of the forward's time", share, "ops"),
            ns("backward", backward, "budget"),
        ),
        fix=Fix(
            f"Remove requires_grad_() or enable_input_require_grads(){where(most.at)}, and call"
            " what is frozen under torch.no_grad().",
            "review",
            action="Compute no gradients of inputs",
            code="with torch.no_grad():\n    features = frozen_encoder(x)"
            "  # x does not require gradients",
        ),
        gain=Gain(
            backward * least_of_backward(share),
            backward * most_of_backward(share),
            f"{percent(share)} of backward's {duration(backward)}: high end: their backward takes"
            f" {BACKWARD_TIMES:.0f} times as long as that of other calls; low end: the others'"
            " does.",
            ("backward",),
        )
        if backward
        else None,
        at=most.at,
    )


def fires() -> Evidence:
    """A frozen encoder whose embeddings were made to require gradients."""
    return _frozen(alone=180)


def clear() -> Evidence:
    return _frozen(alone=0)


def _frozen(alone: int) -> Evidence:
    unread = InputGradient(
        at=at(90, "main"), alone=alone, nodes=190, alone_ns=round(alone * 250e3), ns=50_000_000
    )
    head = op_line(40, "forward", 60, grad_calls=60.0, elapsed_ns=50e6)
    counted = replace(ops(head), input_gradients=(unread,) if alone else ())
    return Evidence().add(budget(forward=50, backward=60, optimizer=1), counted)
