"""Measures a candidate against the untouched script, and all candidates within a time budget."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

import tdiag
from tdiag.duel.duel import Duel, duel
from tdiag.duel.estimate import Estimate, Looks, Ratios
from tdiag.duel.group import Pace, Taken
from tdiag.duel.side import Program, ProgramFailed
from tdiag.errors import TdiagError
from tdiag.model.trials import Answer, Applied, Trials, Tried
from tdiag.trial.candidate import Candidate, together
from tdiag.trial.said import BROKEN, Compared, Said, compared, heard
from tdiag.trial.sweeping import pick
from tdiag.trial.written import written

# Twice what the check can detect (tdiag/gate/against.py): a smaller gain is not worth an edit.
THRESHOLD = 0.03
# Three looks at equal distances (tdiag/duel/estimate.py). Three groups are the fewest whose
# interval (two degrees of freedom) is useful for the large gains that trials look for.
LOOKS_AT = (3, 6, 9)
# Starting two programs takes 5 to 10 s; turns that last about as long waste least.
PACE = Pace(turns=20, most_s=4.0)
CONTROL, TREATMENT = "without", "with"
SAME_START = {"TDIAG_TRIAL": "1", "PYTHONHASHSEED": "0"}
ALIKE = 0.1  # a trial is to tell a gain to a tenth of it
FEWEST_ANSWERS = 3  # in all groups; rarer calls happen in a turn only by chance


class NotApplied(Exception):
    """The first pair of processes shows that the change found nothing to change."""


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """``folder``: for the run directories, new or empty. ``progress``: prints a line of progress.
    ``original``: maps a file that the program ran to the user's own file; ``there``: the inverse,
    for an absolute path."""

    command: Sequence[str]
    cwd: Path
    folder: Path
    time_budget_s: float
    pace: Pace = PACE
    looks_at: tuple[int, ...] = LOOKS_AT
    progress: Callable[[str], None] = lambda line: None
    original: Callable[[Path], Path] = lambda path: path
    there: Callable[[str], str] = lambda path: path

    def changes(self, candidate: Candidate) -> tuple[tuple[str, str], ...]:
        """The changes, with ``FILE.py:FUNCTION`` as the running program names it."""
        texts = (text.rpartition(":") for _, text in candidate.changes)
        there = (f"{self.there(file)}{colon}{end}" if colon else end for file, colon, end in texts)
        return tuple((name, text) for (name, _), text in zip(candidate.changes, there, strict=True))

    def users(self, one: Applied) -> Applied:
        """The same, with the place in the user's own file."""
        if one.at is None:
            return one
        return replace(one, at=replace(one.at, file=str(self.original(Path(one.at.file)))))


def try_all(candidates: Sequence[Candidate], options: TrialOptions) -> Trials:
    """Try each in turn within the budget, then those that won together.

    Each gets an equal share of the remaining time, but at least three groups. A trial that would
    end too late, or leave no time to measure the winners together, is not started. Raises
    UsageError and ProgramFailed if the untouched script cannot be measured.
    """
    began_unix_ns = time.time_ns()
    until = monotonic() + options.time_budget_s
    tried: list[Tried] = []
    untried: list[str] = []
    notes: list[str] = []
    least_s = 0.0  # the shortest trial so far
    failed = False  # whether the script itself failed
    done: list[tuple[Candidate, Tried]] = []
    waiting = list(candidates)
    while waiting:
        candidate = pick(waiting, done)
        if candidate is None:
            notes.append(_turned(waiting, done))
            waiting = [one for one in waiting if one.sweep != waiting[0].sweep]
            continue
        waiting.remove(candidate)
        began = monotonic()
        left = until - began
        won_any = any(one.answer == "faster" and not one.ceiling for one in tried)
        more = 2 if won_any and not candidate.ceiling else 1
        if tried and left < more * least_s:
            untried.append(candidate.label)
            continue
        # Plus one for the trial of those that won together.
        share = max(0.0, left) / (len(waiting) + 1 + (len(candidates) > 1))
        options.progress(f"trying {candidate.label}")
        try:
            one = try_one(candidate, options, f"{len(tried) + 1}", began + share)
        except TdiagError as error:  # the script itself failed, although it ran before
            if not tried:
                raise
            notes.append(f"stopped at {candidate.label}: {error.message}")
            failed = True
            break
        tried.append(one)
        done.append((candidate, one))
        if one.groups:
            a_group_s = (monotonic() - began) / one.groups
            least_s = max(least_s, options.looks_at[0] * a_group_s)
    won = sorted(
        (pair for pair in done if pair[1].answer == "faster"),
        key=lambda pair: -pair[1].speedup,
    )
    combined = None
    if not failed:
        kept = [(candidate, result) for candidate, result in won if not result.ceiling]
        combined = _combined(kept, candidates, options, until, notes)
    if left_behind := written(options.cwd, began_unix_ns):
        notes.append(left_behind)
    return Trials(
        command=" ".join(options.command), tried=tuple(tried), together=combined,
        untried=tuple(untried), notes=tuple(notes), tdiag=tdiag.__version__,
    )  # fmt: skip


def _turned(waiting: Sequence[Candidate], done: Sequence[tuple[Candidate, Tried]]) -> str:
    """Why the other values of this sweep are not measured."""
    sweep = waiting[0].sweep
    values = ", ".join(one.changes[0][1] for one in waiting if one.sweep == sweep)
    near = ", ".join(one.changes[0][1] for one, _ in done if one.sweep == sweep)
    return f"{sweep}: the fastest of {near} lies between slower ones; not measured: {values}"


def _combined(
    won: Sequence[tuple[Candidate, Tried]], tried: Sequence[Candidate], options: TrialOptions,
    until_s: float, notes: list[str],
) -> Tried | None:  # fmt: skip
    """The winners, best first, all at once. If that fails, or certainly gains less than the best of
    them alone, the last is dropped, and the others are measured while there is time. None if there
    are fewer than two, or if the combination was already tried."""
    parts = [candidate for candidate, _ in won]
    while True:
        best = together(parts)  # a patch has no changes
        if len(best.changes) < 2 or best in tried:
            return None
        options.progress(f"trying {best.label}")
        began = monotonic()
        found = try_one(best, options, f"together-{len(parts)}", until_s)
        now = monotonic()
        works = found.answer not in ("failed", "not applied")
        if works and found.high >= won[0][1].low:
            return found
        why = f"won {found.speedup:.2f}×, less than {parts[0].label} alone"
        why = why if works else f"{found.answer}: {found.why}"
        notes.append(f"together, {best.label} {why}: dropped {parts.pop().label}")
        if now + (now - began) > until_s:
            return None


def try_one(candidate: Candidate, options: TrialOptions, name: str, until_s: float) -> Tried:
    """Raises errors of the untouched script, but not errors of the change."""
    control = Program(CONTROL, options.command, options.cwd, SAME_START, trial=())
    changed = {**SAME_START, **candidate.environment()}
    patched = candidate.patched
    treatment = Program(
        TREATMENT,
        patched.command if patched else options.command,
        patched.cwd if patched else options.cwd,
        changed,
        outside=patched.outside if patched else "",
        trial=options.changes(candidate),
    )
    base = Tried(
        change=candidate.label, ceiling=candidate.ceiling, safety=candidate.safety, answer="failed"
    )
    folder = options.folder / name

    def progress(groups: int, estimate: Estimate | None) -> None:
        first = folder / "group-1" / TREATMENT
        if groups == 1 and not patched and not heard([first]).applied:
            raise NotApplied
        so_far = f": {1 / estimate.ratio:.2f}× so far" if estimate else ""
        options.progress(f"  pair {groups} of processes (at most {options.looks_at[-1]}){so_far}")

    try:
        looks = Looks(options.looks_at, until_s)
        found = duel(control, treatment, folder, THRESHOLD, pace=options.pace, looks=looks,
                     progress=progress, clear=_clear)  # fmt: skip
    except NotApplied:
        said = heard([folder / "group-1" / TREATMENT])
        absent = [change.absent for change in candidate.loaded]
        return replace(base, answer="not applied", why="; ".join(said.refused or absent))
    except ProgramFailed as error:
        if error.side == CONTROL:
            raise
        return replace(base, why=_last_line(error.output) or error.message)
    return _result(base, found, candidate, options)


def _result(base: Tried, found: Duel, candidate: Candidate, options: TrialOptions) -> Tried:
    sides = list(zip(*found.groups, strict=True))
    said = heard([taken.run_dir for taken in sides[1]])
    estimate = judged(found.ratios, THRESHOLD)
    answer = answer_of(estimate, THRESHOLD)
    mean = estimate is found.ratios.mean
    without_ns, with_ns = (
        statistics.fmean(ns for taken in side for ns in taken.mean_ns)
        if mean
        else statistics.median(ns for taken in side for ns in taken.typical_ns)
        for side in sides
    )
    start = [statistics.median(t.start_ns for t in side) for side in sides]
    why = "; ".join((*said.unsettled, *_too_rare(said)))
    if why and answer == "no effect":
        answer = "unclear"
    losses = Compared("", "")
    if not candidate.ceiling:
        losses = compared([t.run_dir for t in sides[0]], [t.run_dir for t in sides[1]])
    if losses.text == BROKEN:  # it may be fast, but it does not train
        answer, why, losses = "failed", BROKEN, Compared("", "different")
    return replace(
        base,
        answer=answer,
        speedup=1 / estimate.ratio, low=1 / estimate.high, high=1 / estimate.low,
        step="mean" if mean else "typical",
        without_ns=without_ns, with_ns=with_ns, extra_start_ns=start[1] - start[0],
        peak_without_bytes=_peak(sides[0]), peak_with_bytes=_peak(sides[1]),
        losses=losses.text, numbers=losses.numbers, why=why, did=said.applied,
        applied=tuple(options.users(one) for one in said.places), groups=len(found.groups),
        turns=sum(len(taken.typical_ns) for taken in sides[0]),
    )  # fmt: skip


def judged(ratios: Ratios, threshold: float) -> Estimate:
    """The typical step's estimate, which is less noisy; or the mean step's, which determines a
    training's time, if only the mean is clear, if it is clear and differs from the typical step's
    by more than ``ALIKE``, or if their intervals do not overlap. A median misses what only some
    steps do (the start of an epoch, a collection of garbage: 3.9 times as fast instead of 4.7, and
    5.0 with the fix by hand), and that workers deliver batches in bursts: 8 workers made the median
    step 34 times faster, but cannot gain more than 8 times."""
    typical, mean = ratios.typical, ratios.mean
    hidden = not _beyond(typical, threshold) and _beyond(mean, threshold)
    differ = abs(math.log(mean.ratio / typical.ratio)) > math.log1p(ALIKE)
    differ = differ and answer_of(mean, threshold) != "unclear"
    apart = mean.low > typical.high or mean.high < typical.low
    return mean if hidden or differ or apart else typical


def _clear(ratios: Ratios, threshold: float) -> bool:
    return answer_of(judged(ratios, threshold), threshold) != "unclear"


def _beyond(estimate: Estimate, threshold: float) -> bool:
    return answer_of(estimate, threshold) in ("faster", "slower")


def answer_of(estimate: Estimate, threshold: float) -> Answer:
    """By the whole interval: beyond the threshold, or within it on both sides."""
    least = 1 + threshold
    if estimate.high < 1 / least:
        return "faster"
    if estimate.low > least:
        return "slower"
    return "no effect" if estimate.low >= 1 / least and estimate.high <= least else "unclear"


def _too_rare(said: Said) -> list[str]:
    """Calls that should be answered but hardly occurred."""
    if said.answers is None or said.answers >= FEWEST_ANSWERS:
        return []
    return [f"it was called {said.answers} times in the measured steps: too rarely to measure"]


def _peak(side: Sequence[Taken]) -> int | None:
    peaks = [taken.peak_bytes for taken in side if taken.peak_bytes is not None]
    return int(statistics.median(peaks)) if peaks else None


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def check_usable(candidates: Sequence[Candidate]) -> None:
    """Raises UsageError for a change that is impossible on this machine, before anything is
    started."""
    for candidate in candidates:
        candidate.environment()
