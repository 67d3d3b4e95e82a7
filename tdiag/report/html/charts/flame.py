"""Sampled stacks as flame graphs: the training process, and its DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.store import Evidence
from tdiag.report.html.parts import Chart, label, rgb
from tdiag.report.text import clip_head, inert
from tdiag.units import percent, plural

ROW_PX, LEAST_PX, MOST_PX = 21, 160, 1_000
MOST_FRAMES = 700  # the widest of a graph; others are a few pixels wide
NAME_CHARS = 80  # the longest name of a function or file
LEAST_FRAC = 0.001  # of the samples
PARTS = 10**9  # the total width of all samples
USER, TORCH, LIBRARY, ROOT = (rgb(f"color({n})") for n in (166, 32, 244, 240))


def charts(evidence: Evidence) -> Iterator[Chart]:
    trees, stacks = evidence.get(CallTrees), evidence.get(Stacks)
    if trees is None or stacks is None:
        return
    for name, title, frames, samples in (
        ("flame-training", "Training process", trees.training, stacks.samples),
        ("flame-workers", "DataLoader workers, fetching", trees.workers, stacks.worker_samples),
    ):
        if frames:
            yield _chart(name, title, frames, samples, stacks.source)


def _chart(name: str, title: str, frames: Sequence[CallFrame], samples: int, source: str) -> Chart:
    kept = _kept(frames)
    number = {old: new for new, old in enumerate(kept, 1)}  # 0 is the root
    depth = {-1: 0}
    for old in kept:
        depth[old] = depth[frames[old].parent] + 1
    trace: dict[str, Any] = {
        "type": "icicle",
        "branchvalues": "total",
        "ids": [str(n) for n in range(len(kept) + 1)],
        "parents": ["", *(str(number.get(frames[old].parent, 0)) for old in kept)],
        "labels": [f"all {plural(samples, 'sample')}", *(_label(frames[o]) for o in kept)],
        "values": [PARTS, *_values(frames, kept)],
        "hovertext": [f"all {plural(samples, 'sample')}", *(_hover(frames[o]) for o in kept)],
        "hoverinfo": "text",
        "textinfo": "label",
        "textfont": {"color": "#fff"},
        "marker": {"colors": [ROOT, *(_color(frames[o]) for o in kept)], "line": {"width": 0.5}},
        "tiling": {"orientation": "v", "pad": 0.5},
        "leaf": {"opacity": 1},
        "pathbar": {"visible": True, "thickness": 20},
        "sort": False,
        "root": {"color": ROOT},
    }
    levels = max(depth.values()) + 1
    hidden = len(frames) - len(kept)
    return Chart(
        id=name,
        title=title,
        figure={
            "data": [trace],
            "layout": {
                "margin": {"t": 4, "l": 2, "r": 2, "b": 2},
                "uniformtext": {"minsize": 9, "mode": "hide"},
            },
        },
        summary=f"{plural(len(kept), 'function')} in {plural(samples, 'sample')}; the table of hot"
        " lines below shows the same samples.",
        height=min(MOST_PX, max(LEAST_PX, levels * ROW_PX + 28)),
        note=f"{plural(samples, 'sample')} by {source}; a bar's width is its share of them, waiting"
        " included; callers stand above what they call."
        + (f" {plural(hidden, 'function')} too narrow to be seen are left out." if hidden else ""),
        searchable=True,
    )


def _kept(frames: Sequence[CallFrame]) -> list[int]:
    """The widest frames, in order; no frame is wider than its caller, so the trees stay
    connected."""
    wide = [i for i, frame in enumerate(frames) if frame.frac >= LEAST_FRAC]
    return sorted(sorted(wide, key=lambda i: (-frames[i].frac, i))[:MOST_FRAMES])


def _values(frames: Sequence[CallFrame], kept: Sequence[int]) -> list[int]:
    """Integers, rounded so that no caller gets less than its callees together."""
    values = {old: round(frames[old].frac * PARTS) for old in kept}
    inner = dict.fromkeys((-1, *kept), 0)
    for old in reversed(kept):  # callees first
        values[old] = max(values[old], inner[old])
        inner[frames[old].parent] += values[old]
    return [values[old] for old in kept]


def _label(frame: CallFrame) -> str:
    return label(f"{frame.name}:{frame.line}" if frame.user else frame.name, NAME_CHARS)


def _color(frame: CallFrame) -> str:
    if frame.user:
        return USER
    return TORCH if "/torch/" in frame.file else LIBRARY


def _hover(frame: CallFrame) -> str:
    line = f":{frame.line}" if frame.line else ""
    place = f"<br>{label(clip_head(inert(frame.file), NAME_CHARS))}{line}" if frame.file else ""
    return f"{label(frame.name, NAME_CHARS)}{place}<br>{percent(frame.frac)} of the samples"
