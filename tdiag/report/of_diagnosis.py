"""The document of a diagnosis."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from tdiag.evidence.sources import excerpt
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import MINOR_FRAC, Diagnosis, RankStep, Top
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.report import of_trials, of_watched
from tdiag.report.document import (
    Annotation,
    AnnotationRule,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Headline,
    Line,
    Parts,
    Section,
    Table,
)
from tdiag.report.money import money
from tdiag.report.of_compiled import blocks as compiled_blocks
from tdiag.report.of_finding import action, finding_annotation, item
from tdiag.report.of_roofline import blocks as roofline_blocks
from tdiag.report.profilers import every_table
from tdiag.report.summary import (
    NO_SHARE,
    advisories,
    best,
    doubtful,
    doubts,
    failed,
    gain_words,
    headline,
    ranked,
    unchecked,
    what_to_do,
)
from tdiag.report.words import component
from tdiag.units import count, disturbance, duration, faster, percent, plural

LAST = ("other", "unattributed")  # components that are no named activity come last in the budget
FIRST_FINDINGS = 5  # shown without --all; nobody acts on more at a time
FIRST_ADVISORIES = 3
FIRST_PARTS = 5
_SOURCES = {"baseline": "no profiler running", "trace": "traced: the profiler slows the host"}
_ALWAYS = ("kernels", "ops", "functions")  # on a device these say what to change
_TOPS = {
    "kernels": "kernels and copies",
    "ops": "ops by device time",
    "modules": "modules by device time",
    "functions": "your functions by device time",
    "host_ops": "ops by own host time",
}


def document(
    diagnosis: Diagnosis,
    *,
    hourly_cost: float | None = None,
    explained: Mapping[str, str] | None = None,
    evidence: Evidence | None = None,
    began_unix_ns: int | None = None,
) -> Document:
    """``hourly_cost``: the machine's price per hour, in any currency, for the table of time and
    money. ``explained``: each rule's documentation (Markdown) by its code. ``evidence``: data for a
    page's charts and tables; ``began_unix_ns``: start of the run, to tell whether its files have
    changed.
    """
    env = diagnosis.environment
    explanations = explained or {}
    places = {f.location for f in diagnosis.findings if f.location} if evidence else set()
    read = (excerpt(at.file, at.line, began_unix_ns) for at in places)
    return Document(
        name="tdiag",
        title=PurePath(str(env.get("script") or "trace")).name,
        about=tuple(
            str(text)
            for text in (
                env.get("device"),
                env.get("torch") and f"torch {env['torch']}",
                env.get("python") and f"Python {env['python']}",
                env.get("hostname"),
            )
            if text
        ),
        data=diagnosis,
        headline=_headline(diagnosis),
        sections=tuple(_sections(diagnosis, hourly_cost, explanations, evidence)),
        annotations=tuple(_annotations(diagnosis, explanations)),
        notes=diagnosis.notes if diagnosis.verdict.cls != "unknown" else (),
        version=str(env.get("tdiag", "unknown")),
        evidence=evidence,
        excerpts=tuple(found for found in read if found),
    )


def _headline(diagnosis: Diagnosis) -> Headline:
    """The class, its share of the step, what the best fix gains, and where."""
    verdict = diagnosis.verdict
    title, share = headline(diagnosis)
    lines = [Line(verdict.summary)]
    if doubtful(verdict):
        lines.append(Line(doubts(diagnosis), "Not sure"))
    fix = best(diagnosis)
    if verdict.healthy:
        lines.append(Line("Nothing needs changing.", tone="good"))
    elif fix:
        gain = gain_words(fix) if fix.measured else f"predicted {gain_words(fix)}"
        label = "Possible fix" if doubtful(verdict) else "Best fix"
        lines.append(Line(action(fix), label, place=fix.location, gain=gain))
    if verdict.cls == "unknown":
        lines += _what_to_do(diagnosis)
    if diagnosis.watched:
        lines.append(Line(of_watched.NEXT, "Next", tone="quiet"))
    tone, sign = ("good", "✓") if verdict.healthy else ("bad", "●")
    if verdict.cls == "compute" and not verdict.healthy and fix is None:
        tone = "accent"  # nothing wrong was found
    aside = ""
    if verdict.cls in NO_SHARE:
        tone, sign = "unsure", "?"
    else:
        sure = percent(verdict.confidence)
        aside = "proven by a trial" if verdict.proven else f"{sure} sure"
        if doubtful(verdict):
            tone, sign, aside = "unsure", "○", f"low confidence ({sure})"
        aside += f", runner-up {verdict.runner_up}" if verdict.runner_up else ""
    return Headline(
        title=title,
        share=share,
        aside=aside,
        tone=tone,  # type: ignore[arg-type]
        sign=sign,
        lines=tuple(lines),
        brief=_brief(diagnosis, title, share),
    )


def _brief(diagnosis: Diagnosis, title: str, share: str) -> str:
    """``I/O-bound: 62% of the step (50.1 ms); best fix 1.6–2.1× faster``; the format adds the
    place."""
    if not share or diagnosis.step is None:
        return f"{title}: {diagnosis.verdict.summary}"
    line = f"{title}: {share} ({duration(diagnosis.step.mean_ns)})"
    if (fix := best(diagnosis)) and not diagnosis.verdict.healthy:
        line += f"; best fix {gain_words(fix)}"
    return line


def _what_to_do(diagnosis: Diagnosis) -> Iterator[Line]:
    """Without a verdict: what was missing and what to do next, unless the summary already says
    so."""
    said = diagnosis.verdict.summary
    yield from (Line(note.text) for note in diagnosis.notes if note.text != said)
    for reason, sources in failed(diagnosis).items():
        if reason != said:
            yield Line(f"{', '.join(sources)} ({reason})", "Missing")
    if _nothing_checked(diagnosis):
        (reason, codes), *_ = unchecked(diagnosis)
        because = "" if reason == said else f": {reason}"
        yield Line(f"None of the {len(codes)} rules could be checked{because}.", tone="quiet")
    if need := what_to_do(diagnosis):
        yield Line(need, "What to do")


def _nothing_checked(diagnosis: Diagnosis) -> bool:
    """Whether no rule could be checked, all for the same reason: then one line says so."""
    nothing = diagnosis.step is None and not diagnosis.findings
    return nothing and len(unchecked(diagnosis)) == 1


def _sections(
    diagnosis: Diagnosis,
    hourly_cost: float | None,
    explained: Mapping[str, str],
    evidence: Evidence | None,
) -> Iterator[Section]:
    healthy = diagnosis.verdict.healthy
    if parts := [c for c in diagnosis.budget if c.ns > 0]:
        parts.sort(key=lambda c: (c.component in LAST, -c.ns))
        yield Section(id="budget", title="Step time", aside=_step(diagnosis),
                      blocks=(Parts(tuple(parts)),))  # fmt: skip
    if diagnosis.watched:
        yield from of_watched.sections(diagnosis.watched)
    if (drawn := diagnosis.timeline) and drawn.lanes and drawn.step_ns:
        title = "The median step along time" if drawn.steps else "The whole trace along time"
        aside = _SOURCES.get(drawn.source, drawn.source)
        yield Section(id="along-time", title=title, aside=aside, blocks=(drawn,))
    if fixes := ranked(diagnosis):
        blocks: list[Block] = [
            item(f, n, diagnosis, explained.get(f.code, "")) for n, f in enumerate(fixes, 1)
        ]
        proof = of_trials.best_of(diagnosis.trials) if diagnosis.trials else None
        if proof and diagnosis.trials and proof is diagnosis.trials.together:
            said = f"{proof.change}: together {of_trials.ratio(proof)} faster, measured."
            blocks.append(Line(said, tone="good"))
        elif gain := diagnosis.together:
            said = f"All {len(fixes)} together {faster(gain.low, gain.high)} faster"
            if any(fix.measured for fix in fixes):
                said += ", predicted"
            blocks.append(Line(f"{said}: overlapping savings are counted once.", tone="quiet"))
        yield Section(id="findings", title="What to change", aside="largest gain first",
                      blocks=tuple(blocks), first=FIRST_FINDINGS,
                      what=("finding", "findings"))  # fmt: skip
    if diagnosis.trials:
        yield of_trials.section(diagnosis.trials)
        yield from of_trials.patch_section(diagnosis.trials)
    if table := money(diagnosis, hourly_cost):
        yield Section(id="money", title="Time and money", aside=f"at {hourly_cost:g} an hour",
                      blocks=(table,))  # fmt: skip
    if minor := advisories(diagnosis):
        yield Section(
            id="advisories",
            title="Worth knowing",
            aside="little or nothing to gain" if healthy else "no measured cost",
            blocks=tuple(item(f, None, diagnosis, explained.get(f.code, "")) for f in minor),
            first=FIRST_ADVISORIES,
            what=("advisory", "advisories"),
        )
    if found := diagnosis.roofline:
        reached = f"{percent(found.efficiency)} reached"
        yield Section(id="roofline", title="What this machine reaches", aside=reached,
                      blocks=tuple(roofline_blocks(found)), folded=healthy)  # fmt: skip
    if diagnosis.compiled:
        spent = duration(diagnosis.compiled.before_ns)
        yield Section(id="compiled", title="torch.compile", aside=f"{spent} compiling first",
                      blocks=tuple(compiled_blocks(diagnosis.compiled)))  # fmt: skip
    if diagnosis.ranks:
        yield Section(id="ranks-table", title="Ranks", aside="ms per step",
                      blocks=(_ranks(diagnosis.ranks),))  # fmt: skip
        if lost := _lost_to_scaling(diagnosis.ranks):
            yield Section(id="scaling", title="Scaling", blocks=(Line(lost),))
    on_device = any(x.of == "kernels" for x in diagnosis.top)
    if parts_table := [_top(x, on_device) for x in diagnosis.top]:
        yield Section(id="top", beside=True, title="Largest parts", aside="per traced step",
                      blocks=tuple(parts_table))  # fmt: skip
    if evidence:
        yield Section(id="tables", title="What the profilers saw", page_only=True,
                      blocks=tuple(every_table(evidence)))  # fmt: skip
    if diagnosis.abstained:
        lines = [Line(reason, " ".join(codes)) for reason, codes in unchecked(diagnosis)]
        yield Section(
            id="missing",
            title="Could not check",
            aside=plural(len(diagnosis.abstained), "rule"),
            blocks=tuple(lines),
            first=0 if _nothing_checked(diagnosis) else 6,
            what=("reason", "reasons"),
            folded=True,
        )
    yield Section(id="measured", title="How it was measured", folded=True,
                  blocks=(Facts(tuple(_measured(diagnosis))),))  # fmt: skip


def _step(diagnosis: Diagnosis) -> str:
    step = diagnosis.step
    if step is None:
        return ""
    times = (("mean", step.mean_ns), ("median", step.median_ns), ("p90", step.p90_ns))
    shown = " · ".join(f"{name} {duration(ns)}" for name, ns in times)
    return f"{shown} · {plural(step.count, 'step')}"


def _annotations(diagnosis: Diagnosis, explained: Mapping[str, str]) -> Iterator[Annotation]:
    for finding in diagnosis.findings:
        yield finding_annotation(finding, diagnosis, explained.get(finding.code, ""))
    for rule in diagnosis.abstained:
        yield Annotation(
            rule=AnnotationRule(id=rule.code, name=rule.name, text=rule.name),
            level="skipped",
            title=rule.missing,
            group="could not check",
            name=f"{rule.code} {rule.name}".strip(),
        )


def _lost_to_scaling(ranks: tuple[RankStep, ...]) -> str:
    """What one run shows of the loss to perfect scaling, in the words of ``tdiag run --scaling``;
    empty if it is not noticeable."""
    step_ns = statistics.fmean(rank.step_ns for rank in ranks)
    lost = [x.ns for rank in ranks for x in rank.components if x.component == "comm"]
    lost_ns = sum(lost) / len(ranks)
    if lost_ns < NOTICEABLE_FRAC * step_ns or not lost_ns:
        return ""
    return (
        f"With perfect scaling the step of {duration(step_ns)} would be at least"
        f" {duration(lost_ns)} ({percent(lost_ns / step_ns)}) shorter: exposed communication and"
        " waiting for late ranks, mean over the ranks."
    )


def _ranks(ranks: tuple[RankStep, ...]) -> Table:
    """Each rank's budget side by side. ``all comm``: communication, overlapped or not; the
    straggler has the least."""
    largest: dict[str, float] = {}
    for rank in ranks:
        for part in rank.components:
            share = part.ns / rank.step_ns if rank.step_ns else 0.0
            largest[part.component] = max(largest.get(part.component, 0.0), share)
    names = sorted((n for n in largest if largest[n] >= MINOR_FRAC), key=lambda n: -largest[n])
    late = any(rank.late for rank in ranks)
    titles = ["rank", "step", "all comm", *(component(name).label for name in names)]
    return Table(
        title="",
        columns=tuple(Column(title) for title in titles),
        rows=tuple(_rank(rank, names) for rank in ranks),
        note="◄ the others wait for it: it communicates least" if late else "",
        first=64,
        what="rank",
    )


def _rank(rank: RankStep, names: list[str]) -> tuple[Cell, ...]:
    held = {part.component: part.ns for part in rank.components}
    waiting = rank.communication_ns
    return (
        Cell(f"{'◄ ' if rank.late else ''}{rank.rank}", rank.rank),
        _ms(rank.step_ns),
        Cell("?") if waiting is None else _ms(waiting),
        *(_ms(held.get(name, 0)) for name in names),
    )


def _ms(ns: float) -> Cell:
    return Cell(f"{ns / 1e6:.1f}", ns)


def _top(found: Top, on_device: bool) -> Table:
    """The largest kernels, ops and functions of the traced step, with their shares."""
    rows = []
    for part in found.parts:
        share = part.ns / found.total_ns if found.total_ns else 0.0
        name = [Cell(part.name)]
        if found.of == "functions":
            name.append(Cell("", place=part.at))
        numbers = Cell(count(part.count), part.count), Cell(duration(part.ns), part.ns)
        rows.append((*name, *numbers, Cell(percent(share) if found.total_ns else "", share)))
    names: tuple[Column, ...] = (Column(_TOPS[found.of], "kernel"),)
    if found.of == "functions":
        names = (Column("your functions", "end"), Column("at", "start"))
    return Table(
        title="",
        columns=(*names, Column("calls"), Column("time"), Column("share")),
        rows=tuple(rows),
        note="Times are scaled to the clean step." if found.scaled else "",
        first=FIRST_PARTS,
        what="part",
        minor=on_device and found.of not in _ALWAYS,
    )


def _measured(diagnosis: Diagnosis) -> Iterator[Line]:
    by_state: dict[str, list[str]] = {}
    for source, capture in diagnosis.capture.items():
        by_state.setdefault(capture.state, []).append(source)
        if capture.state == "partial":
            yield Line(f"{source}: {capture.why}", "in part")
    if captured := by_state.get("captured"):
        yield Line(", ".join(captured), "captured")
    if diagnosis.verdict.cls != "unknown":  # its headline already names these
        for reason, sources in failed(diagnosis).items():
            yield Line(f"{', '.join(sources)}: {reason}", "failed", "unsure")
    if skipped := by_state.get("not requested"):
        yield Line(", ".join(skipped), "not asked", minor=True)
    if slowed := diagnosis.perturbation:
        parts = (f"{name} {disturbance(frac)}" for name, frac in slowed.items())
        text = f"{', '.join(parts)} on the steps they watched; the times above exclude this"
        yield Line(text, "profilers")
    if env := _machine(diagnosis.environment):
        yield Line(env, "machine")
    if command := diagnosis.environment.get("command"):
        words = [str(w) for w in command] if isinstance(command, list | tuple) else [str(command)]
        yield Line(shlex.join(words), "command")
    for name, value in diagnosis.environment.items():
        if value not in (None, "", [], ()) and name != "command":
            shown = shlex.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield Line(shown, name.replace("_", " "), minor=True)


def _machine(env: dict[str, Any]) -> str:
    """The machine in one line; unknown facts are left out."""
    parts = [f"{name} {env[name]}" for name in ("torch", "python", "tdiag") if env.get(name)]
    if framework := env.get("framework"):
        parts.insert(1, " ".join(framework))
    if device := env.get("device"):
        many = env.get("device_count") or 1
        parts.insert(0, f"{many} × {device}" if many > 1 else str(device))
    if (env.get("world_size") or 1) > 1:
        parts.append(f"rank {env.get('rank', 0)} of {env['world_size']}")
    parts += [str(env[name]) for name in ("platform", "hostname") if env.get(name)]
    return ", ".join(parts)
