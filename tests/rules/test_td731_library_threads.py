"""A library's threads beside torch's: reported only where nothing else takes the cores."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import System, Threads
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, environment, loaders, phases, stack, stacks


@pytest.mark.parametrize(
    ("changed", "fires"),
    [
        ({}, True),
        ({"training_queued_frac": 0.02}, False),
        ({"machine_busy_cores": 2.0, "cores_used": 1.8}, False),  # another program
        ({"cores_allowed": 8.0}, False),  # a core for each thread
        ({"cores_used": None, "machine_busy_cores": None}, False),  # unknown
        ({"intra_op": 4}, False),  # torch's own: TD706
        ({"processes": 2}, False),
        ({"pools": {}}, False),
    ],
)
def test_only_threads_of_this_process_can_make_it_wait(
    changed: dict[str, Any], fires: bool
) -> None:
    evidence = find("TD731").fires()
    for kind in (System, Threads):
        fact = evidence.get(kind)
        assert fact is not None
        mine = {k: v for k, v in changed.items() if hasattr(fact, k)}
        evidence.add(replace(fact, **mine))
    assert isinstance(run_rule(find("TD731"), evidence), Finding) is fires


def test_workers_and_pythons_own_threads_take_cores_too() -> None:
    evidence = find("TD731").fires()
    assert run_rule(find("TD731"), evidence.add(loaders(num_workers=1))) is None
    evidence = find("TD731").fires()
    busy = replace(phases(prepare=37, forward=10, backward=9, optimizer=3), beside_ns=20 * MS)
    assert run_rule(find("TD731"), evidence.add(busy)) is None


def test_the_line_that_calls_the_library_is_named() -> None:
    line = replace(stack(46, 0.3, "dot (numpy/core.py)"), library="numpy")
    evidence = find("TD731").fires().add(stacks((line, stack(60, 0.5, "", "forward"))))
    found = run_rule(find("TD731"), evidence.add(environment()))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 46
    assert found.fix.intervention == "process.library_threads=1"
    assert found.summary == (
        "The training thread waits 7.08 ms per step (12%) for a core, and only this process uses"
        " them: OpenBLAS (NumPy, SciPy) has 2 threads beside torch's 2."
    )
