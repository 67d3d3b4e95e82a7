"""The plugin's own parser on copies of real traces, against what tdiag measures in the originals.

They lie outside the repository: ``TDIAG_TRACE_CORPUS`` names their folder.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.trace_files import read_file
from tdiag.trace import read_trace
from tdiag.view.relabel import relabel

CORPUS = Path(os.environ.get("TDIAG_TRACE_CORPUS") or "/nonexistent")
SMALL_BYTES = 300_000  # larger ones take the plugin seconds each
TRACES = sorted(p for p in CORPUS.glob("*.json.gz") if p.stat().st_size < SMALL_BYTES)

pytestmark = pytest.mark.skipif(not TRACES, reason="TDIAG_TRACE_CORPUS names no traces")


def plugins_costs(source: Path, folder: Path) -> dict[str, float]:
    """The plugin's Overview of a copy: ms of the average step, by role."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_tb_profiler.profiler.data import RunProfileData
        from torch_tb_profiler.profiler.overall_parser import ProfileRole
        from torch_tb_profiler.profiler.run_generator import RunGenerator

        target = folder / "host_0.pt.trace.json.gz"
        assert relabel(read_trace(source), target) == 0
        data = RunProfileData.parse("host_0", None, str(target), str(folder))
        RunGenerator("host_0", None, data).generate_run_profile()
    costs = data.avg_costs.costs
    return {role.name: costs[role] / 1e3 for role in ProfileRole}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_plugin_reads_every_copy(path: Path, tmp_path: Path) -> None:
    assert plugins_costs(path, tmp_path)["Total"]


# Those whose steps both find alike, and in which no kernel was launched before the first.
@pytest.mark.parametrize("name", ["h2d_pageable_a100", "small_vit_h100", "counter_events"])
def test_device_and_data_wait_are_what_tdiag_measures(name: str, tmp_path: Path) -> None:
    path = CORPUS / f"{name}.json.gz"
    if path not in TRACES:
        pytest.skip("not in this corpus")
    found = plugins_costs(path, tmp_path)
    measured = read_file(path).evidence.get(DeviceTime)
    assert measured is not None
    parts, step_ms = measured.components_ns, measured.step_ns / 1e6
    busy = sum(parts.get(name, 0.0) for name in ("compute", "comm", "h2d", "d2h")) / 1e6
    assert found["Total"] == pytest.approx(step_ms, rel=0.01)
    shown = sum(found[role] for role in ("Kernel", "Memcpy", "Memset", "Communication"))
    assert shown == pytest.approx(busy, abs=0.01 * step_ms)
    waited = parts.get("data_wait", 0.0) / 1e6
    assert found["DataLoader"] == pytest.approx(waited, abs=0.01 * step_ms)
