"""Start-up takes most of the run

## What it measures
The time from the start of the program to the end of its first step, by part, against the whole run.

## Why it is slow
Imports, reading an index of the data, starting workers, the first batch, and compilation,
autotuning and allocation in the first step are paid once per run. In a search of many short runs
they are most of the cost.

## What to do
Keep what the largest part computes: a file list or tokenised data on disk, compiled kernels in a
persistent cache. Import expensive modules where they are used.

## How the gain is computed
No gain per step is predicted: the cost is paid once. Runs that tdiag ended are not judged: their
full length is not known.

## When this advice is wrong
In a long run the start does not matter; a short trial run shows too much of it. Profilers make the
steps longer, so the true share of the start is larger.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Startup
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Abstain, Found, frac, ns, where
from tdiag.rules.examples import MS, flags, loaders
from tdiag.rules.fetch_lines import dataset_place
from tdiag.units import duration, percent

CODE = "TD212"
NAME = "startup-dominates"
CLASS = "overhead"

# By the part that takes longest: the action, and the whole sentence.
_ADVICE = {
    "imports": (
        "Import expensive modules only where they are used",
        "Import expensive modules where they are used. python -X importtime train.py names them",
    ),
    "import torch": (
        "Run several trials in one process",
        "Importing torch cannot be shortened. Run several trials of a search in one process",
    ),
    "set-up": (
        "Store what set-up builds on disk",
        "Store what is built before the first batch on disk: a file list, an index, tokenised text",
    ),
    "workers": (
        "Start fewer workers, or start them with fork",
        "Each worker started by spawn imports the script again. Start fewer workers, or use the"
        " start method fork if it is safe",
    ),
    "first batch": (
        "Store what the first batch builds on disk",
        "Store what the dataset builds on its first access (opened archives, indices) on disk",
    ),
    "first step": (
        "Run several trials in one process",
        "Run several trials in one process. Each process allocates and autotunes in its first step",
    ),
}
_COMPILED = (
    "Keep the compilation cache between runs",
    "Set TORCHINDUCTOR_CACHE_DIR to a folder that outlives the machine or container",
)


def check(startup: Startup, loaders: Loaders | None, flags: Flags | None) -> Found | None:
    if startup.run_ns is None:
        raise Abstain("the run was ended early, so its full length is not known")
    total = startup.total_ns
    if total < MAJORITY_FRAC * startup.run_ns:
        return None
    part = max(startup.parts_ns, key=lambda name: startup.parts_ns[name])
    took = startup.parts_ns[part]
    action, advice = _ADVICE[part]
    if part == "first step" and flags is not None and flags.compiled:
        action, advice = _COMPILED
    at = _place(part, loaders)
    return Found(
        summary=(
            f"Start-up takes {percent(total / startup.run_ns)} of the run's"
            f" {duration(startup.run_ns)}, most of it in {part} ({duration(took)})."
        ),
        evidence=(
            *(ns(name, spent, "probe") for name, spent in startup.parts_ns.items()),
            ns("whole run", startup.run_ns, "probe"),
            frac("start-up, share of the run", total / startup.run_ns, "probe"),
        ),
        fix=Fix(f"{advice}{where(at)}.", "manual", action=action),
        at=at,
    )


def _place(part: str, loaders: Loaders | None) -> Place | None:
    loader = loaders.train() if loaders else None
    if loader is None:
        return None
    return {"workers": loader.created_at, "first batch": dataset_place(loader)}.get(part)


def fires() -> Evidence:
    parts = {"imports": 300, "import torch": 1900, "set-up": 9000, "first step": 400}
    once = Startup(parts_ns={name: ms * MS for name, ms in parts.items()}, run_ns=20_000 * MS)
    return Evidence().add(once, loaders(), flags())


def clear() -> Evidence:
    """The same start-up in a run of ten minutes."""
    parts = {"imports": 300, "import torch": 1900, "set-up": 9000, "first step": 400}
    once = Startup(parts_ns={name: ms * MS for name, ms in parts.items()}, run_ns=600_000 * MS)
    return Evidence().add(once, loaders(), flags())
