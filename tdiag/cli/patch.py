"""`tdiag try --patch FILE`: turns what won into a patch, measures the patch, and writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdiag.model.trials import Patch, Trials
    from tdiag.trial.measure import TrialOptions


def check_free(file: Path) -> None:
    """Raises UsageError if the patch cannot be written: there is no folder, tdiag did not write the
    existing file, or git is missing. Called before the script runs for minutes."""
    from tdiag.errors import UsageError
    from tdiag.gate.copied import root_of
    from tdiag.trial.winning_patch import marked

    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UsageError(f"--patch {file}: {'is a folder' if file.is_dir() else 'no such folder'}")
    root_of(Path.cwd())
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--patch {file}: {error.strerror}") from None
    if text and not marked(text):
        raise UsageError(f"--patch {file}: the file exists, and tdiag did not write it",
                         "name another one, or remove it")  # fmt: skip


def with_patch(
    trials: Trials, file: Path, given: TrialOptions, began_unix_ns: int, until_s: float, *,
    original: TrialOptions | None = None,
) -> Trials:  # fmt: skip
    """The trials, with the patch of the best changes, which is written to ``file`` if the patched
    script is faster. ``given``: the options of the trials; ``original``: for trials in a copy, the
    program in its own folder. A failure is reported in the patch, because the trials were
    measured."""
    from msgspec.structs import replace

    import tdiag
    from tdiag.gate.copied import root_of
    from tdiag.model.trials import Patch
    from tdiag.report.of_trials import best_of
    from tdiag.trial.winning_patch import write, written

    won = best_of(trials)
    own = original or given
    patch = Patch(why="no change won")
    if won:
        patch = write(won, root_of(own.cwd), began_unix_ns)
    if patch.diff:
        patch = _measured(patch, file, given, own, until_s)
    if not patch.diff and file.exists() and file.stat().st_size:
        patch = replace(patch, why=f"{patch.why} ({file} is from an earlier trial)")
    if patch.diff:
        try:
            file.write_bytes(written(patch, tdiag.__version__))
        except OSError as error:
            patch = replace(patch, why=f"cannot write {file}: {error.strerror}")
        else:
            patch = replace(patch, file=os.path.abspath(file))  # noqa: PTH100 - links stay
    return replace(trials, patch=patch)


def _measured(
    patch: Patch, file: Path, given: TrialOptions, own: TrialOptions, until_s: float
) -> Patch:
    """Measure the patch against the untouched script; drop its diff if it does not win. ``own``:
    the program in its own folder, of which a copy is patched."""
    import tempfile

    from msgspec.structs import replace

    from tdiag.cli.trial import patched_program
    from tdiag.errors import TdiagError
    from tdiag.trial.measure import try_one
    from tdiag.trial.winning_patch import objection

    given.progress(f"trying {file.name}: {', '.join(patch.made)} as patched")
    with tempfile.TemporaryDirectory(prefix="tdiag-patch-") as folder:
        draft = Path(folder) / file.name
        draft.write_bytes(patch.diff.encode("utf-8", "surrogateescape"))
        try:
            with patched_program(draft, own, whole=own is not given) as candidate:
                found = try_one(candidate, given, "patched", until_s)
        except TdiagError as error:
            return replace(patch, diff="", edits=(), why=f"as patched: {error.message}")
    if why := objection(found, patch):
        return replace(patch, diff="", edits=(), measured=found, why=why)
    return replace(patch, measured=found)
