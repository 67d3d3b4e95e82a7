"""Inverses that are only multiplied, by the source and by the shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import ops

RULE = find("TD752")


def found(body: str, folder: Path) -> bool:
    """Of a function with this body, whose line with HERE inverts 220 × 220 for six columns."""
    source = "def heads(self, a, b):\n" + "".join(f"    {x}\n" for x in body.splitlines())
    file = folder / "train.py"
    file.write_text(source)
    number = next(n for n, x in enumerate(source.splitlines(), 1) if "HERE" in x)
    evidence = RULE.fires()
    counted = evidence.get(Ops)
    assert counted is not None
    line = counted.lines[0]
    here = replace(line.at, file=str(file), line=number)
    evidence.add(ops(replace(line, at=here), *counted.lines[1:]))
    return isinstance(run_rule(RULE, evidence), Finding)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.linalg.inv(a) @ b  # HERE", True),
        ("return b @ a.inverse().mT  # HERE", True),
        ("return torch.bmm(torch.inverse(a).transpose(1, 2), b)  # HERE", True),
        ("return torch.inverse(a).matmul(b)  # HERE", True),
        ("k = torch.linalg.inv(a)  # HERE\nreturn k @ b, k @ (b + 1)", True),
        ("k = torch.linalg.inv(a)  # HERE\nreturn k @ b, k.diagonal()", False),
        ("k = torch.linalg.inv(a)  # HERE\nreturn k", False),
        ("self.k = torch.linalg.inv(a)  # HERE\nreturn self.k @ b", False),  # may be kept
        ("return torch.linalg.inv(a).sum() + (a @ b).sum()  # HERE", False),
        ("return torch.linalg.inv(a) + a @ b  # HERE", False),
        ("return solve(a, b)  # HERE", False),
    ],
)
def test_what_is_done_with_the_inverse(body: str, expected: bool, tmp_path: Path) -> None:
    assert found(body, tmp_path) is expected


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        (((8, 220, 220), (8, 220, 55)), True),
        (((8, 220, 220), (8, 220, 56)), False),  # more than a quarter of the columns
        (((8, 6, 220), (8, 220, 220)), True),  # from the left
        (((8, 100, 220), (8, 220, 220)), False),
        (((220, 220), (220,)), True),
        (((8, 64, 64), (8, 64, 6)), False),  # of another matrix
    ],
)
def test_the_columns_that_are_needed(dims: tuple[tuple[int, ...], ...], expected: bool) -> None:
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    solving, product = work.ops
    evidence.add(replace(work, ops=(solving, replace(product, dims=dims))))
    assert isinstance(run_rule(RULE, evidence), Finding) is expected


def test_solving_for_few_columns_is_no_inverse() -> None:
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    solving, product = work.ops
    square = solving.dims[0]
    few: OpWork = replace(solving, dims=(square, (8, 220), (8, 220, 6), (8, 220, 6)))
    # Its factors are square, too, and multiplied in backward only.
    evidence.add(replace(work, ops=(few, product)))
    assert run_rule(RULE, evidence) is None
