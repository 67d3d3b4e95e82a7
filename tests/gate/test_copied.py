"""A patch in a copy of the user's files: it applies to them as they stand, and they stay as is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdiag.errors import UsageError
from tdiag.gate.copied import copied, patched
from tdiag.launch.target import Target

from .building import git, repository

TRAIN = Target("script", "train.py")
OLD, NEW = "import model\nprint(model.NAME, 1)\n", "import model\nprint(model.NAME, 2)\n"


def patch(folder: Path, name: str = "train.py", a: str = "a/", b: str = "b/") -> Path:
    """From OLD to NEW."""
    file = folder / "fix.patch"
    file.write_text(f"--- {a}{name}\n+++ {b}{name}\n@@ -1,2 +1,2 @@\n import model\n"
                    "-print(model.NAME, 1)\n+print(model.NAME, 2)\n")  # fmt: skip
    return file


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*")
            if p.is_file() and ".git" not in p.parts}  # fmt: skip


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No repository: a script, a module, a package and data."""
    folder = tmp_path / "plain"
    for path, text in {
        "train.py": OLD, "model.py": "NAME = 'model'\n", "data/x.bin": "big", "conf.yaml": "a: 1\n",
        "lib/__init__.py": "", "lib/part/deep.py": OLD, ".tdiag/runs/old": "",
    }.items():  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def test_the_copy_is_patched_and_runs_its_own_code_and_the_original_stays(plain: Path) -> None:
    file = patch(plain)
    before = files(plain)
    with patched(file, TRAIN) as copy:
        assert (copy.tree / "train.py").read_text() == NEW
        assert copy.changed == ("train.py",)
        assert (copy.tree / "data").is_symlink() and (copy.tree / "conf.yaml").is_symlink()
        assert not (copy.tree / "model.py").is_symlink() and not (copy.tree / ".tdiag").exists()
        command = copy.target(TRAIN).command(sys.executable)
        done = subprocess.run(command, cwd=copy.moved(plain), capture_output=True, text=True,
                              check=True)  # fmt: skip
        assert done.stdout == "model 2\n"
        (copy.tree / "out.pt").write_text("an output")
        folder = copy.tree.parent
    assert not folder.exists() and files(plain) == before


def test_it_applies_to_the_working_tree_of_a_repository_from_any_folder_of_it(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncommitted and untracked files are patched as they stand."""
    repo = repository(tmp_path / "repo", README="read")
    (plain / "lib").rename(repo / "lib")
    (repo / "sub").mkdir()
    (repo / "sub" / "train.py").write_text(OLD)
    monkeypatch.chdir(repo / "sub")
    status = git(repo, "status", "--porcelain")
    for name in ("sub/train.py", "train.py"):  # git diff; git diff --relative
        with patched(patch(tmp_path, name), TRAIN) as copy:
            there = copy.moved(Path.cwd())
            assert there and (there / "train.py").read_text() == NEW
            assert copy.root == repo
    with patched(patch(tmp_path, "lib/part/deep.py"), TRAIN) as copy:
        assert (copy.tree / "lib" / "part" / "deep.py").read_text() == NEW
    assert (repo / "lib" / "part" / "deep.py").read_text() == OLD
    assert (repo / "sub" / "train.py").read_text() == OLD
    assert git(repo, "status", "--porcelain") == status
    assert git(repo, "worktree", "list").count("\n") == 1


def test_a_patch_without_prefixes_one_of_a_config_and_one_that_makes_a_file(plain: Path) -> None:
    with patched(patch(plain, a="", b=""), TRAIN) as copy:
        assert (copy.tree / "train.py").read_text() == NEW
    file = plain / "fix.patch"
    file.write_text("--- a/conf.yaml\n+++ b/conf.yaml\n@@ -1 +1 @@\n-a: 1\n+a: 2\n"
                    "--- /dev/null\n+++ b/data/new.txt\n@@ -0,0 +1 @@\n+new\n")  # fmt: skip
    with patched(file, TRAIN) as copy:
        assert (copy.tree / "conf.yaml").read_text() == "a: 2\n"
        assert (copy.tree / "data" / "new.txt").read_text() == "new\n"
        assert (copy.tree / "data" / "x.bin").read_text() == "big"
    assert (plain / "conf.yaml").read_text() == "a: 1\n"
    assert not (plain / "data" / "new.txt").exists()


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (None, "no such patch", ""),
        ("nothing\n", "does not apply: No valid patches", "must fit"),
        ("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-other\n+x\n",
         "does not apply: patch failed: train.py:1", "must fit"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-other\n+x\n",
         "does not apply: none.py: No such file", "must fit"),
        ("--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n import model\n-print(1)\n"
         "+print(model.NAME, 1)\n", "does not apply: patch failed", "already applied"),
    ],
)  # fmt: skip
def test_what_does_not_apply_is_told_and_leaves_nothing(
    text: str | None, said: str, hint: str, plain: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    if text is not None:
        (plain / "fix.patch").write_text(text)
    before = files(plain)
    with pytest.raises(UsageError, match=said) as caught, patched(Path("fix.patch"), TRAIN):
        pass
    assert hint in caught.value.hint
    assert files(plain) == before and not list((tmp_path / "tmp").iterdir())


def test_a_whole_copy_keeps_what_is_written_apart(plain: Path) -> None:
    """But for links: a data set that the user linked, an environment."""
    (plain / "link").symlink_to(plain / "data")
    (plain / "venv").mkdir()
    (plain / "venv" / "pyvenv.cfg").write_text("")
    before = files(plain)
    with copied(plain) as copy:
        assert files(copy.tree).items() <= before.items()
        (copy.tree / "data" / "x.bin").write_text("other")
        (copy.tree / "conf.yaml").unlink()
        assert (copy.tree / "link").is_symlink() and (copy.tree / "venv").is_symlink()
        folder = copy.tree.parent
    assert not folder.exists() and files(plain) == before
    with patched(patch(plain), TRAIN, whole=True) as copy:
        assert (copy.tree / "train.py").read_text() == NEW
        (copy.tree / "data" / "x.bin").write_text("other")
    assert (plain / "data" / "x.bin").read_text() == "big"


def test_a_copy_for_which_there_is_no_room_says_so(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.bin")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(UsageError, match=r"cannot copy x\.bin: No space left"), copied(plain):
        pass


def test_a_fault_of_who_uses_the_copy_is_none_of_copying(plain: Path) -> None:
    with pytest.raises(OSError, match="mine"), copied(plain):
        raise OSError("mine")
