"""SARIF 2.1.0 (OASIS): each finding as a result at the user's own line."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.model.place import Place
from tdiag.report.page import Page
from tdiag.report.summary import measure_name, measure_value, why
from tdiag.report.text import inert, relative

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def render(diagnosis: Diagnosis, page: Page) -> str:
    """One run; its rules are those that found something, ``rank`` is what they win, % of a step."""
    rules = list({f.code: f for f in diagnosis.findings}.values())
    order = {f.code: i for i, f in enumerate(rules)}
    driver = {
        "name": "tdiag",
        "version": inert(diagnosis.environment.get("tdiag", "unknown")),
        "rules": [_rule(f, page.explained.get(f.code, "")) for f in rules],
    }
    results = [_result(f, order[f.code], diagnosis, page) for f in diagnosis.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    text = msgspec.json.encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _rule(finding: Finding, explained: str) -> dict[str, Any]:
    """``explained``: its documentation in Markdown, which is ours and so needs no escaping."""
    rule: dict[str, Any] = {
        "id": inert(finding.code),
        "name": inert(finding.name),
        "shortDescription": {"text": inert(finding.name.replace("-", " "))},
        "properties": {"tags": ["performance", inert(finding.cls)]},
    }
    if explained:
        rule["help"] = {"text": explained, "markdown": explained}
    return rule


def _result(finding: Finding, rule: int, diagnosis: Diagnosis, page: Page) -> dict[str, Any]:
    sentences = (finding.summary, f"Fix: {finding.fix.text}", why(finding, diagnosis))
    result: dict[str, Any] = {
        "ruleId": inert(finding.code),
        "ruleIndex": rule,
        "level": "note" if finding.advisory else "warning",
        "message": {"text": "\n".join(inert(s, 1200) for s in sentences if s)},
        "properties": {
            "recoverable_ns_per_step": finding.recoverable_ns,
            "evidence": {
                measure_name(m): f"{measure_value(m)} ({inert(m.source)})" for m in finding.evidence
            },
        },
    }
    if diagnosis.step:
        share = finding.recoverable_ns / diagnosis.step.mean_ns * 100
        result["rank"] = round(min(100.0, max(0.0, share)), 1)
    if finding.location:
        result["locations"] = [{"physicalLocation": physical(finding.location, page.base_dir)}]
    return result


def physical(place: Place, base: Path | None) -> dict[str, Any]:
    """Relative to the repository root where the file lies below it, as code scanning wants it."""
    shown = relative(place.file, base)
    if Path(shown).is_absolute():
        location: dict[str, Any] = {"artifactLocation": {"uri": Path(shown).as_uri()}}
    else:
        uri = quote(Path(shown).as_posix(), errors="surrogateescape")
        location = {"artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"}}
    if place.line > 0:
        location["region"] = {"startLine": place.line}
    return location
