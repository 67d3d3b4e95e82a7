"""A finding for a reader, and its annotation for programs."""

from __future__ import annotations

import re

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.model.trials import Edit
from tdiag.report.document import Annotation, AnnotationRule, Item
from tdiag.report.summary import gain_words, measure_name, measure_value, why
from tdiag.report.words import SAFETY

_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n")


def action(finding: Finding) -> str:
    """The change in one line: the fix's own ``action``, else the first sentence of its text."""
    fix = finding.fix
    return fix.action or _SENTENCE_END.split(fix.text.strip(), maxsplit=1)[0]


def item(
    finding: Finding,
    number: int | None = None,
    diagnosis: Diagnosis | None = None,
    explained: str = "",
) -> Item:
    """``number``: its rank, None for an advisory; ``diagnosis``: the diagnosis that ranks it."""
    said = action(finding)
    change = finding.fix.text.strip()
    return Item(
        number=number,
        action=said,
        gain=gain_words(finding) if number else "",
        rule=finding.code,
        name=finding.name,
        place=finding.location,
        summary=finding.summary,
        change="" if change.rstrip(".") == said.rstrip(".") else change,
        code=finding.fix.code,
        safety=SAFETY[finding.fix.safety],
        why=why(finding, diagnosis) if diagnosis else "",
        evidence=finding.evidence,
        explained=explained,
    )


def finding_annotation(
    finding: Finding, diagnosis: Diagnosis | None, explained: str = ""
) -> Annotation:
    """A finding at the user's line: the change and its gain first, then the evidence."""
    gain = gain_words(finding)
    fix = finding.fix
    lines = [finding.summary, f"Fix: {fix.text}", *fix.code.splitlines()]
    if diagnosis:
        lines.append(why(finding, diagnosis))
    lines += [f"{measure_name(m)}: {measure_value(m)} ({m.source})" for m in finding.evidence]
    step = diagnosis.step if diagnosis else None
    rule = AnnotationRule(
        id=finding.code,
        name=finding.name,
        text=finding.name.replace("-", " "),
        tags=("performance", finding.cls),
        explained=explained,
    )
    return Annotation(
        rule=rule,
        level="note" if finding.advisory else "warning",
        title=action(finding) + (f" ({gain})" if gain else ""),
        lines=tuple(line for line in lines if line),
        places=((finding.location, ""),) if finding.location else (),
        group=finding.cls,
        name=f"{finding.code} {finding.name}",
        share=finding.recoverable_ns / step.mean_ns if step else None,
        edits=_edits(finding, diagnosis) if diagnosis else (),
        properties={
            "recoverable_ns_per_step": finding.recoverable_ns,
            "evidence": {
                measure_name(m): f"{measure_value(m)} ({m.source})" for m in finding.evidence
            },
        },
    )


def _edits(finding: Finding, diagnosis: Diagnosis) -> tuple[Edit, ...]:
    """The edits of the proven patch, only on the first finding that it fixes."""
    patch = diagnosis.trials.patch if diagnosis.trials else None
    if patch is None:
        return ()
    fixed = [f for f in diagnosis.findings if f.fix.intervention
             and set(f.fix.intervention.split("+")) <= set(patch.made)]  # fmt: skip
    return patch.edits if fixed[:1] == [finding] else ()
