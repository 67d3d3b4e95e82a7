"""What the programs of a trial leave behind is named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tdiag.trial import written as module
from tdiag.trial.written import written


@pytest.fixture
def since(tmp_path: Path) -> int:
    """Later than what is there, by more than the clock of the file system is coarse."""
    (tmp_path / "old.py").write_text("")
    time.sleep(0.05)
    return time.time_ns() - 20_000_000


def test_files_written_since_are_named_but_for_tdiags_own(tmp_path: Path, since: int) -> None:
    assert written(tmp_path, since) == ""
    for name in ("out/last.pt", ".tdiag/trials/x", "__pycache__/a.pyc", ".venv/pyvenv.cfg",
                 ".venv/new.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert (
        written(tmp_path, since) == f"files written below {tmp_path} during the trials: out/last.pt"
    )
    (tmp_path / "old.py").write_text("again")
    assert "old.py, out/last.pt" in written(tmp_path, since)
    os.utime(tmp_path / "old.py", (0, 0))  # a script that restores times
    assert "old.py" in written(tmp_path, since)


def test_of_many_the_first_are_named(
    tmp_path: Path, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1207):
        (tmp_path / f"step-{number:04}.pt").write_text("")
    assert written(tmp_path, since).endswith("step-0004.pt and 1,202 more")
    monkeypatch.setattr(module, "MOST_ENTRIES", 1000)
    assert "too many files" in written(tmp_path, since)
