"""The model is in the wrong mode

## What it measures
The mode (`train` or `eval`) of the outermost modules with parameters, during evaluation (between
steps, no gradients recorded) and during training.

## Why it is slow
It is not slow: the results are wrong. An evaluation in training mode drops units and lets batch
norm learn from the validation data. Training in evaluation mode drops nothing and freezes batch
norm's statistics; this happens when `model.train()` is forgotten after an evaluation.

## What to do
Call `model.eval()` before an evaluation and `model.train()` after it.

## How the gain is computed
No gain is predicted: the fix changes what is computed, not how long it takes.

## When this advice is wrong
Monte Carlo dropout evaluates in training mode on purpose. Fine-tuning may keep a backbone in
evaluation mode. If no optimizer uses any gradient of a module (a teacher), the mode during training
is not judged.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Layers, Modules
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, frac, where
from tdiag.rules.evaluation import gathers
from tdiag.rules.examples import module, phases
from tdiag.units import percent

CODE = "TD005"
NAME = "mode-of-the-model"
CLASS = "eval"


def check(
    phases: Phases,
    modules: Modules,
    layers: Layers | None,
    calls: Calls | None,
    trees: CallTrees | None,
) -> Found | None:
    if layers is not None and not layers.mode_dependent:
        return None  # both modes compute the same
    evaluating, training = phases.eval_train_mode_frac, phases.train_eval_mode_frac
    if evaluating is None and training is None:
        raise Abstain("no module with parameters was seen evaluating or training")
    evaluating, training = evaluating or 0.0, training or 0.0
    if gathers(phases, calls, trees):
        evaluating = 0.0  # a rollout may run in training mode on purpose
    if any(0 < m.parameters <= m.unused_gradients for m in modules.modules):
        training = 0.0  # a teacher is in evaluation mode on purpose; TD717 reports its gradients
    if max(evaluating, training) < NOTICEABLE_FRAC:
        return None
    said, todo = [], []
    facts: list[Measure] = []
    if evaluating >= NOTICEABLE_FRAC:
        said.append(f"{percent(evaluating)} of the evaluation runs in training mode")
        todo.append("Call model.eval() before the evaluation and model.train() after it")
        facts.append(frac("evaluation in training mode", evaluating, "baseline"))
    if training >= NOTICEABLE_FRAC:
        said.append(f"{percent(training)} of the training runs in evaluation mode")
        todo.append("Call model.train() before training and after each evaluation")
        facts.append(frac("training in evaluation mode", training, "baseline"))
    model = max(modules.modules, key=lambda module: module.parameters, default=None)
    at = model.at if model else None
    of_model = f" ({model.name}{where(at)})" if model else ""
    return Found(
        summary=f"{' and '.join(said)}: the results of {_what(layers)} are wrong.",
        evidence=tuple(facts),
        fix=Fix(
            f"{'. '.join(todo)}{of_model}.",
            "review",
            action="Switch the model between train() and eval()",
        ),
        at=at,
    )


def _what(layers: Layers | None) -> str:
    """The layer classes whose result depends on the mode."""
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
