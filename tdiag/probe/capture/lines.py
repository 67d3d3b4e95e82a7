"""Torch calls by the user's line and phase; the phase comes from the marks of the step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..boundary import OPTIMIZER
from ..wire import (
    BACKWARD_BEGIN,
    BACKWARD_END,
    FORWARD_BEGIN,
    FORWARD_END,
    GRAD_ON,
    MODULE_SHIFT,
    NEXT_BEGIN,
    NEXT_END,
    OF_GRAD,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
    STEP_END,
)
from .repeated import OfInput, OfWeight, RepeatedCalls, more

if TYPE_CHECKING:
    from ..boundary import Boundary
    from ..core import Probe

SUMS = (
    "calls", "grad_calls", "constructions", "constructed", "elapsed", "constant", "contracted",
    "frozen", "of_batch", "again", "parametrized", "thrown_away", "never_used", "prefix",
    "mostly_zero", "nonzero", "unwritten", "copied", "low_rank", "low_rank_used", "gathered",
    "gathered_used", "separate", "penalty", "indexed", "factored", "multiplied_out", "alike",
    "copied_on", "copied_to_read", "thin", "moved_again", "moved_bytes", "work", "fft",
)  # fmt: skip
# The parts of a call's time that are known when it returns; others, when its result is used.
KNOWN_AT_ONCE = (
    "constant", "frozen", "copied", "prefix", "unwritten", "mostly_zero", "nonzero", "indexed",
    "fft", "low_rank_used", "gathered_used", "factored", "alike",
)  # fmt: skip
MOST_NAMES = 6  # named calls per line

# Phase and whether something else begins there. After a gradient, an update comes, or is about to:
# a closure's own marks come after its begin.
_BEGINS = {
    NEXT_BEGIN: "data_wait",
    NEXT_END: "prepare",
    BACKWARD_BEGIN: "optimizer",
    BACKWARD_END: "optimizer",
    OPTIMIZER_BEGIN: "optimizer",
    OPTIMIZER_END: "prepare",
    STEP_END: "prepare",
}
_OPEN = ""  # the phase is not yet known


class LineCalls:
    """The calls of one of the user's lines. ``turns``: in how many turns it called, a turn being
    one batch, one call of a module with what follows it, or one backward. ``repeated``: the most
    calls with the same weights before one backward that record gradients; ``weighted``: its calls
    with weights, ``singly``: those of them on one sample;
    ``loop``: the weight with most calls; ``shared``: the most weights that took one input;
    ``joined``: the most parameters that one call joined; ``into``: the row that this one was added
    to;
    ``contraction``: what it spread and summed, "" for nothing; ``fft_length``: of an awkward
    Fourier transform; ``matrices``: the most equal ones of one call; ``samples_at``: where samples
    were chosen of what the line computed for all.
    ``names``: calls that the line
    itself made; for calls made by a library's function (an optimizer's step, a module's forward, a
    Trainer), one per name for each call of the function. ``backward``: ns of backward for its calls
    (``elapsed``), and the parts of that."""

    __slots__ = (*SUMS, "backward", "conversions", "names", "turns", "repeated", "weighted",
                 "singly", "loop", "shared", "joined", "into", "contraction", "fft_length",
                 "thin_rank", "thin_rows",
                 "matrices", "samples_at")  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.grad_calls = self.constructions = self.elapsed = 0
        self.constructed = self.constant = self.contracted = self.frozen = self.of_batch = 0
        self.again = self.parametrized = self.thrown_away = self.never_used = self.prefix = 0
        self.mostly_zero = self.nonzero = self.unwritten = self.copied = 0
        self.low_rank = self.low_rank_used = self.moved_again = self.moved_bytes = 0
        self.work = self.fft = self.fft_length = self.gathered = self.gathered_used = 0
        self.separate = self.penalty = self.indexed = self.factored = self.multiplied_out = 0
        self.alike = self.copied_on = self.copied_to_read = self.matrices = 0
        self.thin = self.thin_rank = self.thin_rows = 0
        self.contraction = ""
        self.turns: set[int] = set()
        self.repeated = self.weighted = self.singly = self.joined = 0
        self.into: LineCalls | None = None
        self.samples_at: Any = None
        self.loop: OfWeight | None = None
        self.shared: OfInput | None = None
        self.backward: Counter[str] = Counter()
        self.conversions: Counter[str] = Counter()
        self.names: Counter[str] = Counter()

    @property
    def final(self) -> LineCalls:
        """The row that this one was added to, else itself."""
        return self.into.final if self.into else self

    def add(self, other: LineCalls) -> None:
        other.into = self
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.turns |= other.turns
        self.repeated = max(self.repeated, other.repeated)
        self.weighted += other.weighted
        self.singly += other.singly
        self.joined = max(self.joined, other.joined)
        self.fft_length = max(self.fft_length, other.fft_length)
        if other.thin_rank > self.thin_rank:
            self.thin_rank, self.thin_rows = other.thin_rank, other.thin_rows
        self.matrices = max(self.matrices, other.matrices)
        self.loop = more(self.loop, other.loop)
        self.shared = more(self.shared, other.shared)
        self.contraction = self.contraction or other.contraction
        self.samples_at = self.samples_at or other.samples_at
        self.backward.update(other.backward)
        self.conversions.update(other.conversions)
        self.names.update(other.names)

    def described(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in SUMS},
            "turns": len(self.turns),
            "repeated": self.repeated,
            "one_row": self.repeated > 0 and 2 * self.singly > self.weighted,
            "series": self.loop.series if self.loop else 0,
            "looped": self.loop.at if self.loop else None,
            "shared": self.shared.size if self.shared else 0,
            "tensors": len(self.shared.tensors) if self.shared else 0,
            "shared_at": self.shared.calls.at if self.shared else None,
            "joined": self.joined,
            "samples_at": self.samples_at,
            "fft_length": self.fft_length,
            "thin_rank": self.thin_rank,
            "thin_rows": self.thin_rows,
            "matrices": self.matrices,
            "contraction": self.contraction,
            "backward": {name: self.backward[name] for name in ("elapsed", *KNOWN_AT_ONCE)}
            if self.backward
            else {},
            "conversions": dict(self.conversions),
            "in_loop": max(self.names.values(), default=0) > len(self.turns),
            "names": dict(self.names.most_common(MOST_NAMES)),
        }


class Lines:
    """Calls after a module's call are loss, unless a module is called again before any backward:
    then they belonged to the forward pass, as in the clean steps (docs/phases.md). Another module
    that returns a single number is the loss itself. Calls after an update are work after the step
    if a loader is asked next; otherwise they prepare."""

    def __init__(self, probe: Probe, boundary: Boundary) -> None:
        self.probe, self.boundary = probe, boundary
        self.rows: dict[tuple[Any, str], LineCalls] = {}
        self.open: dict[Any, LineCalls] = {}  # of this turn, phase not known yet
        self.phase, self.turn = "prepare", 0
        self.called: set[int] = set()  # modules with parameters, since the last batch or backward
        self.deciding: int | None = None  # a module that is the loss if it returns a single number
        self.updated = False  # the open calls follow an optimizer's step
        self.graded = False  # they follow a backward: an update comes, or another pass of the model
        self.in_call = False  # a module is being called
        self.loads = self.learns = False  # a loader was asked; a forward of this step has gradients
        self.of_grad = False  # that backward was torch.autograd.grad, perhaps within a loss
        self.repeats = RepeatedCalls()  # since the last batch or backward
        self.step, self.read = probe.step, 0  # how far the step's log has been followed

    def at(self, place: Any) -> tuple[str, LineCalls]:
        """The row in which to count a call from this place now, and its phase so far."""
        self._follow()
        phase = "backward" if self.boundary.backward_depth else self.phase
        line = self._row(place, phase) if phase else self.open.setdefault(place, LineCalls())
        line.turns.add(self.turn)
        return phase, line

    def repeated(
        self, line: LineCalls, at: Any, name: str, args: Any, kwargs: Any, result: Any
    ) -> None:  # fmt: skip
        """A call of this line returned: count it among those with the same weights."""
        function = at and (at[0], at[2])
        found = self.repeats.seen(id(line), function, name, args, kwargs, result)
        if found is None:
            return
        calls, of_input = found
        line.loop = more(line.loop, calls)
        line.shared = more(line.shared, of_input)
        line.repeated = max(line.repeated, calls.recorded)
        line.weighted += 1
        line.singly += calls.one_row

    def described(self) -> list[dict[str, Any]]:
        self._follow()
        self._settle("prepare" if self.updated else "optimizer" if self.graded else "loss")
        self._join()
        self.repeats.forget()
        return [
            {"at": list(place) if place else None, "phase": phase, **line.described()}
            for (place, phase), line in self.rows.items()
        ]

    def _join(self) -> None:
        """A line in forward and loss belongs to the phase of most of its calls: calls after a
        model's call in a loop are forward, also in the last turn; calls after a criterion's call
        are loss, also before the model is called again."""
        for place in [place for place, phase in self.rows if phase == "loss"]:
            if (place, "forward") in self.rows:
                by_calls = sorted(("forward", "loss"), key=lambda p: self.rows[place, p].calls)
                self.rows[place, by_calls[1]].add(self.rows.pop((place, by_calls[0])))

    def _row(self, place: Any, phase: str) -> LineCalls:
        line = self.rows.get((place, phase))
        if line is None:
            line = self.rows[place, phase] = LineCalls()
        return line

    def _follow(self) -> None:
        log = (
            self.probe.marks.log
        )  # this step's log: while calls are counted, each step is cut at once
        if self.step != self.probe.step:
            self.step, self.read = self.probe.step, 0
            self._mark(STEP_END, 0)
        while self.read < len(log):
            code, argument = log[self.read], log[self.read + 2]
            self.read += 3
            self._mark(code, argument)

    def _mark(self, code: int, argument: int) -> None:
        if code == FORWARD_BEGIN:
            self.in_call = True
            self._call(argument >> MODULE_SHIFT)
            self.learns |= bool(argument & GRAD_ON)
        elif code == FORWARD_END:
            self.phase, self.in_call = _OPEN, False
            if self.deciding is not None:
                self._decide(self.deciding, is_loss=argument == 1)
        elif self.in_call and code in (BACKWARD_BEGIN, BACKWARD_END):
            self._forget_repeats()  # a gradient within the forward, as of an inner update
        elif code in _BEGINS:
            self.in_call = False
            self._begin(self._before(code))
            if code == BACKWARD_BEGIN:
                self.of_grad = argument == OF_GRAD
            # If an update ends a step, its own mark is cut off with the step.
            by_update = self.boundary.rank == OPTIMIZER and not self.boundary.divided
            self.updated = code == OPTIMIZER_END or (code == STEP_END and by_update)
            self.graded = code == BACKWARD_END and by_update
            self.phase = _OPEN if self.updated or self.graded else _BEGINS[code]
            self.loads |= code == NEXT_BEGIN
            self.learns &= code not in (OPTIMIZER_END, STEP_END)
            self.deciding = None
            self.called.clear()
            self._forget_repeats()

    def _forget_repeats(self) -> None:
        self.repeats.forget()
        self.repeats = RepeatedCalls()

    def _before(self, code: int) -> str:
        """The phase of the open calls before this mark (docs/phases.md, "Between two pairs")."""
        if self.graded and code in (OPTIMIZER_BEGIN, OPTIMIZER_END, STEP_END):
            return "optimizer"
        if self.graded and code == BACKWARD_BEGIN:
            return "loss"
        if self.graded or self.updated:
            return "after_step" if code == NEXT_BEGIN else "prepare"
        return "loss"

    def _call(self, module: int) -> None:
        if module in self.boundary.losses:
            if self.called:
                self._settle("loss")
            # Before the model is called it augments a batch: forward, as in the clean steps.
            self.phase = "loss" if self.called else "forward"
        elif self.called - {module}:
            if self._acts():
                self._settle("prepare")
            self.phase, self.deciding = _OPEN, module
            self.turn += 1
        else:
            over = self.updated or (self.graded and not self.of_grad)
            self._begin("prepare" if over or self._acts() else "forward")
            self.phase, self.updated, self.graded = "forward", False, False
            self.called.add(module)

    def _acts(self) -> bool:
        """Whether the open calls follow an agent's action, and step its environment or draw from
        its memory (docs/phases.md, "Between two pairs")."""
        return bool(self.called) and not (self.loads or self.learns)

    def _decide(self, module: int, is_loss: bool) -> None:
        self._settle("loss" if is_loss else "forward")
        self.deciding = None
        if is_loss:
            self.phase = "loss"
        else:
            self.called.add(module)

    def _begin(self, before: str) -> None:
        """A turn begins; the open calls of the last one were in this phase."""
        self._settle(before)
        self.turn += 1

    def _settle(self, phase: str) -> None:
        for place, line in self.open.items():
            self._row(place, phase).add(line)
        self.open.clear()
