"""SARIF 2.1.0 (OASIS): each annotation is a result at the user's own lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from tdiag.model.trials import Edit
from tdiag.report.document import Annotation, AnnotationRule, Document, Level
from tdiag.report.json import jsonable
from tdiag.report.page import Page
from tdiag.report.text import inert, relative

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS = ("error", "warning", "note")


def render(document: Document, page: Page) -> str:
    """One run. Its rules are those with findings; ``rank`` is the gain in percent of the step."""
    found = [*_verdict(document), *(x for x in document.annotations if x.level in LEVELS)]
    rules = list({x.rule.id: x.rule for x in found}.values())
    order = {rule.id: i for i, rule in enumerate(rules)}
    driver = {
        "name": document.name,
        "version": inert(document.version),
        "rules": [_rule(rule) for rule in rules],
    }
    results = [_result(x, order[x.rule.id], page) for x in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(jsonable(log)), indent=2).decode() + "\n"


def _verdict(document: Document) -> Iterator[Annotation]:
    head = document.headline
    if head and head.rule:
        level: Level = "error" if head.level == "error" else "note"
        lines = tuple(line.text for line in head.lines[1:])
        yield Annotation(rule=head.rule, level=level, title=head.lines[0].text, lines=lines)


def _rule(rule: AnnotationRule) -> dict[str, Any]:
    """``explained`` is tdiag's own documentation, which needs no escaping."""
    result: dict[str, Any] = {
        "id": inert(rule.id),
        "name": inert(rule.name),
        "shortDescription": {"text": inert(rule.text)},
    }
    if rule.tags:
        result["properties"] = {"tags": [inert(tag) for tag in rule.tags]}
    if rule.explained:
        result["help"] = {"text": rule.explained, "markdown": rule.explained}
    return result


def _result(found: Annotation, rule: int, page: Page) -> dict[str, Any]:
    said = [f"{at.file}:{at.line}: {text}" for at, text in found.places if text]
    result: dict[str, Any] = {
        "ruleId": inert(found.rule.id),
        "ruleIndex": rule,
        "level": found.level,
        "message": {"text": "\n".join(inert(x, 1200) for x in (found.title, *said, *found.lines))},
    }
    if found.properties:
        result["properties"] = _inert(found.properties)
    if found.share is not None:
        result["rank"] = round(min(100.0, max(0.0, found.share * 100)), 1)
    if found.places:
        result["locations"] = [
            {"physicalLocation": physical(found.places[0][0].file, found.places[0][0].line, page)}
        ]
    if len(found.places) > 1:
        result["relatedLocations"] = [
            {"physicalLocation": physical(at.file, at.line, page)} for at, _ in found.places[1:]
        ]
    if found.edits:
        result["fixes"] = [_fix(found, page)]
    return result


def _fix(found: Annotation, page: Page) -> dict[str, Any]:
    changes: dict[str, list[Edit]] = {}
    for edit in found.edits:
        changes.setdefault(edit.file, []).append(edit)
    return {
        "description": {"text": inert(found.title, 1200)},
        "artifactChanges": [
            {
                "artifactLocation": physical(file, 0, page)["artifactLocation"],
                "replacements": [_replacement(edit) for edit in edits],
            }
            for file, edits in changes.items()
        ],
    }


def _replacement(edit: Edit) -> dict[str, Any]:
    """A region without columns means whole lines, except for the end of the last line."""
    if edit.lines:
        region = {"startLine": edit.line, "endLine": edit.line + edit.lines - 1}
        text = edit.text.removesuffix("\n").removesuffix("\r")
    else:
        region = {"startLine": edit.line, "startColumn": 1, "endLine": edit.line, "endColumn": 1}
        text = edit.text
    return {"deletedRegion": region, "insertedContent": {"text": text}}


def _inert(value: Any) -> Any:
    if isinstance(value, dict):
        return {inert(key): _inert(part) for key, part in value.items()}
    return inert(value, 1200) if isinstance(value, str) else value


def physical(file: str, line: int, page: Page) -> dict[str, Any]:
    """The path relative to the repository root if the file is below it, as code scanning
    expects."""
    shown = relative(file, page.base_dir)
    if Path(shown).is_absolute():
        location: dict[str, Any] = {"artifactLocation": {"uri": Path(shown).as_uri()}}
    else:
        uri = quote(Path(shown).as_posix(), errors="surrogateescape")
        location = {"artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"}}
    if line > 0:
        location["region"] = {"startLine": line}
    return location
