"""Counts as the probe writes them, from run directories made by hand; two such compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tdiag.evidence.from_run import load_run
from tdiag.gate.counters import FILES_OPENED, PYTHON_CALLS, TORCH_CALLS, Counter, counters
from tdiag.gate.offline import RUN_TO_RUN, compare_runs
from tests.evidence.making import MS, Run, loader, plain


def ops(run: Run, number: int, *lines: tuple[str, int, int, int], steps: int = 2) -> None:
    """(file, line, calls, items), of all steps together."""
    rows: list[dict[str, Any]] = [
        {"at": [file, line, "loss_of"], "phase": "loss", "calls": calls, "grad_calls": 0,
         "conversions": {"item": items} if items else {}, "constructions": 0, "elapsed": 0,
         "in_loop": True}
        for file, line, calls, items in lines
    ]  # fmt: skip
    run.add("ops", steps=steps, lines=rows, syncs=None)
    run.lines[-1]["pass"] = number


def read(run: Run, root: Path, source: bool = True) -> dict[str, Counter]:
    folder = run.write()
    return counters(folder, load_run(folder), root, source)


def test_counts_are_per_step_and_by_line(tmp_path: Path) -> None:
    source = tmp_path / "loss.py"
    source.write_text("def loss_of(y):\n    total = y.sum().item()\n")
    run = Run(tmp_path / "run").steps(5, plain)
    ops(run, 1, (str(source), 2, 256, 128))
    run.add("calls", steps=2, rows=[], total=300)
    found = read(run, tmp_path)
    item = found[".item()"]
    assert (item.low, item.high) == (64, 64)
    (line,) = item.lines.values()
    assert line.key == "loss.py: loss_of: total = y.sum().item()"
    assert line.place is not None and line.place.line == 2
    assert found[TORCH_CALLS].high == 128 and found[PYTHON_CALLS].low == 150
    assert found[".tolist()"].high == 0  # counted, and never seen: one that comes is told


def test_what_varies_is_a_range(tmp_path: Path) -> None:
    run = Run(tmp_path / "run").steps(5, plain)
    ops(run, 1, ("/u/loss.py", 2, 100, 0))
    ops(run, 2, ("/u/loss.py", 2, 140, 0))
    loader(run)
    for opens in (3, 9):
        run.add("fetch", loader=0, worker=None, t=run.now, wall=MS, opens=opens)
    found = read(run, tmp_path)
    assert (found[TORCH_CALLS].low, found[TORCH_CALLS].high) == (50, 70)
    assert (found[FILES_OPENED].low, found[FILES_OPENED].high) == (3, 9)


def test_without_its_window_a_counter_is_absent(tmp_path: Path) -> None:
    found = read(Run(tmp_path / "run").steps(5, plain), tmp_path)
    assert TORCH_CALLS not in found and PYTHON_CALLS not in found


def slower(run: Run, number: int = 0) -> None:
    plain(run)
    run.gap(15)


def runs(tmp_path: Path, step: Any = plain, items: int = 0, count: int = 40) -> tuple[Path, Path]:
    """Two finished runs of 30 ms a step; the second as told, its file edited meanwhile."""
    before, now = (Run(tmp_path / name) for name in ("before", "now"))
    before.steps(count, plain)
    now.steps(count, step)
    ops(before, 1, ("/gone/train.py", 5, 20, 0))
    ops(now, 1, ("/gone/train.py", 7, 20 + items, items))
    return before.write(cwd="/gone"), now.write(cwd="/gone")


def test_two_runs_alike_pass(tmp_path: Path) -> None:
    outcome = compare_runs(*runs(tmp_path), RUN_TO_RUN, 0.05)
    assert outcome.verdict == "pass" and outcome.counters == ()
    assert outcome.step is not None and outcome.step.ratio == 1.0


def test_a_step_half_as_long_again_is_told_with_its_component(tmp_path: Path) -> None:
    outcome = compare_runs(*runs(tmp_path, slower), RUN_TO_RUN, 0.05)
    assert outcome.verdict == "regressed" and "+50.0%" in outcome.reasons[0]
    assert outcome.components[0].difference == 15 * MS


def test_a_count_is_named_by_function_since_lines_of_then_are_gone(tmp_path: Path) -> None:
    outcome = compare_runs(*runs(tmp_path, items=512), RUN_TO_RUN, 0.05)
    assert outcome.verdict == "regressed"
    assert outcome.reasons[0] == "train.py:7 makes 256 more .item() calls a step (0 → 256)"
    calls = next(c for c in outcome.counters if c.name == TORCH_CALLS)
    assert [(line.before, line.now) for line in calls.lines] == [(10, 266)]


def test_few_clean_steps_are_no_time(tmp_path: Path) -> None:
    outcome = compare_runs(*runs(tmp_path, slower, count=10), RUN_TO_RUN, 0.05)
    assert outcome.verdict == "pass" and outcome.step is None
    assert "fewer than 20 clean steps" in outcome.why_no_step
