"""TD228 beyond its example: who works while the training waits, and who then speaks."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import loaders, stack, system, threads

Line = TypeVar("Line", StackLine, OpLine)


def found(code: str, evidence: Evidence) -> Finding | None:
    result = run_rule(find(code), evidence)
    return result if isinstance(result, Finding) else None


def pooled(cores_used: float) -> Evidence:
    """40 % of the step in a wait for a thread; all cores that the program uses."""
    return find("TD226").fires().add(system(cores_used=cores_used), threads(1))


def test_a_pool_is_awaited_if_its_processes_work() -> None:
    working, idle = pooled(1.0), pooled(0.7)
    pool = found("TD228", working)
    assert pool is not None and pool.cls == "cpu"
    assert found("TD226", working) is None
    assert found("TD228", idle) is None
    assert found("TD226", idle) is not None


def test_own_threads_and_loader_workers_are_no_other_process() -> None:
    working = pooled(1.0)
    clean = working.get(Phases)
    assert clean is not None
    assert found("TD228", working.add(replace(clean, beside_ns=0.3 * 63e6))) is None
    assert found("TD228", pooled(1.0).add(loaders(num_workers=2))) is None


@pytest.mark.parametrize(
    "leaf",
    [
        "Connection._recv (multiprocessing/connection.py)",
        "SocketIO.readinto (python3.11/socket.py)",
        "SSLSocket.read (python3.11/ssl.py)",
        "Popen.wait (python3.11/subprocess.py)",
    ],
)
def test_what_is_outside_of_the_process_need_not_be_seen_to_work(leaf: str) -> None:
    evidence = find("TD228").fires()
    seen = evidence.get(Stacks)
    assert seen is not None
    line = replace(seen.training[0], leaf=leaf)
    evidence.add(replace(seen, training=(line, *seen.training[1:])), system(cores_used=None))
    finding = found("TD228", evidence)
    assert finding is not None and finding.cls == "input"
    # 40 % of the step hides behind the rest, within the sampling error: at most 1.72 and noise.
    assert finding.speedup is not None and 1.7 < finding.speedup.high < 2.3


@pytest.mark.parametrize(
    ("cores_used", "advice"), [(1.0, "Ask for the next"), (1.5, "Let more processes")]
)
def test_a_process_that_already_works_ahead_is_not_asked_earlier(
    cores_used: float, advice: str
) -> None:
    """It waits for 40 % of the step and computes for 60 %: beyond that are other processes."""
    finding = found("TD228", pooled(cores_used))
    assert finding is not None and finding.fix.text.startswith(advice)


def test_a_call_that_asks_and_waits_leaves_the_pool_idle_for_the_rest(tmp_path: Path) -> None:
    """Four processes use 1.6 cores on average, all of it during the wait."""
    script = tmp_path / "train.py"
    script.write_text("\n" * 53 + "items = pool.map(make, rows)\n")
    evidence = pooled(2.2)
    seen, counted = evidence.get(Stacks), evidence.get(Ops)
    assert seen is not None and counted is not None
    evidence.add(replace(seen, training=tuple(moved(x, script) for x in seen.training)))
    evidence.add(replace(counted, lines=tuple(moved(x, script) for x in counted.lines)))
    finding = found("TD228", evidence)
    assert finding is not None and finding.fix.text.startswith("Ask for the next")


def moved(line: Line, script: Path) -> Line:
    return replace(line, at=replace(line.at, file=str(script)))


def test_without_a_free_core_both_share_one() -> None:
    full = system(cores_allowed=1.0, cores_used=0.99)
    finding = found("TD228", find("TD228").fires().add(full))
    assert finding is not None and finding.speedup is not None
    assert finding.speedup.low == 1.0


def test_a_line_that_waits_for_a_pipe_runs_no_python() -> None:
    line = stack(54, 0.4, "Connection._recv (multiprocessing/connection.py)", function="train")
    evidence = find("TD709").fires()
    seen = evidence.get(Stacks)
    assert seen is not None
    finding = found("TD709", evidence.add(replace(seen, training=(line, *seen.training))))
    assert finding is not None and finding.location is not None
    assert finding.location.line != 54
