"""The probe: the part of tdiag that runs inside the user's process.

Standard library and torch only, Python 3.9 and newer; loaded by path under the name ``tdiag_probe``
(see ``inject/sitecustomize.py``). It must never raise into user code, never change what the script
computes or prints, and cost at most 1 % of a 5 ms step while it only watches (measured cost:
``benchmarks/README.md``). ``docs/run-directory.md`` describes its records.
"""

from __future__ import annotations

import os
import sys
import time


def start(run_dir: str) -> None:
    """Called once per process, before the user's program: waits for ``import torch``."""
    from . import imports

    started = time.perf_counter_ns()
    imports.when_imported("torch", lambda began: _watch(run_dir, started, began))


def visit(run_dir: str) -> None:
    """Measure one pass of windows in a process that ran without tdiag, and leave."""
    if "torch" in sys.modules:  # else it does not train
        from .loaded import begin

        begin(run_dir)
    else:
        forget()


def leave() -> None:
    """A visit is over: leave a process whose steps have not ended it, because it makes none."""
    loaded = sys.modules.get(f"{__name__}.loaded")
    if loaded is not None:
        loaded.leave()
    elif f"{__name__}.assembly" not in sys.modules:
        forget()


def forget() -> None:
    """Nothing of the probe stays in ``sys.modules``."""
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__]:
        del sys.modules[name]


def stop(error: BaseException | None) -> None:
    """Leave the process, which goes on: a notebook's cell has ended, by ``error`` if not None."""
    from . import imports, patches

    imports.stop_waiting()
    assembly = sys.modules.get(f"{__name__}.assembly")  # missing until torch is imported
    if assembly is not None:
        assembly.leave()
    patches.strip(error)


def _watch(run_dir: str, *times: int) -> None:
    """Runs inside the user's ``import torch``, which must succeed whatever happens here."""
    try:
        from .assembly import install

        install(run_dir, *times)
    except Exception as error:
        not_loaded(run_dir, error)


def not_loaded(run_dir: str, error: Exception) -> None:
    """Record why this process is not watched (the run directory may be missing, too)."""
    from .wire import PROBE_ERROR

    try:
        with open(os.path.join(run_dir, PROBE_ERROR), "a", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}\n")
    except OSError:
        pass
