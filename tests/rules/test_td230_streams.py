"""Work of a stream that comes before a worker asks whose item it is, by the source."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import CallTrees
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import loaders

RULE = find("TD230")


def found(body: str, folder: Path, workers: int = 2) -> bool:
    """Of a loop over lines with this body, most of whose time goes to the line with HERE."""
    source = "def __iter__(self):\n    info = get_worker_info()\n"
    source += "    for i, line in enumerate(self.lines):\n"
    source += textwrap.indent(body, " " * 8)
    file = folder / "train.py"
    file.write_text(source)
    number = next(n for n, x in enumerate(source.splitlines(), 1) if "HERE" in x)
    evidence = RULE.fires()
    trees, known = evidence.get(CallTrees), evidence.get(Loaders)
    assert trees is not None and known is not None
    frame = replace(trees.workers[0], file=str(file), line=number)
    loader = known.loaders[0]
    evidence.add(
        CallTrees(training=(), workers=(frame,)),
        loaders(num_workers=workers, load_ns=loader.load_ns, load_cpu_ns=loader.load_cpu_ns),
    )
    return isinstance(run_rule(RULE, evidence), Finding)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("made = parse(line)  # HERE\nif i % self.world == self.rank:\n    yield made", True),
        ("made = parse(line)  # HERE\nif i % 2 != self.id:\n    continue\nyield made", True),
        ("if i % 2 != self.id:\n    continue\nyield parse(line)  # HERE", False),
        ("if i % 2 == self.id:\n    yield parse(line)  # HERE", False),
        # The work decides whose item it is.
        ("made = parse(line)  # HERE\nif made.key % 2 == self.id:\n    yield made", False),
        # Every tenth item, whoever works.
        ("made = parse(line)  # HERE\nif i % 10 == 0:\n    yield made", False),
        ("made = parse(line)  # HERE\nif made.good:\n    yield made", False),
        ("made = parse(line)  # HERE\nyield made", False),
    ],
)
def test_the_order_of_work_and_question(body: str, expected: bool, tmp_path: Path) -> None:
    assert found(body, tmp_path) is expected


def test_a_single_worker_drops_nothing(tmp_path: Path) -> None:
    body = "made = parse(line)  # HERE\nif i % self.world == self.rank:\n    yield made"
    assert not found(body, tmp_path, workers=1)
