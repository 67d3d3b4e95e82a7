"""A copy of the user's files, with or without a patch applied.

The whole repository is copied, so that its paths and imports work; outside a repository, the
current folder. The copy is the working tree as it is, uncommitted and untracked files included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from tdiag.errors import UsageError
from tdiag.gate.revision import NOT_LINKED, Revision, git
from tdiag.launch.target import Target

STRIPS = 1, 0  # leading folders to strip from file names: a/ and b/, or none (git's -p)


@contextmanager
def patched(
    patch: Path, target: Target | None, *, here: Path | None = None, whole: bool = False
) -> Iterator[Revision]:
    """A temporary copy with the patch applied. ``changed``: the files that the patch names.
    ``here``: the folder that the program runs in, if not the current one.

    Python files, the script and files that the patch names are copied, with their folders;
    everything else (such as data) is linked, unless ``whole``. Raises UsageError if the patch does
    not exist or does not apply, and without git.
    """
    patch, here = patch.absolute(), here or Path.cwd()
    if not patch.is_file():
        raise UsageError(f"no such patch: {patch}")
    root = root_of(here)
    with _folder() as folder:
        tree = folder / (root.name or "root")
        named = {strip: _named(patch, strip, folder) for strip in STRIPS}
        files = {file for files in named.values() for file in files}
        wanted = {base / file for base in (root, here) for file in files}
        if target and (source := target.source_file()):
            wanted.add(here / source)
        wanted |= {parent for path in wanted for parent in path.parents}
        _try_copy(root, tree, None if whole else wanted)
        strip = _apply(patch, [tree, tree / here.relative_to(root)])
        yield Revision(patch.name, "", root, tree, named[strip])


@contextmanager
def copied(here: Path) -> Iterator[Revision]:
    """A temporary copy of all files, so that the program's output stays separate. Links and virtual
    environments are linked. Raises UsageError if there is no space."""
    root = root_of(here)
    with _folder() as folder:
        tree = folder / (root.name or "root")
        _try_copy(root, tree, None)
        yield Revision("copy", "", root, tree, ())


def root_of(here: Path) -> Path:
    """The folder that is copied; file names in a patch are relative to it."""
    found = git(here, "rev-parse", "--show-toplevel")
    return here if found.returncode else Path(found.stdout.rstrip("\n"))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tdiag-try-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _named(patch: Path, strip: int, folder: Path) -> tuple[str, ...]:
    """The files that a patch changes, makes or removes, without ``strip`` leading folders; empty if
    it cannot be read this way."""
    done = _git_apply(folder, patch, strip, "--numstat", "-z")
    # "added<tab>removed<tab>name"; for a renamed file without the name, which then follows twice.
    names = (field.rpartition("\t")[2] for field in done.stdout.split("\0"))
    return () if done.returncode else tuple(dict.fromkeys(filter(None, names)))


def _try_copy(source: Path, to: Path, wanted: set[Path] | None) -> None:
    """Copy. Raises UsageError if that is impossible: no space, or an unreadable file."""
    try:
        _copy(source, to, wanted)
    except OSError as error:
        raise UsageError(f"cannot copy {error.filename or source}: {error.strerror}",
                         f"copies are made in {to.parent.parent}; TMPDIR names another folder"
                         ) from None  # fmt: skip


def _copy(source: Path, to: Path, wanted: set[Path] | None) -> None:
    """``wanted``: files to copy in addition to Python files; None for all."""
    to.mkdir()
    for entry in list(os.scandir(source)):
        path, copy = Path(entry.path), to / entry.name
        own = wanted is None and not entry.is_symlink()
        own = own or (wanted is not None and path in wanted)
        if entry.name in NOT_LINKED or path.suffix == ".pyc":
            continue
        if entry.is_dir() and not (path / "pyvenv.cfg").exists() and (own or _holds_code(entry)):
            _copy(path, copy, wanted)
        elif entry.is_file() and (own or path.suffix == ".py"):
            shutil.copy2(path, copy)
        else:
            copy.symlink_to(path)


def _holds_code(folder: os.DirEntry[str]) -> bool:
    try:
        return not folder.is_symlink() and any(Path(folder.path).glob("*.py"))
    except OSError:
        return False


def _apply(patch: Path, folders: list[Path]) -> int:
    """Apply the patch in the first folder where it fits; returns how many leading folders of its
    names were stripped."""
    said: list[str] = []
    for folder, strip in product(folders, STRIPS):
        done = _git_apply(folder, patch, strip)
        if not done.returncode:
            return strip
        said.append((done.stderr.strip().splitlines() or ["git failed"])[0])
    # The reading that found most of the patch's files gives the reason.
    why = min(said, key=lambda line: ("find filename" in line, "No such file" in line))
    back = any(not _git_apply(folder, patch, strip, "--check", "-R").returncode
               for folder, strip in product(folders, STRIPS))  # fmt: skip
    raise UsageError(
        f"{patch.name} does not apply: {why.removeprefix('error: ')}",
        "it is already applied" if back else "it must fit the files as they are now",
    )


def _git_apply(
    folder: Path, patch: Path, strip: int, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run git as outside a repository, wherever the copy is."""
    return git(folder, "apply", *options, f"-p{strip}", str(patch),
               variables={"GIT_CEILING_DIRECTORIES": str(folder.parent)})  # fmt: skip
