"""Which windows a run goes through, and how long each lasts.

Two passes: a quick one over everything, since a script may run only a dozen steps, then a longer
one. In the first pass py-spy comes last, because attaching takes as long as dozens of short
steps; in the second the windows stand in the order of their worth.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Window(NamedTuple):
    """Ends after ``steps`` steps and ``seconds`` seconds, or when ``most_s`` is over."""

    name: str
    number: int  # the pass, 1 or 2
    steps: int
    seconds: float
    most_s: float


# Lengths: a median of 5 steps says where to look, the mean of 100 steps holds a ±10 % noise to
# ±1 % (σ/√n); 4 s of samples at 100 Hz are 400, a ±2.5 % share at worst (√(p(1−p)/n)). Sums,
# start-up included: about 15 s for a 2 ms step and under a minute for a 100 ms step.
FIRST = (
    Window("baseline", 1, 5, 0.0, 4.0),
    Window("trace", 1, 1, 0.0, 4.0),
    Window("calls", 1, 2, 0.0, 3.0),
    Window("ops", 1, 1, 0.0, 3.0),
    Window("sample", 1, 4, 0.5, 3.0),
    Window("syscalls", 1, 2, 0.0, 3.0),
)
SECOND = (
    Window("baseline", 2, 100, 3.0, 20.0),
    Window("sample", 2, 20, 4.0, 12.0),
    Window("trace", 2, 3, 0.0, 8.0),
    Window("calls", 2, 10, 0.5, 6.0),
    Window("ops", 2, 2, 0.0, 6.0),
    Window("syscalls", 2, 10, 1.0, 8.0),
)
# py-spy attaches within 1 to 3 s: to wait for that costs dozens of short steps, but only one or two
# of slow ones. So of these the windows stand in the order of their worth; a trace, whose events may
# take longer to write than the step took, comes last.
SLOW_NS = 1_000_000_000
# No window of the first pass holds two of such steps; where they have parts, these are taken.
LONG_NS = 4_000_000_000
SLOW = tuple(
    next(window for window in FIRST + SECOND if (window.name, window.number) == key)
    for key in (("baseline", 1), ("sample", 1), ("ops", 1), ("calls", 1), ("trace", 1),
                ("syscalls", 1), ("baseline", 2), ("sample", 2))
)  # fmt: skip
DIAGNOSE = "diagnose"
WARM_UP = Window("warmup", 1, 2, 0.0, 20.0)
WARM_UP_FRAC = 1 / 3  # of a time budget, at most: the rest is for what warming up is for

# An evaluation or a restart of the workers belongs to its epoch: the clean window is stretched
# to whole epochs where one epoch fits into its time.
WHOLE_EPOCHS = "baseline"


# For `tdiag check`: one clean window without end, of which the parent takes turns
# (capture/turns.py); and what is counted, `ops` twice so that counts that vary from step to step
# show as such.
TURNS = (Window("baseline", 1, 10**12, 1e12, 1e12),)
COUNTS = (
    Window("baseline", 1, 5, 0.0, 4.0),
    Window("ops", 1, 2, 0.0, 6.0),
    Window("calls", 1, 2, 0.0, 6.0),
    Window("trace", 1, 2, 0.0, 8.0),
    Window("ops", 2, 2, 0.0, 6.0),
)
PLANS = {DIAGNOSE: FIRST + SECOND, "turns": TURNS, "counts": COUNTS}


def warm_up(config: dict[str, Any]) -> Window:
    """Until queues have had the time to fill, or for a third of a short time budget."""
    budget_s = float(config.get("time_budget_s") or "inf")
    return WARM_UP._replace(most_s=min(WARM_UP.most_s, budget_s * WARM_UP_FRAC))


def windows(config: dict[str, Any], slow: bool = False) -> list[Window]:
    """The windows of the plan that the run asked for, in order; ``slow``: for slow steps."""
    wanted = set(config.get("windows", ())) | {"baseline"}
    if config.get("sampler") == "off":
        wanted.discard("sample")
    name = config.get("plan", DIAGNOSE)
    plan = SLOW if slow and name == DIAGNOSE else PLANS[name]
    return [w for w in plan if w.name in wanted]
