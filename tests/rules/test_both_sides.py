"""What the loop calls before the forward and again later, and what runs within a pass."""

from __future__ import annotations

import pytest

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.rules.both_sides import on_both_sides
from tdiag.rules.examples import at, op_line, ops
from tdiag.rules.hooks import MODULE_FILE, within_passes

FILE = at(1).file
LOOP = ops(
    op_line(20, "forward", 4, at=at(20, "train")), op_line(22, "optimizer", 4, at=at(22, "train"))
)


def frame(name: str, line: int, parent: int, frac: float, file: str = FILE) -> CallFrame:
    return CallFrame(name=name, file=file, line=line, parent=parent, frac=frac, user=file == FILE)


@pytest.mark.parametrize(
    ("later", "both"), [(0.2, True), (0.05, True), (0.04, False), (0.0, False)]
)
def test_a_schedule_is_no_batch(later: float, both: bool) -> None:
    """Looked up at line 18, above the forward, for 0.2 of the samples, and at line 23, below."""
    frames = [frame("train", 18, -1, 0.2), frame("Curve.at", 5, 0, 0.2)]
    if later:
        frames += [frame("train", 23, -1, later), frame("Curve.at", 6, 2, later)]
    spots = on_both_sides(LOOP, CallTrees(training=tuple(frames), workers=()))
    assert spots == ({(FILE, 5), (FILE, 6)} if both else set())


@pytest.mark.parametrize(
    ("above", "passes"),
    [
        (frame("_call_impl", 0, -1, 0.3, f"/lib/{MODULE_FILE}"), {"forward"}),
        (frame("_engine_run_backward", 0, -1, 0.3, "/lib/torch/autograd/graph.py"), {"backward"}),
        (frame("train", 18, -1, 0.3), set()),
    ],
)
def test_what_hooks_call_runs_within_a_pass(above: CallFrame, passes: set[str]) -> None:
    trees = CallTrees(training=(above, frame("Bus.emit", 32, 0, 0.3)), workers=())
    assert within_passes((FILE, 32), trees) == passes


def test_a_module_that_loads_data_is_no_pass() -> None:
    fetch = frame("fetch", 0, -1, 0.3, "/lib/torch/utils/data/_utils/fetch.py")
    module = frame("_call_impl", 0, 0, 0.3, f"/lib/{MODULE_FILE}")
    trees = CallTrees(training=(fetch, module, frame("Crop.forward", 32, 1, 0.3)), workers=())
    assert within_passes((FILE, 32), trees) == set()
