"""The probe: what of tdiag runs inside the user's process.

Standard library and torch only, Python 3.9 and newer; loaded by path under the name
``tdiag_probe`` (see ``inject/sitecustomize.py``). It must never raise into user code, never
change what the script computes or prints, and is to cost at most 1 % of a 5 ms step while it
only watches (what it does cost: ``benchmarks/README.md``). What it writes is described in
``docs/run-directory.md``.
"""

from __future__ import annotations


def start(run_dir: str) -> None:
    """Called once per process, before the user's program: waits for ``import torch``."""
    from . import imports

    imports.when_imported("torch", lambda: _watch(run_dir))


def _watch(run_dir: str) -> None:
    from .core import Probe

    Probe(run_dir).install()
