"""Environments that an agent steps: of an imported library, or written by hand."""

from __future__ import annotations

import ast
from functools import lru_cache

from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Flags
from tdiag.model.place import Spot
from tdiag.model.threshold import Threshold
from tdiag.rules.syntax import innermost, name_of, tree_of
from tdiag.rules.thresholds import MIN_SAMPLES

# Gymnasium's interface, which environments written by hand follow, too.
STEP, RESET = "step", "reset"
FEWEST_VALUES = Threshold(
    3, "values", "By definition: an environment's step returns an observation, a reward and more."
)


def stepping(
    flags: Flags | None, stacks: Stacks | None, trees: CallTrees | None, ops: Ops | None
) -> list[StackLine]:
    """The lines that step an environment, most samples first: they call the imported library of
    environments, or belong to an environment of the script. Lines that call torch there do not
    count: such an environment may already be many."""
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return []
    library, own = flags.agent_library if flags else "", _own(trees)
    own -= {line.at.spot for line in ops.lines} if ops else set()
    return [
        line
        for line in stacks.training
        if (library and line.library == library) or line.at.spot in own
    ]


def stepped_at(trees: CallTrees | None) -> set[Spot]:
    """The sampled lines that step an environment of the script."""
    frames = trees.training if trees else ()
    callers = (frames[frame.parent] for frame in frames if frame.parent >= 0 and _steps(frame))
    return {(caller.file, caller.line) for caller in callers if not _steps(caller)}


def _own(trees: CallTrees | None) -> set[Spot]:
    """Lines of environments of the script, and of what they call."""
    frames = trees.training if trees else ()
    inside: list[bool] = []
    for frame in frames:
        inside.append((frame.parent >= 0 and inside[frame.parent]) or _steps(frame))
    return {
        (frame.file, frame.line)
        for frame, within in zip(frames, inside, strict=True)
        if within and frame.user
    }


def _steps(frame: CallFrame) -> bool:
    named = frame.user and frame.name.rpartition(".")[2] == STEP
    return named and _is_environment(frame.file, frame.line)


@lru_cache(maxsize=256)
def _is_environment(file: str, line: int) -> bool:
    """Whether the class around the line has ``reset`` and ``step``, which returns an observation, a
    reward and more, or what another ``step`` returned."""
    around = innermost(tree_of(file), (ast.ClassDef,), line)
    methods = {x.name: x for x in getattr(around, "body", ()) if isinstance(x, ast.FunctionDef)}
    if not {STEP, RESET} <= methods.keys():
        return False
    values = [x.value for x in ast.walk(methods[STEP]) if isinstance(x, ast.Return)]
    return any(
        (isinstance(value, ast.Tuple) and len(value.elts) >= FEWEST_VALUES)
        or (isinstance(value, ast.Call) and name_of(value) == STEP)
        for value in values
    )
