"""Evaluation records gradients

## What it measures
The share of evaluation time (forward passes of modules in eval mode, or whose result never meets
a backward) with gradient recording on.

## Why it is slow
Every call then builds a node for a backward pass that never comes, and every activation is kept
until the result is dropped: time, and memory that could hold a larger batch.

## What to do
Evaluate under `torch.no_grad()`, or `torch.inference_mode()`.

## How the gain is computed
Evaluation time with recording on × what recording was measured to cost elsewhere: nothing for an
LSTM, up to a fifth for a small network.

## When this advice is wrong
Evaluations that need gradients (adversarial examples, saliency maps) are right to record them.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Modules, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.evaluation import evaluation_place, over
from tdiag.rules.examples import at, budget, loaders, phases
from tdiag.rules.measures import count, frac, ns
from tdiag.units import duration, percent

CODE = "TD801"
NAME = "evaluation-records-gradients"
CLASS = "eval"

# Forward with recording against without, CPU, torch 2.13: MLP 1.27×, CNN 1.12×, transformer layer
# 1.08×, LSTM none. 1 − 1 ÷ 1.27 = 0.21 of the evaluation can go.
RECORDING_HIGH_FRAC = 0.21
RECORDING_LOW_FRAC = 0.0


def check(
    budget: Budget, phases: Phases, loaders: Loaders | None, modules: Modules | None
) -> Found | None:
    evaluating = held(budget, "evaluation")
    if not evaluating:
        return None
    if phases.eval_grad_frac is None:
        raise Abstain("whether evaluation records gradients was not measured")
    recording = evaluating * phases.eval_grad_frac
    if not recording:
        return None
    at = evaluation_place(loaders, modules)
    return Found(
        summary=(
            f"{percent(phases.eval_grad_frac)} of the evaluation time"
            f" ({duration(recording)} for each training step) records gradients that no backward"
            " uses."
        ),
        evidence=(
            ns("evaluation", evaluating, "budget"),
            frac("evaluation with gradient recording on", phases.eval_grad_frac, "baseline"),
            count("evaluation batches", phases.eval_batches_per_step, "baseline", "per_step"),
        ),
        fix=Fix(
            f"Run the evaluation{over(at, loaders)} under `with torch.no_grad():` (or decorate it"
            " with @torch.inference_mode()).",
            "safe",
            "no_grad_eval",
        ),
        gain=Gain(
            recording * RECORDING_LOW_FRAC,
            recording * RECORDING_HIGH_FRAC,
            "recording cost between nothing (LSTM) and a fifth (small MLP) of a forward pass where"
            " it was measured; the activations' memory comes on top.",
            ("evaluation",),
        ),
        at=at,
    )


def fires() -> Evidence:
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=25)
    clean = replace(
        phases(forward=8, backward=14, evaluation=25), eval_grad_frac=1.0, eval_batches_per_step=2.0
    )
    return Evidence().add(step, clean, loaders(role="eval", created_at=at(47)))


def clear() -> Evidence:
    """The same evaluation under `no_grad`."""
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=25)
    return Evidence().add(step, replace(phases(evaluation=25), eval_grad_frac=0.0))
