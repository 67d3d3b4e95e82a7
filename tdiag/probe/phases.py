"""Marks where forward and evaluation are in a step.

Hooks on every submodule would cost too much, and hooks on the user's objects would be pickled with
them. So the *class* of each outermost module is watched. It is discovered during warm-up, by a
``Module.__call__`` that is removed while the outermost call runs. Afterwards the classes of these
modules' own parts are watched as well.

An evaluation may call other parts of a model than the training does. What it always does first is
``model.eval()``.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.loss import _Loss
from torch.nn.parameter import is_lazy

from . import dynamo, places
from .boundary import is_compiling
from .models import class_name, recorded_by_jit
from .patches import RETURNS, hidden
from .record import MOST_VALUES, here, wall_ns
from .wire import (
    EVAL_BEGIN,
    EVAL_END,
    FORWARD_BEGIN,
    FORWARD_END,
    GRAD_ON,
    MODULE_SHIFT,
    SWITCHED,
    TRAINING_MODE,
)

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe
    from .inspection import Inspection

MOST_PARTS = 16  # classes of a model's parts; each of their calls costs a fraction of a microsecond
MOST_MODULES = 64  # described individually; a loss created every step must not fill the disk

_KNOWN = [(0, 0)] * 4  # for a module created every step, whose calls are not described

_grad_enabled = torch.is_grad_enabled


class ModuleWatch:
    """Watches the outermost module calls on the training thread."""

    def __init__(self, probe: Probe, boundary: Boundary, inspection: Inspection) -> None:
        self.probe, self.boundary, self.inspection = probe, boundary, inspection
        self.depth = 0
        # id(module) → number in the events, as long as the module lives (WeakKeyDictionary is
        # written in Python and costs twice as much).
        self.numbers: dict[int, int] = {}
        self.alive: dict[int, Any] = {}
        # Its calls by mode (grad_enabled × 2 + training): argument of FORWARD_BEGIN and the first
        # value of FORWARD_END's; None while unknown.
        self.calls: dict[int, list[tuple[int, int] | None]] = {}
        # By class, once there are too many modules to describe: number, and the same of calls.
        self.of_class: dict[type, int] = {}
        self.alike: dict[type, list[tuple[int, int] | None]] = {}
        self.described = 0
        self.classes: set[type] = set()
        self.discovering = False
        self.pristine = torch.nn.Module.__call__
        self.switching = False
        self.switched: set[int] = set()  # modules whose first switch is in the events

    def install(self) -> None:
        self._watch_modes()
        self._discover(True)
        self.probe.when_warm(self._discovered)

    def _discovered(self) -> None:
        self._discover(False)
        self.probe.guard(self._watch_parts)()

    def _watch_parts(self) -> None:
        """The parts of a model may be called by themselves later: an evaluation of the encoder.
        With compiled graphs alive they stay as they are, because graphs may hold their calls."""
        if dynamo.compiled_frames():
            return
        models = [model for known in self.alive.values() if (model := known()) is not None]
        parts = {type(part) for model in models for part in model.children()}
        for kind in sorted(parts, key=lambda kind: kind.__qualname__)[:MOST_PARTS]:
            if not kind.__module__.startswith("torch."):
                self._watch_class(kind)

    def _discover(self, on: bool) -> None:
        """Switch discovery on or off by changing one class attribute; nothing else is visible."""
        if on == self.discovering:
            return
        self.discovering = on
        if on:
            torch.nn.Module.__call__ = self._discoverer()  # type: ignore[method-assign]
        else:
            torch.nn.Module.__call__ = self.pristine  # type: ignore[method-assign]

    def _discoverer(self) -> Any:
        forward = self

        @functools.wraps(self.pristine)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            apart = is_compiling() or recorded_by_jit()
            if apart or forward.depth or not forward.probe.marks.mine():
                return forward.pristine(self, *args, **kwargs)
            forward.probe.guard(forward._watch_class)(type(self))
            return forward._outermost(None, self, args, kwargs)

        return hidden(call)

    def _watch_modes(self) -> None:
        """Mark when one of the outermost modules leaves training mode. ``train`` calls itself for
        each child; ``eval`` calls it."""
        watch, original = self, torch.nn.Module.train

        @functools.wraps(original)
        def train(self: Any, mode: bool = True) -> Any:
            if mode or is_compiling() or watch.switching or not getattr(self, "training", False):
                return original(self, mode)
            if here() != watch.probe.marks.thread:
                return original(self, mode)
            watch.switching = True
            try:
                result = original(self, mode)
            finally:
                watch.switching = False
            watch.probe.guard(watch._evaluates)(self)
            return result

        self.probe.patches.set(torch.nn.Module, "train", hidden(train), RETURNS)

    def _evaluates(self, module: Any) -> None:
        number, marks = self.numbers.get(id(module)), self.probe.marks
        if number is None or self.depth or len(marks.log) > MOST_VALUES:
            return
        if number not in self.switched:
            self.switched.add(number)
            self.probe.recorder.write("called", module=number, mode=SWITCHED, at=places.caller())
        at = wall_ns()
        marks.put((EVAL_BEGIN, at, number << MODULE_SHIFT))
        marks.put((EVAL_END, at, 0))

    def _watch_class(self, kind: type) -> None:
        if kind in self.classes or kind is torch.nn.Module:
            return
        self.classes.add(kind)
        own = any("__call__" in base.__dict__ for base in _below_module(kind))
        if own and getattr(kind.__call__, "tdiag_watched", False):
            return  # a subclass of a watched class
        original = kind.__call__ if own else None  # None: whatever Module.__call__ is by then
        forward, marks, calls, alike = self, self.probe.marks, self.calls, self.alike
        put, log = marks.put, marks.log
        module = torch.nn.Module

        @functools.wraps(original or self.pristine)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            apart = forward.depth or is_compiling() or recorded_by_jit()
            if apart or (here() != marks.thread and not marks.mine()):
                return (original or module.__call__)(self, *args, **kwargs)
            modes = calls.get(id(self)) or alike.get(type(self))
            known = modes and modes[_grad_enabled() * 2 + bool(self.training)]
            if not known or forward.discovering or len(log) > MOST_VALUES:
                return forward._outermost(original, self, args, kwargs)
            forward.depth = 1
            if marks.clocked:
                marks.made_by_hand(known[0])
            put((FORWARD_BEGIN, wall_ns(), known[0]))
            try:
                return (original or module.__call__)(self, *args, **kwargs)
            finally:
                forward.depth = 0
                if marks.clocked:
                    marks.made_by_hand()
                put((FORWARD_END, wall_ns(), known[1]))

        call.tdiag_watched = True  # type: ignore[attr-defined]
        self.probe.patches.set(kind, "__call__", hidden(call), RETURNS)

    def _outermost(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module about which something is still unknown."""
        number = self.numbers.get(id(module))
        new = number is None and self.described < MOST_MODULES
        if new and any(map(is_lazy, module.parameters())):
            self.depth = 1  # it is described when its parameters are made: this call makes them
            try:
                return (original or torch.nn.Module.__call__)(module, *args, **kwargs)
            finally:
                self.depth = 0
        if number is None:
            number = self.probe.guard(self._describe)(module) or 0
        marks = self.probe.marks
        resume = self.discovering
        if resume:
            self._discover(False)  # code inside the call (dynamo included) sees torch unchanged
        self.depth = 1
        self.boundary.look_at_autocast()
        mode = _grad_enabled() * 2 + bool(module.training)
        if self.calls.get(id(module), _KNOWN)[mode] is None:
            training = mode == TRAINING_MODE | GRAD_ON
            at = places.caller() if training else self.probe.guard(places.caller_outside_models)()
            self.probe.recorder.write("called", module=number, mode=mode, at=at)
        if resume and _grad_enabled():
            self.probe.guard(self.inspection.inputs)(number, module, args, kwargs)
        full = len(marks.log) > MOST_VALUES
        if not full:
            if marks.clocked:
                marks.made_by_hand(mode)
            marks.put((FORWARD_BEGIN, wall_ns(), number << MODULE_SHIFT | mode))
        result = None
        try:
            result = (original or torch.nn.Module.__call__)(module, *args, **kwargs)
        finally:
            self.depth = 0
            scalar = _is_scalar(result)
            if not full:
                if marks.clocked:
                    marks.made_by_hand()
                marks.put((FORWARD_END, wall_ns(), scalar))
            if result is not None and (modes := self._modes(module)):
                modes[mode] = number << MODULE_SHIFT | mode, scalar
            if resume and not self.probe.warm:
                self._discover(True)
        return result

    def _modes(self, module: Any) -> list[tuple[int, int] | None] | None:
        """What is known of its calls, or of those of all modules of its class that are not
        described."""
        if id(module) in self.calls or self.described < MOST_MODULES:
            return self.calls.get(id(module))
        return self.alike.setdefault(type(module), [None] * 4)

    def _forget(self, key: int) -> None:
        self.numbers.pop(key, None)
        self.calls.pop(key, None)
        self.alive.pop(key, None)

    def _describe(self, module: Any) -> int:
        kind = type(module)
        if self.described >= MOST_MODULES and kind in self.of_class:
            return self.of_class[kind]  # created every step
        number = self.described
        self.described += 1
        key = id(module)
        self.alive[key] = weakref.ref(module, lambda _: self._forget(key))
        self.numbers[key] = number
        self.calls[key] = [None] * 4
        self.of_class[kind] = number
        parameters = list(module.parameters())
        if isinstance(module, _Loss) or not parameters:
            self.boundary.losses.add(number)
        made_of = self.probe.guard(self.inspection.called)(number, module) if parameters else None
        self.probe.recorder.write(
            "module",
            id=number,
            name=class_name(module),
            at=places.definition(getattr(type(module), "forward", None)),  # none if scripted
            parameters=sum(p.numel() for p in parameters),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            loss=isinstance(module, _Loss),
            **(made_of or {}),
        )
        return number


hidden(ModuleWatch._outermost)


def _is_scalar(result: Any) -> int:
    """1 for a 0-dim tensor. Calls no code of the user's function modes or tensor subclasses."""
    if not isinstance(result, torch.Tensor):
        return 0
    with torch._C.DisableTorchFunction():
        return int(result.dim() == 0)


def _below_module(kind: type) -> tuple[type, ...]:
    """The classes from ``kind`` up to, but without, ``torch.nn.Module``."""
    return kind.__mro__[: kind.__mro__.index(torch.nn.Module)]
