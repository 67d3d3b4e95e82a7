"""A stored baseline: its commit runs next to the working tree, or the time is not judged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tdiag.cli import app, check
from tdiag.duel.side import Program, ProgramFailed
from tdiag.errors import UsageError
from tdiag.gate import baseline, stored
from tdiag.gate.against import CheckOptions
from tdiag.gate.check_document import summary, title
from tdiag.gate.counting import Counted, count
from tdiag.gate.judge import Case
from tdiag.gate.revision import Revision
from tdiag.gate.stored import check_stored, update

from .building import commit, git, measured, repository
from .test_check import LOSS, SCRIPT, SLOW, TRAIN, options

FILE = Path("tdiag-baseline.json")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """What the script does, counted once for all."""
    folder = tmp_path_factory.mktemp("counted")
    (folder / "train.py").write_text(TRAIN)
    (folder / "loss.py").write_text(LOSS)
    return count([Program("now", (sys.executable, "train.py"), folder)], folder / "run")[0]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = repository(tmp_path / "repo", train_py=TRAIN, loss_py=LOSS)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


@pytest.fixture
def quick(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nothing runs; the commits that would have."""
    ran: list[str] = []

    def timed(case: Case, other: Revision, *_: object) -> Case:
        ran.append(other.commit)
        return replace(case, step=measured(1.0))

    monkeypatch.setattr(stored, "count", lambda *_: [counted])
    monkeypatch.setattr(stored, "timed", timed)
    yield ran


@pytest.mark.training
@pytest.mark.slow  # two whole measurements
def test_the_commit_it_was_written_at_runs_beside_the_working_tree(
    repo: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="has no baseline"):
        check_stored(SCRIPT, FILE, options(tmp_path, "none"))
    written = git(repo, "rev-parse", "HEAD").strip()
    said = update(SCRIPT, FILE, options(tmp_path, "u"))
    assert f"checks will run commit {written[:10]} next to the working tree" in said
    commit(repo, loss_py=SLOW)
    outcome = check_stored(SCRIPT, FILE, options(tmp_path, "c"))
    assert outcome.verdict == "regressed"
    reason = "loss.py:5 makes 256 more .item() calls a step (0 → 256)"
    assert reason in outcome.reasons and reason in summary(outcome)
    assert outcome.against == f"tdiag-baseline.json ({written[:10]})"
    assert set(outcome.changed_files) == {"loss.py", "tdiag-baseline.json"}
    step = outcome.step
    # Not by how much, on a machine with other work: 256 calls are more than none, on any.
    assert step is not None and step.ratio > 1.1 and (step.groups, step.turns) == (2, 6)
    assert step.stored_ns == baseline.read(FILE)["train.py"].step_ns > 0
    then, now = (
        json.loads((tmp_path / "c" / "group-1" / side / "run.json").read_text())["cwd"]
        for side in ("before", "now")
    )
    assert now == str(repo) and Path(then).parent.name.startswith("tdiag-check-")
    assert git(repo, "worktree", "list").count("\n") == 1


def test_it_is_the_baselines_commit_and_not_the_newest(
    repo: Path, tmp_path: Path, quick: list[str]
) -> None:
    written = git(repo, "rev-parse", "HEAD").strip()
    update(SCRIPT, FILE, options(tmp_path, "u"))
    commit(repo, other="another commit")
    assert check_stored(SCRIPT, FILE, options(tmp_path, "c")).verdict == "pass"
    assert quick == [written]


def _dirty(repo: Path, folder: Path) -> None:
    (repo / "loss.py").write_text(LOSS + "# edited\n")
    update(SCRIPT, FILE, options(folder, "u"))
    git(repo, "checkout", "--quiet", "loss.py")


def _outside(repo: Path, folder: Path) -> None:
    (repo / ".git").rename(folder / "git")
    update(SCRIPT, FILE, options(folder, "u"))
    (folder / "git").rename(repo / ".git")


def _squashed(repo: Path, folder: Path) -> None:
    commit(repo, other="of a branch")
    update(SCRIPT, FILE, options(folder, "u"))
    git(repo, "reset", "--quiet", "--hard", "HEAD~1")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "--quiet", "--prune=now")


def _not_added(repo: Path, folder: Path) -> None:
    git(repo, "rm", "--quiet", "--cached", "train.py")
    git(repo, "commit", "--quiet", "--message", "without it")
    update(SCRIPT, FILE, options(folder, "u"))


@pytest.mark.parametrize(
    ("written", "why", "what_to_do"),
    [
        (_dirty, "with uncommitted changes: loss.py", "commit them, then rewrite it"),
        (_outside, "was written outside a git repository", "rewrite it inside one"),
        (_squashed, "no revision", "git fetch"),
        (_not_added, "train.py is not in", "nothing to compare"),
    ],
)
def test_what_cannot_run_is_not_judged_by_time(
    written: object, why: str, what_to_do: str, repo: Path, tmp_path: Path, quick: list[str]
) -> None:
    assert callable(written)
    written(repo, tmp_path)
    outcome = check_stored(SCRIPT, FILE, options(tmp_path, "c"))
    assert not quick and outcome.step is None
    assert (outcome.verdict, title(outcome)) == ("pass", "Pass, time not judged")
    assert why in outcome.why_no_step and why in summary(outcome)
    assert outcome.against == str(FILE)
    assert what_to_do in outcome.settle and "--against REV" in outcome.settle


def test_writing_says_that_the_time_will_not_be_judged(
    repo: Path, tmp_path: Path, quick: list[str]
) -> None:
    (repo / "loss.py").write_text(LOSS + "# edited\n")
    said = update(SCRIPT, FILE, options(tmp_path, "u"))
    assert "checks will not judge its time" in said and "uncommitted changes: loss.py" in said
    assert "commit them, then rewrite it: --update" in said


def test_the_baseline_itself_need_not_be_committed(
    repo: Path, tmp_path: Path, quick: list[str]
) -> None:
    update(SCRIPT, FILE, options(tmp_path, "first"))
    commit(repo)
    FILE.write_text(FILE.read_text() + "\n")
    said = update(SCRIPT, FILE, options(tmp_path, "second"))
    assert "checks will run commit" in said


def test_a_shallow_clone_is_told_how_to_fetch_it(
    repo: Path, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(SCRIPT, FILE, options(tmp_path, "u"))
    commit(repo)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    outcome = check_stored(SCRIPT, FILE, options(tmp_path, "c"))
    assert not quick and "fetch-depth: 0" in outcome.settle


@pytest.mark.parametrize("side", ["before", "now"])
def test_a_commit_that_fails_here_is_not_judged_and_a_script_that_fails_is_told(
    side: str, repo: Path, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(SCRIPT, FILE, options(tmp_path, "u"))

    def timed(*_: object) -> Case:
        raise ProgramFailed(side, 1, "Traceback …\nImportError: no such thing")

    monkeypatch.setattr(stored, "timed", timed)
    if side == "now":
        with pytest.raises(ProgramFailed):
            check_stored(SCRIPT, FILE, options(tmp_path, "c"))
        return
    outcome = check_stored(SCRIPT, FILE, options(tmp_path, "c"))
    assert outcome.verdict == "pass" and "ImportError: no such thing" in outcome.why_no_step


def test_counters_judge_where_the_time_cannot_be(
    repo: Path, tmp_path: Path, quick: list[str]
) -> None:
    _dirty(repo, tmp_path)
    fewer = baseline.read(FILE)["train.py"]
    for name, counter in list(fewer.counters.items()):
        if counter.lines and counter.low > 2:
            fewer.counters[name] = baseline.StoredCounter(unit="count", low=1, high=1)
    baseline.write(FILE, {"train.py": fewer})
    outcome = check_stored(SCRIPT, FILE, options(tmp_path, "c"))
    assert outcome.verdict == "regressed" and "more torch calls a step" in outcome.reasons[0]
    assert "; step time not compared: the baseline was written with uncommitted" in summary(outcome)


def test_the_file_keeps_the_limits(
    repo: Path, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check.signal, "signal", lambda *_: None)
    asked: list[CheckOptions] = []
    own = stored.check_stored

    def checked(target: object, path: Path, options: CheckOptions) -> object:
        asked.append(options)
        return own(target, path, options)  # type: ignore[arg-type]

    monkeypatch.setattr(stored, "check_stored", checked)
    words = ["check", "train.py", "--baseline", str(FILE), "-q"]
    for more in (
        ["--update", "--max-regression", "3%", "--max-growth", "10%"],
        [],
        ["--max-growth", "20%"],
        ["--update"],  # what was chosen once stays chosen
        [],
    ):
        app([*words, *more], standalone_mode=False)
    limits = [(o.threshold, o.tolerance) for o in asked]
    assert limits == [(0.03, 0.1), (0.03, 0.2), (0.03, 0.1)]
