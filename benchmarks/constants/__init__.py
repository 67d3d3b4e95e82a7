"""How each measured constant of tdiag is measured: one module a subject, one function a kind."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

# Shape or case → what was measured there, in the constant's unit.
Figures = dict[str, float]
# Which of the figures the constant is, or that it lies between the least and the most.
Is = Literal["least", "most", "median", "between"]

SUBJECTS = (
    "attention", "backward", "buffers", "calls", "chosen", "contracted", "covariances", "dropped",
    "gathered", "indexed", "inverses", "loading", "models", "optimizers", "penalties", "processes",
    "slices", "transforms", "twins",
)  # fmt: skip


class Measure(NamedTuple):
    run: Callable[[], Figures]
    what: Is


MEASURES: dict[str, Measure] = {}  # `module.CONSTANT` → how it is measured


def measures(**constants: Is) -> Callable[[Callable[[], Figures]], Callable[[], Figures]]:
    """Declares what a function measures: ``module__CONSTANT="least"``, ...; the first underscores
    that are two stand for the dot."""

    def declare(run: Callable[[], Figures]) -> Callable[[], Figures]:
        for name, what in constants.items():
            MEASURES[name.replace("__", ".", 1)] = Measure(run, what)
        return run

    return declare


def load() -> dict[str, Measure]:
    for subject in SUBJECTS:
        importlib.import_module(f"constants.{subject}")
    return MEASURES


def interleaved(*works: Callable[[], Any], turns: int = 7, each_s: float = 0.02) -> list[float]:
    """Median CPU time of a call of each, ns. CPU time, because other programs share the machine."""
    calls = []
    for work in works:
        work()
        began = time.process_time()
        work()
        calls.append(max(1, round(each_s / max(time.process_time() - began, 1e-6))))
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(turns):
        for work, number, times in zip(works, calls, taken, strict=True):
            began_ns = time.process_time_ns()
            for _ in range(number):
                work()
            times.append((time.process_time_ns() - began_ns) / number)
    return [statistics.median(times) for times in taken]


def times_as_fast(slow: Callable[[], Any], fast: Callable[[], Any]) -> float:
    before, after = interleaved(slow, fast)
    return before / after


def child(code: str, **environment: str) -> subprocess.Popen[str]:
    """A Python of its own, which prints what it measured."""
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE,
                            env={**os.environ, **environment})  # fmt: skip


def answers(*processes: subprocess.Popen[str]) -> list[float]:
    """The number that each prints, all running at once."""
    return [float(process.communicate()[0]) for process in processes]
