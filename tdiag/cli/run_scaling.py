"""`tdiag run --scaling`: runs a job with several numbers of ranks in turn and makes one report."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tdiag.errors import TdiagError, UsageError

if TYPE_CHECKING:
    from tdiag.launch.session import Finished, RunOptions
    from tdiag.launch.target import Target
    from tdiag.model.scaling import Scaling

KEPT, PAGE = "scaling.json", "scaling.html"


def check_alone(**others: object) -> None:
    """Raises UsageError if an option is given that --scaling cannot use."""
    for name, value in others.items():
        if value:
            option = f"--{name.strip('_').replace('_', '-')}"
            raise UsageError(f"--scaling cannot be used with {option}", f"leave out {option}")


def check_local(out: str | None) -> None:
    """Raises UsageError if the runs' folder is a URL: each run would be copied separately."""
    from tdiag.launch.remote import is_url

    if out and is_url(out):
        raise UsageError("--scaling needs a folder on this machine", "specify --run-dir DIR")


def run_scaling(
    text: str, target: Target, options: RunOptions, out: Path | None, written: TextIO | None,
    *, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Returns the exit code: of the first run that failed, else 0. ``written`` also gets the JSON.
    Raises UsageError before anything is started."""
    from tdiag.cli import complain
    from tdiag.cli.conclude import shown
    from tdiag.cli.streams import say, write
    from tdiag.launch.rank_count import parse_counts, with_ranks
    from tdiag.launch.rundir import create_scaling, write_text
    from tdiag.report.json import encode
    from tdiag.report.of_scaling import document
    from tdiag.sample.limits import cores_allowed

    counts = parse_counts(text)
    targets = {count: with_ranks(target, count) for count in counts}
    cores = cores_allowed()
    notes = []
    if counts[-1] > cores:
        notes.append(f"{counts[-1]} ranks share {cores:g} cores: on a CPU they take turns")
        say(f"tdiag: {notes[0]}")
    folder = create_scaling(target.label(), out)
    ended = _launched(targets, replace(options, profiling=True), folder, quiet)
    failed = next((one for one in ended.values() if one.code), None)
    code = failed.code if failed else 0
    if not all(one.report_wanted for one in ended.values()):
        complain(TdiagError("interrupted twice: no report", f"the runs are kept: {folder}"))
        return code
    if missing := [str(count) for count in counts if count not in ended]:
        notes.append(f"a run failed, so these were not started: {', '.join(missing)} ranks")
    scaling = _compared(ended, target.command("python"), cores, notes)
    found = document(scaling)
    write_text(folder / KEPT, encode(scaling))
    if written is not None:
        written.truncate(0)
        written.write(shown("json", found, written))
    if as_json:
        write(sys.stdout, shown("json", found, sys.stdout))
        return code
    write(sys.stderr, shown("line" if quiet else "terminal", found, sys.stderr, folder))
    page = write_scaling_page(folder, scaling)
    if not quiet:
        say(f"tdiag: report page: {os.path.relpath(page)}")
    return code


def _launched(
    targets: dict[int, Target], options: RunOptions, folder: Path, quiet: bool
) -> dict[int, Finished]:
    """All runs end before any result is read, because programs must be started from a process with
    one thread. After the first failure no further run is started."""
    from tdiag.cli.streams import say
    from tdiag.launch.session import launch

    ended: dict[int, Finished] = {}
    for number, (count, target) in enumerate(targets.items(), 1):
        if not quiet:
            say(f"tdiag: {number} of {len(targets)}: {count} rank{'s' * (count > 1)}")
        ended[count] = launch(target, options, folder / f"ranks-{count}")
        if ended[count].code or not ended[count].report_wanted:
            break
    return ended


def _compared(
    ended: dict[int, Finished], command: list[str], cores: float, notes: list[str]
) -> Scaling:
    import tdiag
    from tdiag.cli.conclude import conclude
    from tdiag.diagnose.scaling_loss import MeanBudget, compared, measured
    from tdiag.evidence.from_run import load_run
    from tdiag.evidence.machine import Environment
    from tdiag.model.scaling import Scaling

    found, device = [], ""
    for count, one in ended.items():
        try:
            evidence = load_run(one.run_dir)
            diagnosis = conclude(one.run_dir, evidence)
            about = measured(count, one.run_dir, evidence, diagnosis)
            warned = [note.text for note in diagnosis.notes if note.severity == "warning"]
            notes = notes + [f"{one.run_dir.name}: {text}" for text in warned]
        except TdiagError as error:
            about = MeanBudget(ranks=count, run=str(one.run_dir), why=error.message)
        else:
            environment = evidence.get(Environment)
            device = device or (environment.device if environment else "")
        if one.code:
            about = replace(about, why=f"the program ended with exit code {one.code}")
        found.append(about)
    return Scaling(
        tdiag=tdiag.__version__, command=tuple(command), cores=cores, device=device,
        runs=compared(found), notes=tuple(notes),
    )  # fmt: skip


def write_scaling_page(folder: Path, scaling: Scaling) -> Path:
    """Raises RunError if the page cannot be written."""
    from tdiag.cli.conclude import shown
    from tdiag.launch.rundir import write_text
    from tdiag.report.of_scaling import document

    path = folder / PAGE
    write_text(path, shown("html", document(scaling), sys.stdout, folder))
    return path


def load_scaling(folder: Path) -> Scaling | None:
    """The stored result; None if the folder has none. Raises RunError if it cannot be read."""
    import msgspec

    from tdiag.errors import RunError
    from tdiag.model.scaling import Scaling

    file = folder / KEPT
    try:
        return msgspec.json.decode(file.read_bytes(), type=Scaling)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"cannot read {file}: {error}", "measure it again") from error
