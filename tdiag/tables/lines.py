"""The user's lines in which samples of the stacks were taken, workers apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from tdiag.evidence.kinds import StackLine, Stacks
from tdiag.evidence.store import Evidence
from tdiag.report.page import Page, heading
from tdiag.tables.grid import Cell, Name, absent, cost, first, grid, more, note
from tdiag.units import percent, plural

HOW = "`tdiag run` samples stacks with py-spy; `tdiag doctor` says whether it may attach here."


def parts(evidence: Evidence, page: Page) -> Iterable[RenderableType]:
    """Shares of the samples of the training thread, and of the samples of all workers in which
    they fetched. What is missing to 100% was under no line of the user's."""
    stacks = evidence.get(Stacks)
    if stacks is None:
        yield from absent("sampled lines", Stacks, evidence, HOW)
        return
    yield from _section("Training process", stacks.training, stacks.samples, page)
    if stacks.worker_samples:
        yield from _section("DataLoader workers", stacks.workers, stacks.worker_samples, page)
    unseen = "It cannot see DataLoader workers."
    yield note(
        f"Sampled {'by' if stacks.source == 'py-spy' else 'from'} {stacks.source}"
        f" ({cost('sample', evidence)}). Waiting counts like work.",
        _about_workers(stacks) if stacks.source == "py-spy" else unseen,
    )


def _about_workers(stacks: Stacks) -> str:
    if stacks.worker_samples:
        return "Of the workers the samples count in which they fetched a batch."
    return "No DataLoader worker was seen to fetch."


def _section(
    title: str, lines: Sequence[StackLine], samples: int, page: Page
) -> Iterator[RenderableType]:
    """The function is shown on wide pages only: the line tells it, too."""
    rows: list[list[Cell]] = []
    for line in first(lines, page):
        within: list[Cell] = [Name(line.at.function)] if page.wide else []
        last = [Name(_leaf(line)), line.phase, percent(line.self_frac)]
        rows.append([line.at, *within, *last])
    header = ["line", *(["function"] if page.wide else []), "mostly in", "phase", "share"]
    yield from heading(title, plural(samples, "sample"), page)
    yield grid(header, len(header) - 1, rows, page)
    yield from more(len(lines) - len(rows), "line")


def _leaf(line: StackLine) -> str:
    """What the line mostly called, as ``decode (PIL/Image.py)``."""
    own = f"{line.at.function} ({'/'.join(Path(line.at.file).parts[-2:])})"
    return "the line itself" if line.leaf == own else line.leaf
