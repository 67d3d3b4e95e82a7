"""Several trainings on the same cores: what TD706 counts, and what it leaves alone."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import Busy
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.td706_thread_count_off import crowd

THREADS = find("TD706")


def foreign(wants: float, torch: bool | None = True) -> Busy:
    return Busy(pid=7, name="python3", threads=3, cores=0.4, wants=wants, torch=torch)


def test_processes_of_one_run_are_counted_together() -> None:
    found = run_rule(THREADS, crowd(2, 2))
    assert isinstance(found, Finding)
    assert found.summary.startswith("2 processes of this run train at once with 4 threads on 2")
    assert "torch.set_num_threads(1) in each process" in found.fix.text
    assert found.speedup is not None
    assert found.speedup.high > 4  # measured: 4 to 7 times


@pytest.mark.parametrize(("each", "processes", "cores"), [(1, 2, 2.0), (1, 6, 2.0), (4, 2, 8.0)])
def test_a_thread_for_each_core_is_not_too_many(each: int, processes: int, cores: float) -> None:
    """Nor are more processes than cores, of one thread each: no number of threads helps them."""
    assert run_rule(THREADS, crowd(each, processes, cores=cores)) is None


def test_another_training_of_the_machine_is_named_with_what_it_takes() -> None:
    found = run_rule(THREADS, crowd(2, 1, foreign(1.4)))
    assert isinstance(found, Finding)
    assert "1.4 of which another training needs (python3, pid 7, 3 threads)" in found.summary
    assert "torch.set_num_threads(1), or" in found.fix.text


@pytest.mark.parametrize("torch", [False, None])
def test_other_programs_come_and_go(torch: bool | None) -> None:
    """Of them the verdict's confidence tells."""
    assert run_rule(THREADS, crowd(2, 1, foreign(1.4, torch))) is None
