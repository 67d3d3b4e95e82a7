"""Workers that copy the pages of the data set's Python objects."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Container, Loaders, WorkerMemory
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, MB, system

RULE = find("TD224")


def judged(*kinds: Any, grown: float = 700 * MB, **changes: Any) -> Finding | Abstained | None:
    evidence = RULE.fires()
    known, memory = evidence.get(Loaders), evidence.get(WorkerMemory)
    assert known is not None and memory is not None
    mine = Loaders(loaders=tuple(replace(x, **changes) for x in known.loaders))
    return run_rule(RULE, evidence.add(mine, replace(memory, grown_bytes=grown), *kinds))


def test_the_container_is_named_with_the_copied_memory() -> None:
    found = judged()
    assert isinstance(found, Finding)
    assert "Photos.samples is a list of 8,000,000 Python objects (tuple)" in found.summary
    assert found.speedup is None


@pytest.mark.parametrize(
    ("kind", "item", "code"),
    [
        ("list", "str", "self.samples = np.array(self.samples)"),
        ("list", "tuple", ""),  # an array of Python objects is copied as well
        ("dict", "str", ""),
    ],
)
def test_only_numbers_and_strings_are_told_to_be_an_array(kind: str, item: str, code: str) -> None:
    held = Container(attribute="samples", type=kind, items=8_000_000, item_type=item)
    found = judged(containers=(held,))
    assert isinstance(found, Finding) and found.fix.code == code


@pytest.mark.parametrize(
    "changes",
    [
        {"containers": ()},  # it grows for another reason
        {"start_method": "spawn"},  # each worker has a copy from the start
        {"grown": 20 * MB},  # 160 MB of 16 GB
    ],
)
def test_silent_where_it_is_something_else_or_little(changes: dict[str, Any]) -> None:
    assert judged(**changes) is None


def test_the_more_is_free_the_less_it_matters() -> None:
    assert judged(system(ram_available_bytes=512 * GB)) is None


def test_unknown_memory_is_said() -> None:
    evidence = RULE.fires()
    del evidence.facts[WorkerMemory]
    found = run_rule(RULE, evidence)
    assert isinstance(found, Abstained) and "not measured three times" in found.missing
