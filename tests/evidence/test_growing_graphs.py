"""Whether the graph of a line grows from step to step, told by two steps that were counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.memory import MemoryGrowth

from .making import Run, plain

AT = ("/u/train.py", 9, "main")
MOST = 20_000  # nodes that the probe counts at most


def graphs(folder: Path, first: int, last: int, between: int, calls: float = 10) -> int:
    """How many lines' graphs grow: of ``first`` nodes in a step, and ``last`` so many later."""
    run = Run(folder).steps(30, plain)
    for number, (step, nodes) in enumerate(((20, first), (20 + between, last)), 1):
        made = 10 if number == 1 else calls
        line = {"at": AT, "calls": made, "grad_calls": made}
        run.add("ops", steps=1, lines=[line], step=step, graphs=[[AT, nodes]], **{"pass": number})
    run.add("inspection", window="ops", step=20 + between, kept_of=1, kept_since=between)
    growth = load_run(run.write()).get(MemoryGrowth)
    assert growth is not None
    return len(growth.graphs)


@pytest.mark.parametrize(("nodes", "grown"), [(MOST, 1), (MOST - 1, 0)], ids=["most", "below"])
def test_a_graph_that_reached_the_most_that_is_counted_has_grown(
    nodes: int, grown: int, tmp_path: Path
) -> None:
    """Of 30,000 steps: fewer nodes than steps, so far as they were counted."""
    assert graphs(tmp_path, 120, nodes, between=30_000) == grown


@pytest.mark.parametrize(("nodes", "grown"), [(220, 1), (219, 0)])
def test_a_node_for_each_step_is_the_least(nodes: int, grown: int, tmp_path: Path) -> None:
    assert graphs(tmp_path, 120, nodes, between=100) == grown


def test_a_longer_sequence_is_no_graph_that_grows(tmp_path: Path) -> None:
    assert graphs(tmp_path, 120, 360, between=100, calls=30) == 0


def test_a_pass_that_ended_within_its_first_step_is_no_pass(tmp_path: Path) -> None:
    """The program ended in it; earlier versions recorded it with no step."""
    run = Run(tmp_path).steps(30, plain)
    for number, steps in enumerate((1, 0), 1):
        line = {"at": AT, "calls": 10, "grad_calls": 10}
        run.add("ops", steps=steps, lines=[line], step=20, graphs=[[AT, 9]], **{"pass": number})
    run.add("inspection", window="ops", step=20, kept_of=1, kept_since=20)
    growth = load_run(run.write()).get(MemoryGrowth)
    assert growth is not None and growth.graphs == ()
