"""Gradients are computed that no optimizer uses

## What it measures
Parameters that have a gradient at the end of a step, belong to no optimizer or to a group whose
learning rate is 0, and do not change between two checks: a teacher, a perceptual loss or a backbone
that is meant to be frozen. Also those that change, if eight calls of backward add to their
gradients and nothing else writes to these: a target network, which is set to an average of other
weights. A script that updates parameters by hand clears their gradients. 16-bit parameters are left
out, because an optimizer may hold copies of them.

## Why it is slow
Backward computes these gradients in every step, and the forward pass keeps the activations that
they need.

## What to do
Freeze what is not trained: `module.requires_grad_(False)`, once before training. Without the
underscore, `module.requires_grad = False` only makes an attribute that nothing reads; tdiag looks
for it. Gradients still flow through it to earlier layers. If no earlier layer is trained, call it
under `torch.no_grad()`, which also saves its graph. If it is meant to be trained, its parameters
are missing in the optimizer, or their learning rate is 0.

## How the gain is computed
By the graph of the loss: what leads to these parameters alone, as a share of its nodes, of its
multiplications and of the numbers in its gradients. Of the time of backward, the largest is the
high end and nine tenths of the least the low end. Where the graph was not seen, or an optimizer has
the parameters all the same, at a learning rate of 0: high end by their share of all parameters, low
end nothing; and that optimizer still updates their state, so their share of its time is added, half
of that at the low end.

## When this advice is wrong
The script itself reads the gradients, for a saliency map, a log, or an update by hand that never
clears them; or a schedule raises the learning rate later (then freeze them until it does).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Module, Modules, Optimizers, UnusedBackward
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules import graph_shares
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.examples import budget, module
from tdiag.rules.syntax import innermost, tree_of
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD717"
NAME = "gradients-nobody-uses"
CLASS = "compute"


def check(
    budget: Budget,
    modules: Modules,
    optimizers: Optimizers | None,
    graph: UnusedBackward | None,
) -> Found | None:
    idle = [module for module in modules.modules if module.unused_gradients]
    if not idle:
        return None
    most = max(idle, key=lambda module: module.unused_gradients)
    unused = sum(module.unused_gradients for module in idle)
    all_of_them = sum(module.parameters for module in modules.modules)
    share = min(1.0, unused / max(all_of_them, 1))
    backward = 0.0 if budget.has_device else held(budget, "backward")
    # Their state is still updated where an optimizer has them.
    idled = sum(module.unused_with_state for module in idle) / max(all_of_them, 1)
    updates = 0.0 if budget.has_device else held(budget, "optimizer") * min(1.0, idled)
    updating = f", and {duration(updates)} of the optimizer's time" if updates else ""
    # An optimizer that has them, at a learning rate of 0, has its share of the graph.
    seen = graph.shares if graph is not None and graph.shares.nodes and not updates else None
    low, high = 0.0, share
    least, most_of = "nothing, if these are cheap", "by the share of the parameters"
    if updates:
        least = "half of the optimizer's part"
    elif seen is not None:
        low, high = graph_shares.least(seen), graph_shares.most(seen)
        least, most_of = f"{percent(low)}, by the least", "by the largest share of its graph"
    places = [x for m in idle for x in (m.trained_at, m.evaluated_at, m.at)]
    at = _calls(most.unused_within, places) or most.trained_at or most.evaluated_at or most.at
    by_name = next((module.frozen_by_name for module in idle if module.frozen_by_name), "")
    if by_name:
        at = _attribute_set(places) or at
    made = {x.created_at for x in optimizers.optimizers} if optimizers else set()
    if updates and len(made) == 1:
        at = made.pop() or at  # which gives them a learning rate of 0
    frozen = f"{most.name}'s {most.unused_within}" if most.unused_within else most.name
    return Found(
        summary=(
            f"{unused:,} parameters get gradients in every step that no optimizer uses"
            f" ({percent(share)} of all): {_how_many(most)} of {frozen}{where(at)}."
            f"{_misspelt(by_name)}"
        ),
        evidence=(
            count("parameters with unused gradients", unused, "probe"),
            count("parameters of all models", all_of_them, "probe"),
            *(graph_shares.measures(seen) if seen is not None else ()),
            ns("backward", backward, "budget"),
        ),
        fix=Fix(
            f"If {frozen}{where(at)} should not be trained, freeze it once before training:"
            " requires_grad_(False); and if no earlier layer is trained, call it under"
            " torch.no_grad(). If it should be trained, add its parameters to the optimizer, with a"
            " learning rate above 0.",
            "review",
            "model.unused_gradients=off",
            action=f"Freeze {frozen}, or add its parameters to the optimizer",
            code="frozen.requires_grad_(False)  # a module, once before training",
        ),
        gain=Gain(
            backward * low + updates * LOW_END_FRAC,
            backward * high + updates,
            f"high end: {percent(high)} of backward's {duration(backward)}, {most_of}{updating};"
            f" low end: {least}.",
            ("backward", *(("optimizer",) if updates else ())),
        )
        if backward
        else None,
        at=at,
    )


def _misspelt(by_name: str) -> str:
    if not by_name:
        return ""
    return f" `requires_grad = False` on the module {by_name} is an attribute that nothing reads."


def _attribute_set(places: Sequence[Place | None]) -> Place | None:
    """The line in one of these places' files that sets a module's attribute `requires_grad`; not
    that of a parameter, which a loop over parameters sets."""
    for file in dict.fromkeys(place.file for place in places if place is not None):
        tree = tree_of(file)
        loops = [x for x in ast.walk(tree) if isinstance(x, ast.For)] if tree else []
        of_parameters = {
            name.id
            for loop in loops
            if "parameters" in ast.dump(loop.iter)
            for name in ast.walk(loop.target)
            if isinstance(name, ast.Name)
        }
        for node in ast.walk(tree) if tree else ():
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.value) != "True"
                and any(
                    isinstance(target, ast.Attribute)
                    and target.attr == "requires_grad"
                    and getattr(target.value, "id", "") not in of_parameters
                    for target in node.targets
                )
            ):
                around = innermost(tree, (ast.FunctionDef, ast.AsyncFunctionDef), node.lineno)
                return Place(file=file, line=node.lineno, function=getattr(around, "name", ""))
    return None


def _how_many(idle: Module) -> str:
    whole = idle.unused_within or idle.unused_gradients >= idle.parameters
    return "all" if whole else "some"


def _calls(within: str, places: Sequence[Place | None]) -> Place | None:
    """The first line in one of these places' files that calls the module of this name."""
    name = within.rpartition(".")[2]
    for file in dict.fromkeys(place.file for place in places if place is not None and name):
        tree = tree_of(file)
        calls = [x for x in ast.walk(tree) if isinstance(x, ast.Call)] if tree else []
        lines = [x.lineno for x in calls if getattr(x.func, "attr", "") == name]
        if lines:
            around = innermost(tree, (ast.FunctionDef, ast.AsyncFunctionDef), min(lines))
            return Place(file=file, line=min(lines), function=getattr(around, "name", ""))
    return None


def fires() -> Evidence:
    return _teaching(50_000)


def clear() -> Evidence:
    """The teacher's parameters have no gradients."""
    return _teaching(0)


def _teaching(unused: int) -> Evidence:
    student = module("Student", 12, parameters=10_000)
    teacher = module("Teacher", 30, parameters=50_000, unused_gradients=unused)
    step = budget(data_wait=1, forward=8, backward=20, optimizer=1)
    return Evidence().add(step, Modules(modules=(student, teacher)))
