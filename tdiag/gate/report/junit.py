"""JUnit XML: the step's time, every counter that moved and every new finding as a test case."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tdiag.gate.outcome import Outcome
from tdiag.gate.report.words import advice, method, summary, title, value
from tdiag.report.page import Page
from tdiag.report.text import inert, spot


def render(outcome: Outcome, page: Page) -> str:
    """One test suite. An inconclusive check is skipped, neither passed nor failed."""
    suite = ET.Element("testsuite", name="tdiag check")
    said = "\n".join([summary(outcome), *outcome.reasons[1:], *advice(outcome), *method(outcome)])
    verdict = _case(suite, "verdict", said)
    if outcome.verdict == "inconclusive":
        ET.SubElement(verdict, "skipped", message=inert(summary(outcome), 1200))
    elif outcome.verdict == "regressed":
        ET.SubElement(verdict, "failure", message=inert(summary(outcome), 1200), type="regressed")
    for counter in outcome.counters:
        numbers = f"{value(counter, counter.before)} → {value(counter, counter.now)}"
        lines = [
            f"{spot(line.place, page.base_dir)}: {value(counter, line.before)} →"
            f" {value(counter, line.now)}"
            for line in counter.lines
            if line.place
        ]
        case = _case(suite, counter.what, "\n".join([numbers, *lines]))
        if counter.failing:
            ET.SubElement(case, "failure", message=inert(numbers), type="counter")
    for found in outcome.findings:
        _case(suite, f"{found.code} {found.name}", found.summary)
    for kind, name in (("testcase", "tests"), ("failure", "failures"), ("skipped", "skipped")):
        suite.set(name, str(sum(1 for _ in suite.iter(kind))))
    suite.set("errors", "0")
    root = ET.Element("testsuites", name=f"tdiag check: {title(outcome)}")
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, name: str, output: str) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname="tdiag.check", name=inert(name))
    lines = (inert(line, 1200) for line in output.split("\n"))
    ET.SubElement(case, "system-out").text = "\n".join(lines)
    return case
