"""`tdiag check --against REV`: the working tree and a revision, interleaved on one machine."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tdiag.diagnose.budget import make_budget
from tdiag.duel.duel import duel
from tdiag.duel.estimate import LOOKS, Estimate, Looks
from tdiag.duel.group import Pace, Taken
from tdiag.duel.side import Program
from tdiag.errors import UsageError
from tdiag.evidence.from_run import load_run
from tdiag.evidence.torch_ops import Ops
from tdiag.gate.counters import compare, counters
from tdiag.gate.counting import Counted, count
from tdiag.gate.fingerprint import this_machine
from tdiag.gate.judge import Case, Measured, SideCounts, findings_of, judge
from tdiag.gate.outcome import Outcome
from tdiag.gate.revision import Revision, checked_out
from tdiag.launch import preflight
from tdiag.launch.target import Target
from tdiag.units import plural

# Halfway between no change and the 3 % that turn-taking should distinguish from it.
THRESHOLD = 0.015
TOLERANCE = 0.05  # of counters: they do not vary in a step that does the same work
MOST_GROUPS_READ = 5  # for the budget, which explains but decides nothing


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """``folder``: for the evidence, new or empty. ``progress``: prints a line of progress."""

    folder: Path
    threshold: float
    tolerance: float = TOLERANCE
    python: str | None = None
    pace: Pace | None = None
    looks: Looks = LOOKS
    progress: Callable[[str], None] = lambda line: None


def check_against(target: Target, revision: str, options: CheckOptions) -> Outcome:
    """Whether the script has become slower than at ``revision``, or does more work.

    Raises UsageError for what cannot be compared and ProgramFailed if either side fails.
    """
    with both(target, revision, options.python) as (other, before, now):
        options.progress("counting what a step of each side does")
        counted = count([before, now], options.folder)
        sides = [side(c, root) for c, root in zip(counted, (other.tree, other.root), strict=True)]
        case = Case(
            command=" ".join([target.name, *target.args]),
            against=f"{other.name} ({other.commit[:10]})",
            threshold=options.threshold,
            tolerance=options.tolerance,
            before=sides[0],
            now=sides[1],
            now_findings=findings_of(counted[1].diagnosis),
            notes=uncounted(counted),
            machine=str(this_machine(counted[1].lead)),
        )
        return judge(timed(case, other, before, now, options))


@contextmanager
def both(
    target: Target, revision: str, python: str | None
) -> Iterator[tuple[Revision, Program, Program]]:
    """The script at ``revision``, checked out temporarily, and in the working tree.

    Raises UsageError if the revision, or the script in it, does not exist.
    """
    found = interpreter(target, python)
    with checked_out(revision) as other:
        where = other.moved(Path.cwd())
        if where is None or not where.is_dir():
            raise UsageError(f"{other.name} has no folder {Path.cwd().name}",
                             "run from a folder that both revisions have")  # fmt: skip
        before = Program("before", other.target(target).command(found), where,
                         other.variables(), outside=str(other.root))  # fmt: skip
        yield other, before, here(target, found)


def here(target: Target, python: str) -> Program:
    """The script in the working tree."""
    return Program("now", target.command(python), Path.cwd())


def timed(
    case: Case, other: Revision, before: Program, now: Program, options: CheckOptions
) -> Case:
    """The case with both sides' step times, interleaved. Raises the errors of :func:`duel`."""
    looks = options.looks
    if grown(case):  # then the time only explains
        looks = replace(looks, at=looks.at[:1])
    found = duel(before, now, options.folder, options.threshold, pace=options.pace, looks=looks,
                 progress=_teller(options, looks))  # fmt: skip
    pairs = found.groups
    turns = sum(len(one.typical_ns) for one, _ in pairs)
    same = () if other.changed else (f"the working tree does not differ from {other.name}",)
    return replace(
        case,
        before=_costs(case.before, [pair[0] for pair in pairs]),
        now=_costs(case.now, [pair[1] for pair in pairs]),
        step=Measured(
            ratios=found.ratios,
            before_ns=_typical_ns([pair[0] for pair in pairs]),
            now_ns=_typical_ns([pair[1] for pair in pairs]),
            turns=turns,
            how=f"{plural(len(pairs), 'group')} of fresh processes, {plural(turns, 'turn')} a side,"
            + (
                " one side after the other: the device has no room for both"
                if found.alone
                else " both sides alive at once, interleaved"
            ),
        ),
        changed=other.changed,
        notes=[*case.notes, *same],
    )


def side(counted: Counted, root: Path) -> SideCounts:
    """The counts and findings of a side's counting run."""
    return SideCounts(
        root=root,
        counters=counters(counted.run_dir, counted.evidence, root),
        rules=frozenset(found.code for found in findings_of(counted.diagnosis)),
    )


def _costs(side: SideCounts, taken: Sequence[Taken]) -> SideCounts:
    """The side with its budget, start-up time and peak memory."""
    return replace(
        side,
        components_ns=components([t.run_dir for t in taken[-MOST_GROUPS_READ:]]),
        start_ns=[t.start_ns for t in taken],
        peak_bytes=[t.peak_bytes for t in taken if t.peak_bytes is not None],
    )


def components(run_dirs: Sequence[Path]) -> Mapping[str, float]:
    """The mean budget of the clean steps of some sides, ns per step."""
    budgets = [b for run_dir in run_dirs if (b := make_budget(load_run(run_dir)))]
    names = {name for budget in budgets for name in budget.components_ns}
    return {
        name: sum(b.components_ns.get(name, 0) for b in budgets) / len(budgets)
        for name in sorted(names)
    }


def interpreter(target: Target, python: str | None) -> str:
    """The script's Python, as an absolute path."""
    checked = preflight.check(target, python)
    return os.path.abspath(checked.python) if checked.python else "python"  # noqa: PTH100


def _teller(options: CheckOptions, looks: Looks) -> Callable[[int, Estimate | None], None]:
    """Reports the progress of the groups."""

    def tell(groups: int, estimate: Estimate | None) -> None:
        so_far = f": {estimate.ratio - 1:+.1%} so far" if estimate else ""
        options.progress(
            f"group {groups} of fresh processes measured (at most {looks.at[-1]}){so_far}"
        )

    return tell


def uncounted(counted: Sequence[Counted]) -> list[str]:
    """Why there are no counts by line, if there are none."""
    reasons = {why for c in counted if (why := c.evidence.missing.get(Ops))}
    return [f"no calls were counted by line: {why}" for why in sorted(reasons)]


def grown(case: Case) -> bool:
    """Whether a counter has grown, which decides the check."""
    moved = compare(case.before.counters, case.now.counters, case.tolerance)
    return any(one.grew for one in moved)


def _typical_ns(taken: Sequence[Taken]) -> float:
    """The median over all turns, ns per step."""
    return statistics.median(ns for one in taken for ns in one.typical_ns)
