"""The model is in the wrong mode

## What it measures
The mode (`train` or `eval`) in which outermost modules with parameters ran: while evaluating (no
gradients recorded, between steps) and while training.

## Why it is slow
It is not: results are wrong. In training mode, an evaluation drops units and lets batch norm learn
from the validation data. In evaluation mode, training drops nothing and batch norm's statistics
stand still, which happens when `model.train()` is forgotten after an evaluation.

## What to do
`model.eval()` before an evaluation, `model.train()` after it.

## How the gain is computed
Nothing is predicted: it is about what is computed, not about how long it takes.

## When this advice is wrong
Monte Carlo dropout evaluates in training mode on purpose; fine-tuning may keep a backbone in
evaluation mode.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.kinds import Calls, Modules, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Layers
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.evaluation import gathers
from tdiag.rules.examples import module, phases
from tdiag.rules.measures import frac
from tdiag.rules.thresholds import NOTICEABLE_FRAC
from tdiag.units import percent

CODE = "TD005"
NAME = "mode-of-the-model"
CLASS = "eval"


def check(
    phases: Phases, modules: Modules, layers: Layers | None, calls: Calls | None
) -> Found | None:
    if layers is not None and not layers.mode_dependent:
        return None  # both modes compute the same
    evaluating, training = phases.eval_train_mode_frac, phases.train_eval_mode_frac
    if evaluating is None and training is None:
        raise Abstain("no module with parameters was seen evaluating or training")
    evaluating, training = evaluating or 0.0, training or 0.0
    if gathers(phases, calls):
        evaluating = 0.0  # a rollout may well run in the mode of training
    if max(evaluating, training) < NOTICEABLE_FRAC:
        return None
    said, todo = [], []
    facts: list[Measure] = []
    if evaluating >= NOTICEABLE_FRAC:
        said.append(f"{percent(evaluating)} of the evaluation runs in training mode")
        todo.append("model.eval() before the evaluation and model.train() after it")
        facts.append(frac("evaluation in training mode", evaluating, "baseline"))
    if training >= NOTICEABLE_FRAC:
        said.append(f"{percent(training)} of the training runs in evaluation mode")
        todo.append("model.train() before the training, and again after each evaluation")
        facts.append(frac("training in evaluation mode", training, "baseline"))
    model = max(modules.modules, key=lambda module: module.parameters, default=None)
    at = model.at if model else None
    of_model = f" ({model.name}{where(at)})" if model else ""
    return Found(
        summary=f"{' and '.join(said)}: {_what(layers)} then do the wrong thing.",
        evidence=tuple(facts),
        fix=Fix(f"{'; '.join(todo)}{of_model}.", "review"),
        at=at,
    )


def _what(layers: Layers | None) -> str:
    """The classes that compute something else in the other mode."""
    return " and ".join(layers.mode_dependent[:3]) if layers else "dropout and batch norm"


def fires() -> Evidence:
    wrong = replace(phases(forward=10, evaluation=5), eval_train_mode_frac=1.0)
    return Evidence().add(
        replace(wrong, train_eval_mode_frac=0.0), Modules(modules=(module("Net"),))
    )


def clear() -> Evidence:
    """Each in its own mode."""
    right = replace(phases(forward=10, evaluation=5), eval_train_mode_frac=0.0)
    return Evidence().add(
        replace(right, train_eval_mode_frac=0.0), Modules(modules=(module("Net"),))
    )
