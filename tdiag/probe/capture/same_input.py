"""Work that is done again: functions that return what they returned before for the same input.

Of every call that a line of the user's makes, arguments and result are compared with those of
earlier calls (:mod:`..contents`). What draws random numbers, or reads what has changed since,
returns something else; what changes its arguments does not count. Where a function and one that it
calls both repeat themselves, the outer one counts.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from ..contents import of_arguments, of_result, size_of
from ..core import now_ns
from ..models import watched_by_script
from ..patches import FILE
from ..places import is_users, place_of
from ..wire import (
    AGAIN,
    BACKWARD_BEGIN,
    BACKWARD_END,
    DIAGNOSE,
    EVAL_END,
    FORWARD_BEGIN,
    FORWARD_END,
    GC_BEGIN,
    GC_END,
    GRAD_ON,
    NEXT_BEGIN,
    ON_CPU,
    OPTIMIZER_BEGIN,
    TRAINING_MODE,
)
from .switched import ProfileCapture

if TYPE_CHECKING:
    from ..core import Probe

# Comparing takes 2 (a number) to 360 µs (a tensor of 60,000; torch 2.13, two cores), which is not
# worth it for shorter calls; a function is known as short after FEW.
SHORT_NS, FEW = 50_000, 8
MOST_CALLS = 20_000  # whose contents are kept, about 500 bytes each
MOST_OWN_NS = 1_000_000_000  # for comparing: a single step may make a million calls
MOST_LINES = 50
FETCHES, MOST_NS = 16, 1_000_000_000  # of a worker
_SKIPPED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# The phase after a mark; after any other, the next batch is made.
_PHASES = {
    NEXT_BEGIN: "data_wait", FORWARD_BEGIN: "forward", FORWARD_END: "loss",
    BACKWARD_BEGIN: "backward", BACKWARD_END: "optimizer", OPTIMIZER_BEGIN: "optimizer",
}  # fmt: skip


class _LineToFunction:
    """Of one line to one function, ns. ``inputs``: those that came again; ``answers``: their
    results, each with how much it says (:func:`..contents.of_result`); ``size``: of the largest
    result, bytes."""

    __slots__ = ("again", "again_ns", "answers", "calls", "inputs", "ns", "phase", "size")

    def __init__(self, phase: str) -> None:
        self.calls = self.again = self.ns = self.again_ns = self.size = 0
        self.answers: set[tuple[Any, float]] = set()
        self.phase = phase
        self.inputs: set[Any] = set()


class _OpenCall:
    """A call that has not returned. ``again``: the calls inside that were repetitions."""

    __slots__ = ("again", "arguments", "began", "calls", "frame", "key", "own")

    def __init__(self, frame: FrameType, arguments: Any, key: Any, calls: _LineToFunction) -> None:
        self.frame, self.arguments, self.key, self.calls = frame, arguments, key, calls
        self.again: list[tuple[_LineToFunction, Any, int, tuple[Any, float]]] = []
        self.own = self.began = 0


class InputWatch:
    """``event``: a profile function for one thread (``sys.setprofile``). ``phase``: of all that it
    sees; "": the phase of the training thread's marks."""

    def __init__(self, probe: Probe, phase: str = "") -> None:
        self.marks, self.phase = probe.marks, phase
        self.called, self.returned = probe.guard(self._called), probe.guard(self._returned)
        self.users: dict[CodeType, bool] = {}
        self.skipped: set[CodeType] = set()
        self.lengths: dict[CodeType, list[int]] = {}  # number of calls, and ns, of a function
        self.calls: dict[Any, _LineToFunction] = {}  # by the calling line, and what it calls
        self.results: dict[Any, Any] = {}  # key of a call → what it returned
        self.alive: dict[int, Any] = {}
        self.open: list[_OpenCall] = []
        self.own = 0  # time spent here, ns

    def event(self, frame: FrameType, event: str, result: Any) -> None:
        if event == "call":
            code, caller = frame.f_code, frame.f_back
            if code in self.skipped or caller is None:
                return
            users = self.users.get(caller.f_code)
            if users is None:
                users = self.users[caller.f_code] = is_users(caller)
            if users:
                self.called(frame, code, caller)
        elif event == "return" and self.open and self.open[-1].frame is frame:
            self.returned(self.open.pop(), result)

    def _called(self, frame: FrameType, code: CodeType, caller: FrameType) -> None:
        if _unwatched(code):
            self.skipped.add(code)
            return
        if self.full:
            return
        began = now_ns()
        arguments = _given(frame, code)
        code = _decorated(frame, code)
        if code in self.skipped:
            return
        key = (code, *of_arguments(arguments, self.alive))
        place = (*place_of(caller), code)
        calls = self.calls.get(place)
        if calls is None:
            calls = self.calls[place] = _LineToFunction(self._phase())
        made = _OpenCall(frame, arguments, key, calls)
        self.open.append(made)
        made.began = now_ns()
        self.own += made.began - began
        made.own = self.own

    def _returned(self, made: _OpenCall, result: Any) -> None:
        now = now_ns()
        took = now - made.began - (self.own - made.own)
        code, calls, again = made.key[0], made.calls, made.again
        length = self.lengths.setdefault(code, [0, 0])
        length[0] += 1
        length[1] += took
        if length[0] == FEW and length[1] < FEW * SHORT_NS:
            self.skipped.add(code)
        calls.calls += 1
        calls.ns += took
        if took >= SHORT_NS and (found := of_result(result)) is not None:
            unchanged = (code, *of_arguments(made.arguments, self.alive)) == made.key
            if unchanged and self.results.get(made.key) == found:
                if found[1] >= 1 or not again:  # what says little hides nothing that says more
                    again = [(calls, made.key, took, found)]
                calls.size = max(calls.size, size_of(result))
            self.results[made.key] = found if unchanged else None
        if self.open:
            self.open[-1].again += again
        else:
            for repeated, key, ns, answer in again:
                repeated.again += 1
                repeated.again_ns += ns
                repeated.inputs.add(key)
                repeated.answers.add(answer)
        self.own += now_ns() - now

    @property
    def full(self) -> bool:
        """Whether it has seen as much as it may, and sees no more."""
        return len(self.results) > MOST_CALLS or self.own > MOST_OWN_NS

    def _phase(self) -> str:
        """By the last mark; the evaluation lasts until a model trains again. A pass without
        gradients that has ended (an agent's action, a teacher) is in the phase around it."""
        log, last, ended = self.marks.log, -1, False
        for at in range(len(log) - 3, -1, -3):
            code, mode = log[at], log[at + 2] & (TRAINING_MODE | GRAD_ON)
            if code in (GC_BEGIN, GC_END, ON_CPU):
                continue
            if code == EVAL_END and last != NEXT_BEGIN:
                return self.phase or "evaluation"
            if code == FORWARD_END and last < 0:
                ended = True
                continue
            if code == FORWARD_BEGIN:
                trains = mode == TRAINING_MODE | GRAD_ON
                if last < 0 and (trains or not ended):
                    last = FORWARD_END if ended else FORWARD_BEGIN
                if trains:
                    break
                ended = False
            elif last < 0:
                last = code
        return self.phase or _PHASES.get(last, "prepare")

    def described(self) -> list[list[Any]]:
        """The field `lines` of the record, most time first."""
        known = ((place, calls) for place, calls in self.calls.items() if calls.again)
        seen = [row for row in known if sum(told for _, told in row[1].answers) >= 1]
        seen.sort(key=lambda row: -row[1].again_ns)
        return [
            [
                place[:3], _name(place[3]), calls.phase, calls.calls, calls.again,
                len(calls.inputs), calls.ns, calls.again_ns, calls.size,
            ]
            for place, calls in seen[:MOST_LINES]
        ]  # fmt: skip


def _given(frame: FrameType, code: CodeType) -> list[Any]:
    """The arguments of a call that begins, and what a closure of the script's holds besides. What a
    wrapper of the probe's holds is the probe's."""
    given = frame.f_locals
    if code.co_filename != FILE:
        return list(given.values())
    variable = bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variable]
    return [given[name] for name in names]


def _decorated(frame: FrameType, code: CodeType) -> CodeType:
    """The function that a decorator's ``wrapper(*args, **kwargs)`` calls (``torch.no_grad``): many
    functions may share the wrapper's code. Any other function's own code."""
    if code.co_filename == FILE or not code.co_flags & inspect.CO_VARKEYWORDS:
        return code
    held = (frame.f_locals[name] for name in code.co_freevars if name in frame.f_locals)
    functions = [value for value in held if isinstance(value, FunctionType)]
    return functions[0].__code__ if len(functions) == 1 else code


def _unwatched(code: CodeType) -> bool:
    """What returns nothing to compare. And what no line of the script calls: torch formats the
    stack of each operation while it looks for anomalies (by ``torch.fx.traceback``, where it has
    that)."""
    name = code.co_name
    returns = not code.co_flags & _SKIPPED and not name.startswith("<") and name != "__init__"
    formats = (traceback, sys.modules.get("torch.fx.traceback"))
    return not returns or code.co_filename in (getattr(x, "__file__", "") for x in formats)


def _name(code: CodeType) -> str:
    """Empty for a wrapper of the probe's."""
    return "" if code.co_filename == FILE else getattr(code, "co_qualname", code.co_name)


class InFetches:
    """The first fetches of a loader's first worker, which its clean steps do not see."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        wanted = probe.config.get("plan", DIAGNOSE) == DIAGNOSE
        self.left = wanted and AGAIN in probe.config.get("windows", ())  # whether to go on
        self.watch = InputWatch(probe, "data_wait")
        self.done = self.elapsed = 0

    def fetch(self, original: Any, fetcher: Any, indices: Any) -> Any:
        """``original(fetcher, indices)``, watched."""
        if sys.getprofile() is not None:  # the script's own
            self.left = False
            return original(fetcher, indices)
        began = now_ns()
        sys.setprofile(self.watch.event)
        try:
            return original(fetcher, indices)
        finally:
            sys.setprofile(None)
            self.elapsed += now_ns() - began
            self.probe.guard(self._write)()

    def _write(self) -> None:
        self.done += 1
        self.left = self.done < FETCHES and self.elapsed < MOST_NS
        if not self.left or self.done.bit_count() == 1:  # the pass may end with any of them
            self.probe.recorder.write(
                "again",
                steps=self.done,
                lines=self.watch.described(),
            )
        if not self.left:
            self.watch = InputWatch(self.probe)  # forget what was kept


class SameInputCapture(ProfileCapture):
    """Which functions the training thread calls again with the same input."""

    def start(self) -> str:
        if watched_by_script():
            return "the script watches torch itself"
        return super().start()

    def begin(self) -> None:
        self.watch = InputWatch(self.probe)
        self.whole = 0  # steps that it saw to their end
        sys.setprofile(self.watch.event)
        self.give_way_to_script()

    def step(self) -> None:
        self.whole += not self.watch.full

    def end(self, steps: int) -> None:
        self.patches.undo()
        if self.lost:
            self.skipped(self.lost)
            return
        sys.setprofile(None)
        if steps:
            self.probe.recorder.write(
                "again",
                steps=min(steps, self.whole + 1),  # the one in which it stopped
                lines=self.watch.described(),
                **{"pass": self.window.number},
            )

    def abort(self) -> None:
        self.patches.undo()
        sys.setprofile(None)
