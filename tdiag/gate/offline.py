"""`tdiag compare RUN_A RUN_B`: compares two finished runs, from any time and machine.

Counts are compared as in `tdiag check`. Each step time comes from one process, so they also differ
by the process and by the time of day: a difference counts only if it exceeds the difference between
two runs of one program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tdiag.diagnose import diagnose
from tdiag.diagnose.budget import make_budget
from tdiag.duel.estimate import Ratios, unpaired
from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.gate.counters import counters
from tdiag.gate.judge import Case, Measured, SideCounts, findings_of, judge
from tdiag.gate.outcome import Outcome
from tdiag.model.threshold import RUN_TO_RUN_FRAC

RUN_TO_RUN = RUN_TO_RUN_FRAC
BLOCKS = 10  # of neighbouring steps, so that the machine's drift within a run is between blocks
SETTLE = "to measure it, run both interleaved: tdiag check --against REV"
FEWEST_STEPS = 2 * BLOCKS


def compare_runs(before: Path, now: Path, threshold: float, tolerance: float) -> Outcome:
    """What differs between two run directories. Raises RunError if one cannot be read."""
    evidence = [load_run(path) for path in (before, now)]
    diagnoses = [diagnose(one) for one in evidence]
    where = [_cwd(path) for path in (before, now)]
    sides = [
        SideCounts(
            root=root,
            counters=counters(path, one, root, source=False),
            components_ns=budget.components_ns if (budget := make_budget(one)) else {},
            rules=frozenset(found.code for found in findings_of(diagnosis)),
        )
        for path, one, diagnosis, root in zip(
            (before, now), evidence, diagnoses, where, strict=True
        )
    ]
    step, why_not = _step(evidence)
    return judge(
        Case(
            command=now.name,
            against=before.name,
            threshold=threshold,
            tolerance=tolerance,
            before=sides[0],
            now=sides[1],
            step=step,
            why_no_step=why_not,
            now_findings=findings_of(diagnoses[1]),
            settle=SETTLE,
            notes=[note.text for diagnosis in diagnoses for note in diagnosis.notes],
        )
    )


def _step(evidence: Sequence[Evidence]) -> tuple[Measured | None, str]:
    """The clean steps of both runs, or why they cannot be compared."""
    found = [one.get(Steps) for one in evidence]
    before, now = found
    if before is None or now is None or min(before.count, now.count) < FEWEST_STEPS:
        return None, f"one of the runs has fewer than {FEWEST_STEPS} clean steps"
    places = [(e.hostname, e.device) for one in evidence if (e := one.get(Environment))]
    if len(set(places)) > 1:
        return None, "the runs are of two machines"
    blocks = [_blocks(before), _blocks(now)]
    means = [[[sum(block) / len(block)] for block in side] for side in blocks]
    return Measured(
        Ratios(unpaired(*blocks), unpaired(*means)),
        before_ns=before.median_ns,
        now_ns=now.median_ns,
        turns=BLOCKS,
        how=f"the clean steps of one run each, in {BLOCKS} blocks; two runs of one program differ"
        f" by up to {RUN_TO_RUN:.0%} by chance",
    ), ""


def _blocks(steps: Steps) -> list[list[int]]:
    edges = [round(i * steps.count / BLOCKS) for i in range(BLOCKS + 1)]
    return [list(steps.durations_ns[a:b]) for a, b in pairwise(edges)]


def _cwd(run_dir: Path) -> Path:
    """The working directory of the run, to which its file names are relative."""
    return Path(json.loads((run_dir / "run.json").read_text()).get("cwd") or "/")
