"""Whatever finding about the input leads, it shows the lines that hold the fetch's samples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.main_line import with_fetch_lines
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.place import Place
from tdiag.rules.examples import (
    MS,
    environment,
    loaders,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
)


def data(line: int, share: float, leaf: str) -> StackLine:
    at = Place(file="/home/me/data.py", line=line, function="__getitem__")
    return replace(stack(line, share, leaf), at=at)


def fed(workers: Sequence[StackLine], cores: float = 8.0, random: bool = True) -> Diagnosis:
    """One worker whose fetches take 60 ms of a step of 80."""
    step = 80 * MS
    clean = Steps(
        durations_ns=(step,) * 100, mean_ns=step, median_ns=step, p90_ns=step, count=100,
        boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip
    return diagnose(
        Evidence().add(
            environment(),
            clean,
            replace(phases(data_wait=60, forward=8, backward=10, optimizer=2), cpu_ns={}),
            loaders(num_workers=1, random=random, samples=64.0, prefetch_factor=2),
            system(cores_allowed=cores, cores_machine=int(cores)),
            stacks(workers=tuple(workers)),
            ops(op_line(20, "forward", 20, grad_calls=20.0)),
            Dispatch(op_ns=1500, grad_op_ns=6000),
        )
    )


def shown(found: Diagnosis) -> list[str]:
    """They stand first: a terminal shows the first eight numbers."""
    names = [measure.name for measure in found.findings[0].evidence]
    mine = [name for name in names if name.startswith("fetch samples")]
    assert names[: len(mine)] == mine
    return mine


ROTATE = "rotate (PIL/Image.py)"


def test_the_line_that_takes_most_of_the_fetch_leads_and_workers_come_second() -> None:
    found = fed((data(29, 0.75, ROTATE), data(31, 0.2, "resize (PIL/Image.py)")))
    codes = [finding.code for finding in found.findings]
    assert codes.index("TD218") < codes.index("TD201")
    first = found.findings[0]
    assert first.code == "TD218"
    assert first.location is not None
    assert (first.location.file, first.location.line) == ("/home/me/data.py", 29)
    assert "75% of the fetch is at data.py:29 in rotate (PIL/Image.py)" in first.summary
    assert shown(found)[0] == "fetch samples at data.py:29 in rotate (PIL/Image.py)"


def test_a_comprehension_belongs_to_its_function() -> None:
    """Python 3.11 names its frame ``encode.<locals>.<listcomp>``."""
    names = ("Tokens.encode", "Tokens.encode.<locals>.<listcomp>", "Tokens.__getitem__")
    lines = [
        replace(line, at=replace(line.at, function=name))
        for line, name in zip(
            (data(41, 0.45, ""), data(42, 0.3, ""), data(29, 0.25, ROTATE)), names, strict=True
        )
    ]
    found = next(x for x in fed(lines).findings if x.code == "TD219")
    assert "75% of the fetch is in Tokens.encode, most of it at data.py:41" in found.summary


@pytest.mark.parametrize(
    ("name", "whole"), [("border_weights", True), ("Grains.__getitem__", False)]
)
def test_the_function_around_the_line_may_go_with_it(name: str, whole: bool) -> None:
    """Not the dataset's own method: it must still make the sample."""
    lines = [data(28, 0.6, ROTATE), data(29, 0.3, ""), data(47, 0.1, "")]
    named = [replace(x, at=replace(x.at, function=name)) for x in lines[:2]]
    first = fed([*named, lines[2]]).findings[0]
    assert first.code == "TD218" and first.speedup is not None
    assert ("the function around it is gone" in first.why_gain) is whole
    alone = next(x for x in fed([named[0], *lines[1:]]).findings if x.code == "TD218")
    assert alone.speedup and (first.speedup.high > 1.2 * alone.speedup.high) is whole


def test_without_a_main_line_workers_lead_and_the_lines_are_shown() -> None:
    found = fed((data(29, 0.4, ROTATE), data(31, 0.35, "resize (PIL/Image.py)")))
    codes = [finding.code for finding in found.findings]
    assert "TD218" not in codes
    assert codes[0] == "TD201"
    second = next(finding for finding in found.findings if finding.code == "TD219")
    assert second.location is not None and second.location.line == 29
    assert "75% of the fetch is in __getitem__, most of it at data.py:29" in second.summary
    assert shown(found) == [
        "fetch samples at data.py:29 in rotate (PIL/Image.py)",
        "fetch samples at data.py:31 in resize (PIL/Image.py)",
    ]


def test_work_that_repeats_every_epoch_leads_at_its_line() -> None:
    found = fed((data(29, 0.75, ROTATE),), random=False)
    first = found.findings[0]
    assert (first.code, first.location and first.location.line) == ("TD209", 29)
    assert len(shown(found)) == 1


def test_full_cores_show_each_line_once() -> None:
    found = fed((data(29, 0.75, ROTATE),), cores=1.0)
    assert "TD218" not in {finding.code for finding in found.findings}
    assert len(shown(found)) == 1


def test_nothing_is_added_where_no_finding_is_about_the_input() -> None:
    assert with_fetch_lines(Evidence().add(loaders()), []) == []
