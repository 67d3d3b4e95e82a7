"""Most of the run is its start

## What it measures
The time from the start of the program to the end of its first step, by part, against the whole run.

## Why it is slow
Imports, reading an index of the data, starting workers, the first batch, and in the first step
compiling, autotuning and allocating: all of it is paid once a run. A short run, or a search of many
short runs, pays little else.

## What to do
Keep what the largest part computes: a file list or a tokenised data set on disk, compiled kernels
in a cache that outlives the process; import what is dear where it is used.

## How the gain is computed
Nothing is predicted per step: it is paid once. It is said of runs that ended by themselves alone,
since how long one would have gone on that tdiag ended is not known.

## When this advice is wrong
A run that is short only because it is a trial: in a long one the start does not matter. The
profilers make the steps of a watched run longer, and so the start's share smaller, never larger.
"""

from __future__ import annotations

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Flags
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Startup
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import MS, flags, loaders
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.measures import frac, ns
from tdiag.rules.shares import MOSTLY_FRAC
from tdiag.units import duration, percent

CODE = "TD212"
NAME = "startup-dominates"
CLASS = "overhead"

_ADVICE = {
    "imports": "import what is dear only where it is used; python -X importtime train.py names it",
    "import torch": "torch's import cannot be shortened: do more in one process (several trials of"
    " a search, one after the other)",
    "set-up": "keep what is built before the first batch: a file list, an index or tokenised text"
    " on disk instead of a scan of the data",
    "workers": "fewer workers, or the start method fork where it is safe: each worker started by"
    " spawn imports the script anew",
    "first batch": "keep what the dataset builds on its first access (opened archives, indices) on"
    " disk",
    "first step": "what the first step allocates and autotunes is paid once; keep its kernels warm"
    " by doing more in one process",
}
_COMPILED = (
    "compiled code is kept between runs in TORCHINDUCTOR_CACHE_DIR: name a folder that outlives the"
    " machine or the container"
)


def check(startup: Startup, loaders: Loaders | None, flags: Flags | None) -> Found | None:
    if startup.run_ns is None:
        raise Abstain("the run was ended before its time, so the start's share of it is not known")
    total = startup.total_ns
    if total < MOSTLY_FRAC * startup.run_ns:
        return None
    part = max(startup.parts_ns, key=lambda name: startup.parts_ns[name])
    took = startup.parts_ns[part]
    advice = _ADVICE[part]
    if part == "first step" and flags is not None and flags.compiled:
        advice = _COMPILED
    at = _place(part, loaders)
    return Found(
        summary=(
            f"{percent(total / startup.run_ns)} of the run's {duration(startup.run_ns)} passes"
            f" before the first step is done, most of it in {part} ({duration(took)})."
        ),
        evidence=(
            *(ns(name, spent, "probe") for name, spent in startup.parts_ns.items()),
            ns("whole run", startup.run_ns, "probe"),
            frac("start's share of the run", total / startup.run_ns, "probe"),
        ),
        fix=Fix(advice[0].upper() + advice[1:] + where(at) + ".", "manual"),
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
    """The same start of a run of ten minutes."""
    parts = {"imports": 300, "import torch": 1900, "set-up": 9000, "first step": 400}
    once = Startup(parts_ns={name: ms * MS for name, ms in parts.items()}, run_ns=600_000 * MS)
    return Evidence().add(once, loaders(), flags())
