"""TD752 beyond its example: which loops of the forward are its own, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at

POOLS = "\n" * 79 + "for g in range(groups):\n    {body}\n"


def found(tmp_path: Path, body: str, **changes: object) -> Finding | None:
    """The loop of the example, whose line 81 has this text; ``changes`` of its counts."""
    script = tmp_path / "model.py"
    script.write_text(POOLS.format(body=body))
    evidence: Evidence = find("TD752").fires()
    counted = evidence.get(Ops)
    assert counted is not None
    loop, *rest = counted.lines
    place = at(81, "pool", file=str(script))
    result = run_rule(find("TD752"), evidence.add(
        Ops(steps=2, lines=(replace(loop, at=place, **changes), *rest))
    ))  # fmt: skip
    return result if isinstance(result, Finding) else None


def test_groups_of_rows_are_added_up_in_one_call(tmp_path: Path) -> None:
    finding = found(tmp_path, "rows = batch == g")
    assert finding is not None and finding.speedup is not None
    assert finding.speedup.low > 1.1
    assert "index_add(0, batch, rows)" in finding.fix.code


def test_what_needs_the_turn_before_can_only_be_compiled(tmp_path: Path) -> None:
    finding = found(tmp_path, "h = decay * h + x[:, g]")
    assert finding is not None and finding.speedup is not None
    assert finding.speedup.low == 1.0
    assert finding.fix.code.startswith("pool = torch.compile(pool)")


@pytest.mark.parametrize(
    "changes",
    [
        {"names": {"__getitem__": 128.0, "linear": 128.0}},  # layers: TD712, TD719
        {"elapsed_ns": 256 * 130_000.0},  # the calls do work
        {"elapsed_ns": 256 * 5_000.0},  # they do none: TD701
        {"turns": 32.0},  # four times in each of 32 calls of the model
        {"in_loop": False},
        {"phase": "backward"},
    ],
    ids=["layers", "work", "no work", "turns", "no loop", "backward"],
)
def test_other_loops_are_not(tmp_path: Path, changes: dict[str, object]) -> None:
    assert found(tmp_path, "rows = batch == g") is not None
    assert found(tmp_path, "rows = batch == g", **changes) is None


def test_a_function_that_others_call_in_a_loop_has_none_itself(tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text("\n" * 80 + "rows = batch == g\n")
    evidence: Evidence = find("TD752").fires()
    counted = evidence.get(Ops)
    assert counted is not None
    lines: list[OpLine] = [replace(x, at=replace(x.at, file=str(script))) for x in counted.lines]
    assert run_rule(find("TD752"), evidence.add(Ops(steps=2, lines=tuple(lines)))) is None
