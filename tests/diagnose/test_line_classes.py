"""A finding of overhead has the class of what its line does, so that the headline names its fix."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.line_classes import with_line_classes
from tdiag.evidence.store import Evidence
from tdiag.rules.examples import at, budget, environment, ops, phases

from .test_verdict import finding


@pytest.mark.parametrize(
    ("parts", "components", "cls"),
    [
        ({"prepare": 70, "forward": 30}, ("prepare",), "cpu"),  # batches made by hand
        ({"prepare": 70, "forward": 30}, ("prepare", "forward"), "overhead"),
        ({"prepare": 70, "forward": 30}, ("forward",), "overhead"),
        ({"prepare": 70, "data_wait": 5, "forward": 25}, ("prepare",), "overhead"),
    ],
)
def test_work_before_the_forward_without_a_loader_is_preprocessing(
    parts: dict[str, float], components: tuple[str, ...], cls: str
) -> None:
    evidence = Evidence().add(phases(**parts), environment(), ops())
    loop = replace(finding("overhead", 0.6), components=components, location=at(30, "diffuse"))
    (found,) = with_line_classes([loop], evidence, budget(**parts))
    assert found == replace(loop, cls=cls)


def test_without_a_budget_nothing_is_known_about_lines() -> None:
    loop = replace(finding("overhead", 0.6), location=at(30, "diffuse"))
    assert with_line_classes([loop], Evidence(), None) == [loop]
