"""JUnit XML: a finding with a measured cost or a regression fails, an unchecked rule is skipped."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from tdiag.report.document import Annotation, Document
from tdiag.report.page import Page
from tdiag.report.text import inert, spot


def render(document: Document, page: Page) -> str:
    """One test suite; its first case is the verdict. Findings worth knowing do not fail."""
    suite = ET.Element("testsuite", name=inert(document.name))
    titles = [document.title]
    if head := document.headline:
        titles = [head.title, head.share]
        texts = [f"{x.label}: {x.text}" if x.label else x.text for x in head.lines]
        case = _case(suite, document, "verdict", "verdict")
        if head.level in ("error", "warning"):
            kind = "failure" if head.level == "error" else "skipped"
            ET.SubElement(case, kind, message=inert(head.brief, 1200))
        _output(case, texts)
    for annotation in document.annotations:
        case = _case(suite, document, annotation.group, annotation.name)
        _fill(case, annotation, page)
    for kind, name in (("testcase", "tests"), ("failure", "failures"), ("skipped", "skipped")):
        suite.set(name, str(sum(1 for _ in suite.iter(kind))))
    suite.set("errors", "0")
    root = ET.Element("testsuites", name=inert(": ".join(filter(None, titles))))
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, document: Document, group: str, name: str) -> ET.Element:
    classname = ".".join(filter(None, (document.name.replace(" ", "."), inert(group))))
    return ET.SubElement(suite, "testcase", classname=classname, name=inert(name))


def _fill(case: ET.Element, annotation: Annotation, page: Page) -> None:
    places = [
        spot(place, page.base_dir) + (f": {said}" if said else "")
        for place, said in annotation.places
    ]
    if annotation.level == "skipped":
        ET.SubElement(case, "skipped", message=inert(annotation.title))
    elif annotation.level in ("error", "warning"):
        failure = ET.SubElement(case, "failure", message=inert(annotation.title, 1200))
        failure.set("type", annotation.rule.id if annotation.rule.id else "finding")
        failure.text = "\n".join(inert(line, 1200) for line in (*places, *annotation.lines))
    else:
        _output(case, (annotation.title, *places, *annotation.lines))


def _output(case: ET.Element, lines: Iterable[str]) -> None:
    ET.SubElement(case, "system-out").text = "\n".join(inert(line, 1200) for line in lines)
