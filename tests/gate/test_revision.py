"""The other revision's tree: what is in it, and that nothing of it stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdiag.errors import UsageError
from tdiag.gate.revision import checked_out
from tdiag.launch.target import Target

from .building import commit, git, repository


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = repository(tmp_path / "repo", train_py="old", model_py="same")
    commit(folder, train_py="new")
    monkeypatch.chdir(folder)
    return folder


def test_it_holds_the_revision_and_goes_away(repo: Path) -> None:
    (repo / "model.py").write_text("edited, not committed")
    with checked_out("HEAD~1") as revision:
        assert (revision.tree / "train.py").read_text() == "old"
        assert (revision.tree / "model.py").read_text() == "same"
        assert set(revision.changed) == {"train.py", "model.py"}
        assert revision.moved(Path.cwd()) == revision.tree
        folder = revision.tree.parent
    assert not folder.exists()
    assert git(repo, "worktree", "list").count("\n") == 1
    assert (repo / "model.py").read_text() == "edited, not committed"


def test_data_that_is_not_tracked_is_there_and_outputs_stay_apart(repo: Path) -> None:
    (repo / "data").mkdir()
    (repo / "data" / "x.bin").write_text("big")
    (repo / ".gitignore").write_text("data\n")
    (repo / ".tdiag").mkdir()
    (repo / "__pycache__").mkdir()
    with checked_out("HEAD") as revision:
        assert (revision.tree / "data" / "x.bin").read_text() == "big"
        assert (revision.tree / "data").is_symlink()
        assert not (revision.tree / ".tdiag").exists()
        assert not (revision.tree / "__pycache__").exists()
        (revision.tree / "out.pt").write_text("an output")
    assert (repo / "data" / "x.bin").exists() and not (repo / "out.pt").exists()


def test_hooks_of_the_repository_do_not_run(repo: Path) -> None:
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch $PWD/hooked\n")
    hook.chmod(0o755)
    with checked_out("HEAD") as revision:
        assert not (revision.tree / "hooked").exists()


def test_within_a_hook_git_finds_the_right_repository(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    with checked_out("HEAD~1") as revision:
        assert (revision.tree / "train.py").read_text() == "old"


@pytest.mark.parametrize("name", ["nothing", "--all", "HEAD:train.py"])
def test_no_such_revision_is_told(repo: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no revision"), checked_out(name):
        pass


def test_a_shallow_clone_is_told(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    with pytest.raises(UsageError) as caught, checked_out("HEAD~1"):
        pass
    assert "fetch-depth: 0" in caught.value.hint


def test_no_repository_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="not a git repository"), checked_out("HEAD"):
        pass


def test_a_script_that_the_revision_lacks_is_told(repo: Path, tmp_path: Path) -> None:
    (repo / "fresh.py").write_text("")
    outside = tmp_path / "outside.py"
    outside.write_text("")
    with checked_out("HEAD") as revision:
        assert revision.target(Target("script", "train.py")) == Target("script", "train.py")
        absolute = revision.target(Target("script", str(repo / "train.py")))
        assert absolute.name == str(revision.tree / "train.py")
        with pytest.raises(UsageError, match=r"fresh\.py is not in HEAD"):
            revision.target(Target("script", "fresh.py"))
        with pytest.raises(UsageError, match="outside this repository"):
            revision.target(Target("script", str(outside)))


def test_a_launchers_command_starts_the_revisions_own_script(repo: Path) -> None:
    with checked_out("HEAD") as revision:
        words = ("--nproc-per-node", "2", "train.py", "--out", str(repo / "out"))
        there = revision.target(Target("launcher", "torchrun", words))
        assert there.args == (*words[:-1], str(revision.tree / "out"))
        with pytest.raises(UsageError, match=r"fresh\.py is not in HEAD"):
            revision.target(Target("launcher", "torchrun", ("fresh.py",)))
        module = Target("launcher", "torchrun", ("-m", "package.train"))
        assert revision.target(module) == module


def test_pythonpath_leads_into_its_own_tree(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", str(repo / "lib"), "/opt/x"]))
    with checked_out("HEAD") as revision:
        entries = revision.variables()["PYTHONPATH"].split(os.pathsep)
        assert entries == [str(revision.tree / "src"), str(revision.tree / "lib"), "/opt/x"]
