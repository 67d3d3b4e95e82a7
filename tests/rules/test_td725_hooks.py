"""Hooks told from modules, by the files that the frames belong to."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, stacks


@pytest.mark.parametrize(
    ("file", "user", "line"),
    [
        ("/home/me/torch/train.py", True, 20),  # a folder of the user's with that name
        ("/lib/transformers/debug_utils.py", False, 9),  # at the user's line that calls the model
        ("/lib/torch/nn/utils/parametrize.py", False, None),  # torch's own
    ],
)
def test_a_hook_is_the_scripts_or_a_librarys_other_than_torch(
    file: str, user: bool, line: int | None
) -> None:
    module = "/lib/torch/nn/modules/module.py"
    frames = (
        CallFrame(name="main", file="/home/me/train.py", line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="_call_impl", file=module, line=0, parent=0, frac=0.7, user=False),
        CallFrame(name="check", file=file, line=20, parent=1, frac=0.4, user=user),
    )
    evidence = Evidence().add(budget(forward=40, backward=50), stacks())
    found = run_rule(find("TD725"), evidence.add(CallTrees(training=frames, workers=())))
    place = found.location if isinstance(found, Finding) else None
    assert (place and place.line) == line
