"""Ranks on a CPU: whom the others wait for, from everybody's clean steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_trace import trace_files
from tdiag.evidence.ranks import Beside, LateRank, Ranks
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases, Steps
from tdiag.evidence.store import Evidence
from tests.trace import making as trace

from .making import MS, Run, loader

Step = Callable[[Run, int], None]


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of several ranks are read by a child each, which takes half a second to start."""
    monkeypatch.setattr(trace_files, "in_children", lambda paths: map(trace_files.or_error, paths))


def step(data: float = 4, forward: float = 8, backward: float = 10, after: float = 1) -> Step:
    """The wait for the other rank is in ``backward``, or by hand in ``after``."""

    def taken(run: Run, number: int) -> None:
        run.batch(data)
        run.forward(forward)
        run.backward(backward)
        run.gap(after)
        run.update(2)

    return taken


def reduced(compute: float, *waits: float) -> Step:
    """Backward ends with a wait in a collective, of these in turn."""

    def taken(run: Run, number: int) -> None:
        run.forward(8)
        run.backward(compute, waits[number % len(waits)])
        run.update(2)

    return taken


def follow(run: Run) -> None:
    """Another rank leads: this one takes no windows."""
    run.lines = [line for line in run.lines if line["kind"] != "window"]
    for line in run.lines:
        if line["kind"] == "steps":
            line["w"] = "follow"


def job(
    folder: Path, *ranks: Step, ddp: bool = True, steps: int = 30, device: str = ""
) -> Evidence:
    for number, taken in enumerate(ranks):
        run = Run(folder, pid=100 + number, rank=number)
        loader(run)
        run.add("torch", version="2.13.0", devices=[device] if device else [], intra_op=1)
        if ddp:
            run.add("collective", id=0, name="DistributedDataParallel", at=["/u/t.py", 9, "f"])
            run.add("ddp", find_unused_parameters=False, parameter_bytes=4000)
        run.steps(steps, taken)
        if number:
            follow(run)
        run.write()
    return load_run(folder)


def ranks_of(evidence: Evidence) -> Ranks:
    found = evidence.get(Ranks)
    assert found is not None
    return found


def test_the_rank_that_begins_backward_last_is_waited_for_and_judged(tmp_path: Path) -> None:
    evidence = job(tmp_path, step(data=4, backward=36), step(data=30, backward=10))
    ranks = ranks_of(evidence)
    assert (ranks.slowest, ranks.waited_ns, ranks.source) == (1, 26 * MS, "baseline")
    first, second = ranks.ranks
    assert first.components_ns["comm"] == 26 * MS
    assert second.components_ns["comm"] == 0
    assert first.components_ns["backward"] == second.components_ns["backward"] == 10 * MS
    phases = evidence.get(Phases)
    assert phases is not None
    assert phases.wall_ns["data_wait"] == 30 * MS
    assert any(note.text.startswith("this report is about rank 1") for note in evidence.notes)


def test_verdict_and_finding_name_it_and_its_cause(tmp_path: Path) -> None:
    diagnosis = diagnose(job(tmp_path, step(data=4, backward=36), step(data=30, backward=10)))
    assert diagnosis.verdict.summary.startswith(
        "Rank 1 makes the other rank wait 26.0 ms per step (51%): it spends 26.0 ms more waiting"
        " for data than they do. In rank 1, 59% of the step goes to waiting for data"
    )
    found = next(f for f in diagnosis.findings if f.code == "TD902")
    assert {m.source for m in found.evidence} == {"baseline"}


def test_lines_of_another_rank_are_not_taken_for_its_own(tmp_path: Path) -> None:
    evidence = job(tmp_path, step(data=4, backward=36), step(data=30, backward=10))
    assert evidence.get(Stacks) is None
    assert evidence.missing[Stacks] == "stacks were not sampled in rank 1"
    assert evidence.get(Loaders) is not None


def about_late(folder: Path) -> LateRank:
    found = load_run(folder).get(LateRank)
    assert found is not None
    return found


@pytest.mark.usefixtures("read_here")
def test_traces_of_the_same_steps_tell_how_much_work_it_has(tmp_path: Path) -> None:
    job(tmp_path, step(backward=36), step(data=30, backward=10))
    assert about_late(tmp_path).calls is None
    traced(tmp_path, 100, 10)
    traced(tmp_path, 101, 10)
    assert about_late(tmp_path).calls == Beside(own=1, others=1)


def test_the_lead_that_saves_alone_is_named(tmp_path: Path) -> None:
    def saving(run: Run, number: int) -> None:
        step(backward=10)(run, number)
        run.pair(8, 20)

    diagnosis = diagnose(job(tmp_path, saving, step(backward=30)))
    assert "Rank 0 makes the other rank wait 20.0 ms" in diagnosis.verdict.summary
    assert "more saving checkpoints" in diagnosis.verdict.summary


def test_gradients_summed_by_hand_are_waited_for_after_backward(tmp_path: Path) -> None:
    evidence = job(tmp_path, step(forward=8, after=21), step(forward=28), ddp=False)
    ranks = ranks_of(evidence)
    assert (ranks.slowest, ranks.waited_ns) == (1, 20 * MS)


@pytest.mark.parametrize("more", [0.0, 1.0])  # of 25 ms: 4 % are not worth another rank's report
def test_where_nobody_waits_the_lead_is_judged(tmp_path: Path, more: float) -> None:
    evidence = job(tmp_path, step(backward=10 + more), step(data=4 + more))
    assert ranks_of(evidence).waited_ns == more * MS
    assert any(
        note.text.startswith("this report is about rank 0; 1 more") for note in evidence.notes
    )
    diagnosis = diagnose(evidence)
    assert "Rank" not in diagnosis.verdict.summary
    assert "TD902" not in {f.code for f in diagnosis.findings}


def test_programs_that_do_not_step_together_are_not_compared(tmp_path: Path) -> None:
    evidence = job(tmp_path, step(), step(data=9))
    assert evidence.get(Ranks) is None
    assert any(
        note.text.startswith("this report is about rank 0; 1 more") for note in evidence.notes
    )


def test_a_rank_whose_clock_is_another_is_left_out(tmp_path: Path) -> None:
    """Of another machine: none of its steps lie in the lead's windows."""
    run = Run(tmp_path, pid=101, rank=1)
    run.now = run.began = 10**9 * MS
    run.steps(30, step())
    follow(run)
    run.write()
    assert job(tmp_path, step()).get(Ranks) is None


def traced(folder: Path, pid: int, waited: float, number: int = 2) -> None:
    """A trace of a rank's: three steps of 1 ms, ``waited`` µs of them for data, 300 computing, the
    rest in a collective."""
    events = []
    for at in range(0, 3000, 1000):
        issued = at + waited
        events += [
            trace.step(at // 1000, at, 1000),
            trace.note("enumerate(DataLoader)#X.__next__", at, waited),
            trace.op("aten::mm", issued, 10),
            *trace.launched("gemm", issued, issued, 300, at + 1),
            *trace.launched(
                "ncclDevKernel_AllReduce", issued + 5, issued + 300, 700 - waited, at + 2
            ),
        ]
    name = f"{pid}.{number}.pt.trace.json"
    trace.write(folder / name, events)
    about = {"kind": "trace", "file": name, "steps": 3, "t": 0, "pass": number}
    with (folder / "events" / f"{pid}.jsonl").open("a") as file:
        file.write(json.dumps(about) + "\n")


def test_on_a_device_the_host_does_not_tell(tmp_path: Path) -> None:
    ranks = (step(data=4, backward=36), step(data=30, backward=10))
    evidence = job(tmp_path, *ranks, device="NVIDIA H200")
    assert evidence.get(Ranks) is None
    assert evidence.missing[Ranks] == "communication was traced in fewer than two ranks"
    steps = evidence.get(Steps)
    assert steps is not None
    assert steps.count == 30


def test_on_a_device_the_traces_of_the_same_steps_tell(tmp_path: Path) -> None:
    ranks = (step(data=4), step(data=4, forward=9))
    job(tmp_path, *ranks, device="NVIDIA H200")
    traced(tmp_path, 100, 10, number=1)  # of which rank 1 has none
    traced(tmp_path, 100, 10)
    traced(tmp_path, 101, 500)
    evidence = load_run(tmp_path)
    found = ranks_of(evidence)
    assert (found.slowest, found.source) == (1, "trace")
    assert found.waited_ns == pytest.approx(490_000)
    assert any(note.text.startswith("this report is about rank 1") for note in evidence.notes)
    device, phases = evidence.get(DeviceTime), evidence.get(Phases)
    assert device is not None
    assert device.components_ns["data_wait"] == pytest.approx(500_000)  # its own trace
    assert phases is not None
    assert phases.wall_ns["forward"] == 9 * MS  # its own clean steps
    diagnosis = diagnose(evidence)
    assert diagnosis.verdict.summary.startswith("Rank 1 makes the other rank wait 490 µs per step")


@pytest.mark.usefixtures("read_here")
def test_on_a_device_where_nobody_waits_the_lead_is_judged(tmp_path: Path) -> None:
    job(tmp_path, step(), step(forward=9), device="NVIDIA H200")
    traced(tmp_path, 100, 100)
    traced(tmp_path, 101, 140)
    evidence = load_run(tmp_path)
    assert ranks_of(evidence).waited_ns == pytest.approx(40_000)  # 4 %
    device = evidence.get(DeviceTime)
    assert device is not None
    assert device.components_ns["data_wait"] == pytest.approx(100_000)


@pytest.mark.usefixtures("read_here")
def test_a_late_rank_that_was_not_timed_beside_the_lead_is_not_passed_off_as_it(
    tmp_path: Path,
) -> None:
    """Another machine's clock: what rank 0 did must not be told of rank 1."""
    run = Run(tmp_path, pid=101, rank=1)
    run.now = run.began = 10**9 * MS
    run.lines[0]["unix_ns"] = 10**18
    run.steps(30, step())
    follow(run)
    run.write()
    job(tmp_path, step(), device="NVIDIA H200")
    traced(tmp_path, 100, 10)
    traced(tmp_path, 101, 500)
    evidence = load_run(tmp_path)
    assert evidence.get(Ranks) is None
    assert evidence.missing[Ranks].startswith("the traces show that the others wait for rank 1,")
    assert any(note.text.startswith("this report is about rank 0") for note in evidence.notes)


def test_what_collectives_take_is_communication_and_every_nanosecond_is_in_one_phase(
    tmp_path: Path,
) -> None:
    evidence = job(tmp_path, reduced(10, 24), reduced(10, 24))
    phases, steps = evidence.get(Phases), evidence.get(Steps)
    assert phases is not None and steps is not None
    assert phases.wall_ns["backward"] == 10 * MS
    assert phases.wall_ns["comm"] == 24 * MS
    assert sum(phases.wall_ns.values()) == steps.mean_ns
    ranks = ranks_of(evidence)
    assert (ranks.waited_ns, ranks.shortest_ns, ranks.changing_ns) == (0, 24 * MS, 0)
    diagnosis = diagnose(evidence)
    assert diagnosis.verdict.cls == "comm"
    assert not diagnosis.verdict.healthy
    found = next(f for f in diagnosis.findings if f.code == "TD903")
    assert "24.0 ms per step (55%)" in found.summary
    assert "DistributedDataParallel" in found.fix.text
    assert "TD902" not in {f.code for f in diagnosis.findings}


def test_the_rank_that_waits_least_in_collectives_is_waited_for(tmp_path: Path) -> None:
    """What it waits itself, 3 ms, is what the communication takes."""
    ranks = ranks_of(job(tmp_path, reduced(10, 23), reduced(30, 3)))
    assert (ranks.slowest, ranks.waited_ns) == (1, 20 * MS)
    assert (ranks.shortest_ns, ranks.changing_ns) == (3 * MS, 0)
    first, second = ranks.ranks
    assert (first.communication_ns, second.communication_ns) == (23 * MS, 3 * MS)
    assert first.components_ns["backward"] == 10 * MS


def test_ranks_on_a_cpu_of_which_another_is_late_each_step(tmp_path: Path) -> None:
    def turns(late: int) -> Step:
        """In every other step it computes 20 ms more, and the other rank waits for it."""

        def taken(run: Run, number: int) -> None:
            mine = number % 2 == late
            run.forward(4)
            run.backward(22 if mine else 2, 20 if mine else 40)
            run.update(2)

        return taken

    evidence = job(tmp_path, turns(0), turns(1))
    ranks = ranks_of(evidence)
    assert (ranks.waited_ns, ranks.shortest_ns, ranks.changing_ns) == (0, 20 * MS, 10 * MS)
    diagnosis = diagnose(evidence)
    assert {"TD903", "TD906"} <= {f.code for f in diagnosis.findings}
    assert "The ranks wait for each other at least 10.0 ms" in diagnosis.verdict.summary


def test_a_job_that_was_started_again_is_compared_by_the_ranks_of_one_try(tmp_path: Path) -> None:
    """The first try: rank 1 is late and made more steps than it did in the second."""
    tries = (
        (0, 40, step(data=4, backward=36), step(data=30, backward=10)),
        (9_000, 50, step(data=30, backward=10), step(data=4, backward=36)),
    )
    for begin, steps, *ranks in tries:
        for number, taken in enumerate(ranks):
            run = Run(tmp_path, pid=100 + begin + number, rank=number)
            run.lines[0].update(t=1, unix_ns=10**18)
            run.now = run.began = (1000 + begin) * MS
            loader(run)
            run.steps(steps + (30 if not begin and number else 0), taken)
            if number:
                follow(run)
            run.write()
    evidence = load_run(tmp_path)
    assert ranks_of(evidence).slowest == 0
    texts = [note.text for note in evidence.notes]
    assert "this report is about rank 0; 1 more process trained" in texts
    assert "left out: 2 processes that trained before or after the judged ones" in texts
