"""The windows of a run, and how long each lasts.

Two passes: a quick one over everything, because a script may run only a dozen steps, then a longer
one. In the first pass py-spy comes last, because attaching takes as long as dozens of short steps;
in the second the windows are in order of importance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .wire import (
    AGAIN,
    BASELINE,
    CALLS,
    COUNTS,
    DIAGNOSE,
    OFF,
    OPS,
    RESIDUE,
    SAMPLE,
    SYSCALLS,
    TRACE,
    TURNS,
    WARMUP,
)


class PlannedWindow(NamedTuple):
    """Ends after ``steps`` steps and ``seconds`` seconds, or when ``most_s`` is over."""

    name: str
    number: int  # the pass, 1 or 2
    steps: int
    seconds: float
    most_s: float


# Lengths: a median of 5 steps says where to look; the mean of 100 steps reduces ±10 % noise to ±1 %
# (σ/√n); 4 s of samples at 100 Hz are 400, a ±2.5 % share at worst (√(p(1−p)/n)). In total,
# start-up included: about 15 s for a 2 ms step and under a minute for a 100 ms step.
FIRST = (
    PlannedWindow(BASELINE, 1, 5, 0.0, 4.0),
    PlannedWindow(TRACE, 1, 1, 0.0, 4.0),
    PlannedWindow(CALLS, 1, 2, 0.0, 3.0),
    PlannedWindow(OPS, 1, 1, 0.0, 3.0),
    PlannedWindow(SAMPLE, 1, 4, 0.5, 3.0),
    PlannedWindow(SYSCALLS, 1, 2, 0.0, 3.0),
)
SECOND = (
    PlannedWindow(BASELINE, 2, 100, 3.0, 20.0),
    PlannedWindow(SAMPLE, 2, 20, 4.0, 12.0),
    PlannedWindow(AGAIN, 2, 20, 1.0, 4.0),
    PlannedWindow(TRACE, 2, 3, 0.0, 8.0),
    PlannedWindow(CALLS, 2, 10, 0.5, 6.0),
    PlannedWindow(OPS, 2, 2, 0.0, 6.0),
    PlannedWindow(SYSCALLS, 2, 10, 1.0, 8.0),
)
# py-spy attaches within 1 to 3 s: waiting for it costs dozens of short steps, but only one or two
# slow ones. So for slow steps the windows are in order of importance; a trace, whose events may
# take longer to write than the step took, comes last.
SLOW_NS = 1_000_000_000
SLOW = tuple(
    next(window for window in FIRST + SECOND if (window.name, window.number) == key)
    for key in ((BASELINE, 1), (SAMPLE, 1), (OPS, 1), (CALLS, 1), (TRACE, 1),
                (SYSCALLS, 1), (BASELINE, 2), (SAMPLE, 2), (AGAIN, 2))
)  # fmt: skip
# On a device CUPTI stays attached after a trace, and steps 10 to 20 % longer have been reported
# (pytorch issue 144455, pull request 146604). So all clean steps come before it, and its
# after-effect is measured: a mean of 20 steps reduces ±10 % noise to ±2 %. py-spy, which takes
# seconds to attach, waits for the trace, without which such a run cannot be judged.
AFTER_TRACE = PlannedWindow(RESIDUE, 1, 20, 0.5, 6.0)
WARM_UP = PlannedWindow(WARMUP, 1, 2, 0.0, 20.0)
WARM_UP_FRAC = 1 / 3  # of a time budget, at most: the rest is for the windows

# An evaluation or a restart of the workers belongs to its epoch: the clean window is extended to
# whole epochs if one epoch fits into its time.
WHOLE_EPOCHS = BASELINE


# For `tdiag check`: one endless clean window, in which the parent takes turns (capture/turns.py);
# and the counting windows, `ops` twice so that counts that vary from step to step are recognised.
BY_TURNS = (PlannedWindow(BASELINE, 1, 10**12, 1e12, 1e12),)
COUNTED = (
    PlannedWindow(BASELINE, 1, 5, 0.0, 4.0),
    PlannedWindow(OPS, 1, 2, 0.0, 6.0),
    PlannedWindow(CALLS, 1, 2, 0.0, 6.0),
    PlannedWindow(TRACE, 1, 2, 0.0, 8.0),
    PlannedWindow(OPS, 2, 2, 0.0, 6.0),
)
PLANS = {DIAGNOSE: FIRST + SECOND, TURNS: BY_TURNS, COUNTS: COUNTED}


def warm_up(config: dict[str, Any]) -> PlannedWindow:
    """Until queues have had time to fill, or for a third of a short time budget."""
    budget_s = float(config.get("time_budget_s") or "inf")
    return WARM_UP._replace(most_s=min(WARM_UP.most_s, budget_s * WARM_UP_FRAC))


def windows(
    config: dict[str, Any], slow: bool = False, on_device: bool = False
) -> list[PlannedWindow]:
    """The windows of the plan that the run asked for, in order; ``slow``: for slow steps."""
    wanted = set(config.get("windows", ())) | {BASELINE}
    if config.get("sampler") == OFF:
        wanted.discard(SAMPLE)
    name = config.get("plan", DIAGNOSE)
    plan = SLOW if slow and name == DIAGNOSE else PLANS[name]
    chosen = [w for w in plan if w.name in wanted]
    return _clean_before_trace(chosen) if on_device and name == DIAGNOSE else chosen


def _clean_before_trace(plan: list[PlannedWindow]) -> list[PlannedWindow]:
    """The same windows, for a device: no clean one after a trace."""
    clean = max(n for n, window in enumerate(plan) if window.name == BASELINE) + 1
    early = [window for window in plan[:clean] if window.name in (BASELINE, CALLS, OPS)]
    late = [window for window in plan if window not in early]
    trace = next((n for n, window in enumerate(late) if window.name == TRACE), None)
    if trace is None:
        return early + late
    return [*early, late.pop(trace), AFTER_TRACE, *late]
