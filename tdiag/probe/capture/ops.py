"""Counts torch calls by the user's own line, exactly, over one or two steps; on CUDA also the lines
that make the device synchronise, by torch's own warnings."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import torch
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from .. import accelerator, dynamo, places
from ..facts import ranks
from ..models import node_of, recorded_by_jit
from ..patches import hidden
from ..wire import GRAD_OF_ELEMENT
from .again import Again
from .backward_time import BackwardTimes
from .batch_work import BatchWork
from .constants import Constants
from .contractions import Contractions
from .copied_on import CopiedOn
from .copied_rows import RowCopies
from .copied_to_read import CopiedToRead
from .cost_on_device import device_ns
from .equal_matrices import EqualMatrices
from .factored import FactoredAgain
from .flow import MOVES, Flow
from .frozen_weights import FrozenWeights, flat
from .gathered import GatheredWeights
from .indexed import by_brackets, sized_by_value
from .input_gradients import InputGradients
from .library_calls import LibraryCall, LibraryCalls
from .lines import LineCalls, Lines
from .low_rank import LowRank
from .never_used import UnusedResults
from .operands import JOINS
from .penalties import Penalties
from .prefixes import Prefixes
from .separate_gradients import GRADS, SeparateGradients
from .switched import Capture
from .syncs import HostWaits
from .thin_factors import ThinFactors
from .thrown_away import ThrownAway
from .transforms import awkward_length
from .zeros import Zeros

# The functions of autograd that take elements of a tensor: its names for t[i], t[i:j], unbind, …
PICKING = ("Select", "Slice", "Unbind", "IndexBackward", "IndexSelect")
RESHAPING = ("Squeeze", "View", "Reshape", "UnsafeView")  # of what was taken, or of a sum

CONVERSIONS = {
    "item": "item", "__bool__": "bool", "__float__": "float", "__int__": "int",
    "__index__": "int", "tolist": "tolist", "numpy": "numpy", "__array__": "numpy",
    "cpu": "cpu", "__repr__": "print", "__format__": "print", "__contains__": "in",
    "__len__": "len",
}  # fmt: skip
# Properties that are ops: their names → those of the functions that do the same.
PROPERTIES = {
    "T": "transpose", "mT": "transpose", "H": "transpose", "mH": "transpose", "real": "real",
    "imag": "imag",
}  # fmt: skip
# Reading .grad, .shape or .data issues no op; backward's own ops are not Python's.
NOT_OPS = {"__get__", "__set__", "backward", "requires_grad_", "register_hook"}
PARAMETRIZE = os.path.join("torch", "nn", "utils", "parametrize.py")
CONSTRUCTIONS = {"tensor", "as_tensor", "from_numpy", "asarray", "FloatTensor"}


class _Counter(TorchFunctionMode):
    """Sees every torch call that Python makes on this thread."""

    def __init__(self, capture: OpsCapture) -> None:
        super().__init__()
        self.capture = capture
        self.live = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.live or recorded_by_jit():
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.backward:
            # Frames that have ended would keep their tensors.
            self.capture.library.of(None)
            self.capture.lines.repeats.forget()
            self.capture.prefixes.backward_begins()
            self.capture.probe.guard(self.capture.flow.backward_begins)()
            self.capture.probe.guard(self.capture.frozen.backward_begins)()
            self.capture.probe.guard(self.capture.input_gradients.backward_begins)(args[0])
        began = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        ended = time.perf_counter_ns()
        self.capture.probe.guard(self.capture.seen)(func, args, kwargs or {}, result, began, ended)
        return result


class OpsCapture(Capture):
    """Skipped if a mode is already active, and if compiled graphs are alive, because a mode would
    make dynamo recompile them."""

    def start(self) -> str:
        if dynamo.compiled_frames():
            return "compiled graphs are alive: counting calls would recompile them"
        if torch._C._len_torch_function_stack():
            return "the script has its own torch function mode switched on"
        self.lines = Lines(self.probe, self.boundary)
        self.on_device = bool(accelerator.kind())
        # A rank's backward also waits for the others.
        self.by_line = not self.on_device and ranks()[1] == 1
        self.syncs = HostWaits(self.patches)
        self.flow, self.frozen = Flow(self.probe, self.inspection), FrozenWeights(self.inspection)
        self.contractions, self.of_batch = Contractions(), BatchWork()
        self.again, self.thrown_away = Again(self.probe), ThrownAway()
        self.prefixes, self.never_used = Prefixes(), UnusedResults(alone=ranks()[1] == 1)
        self.copies, self.zeros, self.low_rank = RowCopies(), Zeros(), LowRank()
        self.gathered, self.penalties = GatheredWeights(), Penalties()
        self.factored, self.equal, self.copied_on = FactoredAgain(), EqualMatrices(), CopiedOn()
        self.thin, self.copied_to_read = ThinFactors(), CopiedToRead()
        self.gradients = SeparateGradients()
        self.backward = BackwardTimes()
        self.constants = self.inspection.constants or Constants(self.probe)
        self.inspection.constants = self.constants
        self.input_gradients = InputGradients(self.inspection.trained_parameters(), self.never_used)
        self.mode: Any = None
        self.library = LibraryCalls()
        return ""

    def begin(self) -> None:
        self.constants.begin()
        self.syncs.start()
        self._watch_module_moves()
        self._watch_backward()
        self.mode = _Counter(self)
        self.mode.__enter__()

    def end(self, steps: int) -> None:
        self._leave()
        self.library.end()
        self.thrown_away.settle()
        self.never_used.settle()
        if not steps:
            return  # the program ended within the first one
        self.probe.guard(self.zeros.settle)()
        self.probe.recorder.write(
            "ops",
            steps=steps,
            step=self.probe.step,
            lines=self.lines.described(),
            **self.syncs.report(),
            **self.flow.report(),
            **self.frozen.report(),
            **self.prefixes.report(),
            **self.never_used.report(),
            **self.copies.report(),
            **self.input_gradients.report(),
            # Within a checkpoint backward runs the forward again, for all its lines at once.
            **(self.backward.report() if self.by_line and not self.flow.checkpoints else {}),
            **self.gathered.report(),
            constant_steps=self.constants.steps,
            **{"pass": self.window.number},
        )
        self.inspection.kept = self.flow.alive(), self.probe.step, steps

    def abort(self) -> None:
        if getattr(self, "mode", None) is not None:
            self._leave()
            self.library = LibraryCalls()  # it may hold frames
            self.lines.repeats.forget()

    def seen(
        self, func: Any, args: Any, kwargs: Any, result: Any, began: int, ended: int
    ) -> None:  # fmt: skip
        """A torch call returned. Calls no code of the user's tensor subclasses."""
        with torch._C.DisableTorchFunction():
            self._count(func, args, kwargs, result, began, ended)

    def _count(
        self, func: Any, args: Any, kwargs: Any, result: Any, began: int, ended: int
    ) -> None:  # fmt: skip
        name = getattr(func, "__name__", "")
        if name == "__get__":
            of = getattr(getattr(func, "__self__", None), "__name__", "")
            name = PROPERTIES.get(of, name)
        if name in NOT_OPS:
            self.input_gradients.touched(func, name, args)
            return
        if name == "grad" and _of_element(args[0] if args else kwargs.get("outputs")):
            name = GRAD_OF_ELEMENT
        place, callee = places.caller_and_callee()
        at = tuple(place) if place else None
        call = self.library.of(callee)
        phase, line = self.lines.at(at)
        took = spent = ended - began
        if self.on_device:
            cost = device_ns(name, args, kwargs, result)
            spent = took if cost is None else cost
            line.work += spent
        parts: LineCalls | LibraryCall = line
        if call is not None:
            parts, call.line = call, call.line or line
            call.elapsed += spent
        if name not in line.names:
            self.flow.checkpointing()
        self.flow.seen(name, args, kwargs, result, at)
        if name in MOVES:
            again, size = self.flow.moved(name, args, result)
            line.moved_again += again
            line.moved_bytes += size
        if phase == "optimizer" or self.lines.graded:
            self.flow.clipping(at, began, ended)
        self.boundary.look_at_autocast()
        before = self.backward.parts_of(line) if self.by_line else ()
        line.calls += 1
        line.elapsed += took
        if again := round(spent * self.again.seen(name, args, kwargs, result)):
            if places.calls_through(PARAMETRIZE):  # torch's, but the user can cache it
                line.again += again
                line.parametrized += again
            else:
                parts.again += again
        if name in JOINS and args and isinstance(args[0], (list, tuple)):
            line.joined = max(line.joined, sum(isinstance(x, Parameter) for x in args[0]))
        self.contractions.seen(name, args, kwargs, result, line, spent)
        self.gradients.seen(name, args, kwargs, line, took)
        in_backward = phase == "backward"
        self.never_used.seen(name, args, kwargs, result, line, spent, used=in_backward,
                             in_module=self.lines.in_call)  # fmt: skip
        if not in_backward:
            self.lines.repeated(line, at, name, args, kwargs, result)
            self.thrown_away.seen(name, args, kwargs, result, at, line, spent)
            self.prefixes.seen(name, args, result, line, spent)
            copied = line.copied
            self.copies.seen(name, args, kwargs, result, at, line, spent)
            if line.copied == copied:
                self.equal.seen(name, result, at, line, spent)
            self.zeros.seen(name, args, kwargs, result, line, spent)
            self.low_rank.seen(name, args, kwargs, result, line, spent)
            self.gathered.seen(name, args, kwargs, result, at, line, spent)
            line.indexed += spent * by_brackets(name, args)
            self.penalties.seen(name, args, kwargs, result, line, spent)
            self.factored.seen(name, args, kwargs, result, line, spent)
            self.thin.seen(name, args, kwargs, result, line, spent)
            self.copied_on.seen(name, args, kwargs, result, at, line, spent)
            self.copied_to_read.seen(name, args, result, line, spent)
            if length := awkward_length(name, args, kwargs, result, spent):
                line.fft += spent
                line.fft_length = max(line.fft_length, length)
        if self.constants.seen(name, args, kwargs, result, at):
            line.constant += spent
        else:
            frozen = self.frozen.seen(name, args, kwargs, result)
            line.frozen += spent * frozen
            alone = self.of_batch.seen(name, args, kwargs, result, frozen)
            if alone and self.constants.steps:  # before, constants are not known
                parts.of_batch += spent
        if call is None or name not in call.names:  # a library's loop is not the line's loop
            line.names[name] += 1
            if call is not None:
                call.names.add(name)
        results = result if isinstance(result, (tuple, list)) else (result,)
        if any(isinstance(x, torch.Tensor) and node_of(x) is not None for x in results):
            line.grad_calls += 1  # a recurrent layer returns several
        if self.by_line and (not in_backward or name in GRADS):
            self.backward.made(name, args, kwargs, results, line, took, before)
        if kind := CONVERSIONS.get(name) or sized_by_value(name, args, kwargs):
            line.conversions[kind] += 1
        elif name in CONSTRUCTIONS and callee is None and not _of_tensor(args, kwargs):
            line.constructions += 1  # not torch's collate_fn, under the loop
            line.constructed += took

    def _watch_module_moves(self) -> None:
        """Count ``module.to(…)`` in a step while the window lasts, outermost calls only."""
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

    def _watch_backward(self) -> None:
        """Tell what a backward starts from, and time it; a function mode does not see
        ``autograd.backward``."""
        times, by_line, guard = self.backward, self.by_line, self.probe.guard
        differentiated, unknown = guard(self.never_used.differentiated), guard(times.unknown)

        def watched(original: Any, starts: bool) -> Any:
            @functools.wraps(original)
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if starts:
                    differentiated(tensors)
                if by_line:
                    unknown(flat((tensors,)))
                times.begins()
                try:
                    return original(tensors, *args, **kwargs)
                finally:
                    times.ends()

            return hidden(backward)

        for name, starts in (("backward", True), ("grad", False)):
            self.patches.set(torch.autograd, name, watched(getattr(torch.autograd, name), starts))

    def _leave(self) -> None:
        self.patches.undo()
        self.syncs.stop()
        self.mode.live = False
        stack = torch._C._len_torch_function_stack()
        if stack and torch._C._get_function_stack_at(stack - 1) is self.mode:
            self.mode.__exit__(None, None, None)
        # else: the script's own mode lies on top; tdiag's stays below it and does nothing


def _of_tensor(args: Any, kwargs: Any) -> bool:
    """Whether it is ``torch.as_tensor(tensor)``: then no Python or numpy data becomes a tensor
    here."""
    given = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    return isinstance(given, torch.Tensor)


def _of_element(outputs: Any) -> bool:
    """Whether what is differentiated is one element of a tensor, such as ``out[i, k]``, and not a
    sum, whose gradient holds those of all samples."""
    given = outputs[0] if isinstance(outputs, (tuple, list)) and len(outputs) == 1 else outputs
    if not isinstance(given, torch.Tensor) or given.numel() != 1:
        return False
    node = given.grad_fn
    while node is not None and node.name().startswith(RESHAPING):
        node = node.next_functions[0][0]
    return node is not None and node.name().startswith(PICKING)
