"""Start-up takes long

## What it measures
The time from the start of the program to the end of its first step, by part, against the whole
run. From three seconds after torch was imported to the first step, stacks are sampled: they give
the lines. Reported if start-up takes most of the run, or if preparing takes long and most of the
samples are in one line.

## Why it is slow
Imports, reading an index of the data, starting workers, the first batch, and compilation,
autotuning and allocation in the first step are paid once per run. In a search of many short runs
they are most of the cost.

## What to do
If one line takes most of it, make that faster first: look-ups in a list instead of a dict, files
parsed one after another. Keep what the largest part computes: a file list or tokenised data on
disk, compiled kernels in a persistent cache. Import expensive modules where they are used.

## How the gain is computed
No gain per step is predicted: the cost is paid once. If tdiag ended the run, its full length is not
known, so the share of the start-up is not known either.

## When this advice is wrong
In a long run the start does not matter; a short trial run shows too much of it. Profilers make the
steps longer, so the true share of the start is larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Startup
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, frac, ns, where
from tdiag.rules.examples import MS, flags, loaders, stack, stacks
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.syntax import statement_text
from tdiag.units import duration, percent

CODE = "TD212"
NAME = "startup-dominates"
CLASS = "overhead"

LONG_S = Threshold(
    10.0,
    "s",
    'Nielsen, "Response Times: The 3 Important Limits" (1993): a user who waits for longer turns to'
    " other work.",
)
_IMPORTS = re.compile(r"(import|from)\s")

_BEFORE = ("imports", "import torch")  # parts before the samples
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
    total, run_ns = startup.total_ns, startup.run_ns
    lines = startup.stacks.training if startup.stacks else ()
    line = lines[0] if lines and lines[0].self_frac >= MAJORITY_FRAC else None
    prepared = sum(took for name, took in startup.parts_ns.items() if name not in _BEFORE)
    most = run_ns is not None and total >= MAJORITY_FRAC * run_ns
    if not most and (line is None or prepared < LONG_S * 1e9):
        if run_ns is None:
            raise Abstain("the run was ended early, so its full length is not known")
        return None
    part = max(startup.parts_ns, key=lambda name: startup.parts_ns[name])
    action, advice = _ADVICE[part]
    if part == "first step" and flags is not None and flags.compiled:
        action, advice = _COMPILED
    at = _place(part, loaders)
    if line is not None and part not in _BEFORE:
        at = line.at
        action, advice = _of_line(line)
    return Found(
        summary=_summary(startup, part, line),
        evidence=(
            *(ns(name, spent, "probe") for name, spent in startup.parts_ns.items()),
            *_of_run(startup),
            *(
                frac(f"samples before the first step, {x.at.function}:{x.at.line}", x.self_frac,
                     "sample")
                for x in lines[:3]
            ),
        ),
        fix=Fix(f"{advice}{where(at)}.", "manual", action=action),
        at=at,
    )  # fmt: skip


def _of_run(startup: Startup) -> Iterator[Measure]:
    if startup.run_ns is not None:
        yield ns("whole run", startup.run_ns, "probe")
        yield frac("start-up, share of the run", startup.total_ns / startup.run_ns, "probe")


def _summary(startup: Startup, part: str, line: StackLine | None) -> str:
    text = f"The first step ended {duration(startup.total_ns)} after the start of the program"
    if startup.run_ns is not None:
        share = percent(startup.total_ns / startup.run_ns)
        text = f"Start-up takes {share} of the run's {duration(startup.run_ns)}"
    if line is None:
        return f"{text}, most of it in {part} ({duration(startup.parts_ns[part])})."
    share = percent(line.self_frac)
    return f"{text}; {share} of the samples before that step are{where(line.at)} ({line.leaf})."


def _of_line(line: StackLine) -> tuple[str, str]:
    if _IMPORTS.match(statement_text(line.at.file, line.at.line)):
        return _ADVICE["imports"]
    text = "Make this line faster, or store what it computes on disk, for the next run"
    return "Make the line faster that start-up waits for", text


def _place(part: str, loaders: Loaders | None) -> Place | None:
    loader = loaders.train() if loaders else None
    if loader is None:
        return None
    return {"workers": loader.created_at, "first batch": dataset_place(loader)}.get(part)


def fires() -> Evidence:
    """A vocabulary is built by looking each word up in a list."""
    parts = {"imports": 300, "import torch": 1900, "set-up": 9000, "first step": 400}
    lines = (stack(34, 0.85, leaf="build (vocabulary.py)"), stack(51, 0.1))
    once = Startup(
        parts_ns={name: ms * MS for name, ms in parts.items()}, run_ns=20_000 * MS,
        stacks=stacks(lines),
    )  # fmt: skip
    return Evidence().add(once, loaders(), flags())


def clear() -> Evidence:
    """A start-up of twelve seconds in a run of ten minutes, none of it in one line."""
    parts = {"imports": 300, "import torch": 1900, "set-up": 9000, "first step": 400}
    once = Startup(parts_ns={name: ms * MS for name, ms in parts.items()}, run_ns=600_000 * MS)
    return Evidence().add(once, loaders(), flags())
