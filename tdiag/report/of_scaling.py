"""The document of one job with several numbers of ranks (`tdiag run --scaling`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import get_args

from tdiag.model.notes import Note
from tdiag.model.scaling import Load, Loss, Row, ScaledRun, Scaling
from tdiag.model.threshold import NOTICEABLE_FRAC, RUN_TO_RUN_FRAC
from tdiag.report.document import Cell, Column, Document, Facts, Headline, Line, Section, Table
from tdiag.report.words import NOTHING
from tdiag.units import count, duration, percent, plural, scale_for, significant

#: row → label and explanation
ROWS: dict[Row, tuple[str, str]] = {
    "communication": ("exposed communication", "if all ranks arrived together"),
    "waiting": ("waiting for late ranks", "in collectives, for the last rank"),
    "communication_or_waiting": ("communication, waiting", "not separable"),
    "input": ("input", "waiting for data, copies to the device"),
    "computing": ("computing", "forward, loss, backward"),
    "once_a_step": ("once a step", "optimizer, evaluation, checkpoints, logging"),
    "host": ("other host work", "preparing batches, garbage collection, launching"),
    "unattributed": ("unattributed", "measured but not explained"),
}
_LOADS: dict[Load, str] = {
    "same": "weak scaling: the same number of samples per rank",
    "divided": "strong scaling: the same number of samples for the whole job",
    "other": "neither weak nor strong scaling: samples per rank differ",
    "unknown": "samples per rank are unknown",
}
UNCERTAIN = (
    f"each number of ranks ran once; two runs of the same program can differ by"
    f" {percent(RUN_TO_RUN_FRAC)} without any cause"
)


def document(scaling: Scaling) -> Document:
    """What the largest number of ranks loses, then all numbers of ranks, then where time goes."""
    measured = [run for run in scaling.runs if run.step_ns is not None]
    notes = [*scaling.notes, *([UNCERTAIN] if len(measured) > 1 else [])]
    return Document(
        name="tdiag run --scaling",
        title=" ".join(scaling.command),
        data=scaling,
        headline=_headline(scaling),
        sections=tuple(_sections(scaling)),
        notes=tuple(Note("scaling", text) for text in notes),
        version=scaling.tdiag,
    )


def _headline(scaling: Scaling) -> Headline:
    last = next((run for run in reversed(scaling.runs[1:]) if run.efficiency is not None), None)
    if last is None or last.efficiency is None or last.relative is None:
        reasons = list(dict.fromkeys(_reason(run) for run in scaling.runs if _reason(run)))
        text = "; ".join(reasons) or "only one number of ranks was measured"
        return Headline(title="Scaling unknown", sign="?", tone="unsure",
                        lines=(Line(text),), brief=f"Scaling unknown: {text}")  # fmt: skip
    base = scaling.runs[0]
    title = f"{percent(last.efficiency)} of perfect scaling with {plural(last.ranks, 'rank')}"
    lines = [
        Line(
            f"{plural(last.ranks, 'rank')} train {significant(last.relative)} times as many samples"
            f" per second as {base.ranks}; {significant(last.ranks / base.ranks)} times would be"
            f" perfect ({_LOADS[last.load]})."
        ),
        Line(_lost(last)),
    ]
    fine = last.efficiency >= 1 - RUN_TO_RUN_FRAC
    if not fine:
        lines += (Line(text, "Computing") for text in _causes(last, base, scaling))
    return Headline(
        title=title,
        sign="✓" if fine else "●",
        tone="good" if fine else "bad",
        lines=tuple(lines),
        brief=f"{title}: {lines[1].text}",
    )


def _reason(run: ScaledRun) -> str:
    """Why the run has no efficiency."""
    if run.why:
        return f"with {plural(run.ranks, 'rank')}: {run.why}"
    if run.samples is None:
        return "no DataLoader shows how many samples a step has"
    return ""


def _lost(run: ScaledRun) -> str:
    """What the step loses to perfect scaling, largest part first."""
    assert run.step_ns is not None and run.lost_ns is not None
    if run.lost_ns <= 0:
        return f"The step of {duration(run.step_ns)} loses nothing."
    share = f"{duration(run.lost_ns)} ({percent(run.lost_ns / run.step_ns)})"
    said = f"With perfect scaling the step of {duration(run.step_ns)} would be {share} shorter"
    if run.lost_ns < RUN_TO_RUN_FRAC * run.step_ns:
        return f"{said}, which is within the difference between two runs of one program."
    return f"{said}: {', '.join(f'{duration(x.ns)} {ROWS[x.row][0]}' for x in _most(run))}."


def _most(run: ScaledRun) -> list[Loss]:
    """The rows that make up a noticeable part of the loss, largest first."""
    assert run.lost_ns is not None
    least = NOTICEABLE_FRAC * run.lost_ns
    return sorted((x for x in run.loss if x.ns >= least), key=lambda x: -x.ns)


def _causes(run: ScaledRun, base: ScaledRun, scaling: Scaling) -> Iterator[str]:
    """Known reasons why computing takes longer."""
    if all(x.row not in ("computing", "once_a_step", "unattributed") for x in _most(run)):
        return
    if run.threads and base.threads and run.threads < base.threads:
        yield (
            f"Each rank computes with {plural(run.threads, 'thread')}; with"
            f" {plural(base.ranks, 'rank')} each had {base.threads}. torchrun sets"
            " `OMP_NUM_THREADS=1` for several ranks unless it is set."
        )
    elif run.threads and scaling.device == "cpu" and run.threads * run.ranks > scaling.cores:
        yield (
            f"{plural(run.ranks, 'rank')} with {plural(run.threads, 'thread')} each share"
            f" {plural(scaling.cores, 'core')}."
        )
    elif run.load == "divided":
        yield "A smaller batch takes more time per sample, or ranks share cores."
    elif run.load == "same":
        yield "The same work takes longer: ranks share cores, caches and memory."


def _sections(scaling: Scaling) -> Iterator[Section]:
    yield Section(id="ranks", title="Number of ranks", blocks=(_table(scaling.runs),),
                  aside="clean steps")  # fmt: skip
    lost = [run for run in scaling.runs if run.loss]
    if lost:
        yield Section(id="lost", title="Lost to perfect scaling", blocks=(_losses(lost),),
                      aside="per step, and share of the step")  # fmt: skip
    rows = tuple(Line(run.why or run.verdict, PurePath(run.run).name) for run in scaling.runs)
    yield Section(id="each", title="Each run", blocks=(Facts(rows),),
                  aside="tdiag report FOLDER")  # fmt: skip


def _table(runs: Sequence[ScaledRun]) -> Table:
    titles = "ranks", "step", "samples per rank", "throughput", "of perfect", "lost per step"
    return Table(
        title="",
        columns=tuple(Column(title) for title in titles),
        rows=tuple(_row(run) for run in runs),
        what="number of ranks",
    )


def _row(run: ScaledRun) -> tuple[Cell, ...]:
    def cell(value: float | None, text: str) -> Cell:
        return Cell(NOTHING) if value is None else Cell(text, value)

    return (
        Cell(str(run.ranks), run.ranks),
        cell(run.step_ns, duration(run.step_ns or 0)),
        cell(run.samples, count(run.samples or 0)),
        cell(run.relative, f"{run.relative or 0:.2f}×"),
        cell(run.efficiency, percent(run.efficiency or 0)),
        cell(run.lost_ns if run.loss else None, _signed(run.lost_ns or 0)),
    )


def _signed(ns: float) -> str:
    return f"-{duration(-ns)}" if ns < 0 else duration(ns)


def _losses(runs: Sequence[ScaledRun]) -> Table:
    """One row per kind of loss and two columns per number of ranks, then their sum."""
    longest = max(run.step_ns or 0 for run in runs)
    unit, decimals, ns_per_digit = scale_for(longest)
    columns = [Column("part", "end")]
    for run in runs:
        columns += [Column(f"{plural(run.ranks, 'rank')}, {unit}"), Column("of step")]
    columns.append(Column("what it is", "end", wide=True))
    by_row = [{x.row: x.ns for x in run.loss} for run in runs]
    kept = [row for row in get_args(Row) if any(row in rows for rows in by_row)]

    def cells(values: Sequence[int | None]) -> Iterator[Cell]:
        for ns, run in zip(values, runs, strict=True):
            if ns is None:
                yield from (Cell(NOTHING), Cell(""))
                continue
            shown = f"{ns / ns_per_digit / 10**decimals:,.{decimals}f}"
            share = ns / (run.step_ns or 1)
            yield from (Cell(shown, ns), Cell(f"{share:.1%}", share))

    rows = [
        (Cell(ROWS[row][0]), *cells([rows.get(row) for rows in by_row]), Cell(ROWS[row][1]))
        for row in kept
    ]
    rows.append((Cell("total"), *cells([run.lost_ns for run in runs]), Cell("")))
    return Table(title="", columns=tuple(columns), rows=tuple(rows))
