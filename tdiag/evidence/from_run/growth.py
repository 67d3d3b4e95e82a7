"""Whether a phase of the step takes longer from step to step, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.records import LateRecord
from tdiag.evidence.from_run.roles import assign_roles
from tdiag.evidence.from_run.slices import FORWARD, Ints, cut, step_table
from tdiag.evidence.from_run.step_phases import PHASES, phase_of_slices, phases_per_step
from tdiag.evidence.from_run.timed import Timed
from tdiag.evidence.steps import PhaseGrowth, SlowingDown
from tdiag.model.threshold import MAJORITY_FRAC, NORMAL_95, NOTICEABLE_FRAC, Threshold
from tdiag.probe.wire import BASELINE

# Steps without a profiler are divided into groups, and the shortest time of each group counts,
# because disturbances only make a step longer.
GROUPS = Threshold(
    8,
    "groups of steps",
    "By arithmetic: each half of eight groups has six pairs and so six slopes; each half of six has"
    " three.",
)
LEAST_IN_GROUP = Threshold(
    5,
    "steps",
    "By arithmetic: where other programs disturb half of the steps, all five are disturbed in"
    " one of 32 groups, so the shortest is nearly always undisturbed.",
)
WINDOWS_IN_GROUP = Threshold(
    3,
    "late windows",
    "By arithmetic: where other programs disturb a third of the late windows, they disturb all of"
    " one group in 27.",
)
HALF_FRAC = Threshold(
    0.5,
    "of the whole slope",
    "Heuristic: each half of the steps must grow this fast; a jump (another program began) leaves"
    " one half flat.",
)

COMPUTING = ("forward", "loss", "backward", "optimizer")
Times = npt.NDArray[np.float64] | Ints


def make_slowing_down(judged: Timed) -> SlowingDown | None:
    """From the late windows, if there are enough; None if too few steps were timed without a
    profiler."""
    process = judged.process
    late = process.all(LateRecord)
    clean_step = int(process.steps.number[judged.clean.mask][-1])
    if len(late) >= GROUPS:
        return _by_late_windows(judged, late, clean_step)
    steps = process.steps
    rows = np.flatnonzero((steps.window == BASELINE) & (steps.durations > 0))
    if len(rows) < GROUPS * LEAST_IN_GROUP:
        return None
    table = phases_per_step(judged.timeline, judged.slices, judged.timeline.ns)
    groups = np.array_split(rows, int(GROUPS))
    return SlowingDown(
        phases=_growing(steps.number, table, groups, int(GROUPS) // 2, {}),
        first_step=int(steps.number[rows[0]]),
        last_step=int(steps.number[groups[-1]].mean()),
        clean_step=clean_step,
    )


def _by_late_windows(judged: Timed, late: list[LateRecord], clean_step: int) -> SlowingDown:
    steps = step_table(late)
    timeline = cut(steps)
    roles = assign_roles(timeline, judged.modules, judged.boundary)
    phases = phase_of_slices(timeline, roles, judged.boundary)
    table = phases_per_step(timeline, phases, timeline.ns)
    begins = np.searchsorted(steps.number, [record.i for record in late])
    several = np.array_split(begins, int(max(GROUPS, len(late) // WINDOWS_IN_GROUP)))
    groups = np.split(np.arange(len(steps)), [int(part[0]) for part in several[1:]])
    first, last = int(steps.number[0]), int(steps.number[-1])
    # The windows get rarer, so halves are taken of the steps, not of the windows.
    half = sum(int(steps.number[group[0]]) < (first + last) / 2 for group in groups)
    # Without module marks (a compiled run) forward also contains the phases around it.
    known = judged.phases.wall_ns if (timeline.kind == FORWARD).any() else {}
    clean = max(1.0, float(judged.process.steps.number[judged.clean.mask].mean()))
    per_step = {name: ns / clean for name, ns in known.items()}
    again = [record.compiles[1] for record in late if record.compiles]
    return SlowingDown(
        phases=_growing(steps.number, table, groups, half, per_step),
        first_step=first,
        last_step=last,
        clean_step=clean_step,
        late=True,
        memory_bytes=_memory_growth(late),
        compiled=again[-1] - again[0] if again else 0,
    )


def _growing(
    numbers: Ints,
    table: Ints,
    groups: Sequence[Ints],
    half: int,
    per_step: dict[str, float],
) -> tuple[PhaseGrowth, ...]:
    """``numbers``: the steps' numbers; ``table``: steps × PHASES; ``half``: the first group of the
    second half; ``per_step``: phases of the clean steps, ns ÷ the number of those steps. Without
    the phases that grow less than one that grows unsteadily: what disturbs that one, such as a
    machine whose speed changes, may be all of their growth."""
    computing = np.isin(PHASES, COMPUTING)
    grown, unsteady = [], 0.0
    for number, name in enumerate(PHASES):
        chosen = [int(group[table[group, number].argmin()]) for group in groups]
        at, mine = numbers[chosen].astype(np.float64), table[chosen, number]
        slope, least, most = slope_of(at, mine)
        if least <= 0:
            continue
        beside = np.arange(len(PHASES)) != number
        rest = table[:, beside & computing].sum(axis=1)
        rest = rest if rest.any() else table[:, beside].sum(axis=1)
        # Where all of that takes longer alike, the machine does: other programs, heat.
        part = mine / np.maximum([rest[group].min() for group in groups], 1)
        if slope_of(at, part)[1] <= 0 or _falls_back(part):
            continue
        # Of a disturbance of all phases the part is free, of one of the others the time itself.
        if not (_steady(at, part, half) or _steady(at, mine, half)):
            unsteady = max(unsteady, slope)
        else:
            frac = min(1.0, least / per_step[name]) if per_step.get(name) else None
            late = min(1.0, float(np.median(least * at[half:] / mine[half:])))
            grown.append(PhaseGrowth(phase=name, slope_ns=slope, least_ns=least, most_ns=most,
                                     grown_frac=frac, late_frac=late))  # fmt: skip
    most_first = sorted(grown, key=lambda phase: -phase.slope_ns)
    return tuple(phase for phase in most_first if phase.slope_ns > unsteady)


def _steady(at: npt.NDArray[np.float64], values: Times, half: int) -> bool:
    """Each half grows, too."""
    slope = slope_of(at, values)[0]
    parts = slice(None, half), slice(half, None)
    return all(
        len(at[part]) > 2 and slope_of(at[part], values[part])[0] >= HALF_FRAC * slope
        for part in parts
    )


def _falls_back(values: Times) -> bool:
    """They lose again most of what they gained: the work starts again with each epoch, or whenever
    what it goes over is emptied."""
    parts = np.array([np.median(part) for part in np.array_split(values, int(GROUPS))])
    fall = (np.maximum.accumulate(parts) - parts).max()
    return bool(fall > MAJORITY_FRAC * np.ptp(parts))


def _memory_growth(late: list[LateRecord]) -> float:
    """Bytes per step that the process grows by, at least; 0 where that is not noticeable."""
    known = [(float(record.i), record.resident) for record in late if record.resident]
    if len(known) < GROUPS:
        return 0.0
    at, resident = np.array(known).T
    least = slope_of(at, resident)[1]
    return least if least * (at[-1] - at[0]) >= NOTICEABLE_FRAC * resident[0] else 0.0


def slope_of(x: npt.NDArray[np.float64], y: Times) -> tuple[float, float, float]:
    """Theil–Sen: the median slope of all pairs, and its 95 % interval (Sen 1968)."""
    n = len(x)
    a, b = np.triu_indices(n, 1)
    slopes = np.sort((y[b] - y[a]) / (x[b] - x[a]))
    spread = NORMAL_95 * sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, int((len(slopes) - spread) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[len(slopes) - 1 - low])
