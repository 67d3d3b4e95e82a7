"""Decides what one training step is, and reports when one ends.

A step ends with the ``step()`` of the leading optimizer; if no optimizer steps, with each outermost
``backward``; if there is no backward either, with each DataLoader batch; and if all three are
missing, with each ``torch.autograd.grad`` (weights are updated by hand). The weaker kind may come
first (an evaluation before training, the first micro-batches of an accumulation): a stronger one
takes over when it comes, and all earlier steps become void.

Calls during the capture of a CUDA graph only describe a step and end none. A graph that contains
the step then ends one whenever it is replayed.

A long optimizer step with many backward passes (LBFGS calls its closure about 20 times, a large
batch is accumulated in parts) is divided: each of these passes ends a step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from . import accelerator, facts, places
from .core import now_ns
from .patches import RETURNS, STAYS, hidden
from .record import here, wall_ns
from .wire import (
    BACKWARD_BEGIN,
    BACKWARD_END,
    BY_BACKWARD,
    BY_BATCH,
    BY_CLOSURE,
    BY_MICRO_BATCH,
    BY_OPTIMIZER,
    DIAGNOSE,
    LONG_STEP_NS,
    NEXT_BEGIN,
    OF_GRAD,
    ON_CPU,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
)

if TYPE_CHECKING:
    from .core import Probe

SOURCES = (BY_BATCH, BY_BACKWARD, BY_OPTIMIZER)  # weakest first
BATCH, BACKWARD, OPTIMIZER = range(3)
# A loader is read without any backward: an evaluation before training, or no training at all.
BATCHES_BEFORE_THEY_COUNT = 16
# Calls of torch.autograd.grad without a step of any other kind. A physics-informed loss makes about
# ten of them before its first backward.
GRADS_BEFORE_THEY_COUNT = 16
# A second optimizer takes the lead when the first has been silent for this many of its own steps: a
# GAN's discriminator may step five times between generator steps (Arjovsky 2017, n_critic), and
# each of fifty optimizers, one for each tensor, steps once.
STEPS_BEFORE_LEAD_CHANGES = 8
MOST_DESCRIBED = 64  # optimizers
# A step is divided if its parts are alike. A closure that is called twice is called many times;
# without a closure, a GAN's step has two or six different passes (n_critic = 5).
CLOSURES, MICRO_BATCHES = 2, 8
UNKNOWN = (-1, None)  # an optimizer made before the probe came

# False, except for dynamo, which sees it as True and so leaves the wrappers out of its graphs.
is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", lambda: False)


class Boundary:
    """Watches ``optimizer.step``, ``backward`` and batches; calls ``probe.end_step``."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.rank = -1  # index into SOURCES: what ends a step now
        self.batches = 0
        self.starved = False  # no batch was ready when the last one was requested
        self.lead: int | None = None  # id of the optimizer whose step ends a step
        self.others: dict[int, int] = {}  # steps of each other optimizer since the lead's last
        self.described: set[int] = set()  # ids of optimizers
        self.optimizer_steps = 0
        self.pending = False  # a step ended inside a backward that is still running
        self.depth = 0  # optimizer.step within optimizer.step (super().step())
        self.backward_depth = 0
        self.grads = 0  # calls of torch.autograd.grad until something else ended a step
        self.by_grad = False  # each of them ends a step
        self.passes = 0  # backward passes since the last step of the leading optimizer
        self.passes_ns = 0  # when the first of them began
        self.began_ns = 0  # when the first step began
        self.divided = False  # each backward pass ends a step
        self.capturing = False  # a CUDA graph is being captured
        self.captured = -1  # the strongest end of a step in it: index into SOURCES, -1 for none
        self.graphs: Any = weakref.WeakKeyDictionary()  # graph → the same
        self.unreplayed: int | None = None  # batches when the step was captured, until a replay
        self.losses: set[int] = set()  # numbers of loss modules (without parameters)
        self.autocast = ""  # dtype of the autocast region last seen
        self.scaled = False  # an enabled GradScaler has stepped
        self.known: dict[int, tuple[int, Any]] = {}  # id(optimizer) → (number, created_at)
        # Called when the kind of step changes, with the duration of the first one, ns.
        self.began_again: Callable[[int], Any] = lambda took: None
        self.starts_again = probe.guard(self._begin_again)
        # Called with the number of an optimizer, and with the optimizer, when it has been made.
        self.made: Callable[[int, Any], None] = lambda number, optimizer: None
        # Called when a backward ends, with its begin, once a DistributedDataParallel has run.
        self.reduced: Callable[[int], None] | None = None

    def install(self) -> None:
        optimizer = torch.optim.Optimizer
        original, boundary = optimizer._patch_step_function, self

        @functools.wraps(original)
        def patch_step(self: Any) -> None:
            original(self)
            boundary.probe.guard(boundary._created)(self)

        # Every optimizer comes through here when it is made or unpickled, so no step() is missed.
        self.probe.patches.set(optimizer, "_patch_step_function", hidden(patch_step))
        self._watch_backward()
        self._watch_scaler()
        self._watch_graphs()

    def ended(self, rank: int) -> None:
        """Something happened that may end a step; ``rank``: index into SOURCES."""
        if self.capturing:
            self.captured = max(self.captured, rank)
        elif self.by_grad:
            self.by_grad, self.rank = False, rank
            self.starts_again(SOURCES[rank])
        elif rank == self.rank:
            self.unreplayed = None
            self.probe.end_step()
        elif rank > self.rank:
            self.rank = rank
            self.starts_again(SOURCES[rank])

    def _begin_again(self, source: str, took: int | None = None) -> None:
        """The kind of step changes; the first step of the new kind took ``took`` ns, None = until
        now."""
        took = self._took() if took is None else took
        self.probe.step = 0
        self.probe.recorder.write("boundary", t=now_ns(), source=source, took=took)
        self.began_again(took)
        self.probe.marks.cut(now_ns())

    def _took(self) -> int:
        """How long the step took that ends now, the first of its kind: from its batch or, without a
        loader, from the first thing seen. Its backward pass may have been taken for its end."""
        log = self.probe.marks.log
        # ON_CPU holds a duration, not a time.
        marks = [(log[i], log[i + 1]) for i in range(0, len(log), 3) if log[i] != ON_CPU]
        if marks and (self.probe.step or not self.began_ns):
            batches = [began for code, began in marks if code == NEXT_BEGIN]
            self.began_ns = batches[-1] if batches else marks[0][1]
        return now_ns() - self.began_ns if self.began_ns else 0

    def batch(self) -> None:
        """A DataLoader handed out a batch."""
        if self.unreplayed is not None:  # the step is in a graph, whose replays may not be seen
            if self.batches - self.unreplayed > BATCHES_BEFORE_THEY_COUNT:
                self.unreplayed, self.rank = None, BATCH
                self.starts_again(BY_BATCH, 0)
        elif self.batches > BATCHES_BEFORE_THEY_COUNT:
            self.ended(BATCH)

    def look_at_autocast(self) -> None:
        """Called while modules are discovered and calls are counted, because calling it every step
        costs too much."""
        self.autocast = accelerator.autocast() or self.autocast

    # --- optimizers -------------------------------------------------------------------------

    def _created(self, optimizer: Any) -> None:
        kind = type(optimizer)
        if id(optimizer) not in self.known:
            self._know(optimizer, places.caller())
        if not getattr(kind.step, "tdiag_watched", False):
            self.probe.patches.set(kind, "step", self._watched(kind.step), STAYS)

    def _know(self, optimizer: Any, at: Any) -> None:
        number = len(self.known)
        self.known[id(optimizer)] = (number, at)
        self.made(number, optimizer)

    def adopt(self, optimizer: Any, at: Any = None) -> None:
        """Adopt an optimizer made before the probe was loaded; ``at``: where, if known. A scheduler
        has put its own ``step`` on it, which calls the class's earlier one."""
        self._know(optimizer, at)
        self._created(optimizer)
        if own := vars(optimizer).get("step"):

            @functools.wraps(own)
            def step(self: Any, *args: Any, **kwargs: Any) -> Any:
                return own(*args, **kwargs)

            watched = MethodType(self._watched(hidden(step)), optimizer)
            self.probe.patches.set(optimizer, "step", watched)

    def _watched(self, original: Any) -> Any:
        boundary, probe, marks, put = self, self.probe, self.probe.marks, self.probe.marks.put
        known = self.known

        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or boundary.depth:
                return original(self, *args, **kwargs)
            if (count := probe.count) is not None:
                boundary.depth = 1
                try:
                    result = original(self, *args, **kwargs)
                finally:
                    boundary.depth = 0
                count(self)
                return result
            if not (here() == marks.thread or marks.mine() or boundary.in_backward()):
                return original(self, *args, **kwargs)
            number = known.get(id(self), UNKNOWN)[0]
            boundary.depth = 1
            put((OPTIMIZER_BEGIN, wall_ns(), number))
            try:
                result = original(self, *args, **kwargs)
            finally:
                boundary.depth = 0
                if boundary.lead not in (None, id(self)):
                    marks.optimizer_ended()
                put((OPTIMIZER_END, wall_ns(), number))
            boundary.stepped(self)
            return result

        step.tdiag_watched = True  # type: ignore[attr-defined]
        return hidden(step)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer stepped (or GradScaler skipped its step)."""
        self.optimizer_steps += 1
        if id(optimizer) not in self.described and len(self.described) < MOST_DESCRIBED:
            self.described.add(id(optimizer))
            self.probe.guard(self._describe)(optimizer)
        if self.lead is None:
            self.lead = id(optimizer)
        elif id(optimizer) != self.lead:
            steps = self.others[id(optimizer)] = self.others.get(id(optimizer), 0) + 1
            if steps < STEPS_BEFORE_LEAD_CHANGES:
                return
            self.lead = id(optimizer)
        self.others.clear()
        if self.divided:
            return
        self.passes = 0
        if self.backward_depth and not self.capturing:
            # The optimizers step in hooks within backward. Profilers cannot be switched there
            # (torch crashes), so the step ends when the backward does.
            self.pending = True
        else:
            self.ended(OPTIMIZER)

    def _describe(self, optimizer: Any) -> None:
        """At its first step, because then all parameters exist."""
        if id(optimizer) not in self.known:
            return
        number, at = self.known[id(optimizer)]
        tensors = sum(len(group["params"]) for group in optimizer.param_groups)
        self.probe.recorder.write(
            "optimizer", id=number, name=type(optimizer).__name__, at=at, tensors=tensors,
            config=facts.config_of(optimizer), **facts.groups_of(optimizer),
        )  # fmt: skip

    # --- backward ---------------------------------------------------------------------------

    def _watch_backward(self) -> None:
        boundary, marks, put = self, self.probe.marks, self.probe.marks.put

        def watched(original: Any, ends_step: bool) -> Any:
            @functools.wraps(original)
            def backward(*args: Any, **kwargs: Any) -> Any:
                if (
                    boundary.backward_depth
                    or is_compiling()
                    or (here() != marks.thread and not marks.mine())
                ):
                    return original(*args, **kwargs)
                boundary.backward_depth = 1
                marks.backward_begins()
                put((BACKWARD_BEGIN, began := wall_ns(), 0 if ends_step else OF_GRAD))
                try:
                    result = original(*args, **kwargs)
                    if boundary.reduced is not None:
                        boundary.reduced(began)
                finally:
                    boundary.backward_depth = 0
                    put((BACKWARD_END, wall_ns(), 0))
                if boundary.pending:
                    boundary.pending = False
                    boundary.ended(OPTIMIZER)
                if ends_step:
                    boundary.passed(began)
                elif boundary.rank < 0 or boundary.by_grad:
                    boundary.graded()
                return result

            return hidden(backward)

        # A function mode (capture/ops.py) gets ``Tensor.backward`` before ``autograd.backward``. A
        # mode cannot be left while it runs, so the step ends outside.
        autograd, patch = torch.autograd, self.probe.patches.set
        patch(torch.Tensor, "backward", watched(torch.Tensor.backward, True), RETURNS)
        patch(autograd, "backward", watched(autograd.backward, True), RETURNS)
        patch(autograd, "grad", watched(autograd.grad, False), RETURNS)

    def in_backward(self) -> bool:
        """Whether this is one of autograd's threads (one per device), for which the training thread
        waits in ``backward``."""
        return bool(self.backward_depth) and torch._C._current_graph_task_id() != -1

    def passed(self, began: int) -> None:
        """A backward pass that began at ``began`` (ns) has ended."""
        if self.capturing:
            self.ended(BACKWARD)
        elif self.divided:
            self.probe.end_step()
        elif self.rank < OPTIMIZER and not self.depth:
            self.ended(BACKWARD)
        else:  # in a closure, or before an optimizer's step
            self.passes += 1
            if self.passes == 1:
                self.passes_ns = began
            elif self.passes >= (CLOSURES if self.depth else MICRO_BATCHES):
                self._divide(wall_ns() - self.passes_ns)

    def graded(self) -> None:
        """``torch.autograd.grad`` has ended, and nothing else has ended a step so far."""
        self.grads += 1
        if self.capturing or self.batches or self.grads <= GRADS_BEFORE_THEY_COUNT:
            return
        if self.by_grad:
            self.probe.end_step()
        else:
            self.by_grad, self.rank = True, BATCH
            self.starts_again(BY_BACKWARD, 0)

    def _divide(self, took: int) -> None:
        """Divide the step if it is long enough. Ranks must count the same steps, and so must both
        sides of `tdiag check`, however long theirs take; they do not divide."""
        alone = facts.ranks()[1] == 1 and self.probe.config.get("plan", DIAGNOSE) == DIAGNOSE
        if took < LONG_STEP_NS or not alone or self.probe.finished:
            return
        self.divided = True
        self.rank = OPTIMIZER
        self.starts_again(BY_CLOSURE if self.depth else BY_MICRO_BATCH, took // self.passes)

    # --- CUDA graphs ------------------------------------------------------------------------

    def _watch_graphs(self) -> None:
        graph, boundary = torch.cuda.CUDAGraph, self
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

        @functools.wraps(begin)
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = begin(self, *args, **kwargs)
            boundary.capturing, boundary.captured = True, -1
            return result

        @functools.wraps(end)
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            boundary.capturing = False
            result = end(self, *args, **kwargs)
            if boundary.captured >= 0:
                boundary.graphs[self] = boundary.captured
                if boundary.captured >= boundary.rank:
                    boundary.unreplayed = boundary.batches
            return result

        @functools.wraps(replay)
        def replayed(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = replay(self, *args, **kwargs)
            rank = boundary.graphs.get(self, -1)
            if rank >= 0 and boundary.probe.marks.mine() and not boundary.capturing:
                boundary.ended(rank)
            return result

        self.probe.patches.set(graph, "capture_begin", hidden(capture_begin))
        self.probe.patches.set(graph, "capture_end", hidden(capture_end))
        self.probe.patches.set(graph, "replay", hidden(replayed))

    def _watch_scaler(self) -> None:
        """GradScaler skips ``optimizer.step`` after an overflow; the iteration still ended."""
        amp = getattr(torch, "amp", None)
        scaler = getattr(amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        original, boundary = scaler.step, self

        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = boundary.optimizer_steps
            boundary.scaled = boundary.scaled or bool(self._enabled)
            result = original(self, optimizer, *args, **kwargs)
            if before == boundary.optimizer_steps and boundary.probe.marks.mine():
                boundary.stepped(optimizer)
            return result

        self.probe.patches.set(scaler, "step", hidden(step))
