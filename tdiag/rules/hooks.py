"""Hooks on modules and on tensors saved for backward, told by the sampled stacks."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.place import Spot
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.syntax import innermost, tree_of

MODULE_FILE = "torch/nn/modules/module.py"
DECORATORS = "torch/utils/_contextlib.py"  # ``@torch.no_grad()`` around a function
BACKWARD = "_engine_run_backward"


def hooks_of(trees: CallTrees | None) -> set[tuple[str, str]]:
    """The user's functions, as file and name, that are hooks: they observe the pass and compute no
    loss."""
    frames = trees.training if trees else ()
    mine = (frames[n] for n in hook_frames(trees))
    return {(frame.file, frame.name.rpartition(".")[2]) for frame in mine if frame.user}


def hook_frames(trees: CallTrees | None) -> list[int]:
    """The frames of the training thread that torch calls apart from a module's ``forward``: the
    hooks of the script and of libraries other than torch. A function that itself calls modules is
    not a hook but a ``forward`` with another name."""
    frames = trees.training if trees else ()
    called = {n for n, frame in enumerate(frames) if frame.file.endswith(MODULE_FILE)}
    above = {frames[n].parent for n in called}
    for n in range(len(frames) - 1, -1, -1):  # a frame's caller comes before it
        if n in above:
            above.add(frames[n].parent)
    for n, frame in enumerate(frames):
        if frame.parent in called and frame.file.endswith(DECORATORS):
            called.add(n)
    return [
        n
        for n, frame in enumerate(frames)
        if frame.parent in called
        and n not in above | called
        and (frame.user or "/torch/" not in frame.file)
        and frame.name.rpartition(".")[2] != "forward"
    ]


def saved_tensor_hooks(trees: CallTrees | None) -> list[int]:
    """The outermost frames of the user's functions that keep tensors for backward, and give them
    back (``torch.autograd.graph.saved_tensors_hooks``). Operations of ``torch.nn`` call nothing
    else of the user's. Backward itself calls the second, which is told by the scope of both: other
    functions of that scope, such as a model's own ``forward``, are no hooks."""
    frames = trees.training if trees else ()
    callers = [frames[frame.parent] if frame.parent >= 0 else None for frame in frames]
    keeping = [
        frame
        for frame, caller in zip(frames, callers, strict=True)
        if frame.user and caller and _computes(caller) and not frame.name.endswith("__")
    ]
    keep = {(frame.file, frame.name) for frame in keeping}
    scopes = {_scope(frame) for frame in keeping}
    found: list[int] = []
    within: list[bool] = []
    for number, (frame, caller) in enumerate(zip(frames, callers, strict=True)):
        gives_back = caller is not None and caller.name == BACKWARD and _scope(frame) in scopes
        mine = frame.user and ((frame.file, frame.name) in keep or gives_back)
        within.append(mine or (caller is not None and within[frame.parent]))
        found += [number] * (mine and not (caller and within[frame.parent]))
    return found


def _computes(caller: CallFrame) -> bool:
    """Whether this is torch's own layer or function that is given no function to call."""
    return (
        not caller.user
        and "/torch/nn/" in caller.file
        and not caller.file.endswith((MODULE_FILE, "transformer.py", "parametrize.py"))
        and "distance_loss" not in caller.name
    )


def _scope(frame: CallFrame) -> tuple[str, str]:
    """Its file, and the class or function in which it is; else its name."""
    return frame.file, frame.name.rpartition(".")[0] or frame.name


def within_passes(spot: Spot, trees: CallTrees | None) -> set[str]:
    """The passes within which the line was sampled, ``forward`` and ``backward``, below a module's
    call or below autograd, as what hooks call is; empty if not most of its samples are there."""
    frames = trees.training if trees else ()
    shares = {"forward": 0.0, "backward": 0.0, "": 0.0}
    for number, frame in enumerate(frames):
        if frame.user and (frame.file, frame.line) == spot:
            shares[_pass(number, frames)] += frame.frac
    whole = sum(shares.values())
    if shares[""] > (1 - MAJORITY_FRAC) * whole:
        return set()
    return {name for name, share in shares.items() if share}


def _pass(number: int, frames: Sequence[CallFrame]) -> str:
    """The innermost pass around this frame. What loads data may be a module, too."""
    found = ""
    while (number := frames[number].parent) >= 0:
        file = frames[number].file
        if "/torch/utils/data/" in file:
            return ""
        if not found:
            backward = frames[number].name == BACKWARD
            found = "backward" if backward else "forward" if file.endswith(MODULE_FILE) else ""
    return found


def observing(ops: Ops | None, trees: CallTrees | None) -> set[tuple[str, int]]:
    """The lines of hooks that only look at the pass: they return nothing, and none of their torch
    calls records gradients. What they compute is for a log."""
    frames = trees.training if trees else ()
    lines = ops.lines if ops else ()
    learns = {(x.at.file, x.at.function.rpartition(".")[2]) for x in lines if x.grad_calls}
    mine = (frames[n] for n in hook_frames(trees))
    return {
        (frame.file, frame.line)
        for frame in mine
        if frame.user
        and (frame.file, frame.name.rpartition(".")[2]) not in learns
        and _returns_nothing(frame.file, frame.line)
    }


def _returns_nothing(file: str, line: int) -> bool:
    """Whether that is known of the function around the line."""
    function = innermost(tree_of(file), (ast.FunctionDef,), line)
    if function is None:
        return False
    within = (node for node in ast.walk(function) if isinstance(node, ast.Return))
    return all(node.value is None for node in within)


def in_hook(line: OpLine, hooks: Collection[tuple[str, str]]) -> bool:
    return (line.at.file, line.at.function.rpartition(".")[2]) in hooks
