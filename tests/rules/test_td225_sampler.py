"""TD225 beyond its example: which line it names, and what the loader's own rules say beside it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, loaders, phases, stacks, system

TORCH = "/opt/lib/torch/utils/data/dataloader.py"
Frame = tuple[str, int, int, float]  # name, the user's line or 0, caller's number, share


def evidence(*below: Frame) -> Evidence:
    asks: tuple[Frame, ...] = (
        ("main", 60, -1, 1.0), ("_SingleProcessDataLoaderIter._next_data", 0, 0, 0.7),
        ("_BaseDataLoaderIter._next_index", 0, 1, 0.6),
    )  # fmt: skip
    frames = (
        CallFrame(name=name, file=at(1).file if line else TORCH, line=line, parent=parent,
                  frac=share, user=line > 0)
        for name, line, parent, share in (*asks, *below)
    )  # fmt: skip
    step = budget(data_wait_cpu=70, forward=10, backward=20)
    return Evidence().add(
        step, phases(data_wait=70, forward=10, backward=20), system(), stacks(),
        loaders(load_ns=1 * MS, load_cpu_ns=1 * MS, collate_ns=0.1 * MS, created_at=at(40)),
        CallTrees(training=tuple(frames), workers=()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("below", "line"),
    [
        ([("Windows.__iter__", 49, 2, 0.6)], 49),
        ([("__iter__", 48, 2, 0.05), ("__iter__", 49, 2, 0.55)], 49),
        ([("__iter__", 49, 2, 0.6), ("order", 20, 3, 0.59)], 20),  # the line that does it
        ([("__iter__", 49, 2, 0.6), ("order", 20, 3, 0.3)], 49),
        ([], 40),  # torch's own sampler: where the loader is made
    ],
)
def test_it_names_the_line_that_chooses(below: list[Frame], line: int) -> None:
    found = run_rule(find("TD225"), evidence(*below))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
    assert "takes 60% of the training thread's time" in found.summary


def test_workers_are_not_the_answer_to_a_slow_sampler() -> None:
    """Of 70 ms, fetches take one."""
    assert run_rule(find("TD201"), evidence()) is None


def asked_anew(begun: int) -> Evidence:
    """`next(iter(loader))` in a step draws the order of 400,000 for a batch of 100; 14 % of the
    line's time drops the rest of it."""
    return evidence().add(
        loaders(created_at=at(40), batch_size=100, sampler_len=400_000),
        StepHistory(
            end_ns=tuple(range(100)), durations_ns=(), windows=(), clean=(),
            epochs_ns=tuple(range(begun)),
        ),
        CallTrees(
            training=(
                CallFrame(name="main", file=at(1).file, line=60, parent=-1, frac=0.74, user=True),
                CallFrame(name="_BaseDataLoaderIter._next_index", file=TORCH, line=0, parent=0,
                          frac=0.6, user=False),
                CallFrame(name="RandomSampler.__iter__", file=TORCH, line=0, parent=0, frac=0.14,
                          user=False),
            ),
            workers=(),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("begun", "anew"), [(90, True), (3, False)])
def test_a_pass_begun_in_each_step_is_kept_instead(begun: int, anew: bool) -> None:
    found = run_rule(find("TD225"), asked_anew(begun))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == (60 if anew else 40)
    assert ("all 400,000 samples" in found.summary) is anew
    assert (found.at_best_ns == 70 * MS) is anew, "all of the wait, with what drops the order"
    assert ("iterator once before the loop" in found.fix.text) is anew


def test_collections_of_an_order_that_is_dropped_go_with_it() -> None:
    clean = replace(phases(data_wait=79, forward=10, backward=20), gc_in_wait_ns=9 * MS)
    step = budget(data_wait_cpu=70, gc=9, forward=10, backward=20)
    found = run_rule(find("TD225"), asked_anew(90).add(step, clean))
    assert isinstance(found, Finding)
    assert found.at_best_ns == 79 * MS
