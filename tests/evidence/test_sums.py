"""Whatever the marks look like, no nanosecond is lost or counted twice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tdiag.evidence.from_run.records import ModuleRecord
from tdiag.evidence.from_run.roles import assign_roles
from tdiag.evidence.from_run.slices import StepTable, cut
from tdiag.evidence.from_run.step_phases import phase_of_slices, phases_per_step

MODULES = {n: ModuleRecord(id=n, parameters=n % 2, loss=n == 2) for n in range(4)}
BOUNDARIES = ("optimizer", "backward", "batch")


def any_marks(chance: random.Random) -> list[list[int]]:
    """Codes, nesting, order and arguments as they come; clocks mostly, not always, forward."""
    marks: list[list[int]] = []
    wall = 0
    for _ in range(chance.randrange(24)):
        wall += chance.randrange(-50, 400)
        cpu = chance.choice((-1, wall, wall // 2))
        marks.append([chance.randrange(12), wall, cpu, chance.choice((-2, -1, *range(16)))])
    return marks


def table(steps: list[tuple[int, int, list[list[int]]]]) -> StepTable:
    """From the begin and end of each step and its marks (code, wall since it began, CPU, arg)."""
    marks = [[c, begin + w, cpu, a, i] for i, (begin, _, own) in enumerate(steps)
             for c, w, cpu, a in own]  # fmt: skip
    begins, ends = np.array([step[:2] for step in steps], np.int64).T
    names = np.array(["baseline"] * len(steps))
    columns = np.array(marks, np.int64).reshape(-1, 5).T
    return StepTable(np.arange(len(steps)), begins, ends, names, *columns)


def any_steps(seed: int) -> StepTable:
    chance = random.Random(seed)
    steps, now = [], 10_000
    for _ in range(chance.randrange(1, 20)):
        length = chance.randrange(0, 5_000)
        steps.append((now, now + length, any_marks(chance)))
        now += length + chance.randrange(100)
    return table(steps)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("seed", range(60))
def test_phases_of_each_step_add_up_to_its_duration_exactly(seed: int, boundary: str) -> None:
    steps = any_steps(seed)
    timeline = cut(steps)
    roles = assign_roles(timeline, MODULES, boundary)
    phases = phase_of_slices(timeline, roles, boundary)
    table = phases_per_step(timeline, phases, timeline.ns)
    assert table.sum(axis=1).tolist() == steps.durations.tolist()
    assert (timeline.ns >= 0).all()
    assert (timeline.wall >= 0).all()


def test_every_region_that_matters_has_one_role() -> None:
    timeline = cut(any_steps(3))
    roles = assign_roles(timeline, MODULES, "optimizer")
    assert len(roles.index) == len(roles.role)
    assert (np.diff(roles.index) > 0).all()


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_steps_without_any_mark_are_all_gap(boundary: str) -> None:
    timeline = cut(table([(100 * i, 100 * i + 90, []) for i in range(3)]))
    roles = assign_roles(timeline, {}, boundary)
    phases = phase_of_slices(timeline, roles, boundary)
    assert phases_per_step(timeline, phases, timeline.ns).sum(axis=1).tolist() == [90] * 3
