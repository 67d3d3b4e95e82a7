"""Evaluation records gradients

## What it measures
The share of evaluation time with gradient recording on. Evaluation is forward passes in eval mode,
or whose result no backward uses.

## Why it is slow
Every call builds a node for a backward pass that never runs, and every activation is kept until the
result is dropped. This takes time, and memory that could hold a larger batch.

## What to do
Evaluate under `torch.no_grad()` or `torch.inference_mode()`.

## How the gain is computed
Evaluation time with recording on × the measured cost of recording: nothing for an LSTM, up to two
fifths for a small network. If that is too little time to report, the finding is an advisory about
memory.

## When this advice is wrong
Evaluations that need gradients (adversarial examples, saliency maps) must record them.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import NOISE_FLOOR_FRAC, Abstain, Found, Gain, count, frac, held, ns
from tdiag.rules.evaluation import abstain_unless_epoch_ended, evaluation_place, over
from tdiag.rules.examples import at, budget, loaders, phases
from tdiag.units import duration, percent

CODE = "TD801"
NAME = "evaluation-records-gradients"
CLASS = "eval"

RECORDING_HIGH_FRAC = Threshold(
    0.43,
    "of the evaluation",
    "Measured, forward with recording against without, CPU, torch 2.13, on two machines: MLP 1.27×"
    " and 1.76× (of 64 units), CNN 1.12× and 1.01×, transformer layer 1.08× and 1.19×; 1 − 1 ÷ 1.76"
    " = 0.43 (benchmarks/rule_constants.py td801).",
)
RECORDING_LOW_FRAC = Threshold(
    0.0,
    "of the evaluation",
    "The same measurement: recording cost an LSTM nothing measurable"
    " (benchmarks/rule_constants.py td801).",
)


def check(
    budget: Budget,
    phases: Phases,
    loaders: Loaders | None,
    modules: Modules | None,
    history: StepHistory | None,
) -> Found | None:
    evaluating = held(budget, "evaluation")
    if not evaluating:
        abstain_unless_epoch_ended(history, "evaluation")
        return None
    if phases.eval_grad_frac is None:
        raise Abstain("whether evaluation records gradients was not measured")
    recording = evaluating * phases.eval_grad_frac
    if not recording:
        return None
    at = evaluation_place(loaders, modules)
    gain = Gain(
        recording * RECORDING_LOW_FRAC,
        recording * RECORDING_HIGH_FRAC,
        f"recording cost between nothing (LSTM) and {percent(RECORDING_HIGH_FRAC)} (small MLP) of a"
        " forward pass in measurements; memory is saved in addition.",
        ("evaluation",),
    )
    return Found(
        summary=(
            f"{percent(phases.eval_grad_frac)} of the evaluation time ({duration(recording)} per"
            " training step) records gradients that no backward uses."
        ),
        evidence=(
            ns("evaluation", evaluating, "budget"),
            frac("evaluation with gradient recording on", phases.eval_grad_frac, "baseline"),
            count("evaluation batches", phases.eval_batches_per_step, "baseline", "per_step"),
        ),
        fix=Fix(
            f"Run the evaluation{over(at, loaders)} without recording gradients.",
            "safe",
            "evaluation.no_grad",
            action="Evaluate without recording gradients",
            code="with torch.no_grad():\n    evaluate(model)",
        ),
        gain=gain if gain.high_ns >= NOISE_FLOOR_FRAC * budget.step_ns else None,
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
