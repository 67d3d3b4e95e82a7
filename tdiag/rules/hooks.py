"""Hooks on modules, told by the sampled stacks."""

from __future__ import annotations

from collections.abc import Collection

from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.torch_ops import OpLine

MODULE_FILE = "torch/nn/modules/module.py"


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
    return [
        n
        for n, frame in enumerate(frames)
        if frame.parent in called
        and n not in above | called
        and (frame.user or "/torch/" not in frame.file)
        and frame.name.rpartition(".")[2] != "forward"
    ]


def in_hook(line: OpLine, hooks: Collection[tuple[str, str]]) -> bool:
    return (line.at.file, line.at.function.rpartition(".")[2]) in hooks
