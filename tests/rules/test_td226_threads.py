"""TD226 beyond its example: which thread is to blame, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, stack

ASKS = 54
PUTS = stack(47, 0.9, "Queue.put (python3.11/queue.py)", "", "_fill")


def run(*others: StackLine, asks: str = "", **changed: float) -> Finding | None:
    """A wait of 29 ms; ``asks``: where the training thread's samples before the forward end."""
    evidence: Evidence = find("TD226").fires()
    clean, seen = evidence.get(Phases), evidence.get(Stacks)
    assert clean is not None and seen is not None
    waits = replace(seen.training[0], leaf=asks or seen.training[0].leaf)
    evidence.add(replace(clean, **changed))
    evidence.add(replace(seen, others=others, training=(waits, *seen.training[1:])))
    found = run_rule(find("TD226"), evidence)
    return found if isinstance(found, Finding) else None


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ((stack(49, 0.9, "SSLSocket.read (python3.11/ssl.py)", "", "_fill"),), 49),
        ((stack(49, 0.4), stack(80, 0.4)), ASKS),  # one of them may only watch
        ((PUTS,), ASKS),  # that one waits for the training
        ((), ASKS),  # a thread that Python did not start
    ],
)
def test_the_line_is_that_of_the_thread_that_waits_for_no_thread(
    others: tuple[StackLine, ...], line: int
) -> None:
    found = run(*others)
    assert found is not None and found.location is not None
    assert found.location.line == line
    assert found.speedup is not None and found.speedup.low == 1.0


def test_a_sleep_can_be_left_out(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("while batches.full():\n    time.sleep(0.25)\n")
    line = replace(stack(2, 0.9), at=at(2, "_fill", file=str(script)))
    found = run(line)
    assert found is not None and found.speedup is not None
    assert found.speedup.low == pytest.approx(63 / (63 - 14.5), rel=0.02)
    assert "Leave out the sleep at train.py:2" in found.fix.text


@pytest.mark.parametrize(
    "instead",
    [
        {"beside_ns": 28.0 * MS},  # the other threads work: TD214, TD219
        {"beside_ns": None},  # whether they work is unknown
        {"asks": "decode (PIL/Image.py)"},  # it waits for no thread
    ],
)
def test_otherwise_other_rules_speak(instead: dict[str, float | str | None]) -> None:
    assert run(stack(49, 0.9), **instead) is None  # type: ignore[arg-type]
