"""What a function computes with the outputs of the model's modules, before the loss is computed."""

from __future__ import annotations

import re

from msgspec.structs import replace

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.kind import Kind
from tdiag.rules.callers import functions_above, lines_below
from tdiag.rules.loop_lines import LOSS_NAME

# As torch.nn.functional names what a loss module computes.
_LOSSES = re.compile("_loss$|cross_entropy|^kl_div$")


def with_predictions(evidence: Evidence) -> list[Kind]:
    """Ops, Stacks and Phases in which the forward goes on until the loss.

    What follows the last call of a module is the loss, as far as marks can tell. But a function may
    call the modules and go on with their outputs: it renders what they say of a ray, or runs a
    network whose weights they made. Where its caller computes one of torch's losses, such a
    function, and what it calls, is the forward. Empty if there is none.
    """
    ops, phases = evidence.get(Ops), evidence.get(Phases)
    if ops is None or phases is None or "loss" not in phases.wall_ns:
        return []
    trees = evidence.get(CallTrees)
    after = [line for line in ops.lines if line.phase == "loss"]
    losses = {_function(line) for line in after if any(map(_LOSSES.search, line.names))}
    calling = {_function(line) for line in ops.lines if line.phase == "forward"}
    own = {
        line.at.spot
        for line in after
        if _function(line) in calling - losses
        and not LOSS_NAME.search(line.at.function)
        and losses & functions_above({line.at.spot}, trees)
    }
    below = lines_below(own, trees)
    mine = {x.at.spot for x in after if x.at.spot in own | below and _function(x) not in losses}
    whole = sum(x.elapsed_ns for x in after)
    if not mine or not whole:
        return []
    share = sum(x.elapsed_ns for x in after if x.at.spot in mine) / whole
    wall = dict(phases.wall_ns)
    loss = wall.pop("loss")
    wall["forward"] = wall.get("forward", 0.0) + share * loss
    if share < 1:
        wall["loss"] = (1 - share) * loss
    kinds: list[Kind] = [
        replace(phases, wall_ns=wall),
        replace(ops, lines=tuple(_moved(x) if x.at.spot in mine else x for x in ops.lines)),
    ]
    if stacks := evidence.get(Stacks):
        lines = (
            replace(x, phase="forward") if x.phase == "loss" and x.at.spot in mine else x
            for x in stacks.training
        )
        kinds.append(replace(stacks, training=tuple(lines)))
    return kinds


def _function(line: OpLine) -> tuple[str, str]:
    return line.at.file, line.at.function.rpartition(".")[2]


def _moved(line: OpLine) -> OpLine:
    return replace(line, phase="forward") if line.phase == "loss" else line
