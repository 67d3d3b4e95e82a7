"""The labelled corpus: every verdict is one that the label accepts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
from tdiag.evidence.from_trace.trace_files import TracedFile, find_traces, read_files
from tdiag.evidence.replay import Replay

CORPUS = Path(os.environ.get("TDIAG_TRACE_CORPUS") or "/nonexistent")
LABELS: dict[str, Any] = (
    json.loads((CORPUS / "labels.json").read_text()) if (CORPUS / "labels.json").is_file() else {}
)
pytestmark = pytest.mark.skipif(not LABELS, reason="TDIAG_TRACE_CORPUS names no labelled traces")


@pytest.mark.parametrize("name", [name for name in LABELS if (CORPUS / name).exists()])
def test_the_verdict_is_one_that_the_label_accepts(name: str) -> None:
    found = [f for f in read_files(find_traces([CORPUS / name])) if isinstance(f, TracedFile)]
    if ranks := LABELS[name].get("facts", {}).get("ranks"):
        assert len(found) == ranks
    evidence = merge_ranks(
        {i if f.rank is None else f.rank: f.evidence for i, f in enumerate(found)}
    )
    diagnosis = diagnose(evidence)
    assert diagnosis.verdict.cls in LABELS[name]["accept"], diagnosis.verdict.summary
    assert diagnosis.verdict.cls not in LABELS[name].get("must_not", ())
    if replay := evidence.get(Replay):
        assert replay.end_ns({}) == replay.total_ns
    if diagnosis.step and diagnosis.budget:
        assert sum(part.ns for part in diagnosis.budget) == diagnosis.step.mean_ns
