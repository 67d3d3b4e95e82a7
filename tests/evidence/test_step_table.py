"""From the records of steps in a row to one row a step and one a mark."""

from __future__ import annotations

from tdiag.evidence.from_run.records import StepsRecord
from tdiag.evidence.from_run.slices import UNMEASURED, StepTable, step_table
from tdiag.probe.wire import FORWARD_BEGIN, FORWARD_END, NEXT_BEGIN, NEXT_END, ON_CPU, STEP_END


def marks(table: StepTable) -> list[tuple[int, ...]]:
    columns = (table.step, table.code, table.at, table.cpu, table.arg)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def test_each_step_of_a_record_begins_where_the_one_before_ended() -> None:
    log = [NEXT_BEGIN, 110, 7, NEXT_END, 120, -1, STEP_END, 150, 0]
    log += [ON_CPU, 9, 0, FORWARD_BEGIN, 160, 3, FORWARD_END, 170, 1, STEP_END, 190, 0]
    table = step_table([StepsRecord(i=4, n=2, s=100, t=190, w="ops", m=log)])
    assert table.number.tolist() == [4, 5]
    assert (table.begin.tolist(), table.end.tolist()) == ([100, 150], [150, 190])
    assert table.durations.tolist() == [50, 40]
    assert table.window.tolist() == ["ops", "ops"]
    assert marks(table) == [
        (0, NEXT_BEGIN, 110, UNMEASURED, 7),
        (0, NEXT_END, 120, UNMEASURED, -1),
        (1, FORWARD_BEGIN, 160, 9, 3),
        (1, FORWARD_END, 170, UNMEASURED, 1),
    ]


def test_what_follows_the_last_step_of_a_record_is_of_no_step() -> None:
    torn = [STEP_END, 150, 0, NEXT_BEGIN, 155, 0, NEXT_END]
    nothing = [NEXT_BEGIN, 205, 0]
    whole = [NEXT_BEGIN, 310, 1, NEXT_END, 320, 0, STEP_END, 350, 0]
    table = step_table(
        [
            StepsRecord(i=0, n=1, s=100, t=150, w="baseline", m=torn),
            StepsRecord(i=1, n=0, s=200, t=200, w="settle", m=nothing),
            StepsRecord(i=1, n=1, s=300, t=350, w="sample", m=whole),
        ]
    )
    assert table.number.tolist() == [0, 1]
    assert table.begin.tolist() == [100, 300]
    assert table.inside({"sample"}).tolist() == [False, True]
    assert [(step, at) for step, _, at, _, _ in marks(table)] == [(1, 310), (1, 320)]


def test_without_a_record_there_is_no_step() -> None:
    table = step_table([])
    assert not table and table.durations.tolist() == []
