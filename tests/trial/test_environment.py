"""Changes of the environment: another malloc, variables of debugging, the device's allocator."""

from __future__ import annotations

import _ctypes
import os
import shutil
from pathlib import Path

import pytest

from tdiag.probe.trial.changes import load
from tdiag.probe.wire import DEBUGGING
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


def test_variables_of_debugging_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not on stay as they are."""
    for name in DEBUGGING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTHONDEVMODE", raising=False)
    change, trial = load("process.debugging"), [("process.debugging", "off")]
    assert change.environment("off") == {"TDIAG_TRIAL_OFF": ""}
    monkeypatch.setenv("PYTHONMALLOC", "debug")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    environ = change.environment("off")
    assert environ == {
        "CUDA_LAUNCH_BLOCKING": "0", "PYTHONMALLOC": "default", "PYTHONDEVMODE": "",
        "TDIAG_TRIAL_OFF": "CUDA_LAUNCH_BLOCKING PYTHONMALLOC PYTHONDEVMODE",
    }  # fmt: skip
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code = "import sys, torch\nsys.stdout.write(str(sys.flags.dev_mode))"
    watched = watch_code(tmp_path, code, cold=True, windows=[], trial=trial)
    assert (watched.returncode, watched.out) == (0, "False"), watched.err
    said = {r["what"] for r in watched.of("trial") if r["state"] == "applied"}
    assert said == {f"{name} is off" for name in environ["TDIAG_TRIAL_OFF"].split()}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="OpenBLAS uses no more threads than cores")
def test_numpys_threads_are_as_many_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, sys, numpy\nbefore = len(os.listdir('/proc/self/task'))\nimport torch"
    change, found = load("process.library_threads"), {}
    for threads in ("1", "2"):
        for name, value in change.environment(threads).items():
            monkeypatch.setenv(name, value)
        trial = [("process.library_threads", threads)]
        shown = f"{code}\nsys.stdout.write(f'{{before}} {{torch.get_num_threads()}}')"
        (folder := tmp_path / threads).mkdir()
        watched = watch_code(folder, shown, cold=True, windows=[], trial=trial)
        assert watched.returncode == 0, watched.err
        said = [r["what"] for r in watched.of("trial") if r["state"] == "applied"]
        assert said == [f"OPENBLAS_NUM_THREADS={threads}"]
        found[threads] = tuple(map(int, watched.out.split()))
    assert found["2"][0] == found["1"][0] + 1
    assert found["2"][1] == found["1"][1]


def test_segments_grow_beside_other_settings_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = load("process.expandable_segments")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:False")
    wanted = "max_split_size_mb:64,expandable_segments:True"
    assert change.environment("") == {"PYTORCH_CUDA_ALLOC_CONF": wanted}
