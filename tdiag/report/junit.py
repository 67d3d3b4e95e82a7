"""JUnit XML: a finding with a measured cost is a failure, an unchecked rule is skipped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.report.page import Page
from tdiag.report.summary import advisories, headline, measure_name, measure_value, ranked, why
from tdiag.report.text import inert, spot


def render(diagnosis: Diagnosis, page: Page) -> str:
    """One test suite; advisories do not fail. Rules that found nothing are not in it."""
    suite = ET.Element("testsuite", name="tdiag")
    _case(suite, "verdict", "verdict", diagnosis.verdict.summary)
    for finding in ranked(diagnosis):
        case = _case(suite, finding.cls, f"{finding.code} {finding.name}")
        failure = ET.SubElement(case, "failure", message=inert(finding.summary), type="finding")
        failure.text = _text(finding, diagnosis, page)
    for finding in advisories(diagnosis):
        case = _case(suite, finding.cls, f"{finding.code} {finding.name}")
        ET.SubElement(case, "system-out").text = _text(finding, diagnosis, page)
    for rule in diagnosis.abstained:
        case = _case(suite, "could not check", f"{rule.code} {rule.name}".strip())
        ET.SubElement(case, "skipped", message=inert(rule.missing))
    for kind, count in (("testcase", "tests"), ("failure", "failures"), ("skipped", "skipped")):
        suite.set(count, str(sum(1 for _ in suite.iter(kind))))
    suite.set("errors", "0")
    root = ET.Element("testsuites", name=": ".join(filter(None, headline(diagnosis.verdict))))
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, group: str, name: str, output: str = "") -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=f"tdiag.{inert(group)}", name=inert(name))
    if output:
        ET.SubElement(case, "system-out").text = inert(output)
    return case


def _text(finding: Finding, diagnosis: Diagnosis, page: Page) -> str:
    lines = [spot(finding.location, page.base_dir)] if finding.location else []
    lines += [finding.summary, f"Fix: {finding.fix.text}", why(finding, diagnosis)]
    lines += [f"{measure_name(m)}: {measure_value(m)} ({m.source})" for m in finding.evidence]
    return "\n".join(inert(line, 1200) for line in lines if line)
