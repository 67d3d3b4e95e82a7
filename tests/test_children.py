"""Programs of this package, started from wherever the user is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdiag import __version__
from tdiag.children import end_with_this_process, program


def test_a_package_of_this_name_in_the_current_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "tdiag").mkdir()
    (tmp_path / "tdiag" / "__init__.py").write_text("raise SystemExit('somebody else')\n")
    done = subprocess.run(
        [*program("tdiag"), "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


def test_where_the_system_knows_no_such_signal_the_child_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS has no prctl."""
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    tie = end_with_this_process(signal.SIGTERM)
    done = subprocess.run([sys.executable, "-c", "print(1)"], preexec_fn=tie, capture_output=True)
    assert done.stdout == b"1\n"
