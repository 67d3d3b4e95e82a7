"""Trials of a diagnosed run: what its findings and verdict propose, kept with the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdiag.model.diagnosis import Diagnosis
    from tdiag.model.trials import Trials
    from tdiag.trial.candidate import Candidate
    from tdiag.trial.measure import TrialOptions

SAID = "several times, with its side effects (TDIAG_TRIAL=1 in its environment)"


def proposals(run_dir: Path, diagnosis: Diagnosis) -> tuple[list[Candidate], tuple[str, ...]]:
    """The fixes of its findings, best first, and after the first fix the ceiling that can refute
    the verdict; also notes on why some cannot be tried here."""
    from tdiag.diagnose.proven import ceilings_of
    from tdiag.errors import UsageError
    from tdiag.trial.candidate import parse

    fixes = dict.fromkeys(f.fix.intervention for f in diagnosis.findings if f.fix.intervention)
    parts = [_of_run(name, run_dir, diagnosis) for name in ceilings_of(diagnosis.verdict)]
    found, notes = [], []
    for text in [*list(fixes)[:1], *parts[:1], *list(fixes)[1:], *parts[1:]]:
        candidate = parse(text)
        try:
            candidate.environment()
        except UsageError as error:
            notes.append(f"not tried: {error.message}")
        else:
            found.append(candidate)
    return found, tuple(notes)


def _of_run(ceiling: str, run_dir: Path, diagnosis: Diagnosis) -> str:
    """The ceiling with its value: a loss is the function that the first finding about it names."""
    from tdiag.trial.candidate import function_at

    found = (f.location for f in diagnosis.findings if f.cls == "python_loss" and f.location)
    if ceiling != "ceiling.loss" or (place := next(found, None)) is None:
        return ceiling
    function = function_at(place, folder(run_dir))
    return f"{ceiling}={function}" if function else ceiling


def functions(run_dir: Path) -> tuple[list[Candidate], tuple[str, ...]]:
    """The run's largest functions, to be frozen; also a note if the run does not show them."""
    from tdiag.evidence.from_run import load_run
    from tdiag.evidence.sampled import CallTrees
    from tdiag.trial.large_functions import large_functions

    evidence = load_run(run_dir)
    if (trees := evidence.get(CallTrees)) is None:
        return [], (f"no function was frozen: {evidence.why_missing(CallTrees)}",)
    return large_functions(trees, folder(run_dir)), ()


def folder(run_dir: Path) -> Path:
    """The folder in which the run's program was started."""
    from tdiag.evidence.from_run import read_run

    return Path(read_run(run_dir)["cwd"])


def options(run_dir: Path, time_budget_s: float, progress: Callable[[str], None]) -> TrialOptions:
    """The options to run the same program again."""
    from tdiag.errors import UsageError
    from tdiag.evidence.from_run import read_run
    from tdiag.launch import rundir
    from tdiag.probe.wire import parts
    from tdiag.trial.measure import TrialOptions

    if len(parts(run_dir)) > 1:
        raise UsageError("the job ran on several machines, and one machine cannot start it again")
    record = read_run(run_dir)
    label = Path(str(record.get("script") or record["command"][0])).stem
    return TrialOptions(
        command=[str(word) for word in record["command"]], cwd=folder(run_dir),
        folder=rundir.create_check(label, rundir.TRIALS), time_budget_s=time_budget_s,
        progress=progress,
    )  # fmt: skip


def keep(run_dir: Path, trials: Trials) -> None:
    """Write them where every report of this run finds them. Raises RunError if that fails."""
    from tdiag.launch.rundir import write_text
    from tdiag.report.json import encode
    from tdiag.report.load import TRIALS

    write_text(run_dir / TRIALS, encode(trials))


def tried(
    candidates: Sequence[Candidate],
    given: TrialOptions,
    *,
    copy: bool = False,
    patch: Path | None = None,
) -> Trials:
    """Try all candidates, then the patch of what won, which gets an equal share of the time."""
    from tdiag.cli.trial import in_copy
    from tdiag.trial.measure import try_all

    with in_copy(given) if copy else nullcontext(given) as here:
        if not patch:
            return try_all(candidates, here)
        from tdiag.cli.patch import with_patch

        began_unix_ns, until = time.time_ns(), time.monotonic() + given.time_budget_s
        part = given.time_budget_s / (len(candidates) + 2)  # + all together, + as patched
        trials = try_all(candidates, replace(here, time_budget_s=given.time_budget_s - part))
        return with_patch(trials, patch, here, began_unix_ns, until,
                          original=given if copy else None)  # fmt: skip


def try_proposals(
    run_dir: Path, diagnosis: Diagnosis, time_budget_s: float, progress: Callable[[str], None],
    patch: Path | None,
) -> Trials:  # fmt: skip
    """Measure what the diagnosis proposes, and write what won as a patch. Every failure becomes a
    note, because the run has been diagnosed and must be reported."""
    import traceback

    from msgspec import structs

    from tdiag.errors import TdiagError
    from tdiag.model.trials import Trials

    trials = Trials(command="", tried=())
    notes: tuple[str, ...] = ()
    try:
        candidates, notes = proposals(run_dir, diagnosis)
        if candidates:
            trials = tried(candidates, options(run_dir, time_budget_s, progress), patch=patch)
        else:
            notes += ("nothing was tried: no finding proposes a change that can be switched on",)
    except TdiagError as error:
        why = [error.message, *error.hint.strip().splitlines()[-1:]]  # a traceback's last line
        notes += (f"nothing was tried: {'; '.join(why)}",)
    except KeyboardInterrupt:
        notes += ("the trials were interrupted",)
    except Exception as error:
        log = run_dir / "diagnosis-error.txt"
        log.write_text(traceback.format_exc())
        notes += (f"tdiag itself failed in the trials: {type(error).__name__}: {error} ({log})",)
    return structs.replace(trials, notes=(*trials.notes, *notes))
