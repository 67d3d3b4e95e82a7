"""`tdiag check --against REV`: the working tree against a revision, by turns on one machine."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tdiag.diagnose.budget import make_budget
from tdiag.duel.against import Duel, duel
from tdiag.duel.estimate import LOOKS, Estimate, Looks
from tdiag.duel.group import Pace, Taken
from tdiag.duel.side import Program
from tdiag.errors import UsageError
from tdiag.evidence.from_run import load_run
from tdiag.evidence.kinds import Ops
from tdiag.gate.counters import Counter, compare, counters
from tdiag.gate.counting import Counted, count
from tdiag.gate.judge import Case, Measured, Side, findings_of, judge
from tdiag.gate.machine import this_machine
from tdiag.gate.outcome import Outcome
from tdiag.gate.revision import Revision, checked_out
from tdiag.launch import preflight
from tdiag.launch.target import Target
from tdiag.units import plural

# Halfway between no change at all and the 3 % that turn-taking is to tell from it.
THRESHOLD = 0.015
TOLERANCE = 0.05  # of counters: they vary by nothing in a step that does the same work
MOST_GROUPS_READ = 5  # for the budget, which explains and decides nothing


@dataclass(frozen=True, kw_only=True)
class Options:
    """``folder``: where the evidence is kept, new or empty. ``told``: a line of progress."""

    folder: Path
    threshold: float
    tolerance: float = TOLERANCE
    python: str | None = None
    pace: Pace | None = None
    looks: Looks = LOOKS
    told: Callable[[str], None] = lambda line: None


def check_against(target: Target, revision: str, options: Options) -> Outcome:
    """Whether the script has become slower than at ``revision``, or does more.

    Raises UsageError for what cannot be compared and ProgramFailed where either side fails.
    """
    python = interpreter(target, options.python)
    with checked_out(revision) as other:
        where = other.moved(Path.cwd())
        if where is None or not where.is_dir():
            raise UsageError(f"{Path.cwd().name} is not a folder of {revision}",
                             "run from one that both revisions have")  # fmt: skip
        before = Program("before", other.target(target).command(python), where,
                         other.variables(), outside=str(other.root))  # fmt: skip
        now = Program("now", target.command(python), Path.cwd())
        options.told("counting what a step of each side does")
        counted = count([before, now], options.folder)
        counts = [
            counters(c.run_dir, c.evidence, root)
            for c, root in zip(counted, (other.tree, other.root), strict=True)
        ]
        options = replace(options, looks=looks(counts[0], counts[1], options))
        found = duel(before, now, options.folder, options.threshold, pace=options.pace,
                     looks=options.looks, told=teller(options))  # fmt: skip
        sides = [
            side(c, root, [pair[i] for pair in found.groups])
            for i, (c, root) in enumerate(zip(counted, (other.tree, other.root), strict=True))
        ]
        return judge(_case(target, other, options, sides, counted, found))


def side(counted: Counted, root: Path, taken: Sequence[Taken]) -> Side:
    """What a side's runs tell beside the ratio."""
    return Side(
        root=root,
        counters=counters(counted.run_dir, counted.evidence, root),
        components_ns=components([t.run_dir for t in taken[-MOST_GROUPS_READ:]]),
        rules=frozenset(found.code for found in findings_of(counted.diagnosis)),
        start_ns=[t.start_ns for t in taken],
        peak_bytes=[t.peak_bytes for t in taken if t.peak_bytes is not None],
    )


def components(run_dirs: Sequence[Path]) -> Mapping[str, float]:
    """The mean budget of some sides' clean steps, ns per step."""
    budgets = [b for run_dir in run_dirs if (b := make_budget(load_run(run_dir)))]
    names = {name for budget in budgets for name in budget.components_ns}
    return {
        name: sum(b.components_ns.get(name, 0) for b in budgets) / len(budgets)
        for name in sorted(names)
    }


def interpreter(target: Target, python: str | None) -> str:
    """The script's Python, as a path that holds in any folder."""
    checked = preflight.check(target, python)
    return os.path.abspath(checked.python) if checked.python else "python"  # noqa: PTH100


def teller(options: Options) -> Callable[[int, Estimate | None], None]:
    """Progress of the groups, in words."""

    def tell(groups: int, estimate: Estimate | None) -> None:
        so_far = f": {estimate.ratio - 1:+.1%} so far" if estimate else ""
        most = options.looks.at[-1]
        options.told(f"group {groups} of fresh processes measured (at most {most}){so_far}")

    return tell


def uncounted(counted: Sequence[Counted]) -> list[str]:
    """Why there are no counts by line, where there are none."""
    reasons = {why for c in counted if (why := c.evidence.missing.get(Ops))}
    return [f"no calls were counted by line: {why}" for why in sorted(reasons)]


def looks(before: Mapping[str, Counter], now: Mapping[str, Counter], options: Options) -> Looks:
    """One look where the counters have already decided: the time then only explains."""
    decided = any(moved.grew for moved in compare(before, now, options.tolerance))
    return replace(options.looks, at=options.looks.at[:1]) if decided else options.looks


def _case(
    target: Target, other: Revision, options: Options, sides: Sequence[Side],
    counted: Sequence[Counted], found: Duel,
) -> Case:  # fmt: skip
    pairs = found.groups
    notes = uncounted(counted)
    if not other.changed:
        notes.append(f"the working tree does not differ from {other.name}")
    return Case(
        command=" ".join([target.name, *target.args]),
        against=f"{other.name} ({other.commit[:10]})",
        threshold=options.threshold,
        tolerance=options.tolerance,
        before=sides[0],
        now=sides[1],
        step=Measured(
            ratios=found.ratios,
            before_ns=typical_ns([pair[0] for pair in pairs]),
            now_ns=typical_ns([pair[1] for pair in pairs]),
            turns=sum(len(pair[0].typical_ns) for pair in pairs),
            how=f"{counted_groups(pairs)}, both sides alive at once, taking turns",
        ),
        now_findings=findings_of(counted[1].diagnosis),
        changed=other.changed,
        notes=notes,
        machine=str(this_machine(counted[1].lead)),
    )  # fmt: skip


def counted_groups(groups: Sequence[Sequence[Taken]]) -> str:
    """``5 groups of fresh processes, 200 turns a side``."""
    turns = sum(len(group[0].typical_ns) for group in groups)
    return f"{plural(len(groups), 'group')} of fresh processes, {plural(turns, 'turn')} a side"


def typical_ns(taken: Sequence[Taken]) -> float:
    """The median over all turns, ns a step."""
    return statistics.median(ns for one in taken for ns in one.typical_ns)
