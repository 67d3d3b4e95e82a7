"""Sampled stacks become trees: callers above callees, widths as shares of all samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.sampled import CallFrame, CallTrees

from .test_stacks import (
    BACKWARD,
    DECODE,
    FETCH,
    ITEM,
    LOSS,
    MODULE,
    POLL,
    PROBE,
    evidence_of_stacks,
    thread,
)

HEADER = 0


def trees_of(folder: Path, *profiles: dict[str, object]) -> CallTrees:
    found = evidence_of_stacks(folder, *profiles).get(CallTrees)
    assert found is not None
    return found


def paths(frames: tuple[CallFrame, ...]) -> dict[str, float]:
    """``outer/inner`` → share."""
    said: list[str] = []
    for frame in frames:
        above = said[frame.parent] + "/" if frame.parent >= 0 else ""
        said.append(above + frame.name)
    return {path: frame.frac for path, frame in zip(said, frames, strict=True)}


def test_a_function_is_as_wide_as_it_and_what_it_called(tmp_path: Path) -> None:
    found = trees_of(
        tmp_path,
        thread(100, 100, *[[HEADER, MODULE, BACKWARD]] * 6, *[[HEADER, MODULE, LOSS]] * 2,
               [HEADER, MODULE], [HEADER, POLL]),
    )  # fmt: skip
    assert paths(found.training) == {
        "<module>": pytest.approx(0.9),
        "<module>/Tensor.backward": pytest.approx(0.6),
        "<module>/loss": pytest.approx(0.2),
        "poll": pytest.approx(0.1),
    }
    assert found.workers == ()


def test_users_frames_keep_their_line_and_libraries_do_not(tmp_path: Path) -> None:
    found = trees_of(tmp_path, thread(100, 100, [HEADER, MODULE, BACKWARD]))
    assert [(f.line, f.user) for f in found.training] == [(30, True), (0, False)]


def test_frames_of_tdiag_and_above_the_users_are_left_out(tmp_path: Path) -> None:
    found = trees_of(tmp_path, thread(100, 100, [HEADER, POLL, MODULE, PROBE, BACKWARD]))
    assert list(paths(found.training)) == ["<module>", "<module>/Tensor.backward"]


def test_workers_are_drawn_from_the_fetch_on(tmp_path: Path) -> None:
    found = trees_of(
        tmp_path,
        thread(100, 100, [HEADER, MODULE]),
        thread(101, 101, *[[HEADER, MODULE, FETCH, ITEM, DECODE]] * 3, *[[HEADER, POLL]] * 9),
    )
    assert paths(found.workers) == {
        "fetch": 1,
        "fetch/Pictures.__getitem__": 1,
        "fetch/Pictures.__getitem__/decode": 1,
    }
