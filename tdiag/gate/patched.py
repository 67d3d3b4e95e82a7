"""The user's files with a patch applied, in a copy beside the working tree.

The copy is of the whole repository, so that paths in it and imports hold; outside of one, of the
folder we are in. Python files and those that the patch touches are copied, with the folders that
hold them; everything else, data above all, is linked. It is the working tree as it stands,
uncommitted and untracked files included.
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

STRIPS = 1, 0  # folders that names of files begin with: a/ and b/, or none (git's -p)


@contextmanager
def patched(patch: Path, target: Target) -> Iterator[Revision]:
    """A copy that is gone afterwards. ``changed``: the files that the patch names.

    Raises UsageError where the patch is not there or does not apply, and without git.
    """
    patch = patch.absolute()
    if not patch.is_file():
        raise UsageError(f"no such patch: {patch}")
    here = Path.cwd()
    found = git(here, "rev-parse", "--show-toplevel")
    root = here if found.returncode else Path(found.stdout.rstrip("\n"))
    folder = Path(tempfile.mkdtemp(prefix="tdiag-try-")).resolve()
    tree = folder / (root.name or "root")
    try:
        named = {strip: _named(patch, strip, folder) for strip in STRIPS}
        wanted = {
            base / file for files in named.values() for file in files for base in (root, here)
        }
        if source := target.source_file():
            wanted.add(source.absolute())
        _copy(root, tree, wanted | {parent for path in wanted for parent in path.parents})
        strip = _apply(patch, [tree, tree / here.relative_to(root)])
        yield Revision(patch.name, "", root, tree, named[strip])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _named(patch: Path, strip: int, folder: Path) -> tuple[str, ...]:
    """The files that a patch changes, makes or removes, ``strip`` folders of their names left out;
    empty where it cannot be read so."""
    done = _git_apply(folder, patch, strip, "--numstat", "-z")
    # "added<tab>removed<tab>name", of a renamed file without the name, which then follows twice.
    names = (field.rpartition("\t")[2] for field in done.stdout.split("\0"))
    return () if done.returncode else tuple(dict.fromkeys(filter(None, names)))


def _copy(source: Path, to: Path, wanted: set[Path]) -> None:
    to.mkdir()
    for entry in list(os.scandir(source)):
        path = Path(entry.path)
        if entry.name in NOT_LINKED or path.suffix == ".pyc":
            continue
        copy = to / entry.name
        if entry.is_dir() and (path in wanted or _holds_code(entry)):
            _copy(path, copy, wanted)
        elif entry.is_file() and (path in wanted or path.suffix == ".py"):
            shutil.copy2(path, copy)
        else:
            copy.symlink_to(path)


def _holds_code(folder: os.DirEntry[str]) -> bool:
    try:
        return not folder.is_symlink() and any(Path(folder.path).glob("*.py"))
    except OSError:
        return False


def _apply(patch: Path, folders: list[Path]) -> int:
    """From the first folder where it applies: how many folders of its names were left out."""
    said: list[str] = []
    for folder, strip in product(folders, STRIPS):
        done = _git_apply(folder, patch, strip)
        if not done.returncode:
            return strip
        said.append((done.stderr.strip().splitlines() or ["git failed"])[0])
    # Of the readings that git tried, the one that found most of what the patch means.
    why = min(said, key=lambda line: ("find filename" in line, "No such file" in line))
    back = any(not _git_apply(folder, patch, strip, "--check", "-R").returncode
               for folder, strip in product(folders, STRIPS))  # fmt: skip
    raise UsageError(
        f"{patch.name} does not apply: {why.removeprefix('error: ')}",
        "it is applied already" if back else "it must fit the files as they are now",
    )


def _git_apply(
    folder: Path, patch: Path, strip: int, *options: str
) -> subprocess.CompletedProcess[str]:
    """As of files without a repository, whatever the copy may lie in."""
    return git(folder, "apply", *options, f"-p{strip}", str(patch),
               variables={"GIT_CEILING_DIRECTORIES": str(folder.parent)})  # fmt: skip
