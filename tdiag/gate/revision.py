"""Another revision of the user's repository next to the working tree: a git worktree.

It contains only tracked files. The working tree's other files, data and generated files, are linked
into it, because the script needs them there too; everything else, the script's output included,
stays separate. Git's hooks do not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tdiag.errors import UsageError
from tdiag.launch.target import Target

# Caches and tdiag's own output are no input of the script.
NOT_LINKED = {".tdiag", "__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
# One of git's hooks (such as pre-push) sets these; they would redirect every call to its
# repository.
_GIT_OWN = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}


@dataclass(frozen=True)
class Revision:
    """``name``: as the user wrote it (the first ten digits of a full hash), ``tree``: where it is
    checked out, ``root``: the working tree. ``changed``: files that differ, relative to either."""

    name: str
    commit: str
    root: Path
    tree: Path
    changed: tuple[str, ...]

    def moved(self, path: Path) -> Path | None:
        """The same place in this revision's tree; None for a path outside the repository."""
        whole = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are
        return self.tree / whole.relative_to(self.root) if whole.is_relative_to(self.root) else None

    def original(self, path: Path) -> Path:
        """The inverse of :meth:`moved`."""
        return self.root / path.relative_to(self.tree) if path.is_relative_to(self.tree) else path

    def target(self, target: Target) -> Target:
        """The same program there. Raises UsageError if the revision does not have it."""
        script = target.script()
        source = target.source_file()
        if target.kind == "launcher" and script.endswith(".py"):
            source = Path(script)
        if target.kind == "script" or source is not None:
            there = self.moved(source or Path(script))
            if there is None:
                raise UsageError(f"{script} is outside this repository",
                                 "both sides would run the same file")  # fmt: skip
            if not there.exists() or there.is_symlink():
                raise UsageError(f"{script} is not in {self.name}",
                                 "there is nothing to compare it with")  # fmt: skip
        if target.kind == "launcher":
            name, *args = (self.word(word) for word in (target.name, *target.args))
            return replace(target, name=name, args=tuple(args))
        return replace(target, name=self.word(target.name))

    def word(self, word: str) -> str:
        """A word of the command; a relative path needs no change, because the folder itself is
        moved."""
        return str(self.moved(Path(word)) or word) if Path(word).is_absolute() else word

    def variables(self) -> dict[str, str]:
        """PYTHONPATH with this tree's folders instead of the working tree's."""
        path = os.environ.get("PYTHONPATH")
        if not path:
            return {}
        entries = [str(self.moved(Path(e)) or e) if e else e for e in path.split(os.pathsep)]
        return {"PYTHONPATH": os.pathsep.join(entries)}


@dataclass(frozen=True)
class Head:
    """What is checked out. ``uncommitted``: tracked files that differ from it. All empty outside a
    repository, and before its first commit."""

    commit: str = ""
    subject: str = ""
    uncommitted: tuple[str, ...] = ()


def head(apart_from: Path) -> Head:
    """For the current folder; ``apart_from``: a file that may differ. Without git: empty."""
    try:
        lines = _git(Path.cwd(), "log", "-1", "--format=%H%n%s").splitlines()
        here = os.path.relpath(apart_from)
        others = (
            ["--", ":/"] if here.startswith("..") else ["--", ":/", f":(exclude,literal){here}"]
        )
        differ = _git(Path.cwd(), "diff", "--name-only", "-z", "HEAD", *others).split("\0")
    except UsageError:
        return Head()
    return Head(lines[0], "".join(lines[1:2]), tuple(filter(None, differ)))


@contextmanager
def checked_out(name: str) -> Iterator[Revision]:
    """``name`` in a worktree in a temporary folder, deleted afterwards.

    Raises UsageError outside a repository, for a revision that does not exist, and if git fails.
    """
    root = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel").rstrip("\n"))
    commit = _commit(root, name)
    folder = Path(tempfile.mkdtemp(prefix="tdiag-check-")).resolve()
    tree = folder / root.name  # its path appears in tracebacks
    try:
        _git(root, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", "--quiet",
             "--force", str(tree), commit)  # fmt: skip
        _link_untracked(root, tree)
        changed = _git(root, "diff", "--name-only", "-z", commit).split("\0")
        yield Revision(_shown(name), commit, root, tree, tuple(filter(None, changed)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git(root, "worktree", "prune")


def _commit(root: Path, name: str) -> str:
    if not name.startswith("-"):
        done = git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if not done.returncode:
            return done.stdout.strip()
    shallow = _git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
    raise UsageError(
        f"no revision {_shown(name)} in this repository",
        "the clone is shallow: fetch it, in GitHub Actions with `fetch-depth: 0` of"
        " actions/checkout" if shallow else "git fetch, or name one that `git log` shows",
    )  # fmt: skip


def _shown(name: str) -> str:
    return name[:10] if re.fullmatch("[0-9a-f]{40,64}", name) else name


def _link_untracked(root: Path, tree: Path) -> None:
    """Link untracked files and folders, ignored ones included, into the worktree."""
    listed = _git(root, "ls-files", "--others", "--directory", "-z").split("\0")
    for entry in filter(None, listed):
        path = Path(entry)
        link = tree / path
        if NOT_LINKED.intersection(path.parts) or path.suffix == ".pyc" or link.exists():
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root / path)


def _git(where: Path, *words: str) -> str:
    done = git(where, *words)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["git failed"]
        raise UsageError(f"git {words[0]}: {lines[-1]}", "--against needs a git repository")
    return done.stdout


def git(
    where: Path, *words: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """git's output in a folder, whatever its exit code. Raises UsageError if git is not
    installed."""
    known = {k: v for k, v in os.environ.items() if k not in _GIT_OWN}
    try:
        return subprocess.run(
            ["git", *words], cwd=where, env={**known, **(variables or {})}, text=True,
            errors="surrogateescape", capture_output=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError("git is not installed", "--against and --diff need it") from None
