"""Which calls the probe takes for repetitions of earlier ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tdiag.probe.capture import same_input
from tdiag.probe.capture.same_input import FEW, MOST_CALLS, InputWatch, SameInputCapture
from tdiag.probe.contents import MOST_PARTS, of_arguments, of_result
from tdiag.probe.core import Probe
from tdiag.probe.plan import PlannedWindow
from tdiag.probe.record import Marks
from tdiag.probe.windows import Windows
from tdiag.probe.wire import (
    BACKWARD_BEGIN,
    EVAL_END,
    FORWARD_BEGIN,
    FORWARD_END,
    GC_BEGIN,
    GC_END,
    GRAD_ON,
    NEXT_BEGIN,
    NEXT_END,
    OPTIMIZER_END,
    TRAINING_MODE,
)

LONG_S = 0.0002  # longer than what is not compared
NO_GRAD = -FORWARD_BEGIN  # of a pass without gradients
WAVE, OTHER = np.arange(1000.0), np.ones(1000)


class Bare:
    """What of the probe it needs."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.recorder: Any = None

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


class Rows(dict[str, list[int]]):
    """By what was called: calls, of them again, and different inputs of these; ``phase``: of the
    last."""

    phase = ""


def watch(body: Callable[[], object], *marks: int) -> Rows:
    probe = Bare()
    for code in marks:
        probe.marks.put((abs(code), 1, TRAINING_MODE | GRAD_ON if code == FORWARD_BEGIN else 0))
    seen, rows = InputWatch(cast(Probe, probe)), Rows()
    before = sys.getprofile()
    sys.setprofile(seen.event)
    try:
        body()
    finally:
        sys.setprofile(before)
    for place, name, phase, calls, again, inputs, *_ in seen.described():
        assert Path(place[0]).name == Path(__file__).name
        rows[name.rpartition(".")[2]], rows.phase = [calls, again, inputs], phase
    return rows


def filtered(wave: Any) -> Any:
    time.sleep(LONG_S)
    return wave.cumsum(0)


def windowed(wave: Any, start: int) -> Any:
    return filtered(wave)[start : start + 10]


def test_a_function_of_the_same_input() -> None:
    rows = watch(lambda: [filtered(wave) for wave in (WAVE, OTHER, WAVE, WAVE.copy(), OTHER)])
    assert rows == {"filtered": [5, 3, 2]}
    assert rows.phase == "prepare"


def test_the_inner_one_if_the_outer_one_differs() -> None:
    rows = watch(lambda: [windowed(WAVE, start) for start in range(4)], NEXT_BEGIN)
    assert rows == {"filtered": [4, 3, 1]}
    assert rows.phase == "data_wait"


def test_the_outer_one_if_both_repeat_themselves() -> None:
    assert watch(lambda: [windowed(WAVE, 5) for _ in range(4)]) == {"windowed": [4, 3, 1]}


def test_a_decorated_function_goes_by_its_own_name() -> None:
    @torch.no_grad()
    def short() -> None: ...

    @torch.no_grad()
    def long(wave: Any) -> Any:
        return filtered(wave)

    def body() -> None:
        for _ in range(2 * FEW):
            short()  # its wrapper is the other's, which is not short
        for _ in range(4):
            long(WAVE)

    assert watch(body) == {"long": [4, 3, 1]}


def test_torch_formatting_stacks_is_nobodys_call() -> None:
    def body() -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            for _ in range(40):
                deep(lambda: x * 2)

    def deep(call: Any, below: int = 12) -> None:
        """A long stack takes long enough to format for a call that is compared."""
        deep(call, below - 1) if below else call()

    assert watch(body) == {}


@pytest.mark.parametrize(
    ("marks", "phase"),
    [
        ((FORWARD_BEGIN, FORWARD_END), "loss"),
        ((NEXT_BEGIN, NEXT_END, GC_BEGIN, GC_END), "prepare"),
        ((OPTIMIZER_END, EVAL_END, NEXT_BEGIN, NEXT_END), "evaluation"),
        ((OPTIMIZER_END, EVAL_END, FORWARD_BEGIN, FORWARD_END, BACKWARD_BEGIN), "backward"),
        (
            (FORWARD_BEGIN, FORWARD_END, BACKWARD_BEGIN, OPTIMIZER_END, NO_GRAD, FORWARD_END),
            "prepare",
        ),  # an agent moves
        ((FORWARD_BEGIN, FORWARD_END, NO_GRAD, FORWARD_END), "loss"),  # with a teacher
        ((FORWARD_BEGIN,), "forward"),
    ],
)
def test_the_phase_is_that_of_the_last_mark(marks: tuple[int, ...], phase: str) -> None:
    assert watch(lambda: [filtered(WAVE) for _ in range(3)], *marks).phase == phase


class Counter:
    def __init__(self) -> None:
        self.state, self.seen = torch.zeros(8), [0]

    def grown(self) -> torch.Tensor:
        time.sleep(LONG_S)
        self.state = self.state + 1
        return self.state

    def counted(self, wave: Any) -> Any:
        self.seen[0] += 1
        return filtered(wave[:50]) + self.seen[0] * 0

    def looked(self) -> torch.Tensor:
        time.sleep(LONG_S)
        return self.state * 2


def augmented(wave: Any) -> Any:
    time.sleep(LONG_S)
    return wave * np.random.rand()


def doubled(wave: Any) -> Any:
    time.sleep(LONG_S)
    wave *= 1.5
    return np.zeros(3)


def length(wave: Any) -> int:
    time.sleep(LONG_S)
    return len(wave)


def drawn() -> Iterator[int]:
    for number in range(3):
        time.sleep(LONG_S)
        yield number


def scored(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    time.sleep(LONG_S)
    return net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "body",
    [
        lambda: [augmented(WAVE) for _ in range(4)],
        lambda: [doubled(wave) for wave in [np.ones(9)] * 4],
        lambda: [length(WAVE) for _ in range(4)],  # another list is as long
        lambda: [list(drawn()) for _ in range(4)],
        lambda: [torch.nn.Linear(90, 90) for _ in range(4)],
        lambda: [counter.grown() for counter in [Counter()] * 4],
        lambda: [scored(net, torch.ones(2, 3)) for net in [torch.nn.Linear(3, 9)] * 4],
    ],
)  # fmt: skip
def test_what_is_none(body: Callable[[], object]) -> None:
    assert watch(body) == {}


def test_a_method_that_changes_its_object_repeats_only_what_it_calls() -> None:
    rows = watch(lambda: [counter.counted(WAVE) for counter in [Counter()] * 4])
    assert rows == {"filtered": [4, 3, 1]}
    assert watch(lambda: [x.looked() for x in [Counter()] * 4]) == {"looked": [4, 3, 1]}


@torch.no_grad()
def test_a_model_repeats_itself_until_its_weights_change() -> None:
    net, x = torch.nn.Linear(3, 9), torch.ones(2, 3)

    def train_once() -> None:
        for turn in range(4):
            if turn == 3:
                net.weight += 1
            scored(net, x)

    assert watch(train_once) == {"scored": [4, 2, 1]}


def test_short_functions_are_soon_left_alone() -> None:
    def short(number: int) -> list[int]:
        return [number]

    seen = InputWatch(cast(Probe, Bare()))
    before = sys.getprofile()
    sys.setprofile(seen.event)
    try:
        for number in range(FEW * 3):
            short(number)
    finally:
        sys.setprofile(before)
    assert short.__code__ in seen.skipped
    assert all(calls.calls == FEW for calls in seen.calls.values())


A, B = torch.arange(2000.0), torch.arange(2000.0)
B[3] = 9.0  # not among the numbers of the sample


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (A, A.clone(), True),
        (A, B, False),
        (A, A.double(), False),
        (A, A.view(2, 1000), False),
        (A.view(2, 1000).T, A.view(2, 1000).T.contiguous(), True),
        (np.array([1.0, float("nan")]), np.array([1.0, float("nan")]), True),
        (np.array(["a", "b"]), np.array(["a", "c"]), False),
        (np.float32(2), np.float32(3), False),
        ("text", "tex" + "t", True),
        ([1, {"a": (2, A)}], [1, {"a": (2, A.clone())}], True),
        ([1, {"a": (2, A)}], [1, {"a": (2, B)}], False),
        (list(range(9 * MOST_PARTS)), list(range(1, 9 * MOST_PARTS + 1)), False),
        (Path("a"), Path("b"), False),
        (True, 1, False),
        (Counter(), Counter(), False),  # two objects
    ],
)
def test_contents(one: Any, other: Any, same: bool) -> None:
    alive: dict[int, Any] = {}
    assert (of_arguments([one], alive) == of_arguments([other], alive)) is same


def test_what_contains_itself_has_an_end() -> None:
    around: list[Any] = [1]
    around.append(around)
    counter = Counter()
    counter.seen = around
    assert of_arguments([around, counter], {}) == of_arguments([around, counter], {})


def test_a_result_of_unknown_content_is_like_no_other_and_short_ones_say_little() -> None:
    for value in (
        None,
        3,
        0.5,
        object(),
        [object()],
        A.clone().requires_grad_(),
        {"a": B.to_sparse()},
    ):
        assert of_result(value) is None
    for value in ((3, True), "runs/last.pt", {"saved": "runs/last.pt"}, [1] * 7, []):
        found = of_result(value)
        assert found is not None and found[1] < 1
    for value in ("text" * 99, A, {"loss": 0.123, "step": 3}, [1] * 8, (A, {"b": 1}), WAVE):
        found = of_result(value)
        assert found is not None and found[1] >= 1


def places(wave: Any, number: int) -> list[int]:
    time.sleep(LONG_S)
    return [number, number + int(wave[0])]


def flags(wave: Any, number: int) -> list[bool]:
    time.sleep(LONG_S)
    return [number > len(wave)] * 2


@pytest.mark.parametrize(
    ("function", "numbers", "seen"),
    [
        (places, range(4), {"places": [8, 4, 4]}),
        (places, range(3), {}),  # three lists of two numbers say too little
        (flags, range(4), {}),  # always the same answer
    ],
)
def test_short_results_count_if_many_different_ones_came_again(
    function: Callable[..., object], numbers: range, seen: dict[str, list[int]]
) -> None:
    assert watch(lambda: [function(WAVE, n) for _ in range(2) for n in numbers]) == seen


def touched(wave: Any) -> list[int]:
    filtered(wave)
    return [1]


def test_a_result_that_says_little_hides_no_other() -> None:
    assert watch(lambda: [touched(WAVE) for _ in range(4)]) == {"filtered": [4, 3, 1]}


@pytest.mark.parametrize(("most", "steps"), [(0, 1), (MOST_CALLS, 3)])
def test_steps_that_were_not_watched_do_not_count(
    most: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step fills what may be kept."""
    monkeypatch.setattr(same_input, "MOST_CALLS", most)
    written: dict[str, Any] = {}
    probe = Bare()
    probe.recorder = SimpleNamespace(write=lambda kind, **record: written.update(record))
    parts = SimpleNamespace(probe=probe, boundary=None, inspection=None)
    capture = SameInputCapture(cast(Windows, parts), cast(PlannedWindow, SimpleNamespace(number=2)))
    capture.begin()
    try:
        for _ in range(3):
            filtered(WAVE)
            capture.step()
    finally:
        capture.end(3)
    assert written["steps"] == steps
