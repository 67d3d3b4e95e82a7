"""Every torch call goes through Python code of its own

## What it measures
Samples below `__torch_dispatch__` or `__torch_function__`: the methods through which a mode (a
counter of operations, a logger) or a class derived from `torch.Tensor` handles
every torch call. Time of the operations themselves, which these methods call, is told apart. Those
of sharded tensors, of compilation, of quantised weights and of selective checkpointing are needed,
and left out. A mode is also reported if most of the step's time passes through it, and the step's
work needs at most half of that at best.

## Why it is slow
Torch calls an operation in about a microsecond. With a mode it leaves C++ for Python at each one,
also in backward, builds lists of the arguments, and runs whatever the method does.

## What to do
Count operations once, not in every step: their number does not change. Hand the model plain tensors
(`x.as_subclass(torch.Tensor)`), and put the class on again behind it.

## How the gain is computed
Low end: the sampled time of what these methods do beside the operations, at least. High end: all
time below them, but not the time that the step's work needs at best on this machine.

## When this advice is wrong
If a tensor's class is what makes the step right: a unit, a mask, a layout that each operation must
know.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import MODEL_PHASES, Found, Gain, count, frac, held, known_to, ns, where
from tdiag.rules.callers import common_caller
from tdiag.rules.examples import at, budget, roofline, stacks
from tdiag.rules.fixed_cost import best_of_step_ns
from tdiag.rules.syntax import tree_of
from tdiag.rules.thresholds import MIN_SAMPLES
from tdiag.units import percent

CODE = "TD746"
NAME = "calls-intercepted"
CLASS = "overhead"
UNTRIED = "the script must not have each call handled"

DISPATCH, FUNCTION = "__torch_dispatch__", "__torch_function__"
HANDLER, OPERATION, BESIDE = "handler", "operation", "beside"
NEEDED = (
    "/torch/distributed/", "/torch/_dynamo/", "/torch/_inductor/", "/torch/_subclasses/",
    "/torch/_functorch/", "/torch/fx/", "/torch/utils/checkpoint.py", "/torch/_tensor.py",
    "/torchao/",
)  # fmt: skip


def check(
    budget: Budget, trees: CallTrees, stacks: Stacks, work: Work | None, roof: Roof | None
) -> Found | None:
    if stacks.samples < MIN_SAMPLES:
        return None
    outermost, beside = _handled(trees.training)
    if not outermost:
        return None
    through = sum(frame.frac for frame in outermost)
    least, _ = known_to(beside, stacks.samples)
    _, most = known_to(through, stacks.samples)
    handler = max(outermost, key=lambda frame: frame.frac)
    best = best_of_step_ns(work, roof)
    # A mode takes each call from C++ to Python; a class of tensors may cost next to nothing.
    slow = (
        handler.name.endswith(DISPATCH)
        and through >= MAJORITY_FRAC
        and best is not None
        and best <= MAJORITY_FRAC * through * budget.step_ns
    )
    if least < NOTICEABLE_FRAC and not slow:
        return None
    at = _place(outermost, trees)
    computing = held(budget, *MODEL_PHASES)
    high = most * budget.step_ns if best is None else min(most * budget.step_ns, computing - best)
    low = 0.0 if budget.has_device else least * budget.step_ns
    named = f"{handler.name} ({'/'.join(Path(handler.file).parts[-2:])})"
    return Found(
        summary=(
            f"{percent(through)} of the training thread's time passes through {named}, which"
            f" handles every torch call in Python{where(at)}: {percent(beside)} is what it does"
            " beside the operations."
        ),
        evidence=(
            frac("samples below it", through, "sample"),
            frac("samples in what it does itself", beside, "sample"),
            count("samples of the training thread", stacks.samples, "sample"),
            *(() if best is None else (ns("the step's work at best", best, "trace"),)),
        ),
        fix=_fix(handler, where(at)),
        gain=Gain(
            low,
            max(low, high),
            "low end: what it does beside the operations; high end: all below it but the work.",
            ("forward", "backward", "loss"),
        ),
        at=at,
    )


def _handled(frames: Sequence[CallFrame]) -> tuple[list[CallFrame], float]:
    """The outermost handlers, and the share of samples in what handlers call beside operations. A
    handler's own samples, and those of the user's functions, may be operations in C++: they do not
    count."""
    leaf = [frame.frac for frame in frames]
    for frame in frames:
        if frame.parent >= 0:
            leaf[frame.parent] -= frame.frac
    outermost, beside = [], 0.0
    within: list[str] = []  # "", HANDLER, OPERATION or BESIDE
    for number, frame in enumerate(frames):
        caller = frames[frame.parent] if frame.parent >= 0 else None
        above = within[frame.parent] if caller else ""
        if above != BESIDE and _handles(frame):
            within.append(HANDLER)
            outermost += [frame] * (not above)
        elif above == HANDLER and caller:
            within.append(OPERATION if _operates(frame, caller) else BESIDE)
        elif above == BESIDE and _calls_operation(frame):
            within.append(OPERATION)
        else:
            within.append(above)
        if within[-1] == BESIDE and not frame.user:
            beside += leaf[number]
    return outermost, beside


def _handles(frame: CallFrame) -> bool:
    kind = frame.name.rpartition(".")[2]
    return kind in (DISPATCH, FUNCTION) and not any(part in frame.file for part in NEEDED)


def _operates(frame: CallFrame, handler: CallFrame) -> bool:
    """Whether this handler calls the frame to run the operation."""
    if handler.name.endswith(FUNCTION):
        return "/torch/" in frame.file
    return _calls_operation(frame)


def _calls_operation(frame: CallFrame) -> bool:
    return frame.file.endswith("/torch/_ops.py") and frame.name.endswith("__call__")


def _place(outermost: Sequence[CallFrame], trees: CallTrees) -> Place | None:
    """The handler's line with most samples if it is the user's, else the user's line above."""
    mine = [frame for frame in outermost if frame.user]
    if mine:
        shares: dict[Place, float] = {}
        for frame in mine:
            place = Place(frame.file, frame.line, frame.name)
            shares[place] = shares.get(place, 0.0) + frame.frac
        return max(shares, key=lambda place: shares[place])
    return common_caller({(frame.file, frame.line) for frame in outermost}, trees)


def _is_mode(handler: CallFrame) -> bool:
    """Whether its class says that it is one, or is derived from one in its file."""
    name = handler.name.rpartition(".")[0].rpartition(".")[2]
    tree = tree_of(handler.file) if handler.user else None
    classes = [x for x in ast.walk(tree) if isinstance(x, ast.ClassDef)] if tree else []
    bases = [ast.unparse(base) for x in classes if x.name == name for base in x.bases]
    return any("Mode" in x for x in (name, *bases))


def _fix(handler: CallFrame, place: str) -> Fix:
    if _is_mode(handler):
        mode = handler.name.rpartition(".")[0].lstrip("_")
        return Fix(
            f"Use {mode}{place} for one step, and keep the result; or remove it.",
            "review",
            action="Handle no torch call in Python",
            code=f"with {mode}(...) if step == 0 else contextlib.nullcontext():\n"
            "    loss = step_of(batch)",
        )
    return Fix(
        f"Hand the model plain tensors instead of ones that handle each call{place}, and put the"
        " class on the result.",
        "review",
        action="Hand the model plain tensors",
        code="out = model(x.as_subclass(torch.Tensor))",
    )


def fires() -> Evidence:
    """A counter of operations around each step."""
    return _counted(f"FlopCounterMode.{DISPATCH}")


def clear() -> Evidence:
    """A sharded model."""
    return _counted(f"DTensor.{DISPATCH}", "/lib/torch/distributed/tensor/_api.py")


def _counted(name: str, file: str = "/lib/torch/utils/flop_counter.py") -> Evidence:
    frames = (
        CallFrame(name="train", file=at(54).file, line=54, parent=-1, frac=1.0, user=True),
        CallFrame(name=name, file=file, line=0, parent=0, frac=0.8, user=False),
        CallFrame(name="OpOverload.__call__", file="/lib/torch/_ops.py", line=0, parent=1, frac=0.5,
                  user=False),
        CallFrame(name="FlopCounterMode._count_flops", file=file, line=0, parent=1, frac=0.3,
                  user=False),
    )  # fmt: skip
    roof, work = roofline(20)
    step = budget(forward=40, backward=50, optimizer=10)
    return Evidence().add(step, stacks(), CallTrees(training=frames, workers=()), roof, work)
