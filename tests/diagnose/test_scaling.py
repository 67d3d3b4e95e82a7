"""Where a step loses to perfect scaling: rows that add up, from made-up runs of one job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.scaling_loss import MeanBudget, compared, measured
from tdiag.evidence.from_run import load_run
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.kind import Kind
from tdiag.model.scaling import ScaledRun
from tdiag.rules.examples import device_time, environment, phases, rank_time, ranks_of
from tests.evidence.making import MS, TRAIN, Run, loader

Step = Callable[[Run, int], None]


def step(
    data: float = 2, forward: float = 8, backward: float = 10, comm: float = 0, update: float = 2
) -> Step:
    """Backward ends with a wait of ``comm`` for the other ranks."""

    def taken(run: Run, number: int) -> None:
        run.batch(data)
        run.forward(forward)
        run.backward(backward, comm)
        run.update(update)

    return taken


def job(
    folder: Path, *ranks: Step, samples: tuple[int, ...] = (), world: int = 0, seen: bool = True
) -> MeanBudget:
    """30 steps of each rank; ``samples``: in a batch of each rank, none: not counted; ``seen``:
    the ranks meet in collectives of torch.distributed."""
    for number, taken in enumerate(ranks):
        run = Run(folder, pid=100 + number, rank=number)
        run.lines[0]["world_size"] = world or len(ranks)
        loader(run)
        run.add("torch", version="2.13.0", devices=[], intra_op=1)
        if seen:
            run.add("collective", id=0, name="all_reduce", at=["/u/t.py", 9, "f"])
        run.steps(30, taken)
        for count in samples[number : number + 1]:
            run.add("fetch", t=run.now, wall=MS, loader=TRAIN, samples=count)
        if number:
            run.lines = [line for line in run.lines if line["kind"] != "window"]
            for line in run.lines:
                if line["kind"] == "steps":
                    line["w"] = "follow"
        run.write()
    evidence = load_run(folder)
    return measured(len(ranks), folder, evidence, diagnose(evidence))


def rows(run: ScaledRun) -> dict[str, float]:
    """In ms."""
    assert sum(x.ns for x in run.loss) == run.lost_ns
    return {x.row: x.ns / MS for x in run.loss}


def test_weak_scaling_loses_to_communication_late_ranks_and_slower_computing(
    tmp_path: Path,
) -> None:
    one = job(tmp_path / "1", step(), samples=(32,))
    two = job(
        tmp_path / "2",
        step(data=3, forward=9, comm=10),
        step(data=3, forward=15, comm=4),
        samples=(32, 32),
    )
    first, second = compared([one, two])
    assert (first.step_ns, first.relative, first.efficiency, first.loss) == (22 * MS, 1, 1, ())
    assert (second.step_ns, second.load, second.ideal_ns) == (34 * MS, "same", 22 * MS)
    assert second.efficiency == pytest.approx(22 / 34)
    assert second.relative == pytest.approx(2 * 22 / 34)
    found = rows(second)
    # Rank 1 waits 4 ms, which is what communication itself takes; rank 0 6 ms more for it.
    assert (found["communication"], found["waiting"]) == (4, 3)
    assert (found["input"], found["computing"], found["once_a_step"]) == (1, 4, 0)


def test_strong_scaling_halves_what_a_rank_computes_and_not_what_is_done_once(
    tmp_path: Path,
) -> None:
    one = job(tmp_path / "1", step(), samples=(32,))
    half = step(data=1, forward=4, backward=6, comm=1)
    two = job(tmp_path / "2", half, half, samples=(16, 16))
    second = compared([one, two])[1]
    assert (second.load, second.ideal_ns, second.step_ns) == ("divided", 11 * MS, 14 * MS)
    assert second.relative == pytest.approx(22 / 14)
    found = rows(second)
    assert (found["communication"], found["computing"], found["once_a_step"]) == (1, 1, 1)
    assert found["input"] == 0


def test_what_gets_faster_is_below_zero_and_the_rows_still_add_up(tmp_path: Path) -> None:
    one = job(tmp_path / "1", step(data=9), samples=(32,))
    two = job(tmp_path / "2", step(comm=2), step(comm=2), samples=(32, 32))
    assert rows(compared([one, two])[1])["input"] == -7


def test_one_rank_with_more_data_counts_as_it_is(tmp_path: Path) -> None:
    """The judged rank's batches alone would say that all have eight times as much."""
    one = job(tmp_path / "1", step(), samples=(32,))
    two = job(tmp_path / "2", step(comm=40), step(forward=47, comm=1), samples=(32, 256))
    second = compared([one, two])[1]
    assert (second.samples, second.load) == (144, "other")


def test_without_samples_there_is_no_efficiency(tmp_path: Path) -> None:
    one = job(tmp_path / "1", step(), samples=(32,))
    two = job(tmp_path / "2", step(comm=2), step(comm=2), samples=(32,))  # rank 1: unknown
    second = compared([one, two])[1]
    assert (second.step_ns, second.load) == (24 * MS, "unknown")
    assert second.samples is second.efficiency is second.relative is None
    assert second.loss == ()


def test_gradients_that_are_summed_unseen_are_not_called_computing(tmp_path: Path) -> None:
    """Backward holds what the sum takes, and nobody knows how much."""
    one = job(tmp_path / "1", step(), samples=(32,))
    two = job(tmp_path / "2", step(backward=15), step(backward=15), samples=(32, 32), seen=False)
    found = rows(compared([one, two])[1])
    assert (found["unattributed"], found["computing"]) == (5, 0)


def test_a_job_that_chooses_its_own_ranks_is_not_compared(tmp_path: Path) -> None:
    one = job(tmp_path / "1", step(), samples=(32,), world=2)
    assert one.why == "the job had 2 ranks: its script or its settings set the number"
    assert compared([one])[0].step_ns is None


def test_ranks_that_do_not_step_together_are_not_compared(tmp_path: Path) -> None:
    two = job(tmp_path, step(), step(forward=20), samples=(32, 32))
    assert two.why == "the ranks' steps could not be paired"


def on_device(world: int, step_ms: int, *extra: Kind) -> MeanBudget:
    """Clean steps of so long on a device, on which traces tell the ranks' work."""
    ns = step_ms * MS
    steps = Steps(durations_ns=(ns,) * 20, mean_ns=ns, median_ns=ns, p90_ns=ns, count=20,
                  boundary="optimizer", total_steps_seen=20)  # fmt: skip
    where = environment(device="NVIDIA H200", device_count=world, world_size=world)
    evidence = Evidence().add(where, steps, phases(forward=step_ms), *extra)
    return measured(world, Path("none"), evidence, diagnose(evidence))


def test_on_a_device_its_work_is_as_traced_and_only_the_host_is_slowed_by_the_profiler() -> None:
    traced = device_time(50, components_ns={"compute": 20 * MS, "launch": 30 * MS})
    one = on_device(1, 30, traced)
    assert (one.step_ns, dict(one.parts)) == (30 * MS, {"compute": 20 * MS, "launch": 10 * MS})
    together = replace(
        ranks_of(
            rank_time(0, 20, compute=20, comm=20, launch=30),
            rank_time(1, 12, compute=28, comm=12, launch=30),
        ),
        shortest_ns=10 * MS,
    )
    two = on_device(2, 60, together, traced)
    assert two.parts == {"compute": 24 * MS, "launch": 20 * MS}
    assert (two.together, two.communication) == (16 * MS, 10 * MS)


def test_on_a_device_that_was_not_traced_nothing_is_compared() -> None:
    assert on_device(1, 30).why == "what the device did was not traced"
    unknown = ranks_of(rank_time(0, 1, compute=9, comm=1), rank_time(1, None))
    assert on_device(2, 30, unknown).why == "what the device did was not traced"
