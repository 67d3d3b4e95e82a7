"""Counts torch calls by the user's own line, exactly, over one or two steps."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import facts, places
from ..invisible import hidden
from ..marks import (
    BACKWARD_BEGIN,
    BACKWARD_END,
    FORWARD_BEGIN,
    FORWARD_END,
    NEXT_BEGIN,
    NEXT_END,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
    STEP_END,
)
from . import Capture
from .flow import MOVES, Flow
from .syncs import SyncWarnings

CONVERSIONS = {
    "item": "item", "__bool__": "bool", "__float__": "float", "__int__": "int",
    "__index__": "int", "tolist": "tolist", "numpy": "numpy", "__array__": "numpy",
    "cpu": "cpu", "nonzero": "nonzero", "__repr__": "print", "__format__": "print",
    "__contains__": "in", "__len__": "len", "unique": "unique", "masked_select": "masked_select",
}  # fmt: skip
# Reading .grad, .shape or .data issues no op; backward's own ops are not Python's.
NOT_OPS = {"__get__", "__set__", "backward", "requires_grad_", "register_hook"}
CONSTRUCTIONS = {"tensor", "as_tensor", "from_numpy", "asarray", "stack", "FloatTensor"}
MOST_NAMES = 6  # calls named of a line


class _Line:
    __slots__ = (
        "calls", "constructions", "conversions", "elapsed", "grad_calls", "moved_again",
        "moved_bytes", "names",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.grad_calls = self.constructions = self.elapsed = 0
        self.moved_again = self.moved_bytes = 0
        self.conversions: dict[str, int] = {}
        self.names: Counter[str] = Counter()


class _Counter(TorchFunctionMode):
    """Sees every torch call that Python makes, on this thread."""

    def __init__(self, capture: OpsCapture) -> None:
        super().__init__()
        self.capture = capture
        self.live = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.live:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.backward:
            self.capture.probe.guard(self.capture.flow.backward_begins)()
        began = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        ended = time.perf_counter_ns()
        self.capture.probe.guard(self.capture.seen)(func, args, kwargs or {}, result, began, ended)
        return result


class OpsCapture(Capture):
    """Skipped where a mode is already active, and where compiled graphs are alive: a mode
    would make dynamo compile them again."""

    def start(self) -> str:
        if facts.compiled_frames():
            return "compiled graphs are alive: counting calls would recompile them"
        if torch._C._len_torch_function_stack():
            return "the script has a torch function mode of its own switched on"
        self.lines: dict[tuple[Any, str], _Line] = {}
        self.syncs = SyncWarnings()
        self.flow = Flow(self.probe)
        self.mode: Any = None
        return ""

    def begin(self) -> None:
        self.syncs.start()
        self._watch_module_moves()
        self.mode = _Counter(self)
        self.mode.__enter__()

    def end(self, steps: int) -> None:
        self._leave()
        rows = []
        for (place, phase), line in self.lines.items():
            rows.append(
                {
                    "at": list(place) if place else None,
                    "phase": phase,
                    "calls": line.calls,
                    "grad_calls": line.grad_calls,
                    "conversions": line.conversions,
                    "constructions": line.constructions,
                    "elapsed": line.elapsed,
                    "in_loop": max(line.names.values(), default=0) > steps,
                    "names": dict(line.names.most_common(MOST_NAMES)),
                    "moved_again": line.moved_again,
                    "moved_bytes": line.moved_bytes,
                }
            )
        self.probe.recorder.write(
            "ops",
            steps=steps,
            step=self.probe.step,
            lines=rows,
            syncs=self.syncs.counts(),
            **self.flow.report(),
            **{"pass": self.window.number},
        )
        self.probe.looks.kept = self.flow.alive(), self.probe.step, steps

    def abort(self) -> None:
        if getattr(self, "mode", None) is not None:
            self._leave()

    def seen(
        self, func: Any, args: Any, kwargs: Any, result: Any, began: int, ended: int
    ) -> None:  # fmt: skip
        """One torch call returned. No tensor subclass of the user's is asked."""
        with torch._C.DisableTorchFunction():
            self._count(func, args, kwargs, result, began, ended)

    def _count(
        self, func: Any, args: Any, kwargs: Any, result: Any, began: int, ended: int
    ) -> None:  # fmt: skip
        name = getattr(func, "__name__", "")
        if name in NOT_OPS:
            return
        place = places.caller()
        at = tuple(place) if place else None
        key = (at, self._phase())
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = _Line()
        if name not in line.names:
            self.flow.checkpointing()
        self.flow.seen(name, args, kwargs, result, at)
        if name in MOVES:
            again, size = self.flow.moved(name, args, result)
            line.moved_again += again
            line.moved_bytes += size
        if key[1] == "optimizer":
            self.flow.clipping(at, began, ended)
        self.probe.boundary.look_at_autocast()
        line.calls += 1
        line.elapsed += ended - began
        line.names[name] += 1
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            line.grad_calls += 1
        if name in CONVERSIONS:
            kind = CONVERSIONS[name]
            line.conversions[kind] = line.conversions.get(kind, 0) + 1
        elif name in CONSTRUCTIONS:
            line.constructions += 1

    def _phase(self) -> str:
        """The phase that the marks of the step so far say we are in."""
        log = self.probe.marks.log  # of this step: while calls are counted, each is cut at once
        if self.probe.boundary.backward_depth:
            return "backward"
        losses = self.probe.boundary.losses
        for code, argument in zip(reversed(log[0::3]), reversed(log[2::3])):
            if code == NEXT_BEGIN:
                return "data_wait"
            if code == FORWARD_BEGIN:
                return "loss" if argument >> 2 in losses else "forward"
            if code == FORWARD_END:
                return "loss"
            if code in (BACKWARD_BEGIN, BACKWARD_END, OPTIMIZER_BEGIN):
                return "optimizer"  # or about to be: a closure's own marks come after its begin
            if code in (NEXT_END, OPTIMIZER_END, STEP_END):
                return "prepare"
        return "prepare"

    def _watch_module_moves(self) -> None:
        """``module.to(…)`` in a step: counted while the window lasts, outermost calls only."""
        original: Any = torch.nn.Module._apply
        moves = self.flow.module_moves
        inside: list[bool] = []

        @functools.wraps(original)
        def apply(*args: Any, **kwargs: Any) -> Any:
            if not inside:
                place = places.caller()
                at = tuple(place) if place else None
                moves[at] = moves.get(at, 0) + 1
            inside.append(True)
            try:
                return original(*args, **kwargs)
            finally:
                inside.pop()

        self.patches.set(torch.nn.Module, "_apply", hidden(apply))

    def _leave(self) -> None:
        self.patches.undo()
        self.syncs.stop()
        self.mode.live = False
        stack = torch._C._len_torch_function_stack()
        if stack and torch._C._get_function_stack_at(stack - 1) is self.mode:
            self.mode.__exit__(None, None, None)
        # else: a mode of the script's own lies on top; ours stays below it, doing nothing
