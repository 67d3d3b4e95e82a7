"""`tdiag check --baseline FILE`: the working tree compared with the commit of the file.

The file keeps what does not depend on the time of day: the commit, the work counters, the limits. A
step time does depend on it, also in units of fixed work, because a step does not slow down as that
work does (0.8 ms on two threads, nothing changed: +40 and +54 %; see docs/check.md). So the commit
is run next to the working tree, as with `--against`. If it cannot be run, only the counters are
judged, not the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tdiag
from tdiag.duel.side import ProgramFailed
from tdiag.errors import UsageError
from tdiag.evidence.steps import Steps
from tdiag.gate import baseline as files
from tdiag.gate.against import (
    TOLERANCE,
    CheckOptions,
    both,
    here,
    interpreter,
    side,
    timed,
    uncounted,
)
from tdiag.gate.baseline import Entry
from tdiag.gate.counters import Counter, LineCount
from tdiag.gate.counting import Counted, count
from tdiag.gate.fingerprint import this_machine
from tdiag.gate.judge import Case, SideCounts, findings_of, judge
from tdiag.gate.outcome import Outcome
from tdiag.gate.revision import head
from tdiag.launch.target import Target

THRESHOLD = 0.05  # heuristic: a baseline lasts for months, and many small slow-downs add up
LIVE = "to compare with another revision: tdiag check --against REV"
_FILES = 3  # uncommitted files to name


def limits(target: Target, path: Path) -> tuple[float, float]:
    """``max_regression`` and ``max_growth`` of the script's entry; the defaults for a new one."""
    entry = files.read(path).get(_command(target))
    return (entry.max_regression, entry.max_growth) if entry else (THRESHOLD, TOLERANCE)


def update(target: Target, path: Path, options: CheckOptions) -> str:
    """Count, and write the script's entry, keeping all others. Returns a sentence on what was
    done."""
    entries = files.read(path)  # an unreadable file is reported before the run
    at = head(path)  # read now: the user may edit files during the run
    options.progress("counting what a step does")
    counted = _counted(target, options)
    mine = side(counted, Path.cwd())
    steps = counted.evidence.get(Steps)
    entry = Entry(
        command=_command(target),
        commit=at.commit,
        uncommitted=sorted(at.uncommitted),
        machine=this_machine(counted.lead),
        max_regression=options.threshold,
        max_growth=options.tolerance,
        step_ns=steps.median_ns if steps else 0.0,
        counters={name: files.stored(c) for name, c in mine.counters.items()},
        rules=sorted(mine.rules),
        tdiag=tdiag.__version__,
    )
    files.write(path, {**entries, entry.command: entry})
    done = f"{entry.command} written to {path}"
    try:
        with both(target, _commit(entry), options.python):
            return f"{done}; checks will run commit {entry.commit[:10]} next to the working tree"
    except UsageError as error:
        return f"{done}; checks will not judge its time: {error.message}\n  {error.hint}"


def check_stored(target: Target, path: Path, options: CheckOptions) -> Outcome:
    """Whether the script has become slower than at its entry's commit, or does more work than the
    entry says. Raises UsageError if there is no entry and ProgramFailed if the script fails."""
    entry = files.read(path).get(_command(target))
    if entry is None:
        raise UsageError(f"{path} has no baseline of `{_command(target)}`",
                         "write one: the same command with --update")  # fmt: skip
    options.progress("counting what a step does")
    case = _case(path, entry, options, _counted(target, options))
    try:
        with both(target, _commit(entry), options.python) as (other, before, now):
            case = replace(case, against=f"{path} ({other.name})")
            case = timed(case, other, before, now, options)
            if case.step:
                case = replace(case, step=replace(case.step, stored_ns=entry.step_ns))
    except UsageError as error:
        case = replace(
            case, why_no_step=error.message, settle="; ".join(filter(None, (error.hint, LIVE)))
        )
    except ProgramFailed as failed:
        if failed.side != "before":
            raise
        said = failed.output.splitlines()[-1:] or [failed.message]
        why = f"the script fails at commit {entry.commit[:10]} here: {said[0]}"
        case = replace(case, why_no_step=why, settle=f"write it again: --update; {LIVE}")
    return judge(case)


def _commit(entry: Entry) -> str:
    """The commit to run next to the working tree. Raises UsageError if no commit is what was
    counted, with a hint what to do."""
    if not entry.commit:
        raise UsageError("the baseline was written outside a git repository",
                         "rewrite it inside one: --update")  # fmt: skip
    if named := entry.uncommitted[:_FILES]:
        more = ", …" if len(entry.uncommitted) > _FILES else ""
        raise UsageError(
            f"the baseline was written with uncommitted changes: {', '.join(named)}{more}",
            "commit them, then rewrite it: --update",
        )
    return entry.commit


def _case(path: Path, entry: Entry, options: CheckOptions, counted: Counted) -> Case:
    here = this_machine(counted.lead)
    notes = uncounted([counted])
    if not entry.machine.same_hardware(here):
        notes.append(f"the baseline's work was counted on another machine: {entry.machine}")
    if entry.machine.torch != here.torch:
        notes.append(f"the baseline is of torch {entry.machine.torch}, this is {here.torch}")
    root = Path.cwd()
    return Case(
        command=entry.command,
        against=str(path),
        threshold=options.threshold,
        tolerance=options.tolerance,
        before=SideCounts(root, _counters(entry), frozenset(entry.rules)),
        now=side(counted, root),
        now_findings=findings_of(counted.diagnosis),
        notes=notes,
        machine=str(here),
    )


def _counted(target: Target, options: CheckOptions) -> Counted:
    return count([here(target, interpreter(target, options.python))], options.folder)[0]


def _counters(entry: Entry) -> Mapping[str, Counter]:
    return {
        name: Counter(
            name, c.unit, c.low, c.high, {key: LineCount(key, n) for key, n in c.lines.items()}
        )
        for name, c in entry.counters.items()
    }


def _command(target: Target) -> str:
    """The words that name an entry: the script's, without the interpreter."""
    return " ".join(target.command("python")[target.kind != "launcher" :])
