"""Another malloc, preloaded."""

from __future__ import annotations

import _ctypes
import shutil
from pathlib import Path

import pytest

from tdiag.probe.trial.changes import load
from tests.probe.harness import watch_code


def test_an_allocator_is_one_that_was_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library by that name stands in for it."""
    library = tmp_path / "libjemalloc.so.2"
    shutil.copy(_ctypes.__file__, library)
    change = load("process.allocator")
    found = {"jemalloc": str(library)}
    monkeypatch.setattr("ctypes.util.find_library", found.get)
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    environ = change.environment("jemalloc")
    assert environ == {"LD_PRELOAD": f"{library} libm.so.6"}
    with pytest.raises(ValueError, match="tcmalloc is not installed"):
        change.environment("tcmalloc")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    trial = [("process.allocator", "jemalloc")]
    watched = watch_code(tmp_path, "import torch", cold=True, windows=[], trial=trial)
    assert watched.returncode == 0, watched.err
    assert "malloc of jemalloc" in {r.get("what") for r in watched.of("trial")}
