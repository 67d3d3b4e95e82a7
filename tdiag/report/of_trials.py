"""The document of trials, and their section in a run's report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from tdiag.model.notes import Note
from tdiag.model.trials import Patch, Trials, Tried
from tdiag.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Headline,
    Line,
    Section,
    Table,
)
from tdiag.units import count, duration, plural, size

SMALL_MEMORY_FRAC = 0.05  # heuristic: a smaller difference of memory is not worth a line


def document(trials: Trials) -> Document:
    """The best change, every trial with its numbers, then details of each trial."""
    return Document(
        name="tdiag try",
        title=trials.command,
        data=msgspec.to_builtins(trials),
        headline=_headline(trials),
        sections=(*_sections(trials), *patch_section(trials)),
        notes=tuple(Note("trial", text) for text in _notes(trials)),
        version=trials.tdiag,
    )


def section(trials: Trials) -> Section:
    """The section of a run's report: what each change gained, and what the parts of the step
    cost."""
    blocks: list[Block] = []
    for part in _sections(trials):
        blocks += (replace(b, title=part.title) if isinstance(b, Table) else b for b in part.blocks)
    blocks += (Line(text, tone="quiet") for text in _notes(trials))
    return Section(id="trials", title="Measured by trials", aside="unmodified script, interleaved",
                   blocks=tuple(blocks))  # fmt: skip


def _headline(trials: Trials) -> Headline:
    best = best_of(trials)
    if best is None:
        costs = [one for one in trials.tried if one.ceiling and one.answer == "faster"]
        title = "Parts measured" if costs else "No gain measured"
        text = _costs(max(costs, key=lambda one: one.speedup)) if costs else _none(trials)
        return Headline(title=title, sign="●" if costs else "?", tone="accent" if costs else
                        "unsure", lines=(Line(text),), brief=f"{title}: {text}")  # fmt: skip
    changes = best.change.count(" + ") + 1
    title = f"{ratio(best)} with {plural(changes, 'change')}, measured"
    text = f"{best.change}: {best.step} step {times(best)}"
    training = best.losses or "losses were not compared, because none were seen"
    lines = Line(text), Line(f"{best.safety}; {training}", label="Training")
    return Headline(title=title, sign="✓", tone="good", lines=lines,
                    brief=f"{title}: {text}")  # fmt: skip


def best_of(trials: Trials) -> Tried | None:
    """The largest gain of a change that can be kept; the gain of several together only if it is the
    largest."""
    won = [one for one in trials.all if one.answer == "faster" and not one.ceiling]
    return max(won, key=lambda one: one.speedup, default=None)


def _none(trials: Trials) -> str:
    answers = [one.answer for one in trials.tried]
    kinds = dict.fromkeys(answers)
    return ", ".join(f"{answers.count(kind)} {kind}" for kind in kinds)


def _costs(one: Tried) -> str:
    low, high = (one.without_ns * (1 - 1 / bound) for bound in (one.low, one.high))
    cost = one.without_ns * (1 - 1 / one.speedup)
    return (f"{one.change}: costs {duration(cost)} [{duration(low)}, {duration(high)}] of"
            f" {duration(one.without_ns)}")  # fmt: skip


def _sections(trials: Trials) -> Iterator[Section]:
    fixes = [one for one in trials.all if not one.ceiling]
    parts = [one for one in trials.all if one.ceiling]
    if fixes:
        columns = (Column("change", "end"), Column("speedup"), Column("95% interval"),
                   Column("without"), Column("with"), Column("result", "end"))  # fmt: skip
        cells = tuple(_fix_row(one) for one in fixes)
        yield Section(id="changes", title="Changes tried", blocks=(
            Table(title="", columns=columns, rows=cells, what="change"),))  # fmt: skip
    if parts:
        left_out = (Column("left out", "end"), Column("costs"), Column("95% interval"),
                    Column("of a step"), Column("result", "end"))  # fmt: skip
        cells = tuple(_part_row(one) for one in parts)
        yield Section(id="parts", title="What parts of the step cost", blocks=(
            Table(title="", columns=left_out, rows=cells, what="part"),))  # fmt: skip
    details: list[Block] = [facts for one in trials.all if (facts := _details(one)).rows]
    if details:
        yield Section(id="details", title="Details", blocks=tuple(details))


def patch_section(trials: Trials) -> Iterator[Section]:
    """What won as a patch, or why there is no patch."""
    if trials.patch:
        yield Section(id="patch", title="Patch", blocks=tuple(_patch(trials.patch)),
                      aside="what won, in your own files" if trials.patch.diff else "")  # fmt: skip


def _patch(patch: Patch) -> Iterator[Block]:
    if patch.diff and patch.measured:
        losses = f"; {patch.measured.losses}" if patch.measured.losses else ""
        said = f"{', '.join(patch.made)}: {ratio(patch.measured)} {result(patch.measured)}"
        said += f", measured as patched{losses}"
        yield Line(said, tone="good")
        file, root = Path(patch.file), Path(patch.root)
        name = file.relative_to(root) if file.is_relative_to(root) else file
        apply = f"Apply it in {root}: `git apply {shlex.quote(str(name))}`"
        yield Line(patch.why, tone="unsure") if patch.why else Line(apply)
        yield Code(patch.diff, "diff")
    else:
        yield Line(f"No patch: {patch.why}", tone="unsure")
    for text in patch.by_hand:
        yield Line(f"Not in the patch: {text}" if patch.diff else text)


def _fix_row(one: Tried) -> tuple[Cell, ...]:
    numbers = ("", "", "", "")
    if one.speedup:
        numbers = (f"{one.speedup:.2f}×", f"[{one.low:.2f}, {one.high:.2f}]",
                   duration(one.without_ns), duration(one.with_ns))  # fmt: skip
    return tuple(Cell(text) for text in (one.change, *numbers, result(one)))


def _part_row(one: Tried) -> tuple[Cell, ...]:
    numbers = ("", "", "")
    if one.speedup and one.answer == "faster":
        low, high = (one.without_ns * (1 - 1 / bound) for bound in (one.low, one.high))
        numbers = (duration(one.without_ns * (1 - 1 / one.speedup)),
                   f"[{duration(low)}, {duration(high)}]", duration(one.without_ns))  # fmt: skip
    elif one.speedup:
        numbers = ("", "", duration(one.without_ns))
    said = "cost measured" if one.answer == "faster" else result(one)
    return tuple(Cell(text) for text in (one.change, *numbers, said))


def result(one: Tried) -> str:
    """The answer, and which step it refers to if not the typical one."""
    return f"{one.answer} (mean)" if one.step == "mean" else one.answer


def _details(one: Tried) -> Facts:
    lines = []
    if one.ceiling and one.speedup and one.answer != "faster":
        lines.append(f"{ratio(one)} without it")
    if one.why:
        lines.append(one.why)
    lines += one.did[:2]
    if one.speedup and not one.ceiling:
        lines.append(one.safety + (f"; {one.losses}" if one.losses else ""))
    if one.answer == "faster" and not one.ceiling and one.extra_start_ns > 1e9:
        after = one.extra_start_ns / max(1.0, one.without_ns - one.with_ns)
        lines.append(f"costs {duration(one.extra_start_ns)} once, at the start: pays after"
                     f" {count(after)} steps")  # fmt: skip
    before, now = one.peak_without_bytes, one.peak_with_bytes
    if before and now and abs(now - before) > SMALL_MEMORY_FRAC * before and not one.ceiling:
        lines.append(f"peak memory {size(before)} → {size(now)}")
    return Facts(tuple(Line(text, label=one.change if not i else "")
                       for i, text in enumerate(lines)))  # fmt: skip


def _notes(trials: Trials) -> Iterator[str]:
    measured = [one for one in trials.tried if one.groups]
    if measured:
        pairs = sum(one.groups for one in measured)
        yield (
            f"{plural(pairs, 'pair')} of fresh processes, both alive at once, interleaved; the"
            " speedup is of the typical (median) step unless the mean step is named"
        )
    if trials.untried:
        yield f"not tried because the time was up: {', '.join(trials.untried)} (raise it)"
    yield from trials.notes


def ratio(one: Tried) -> str:
    """``2.90× [2.80, 3.10]``."""
    return f"{one.speedup:.2f}× [{one.low:.2f}, {one.high:.2f}]"


def times(one: Tried) -> str:
    return f"{duration(one.without_ns)} → {duration(one.with_ns)}"
