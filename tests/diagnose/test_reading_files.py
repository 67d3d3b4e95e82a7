"""Files that are in memory already: reading them is I/O, working on what was read is not."""

from __future__ import annotations

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis
from tdiag.rules.examples import MS, environment, loaders, phases, system

WALL = {"data_wait": 80.0, "forward": 8.0, "backward": 10.0, "optimizer": 2.0}
WHOLE, BATCH = 700e6, 0.2e6  # a file for each sample, of which a slice is used


def judged(kernel_ms: float | None, rchar: float = WHOLE, read: float = 0.0) -> Diagnosis:
    ns = 100 * MS
    steps = Steps(durations_ns=(ns,) * 50, mean_ns=ns, median_ns=ns, p90_ns=ns, count=50,
                  boundary="optimizer", total_steps_seen=90)  # fmt: skip
    loader = loaders(
        num_workers=0, load_ns=76 * MS, load_cpu_ns=76 * MS, runqueue_ns=0.0, collate_ns=1.0 * MS,
        collate_cpu_ns=1.0 * MS, kernel_ns=None if kernel_ms is None else kernel_ms * MS,
        rchar_bytes=rchar, read_bytes=read, batch_bytes=BATCH,
    )  # fmt: skip
    return diagnose(Evidence().add(steps, phases(**WALL), loader, environment(), system()))


def test_most_of_the_fetch_is_the_kernels_copying() -> None:
    found = judged(kernel_ms=65)
    assert found.verdict.cls == "io"
    assert "reading files that are in memory already (the page cache)" in found.verdict.summary


@pytest.mark.parametrize(
    ("kernel_ms", "rchar"),
    [
        (30, WHOLE),  # most of it works on what was read
        (65, BATCH / 2),  # the kernel gives memory: nothing was read
        (None, WHOLE),
    ],
)
def test_else_it_is_preprocessing(kernel_ms: float | None, rchar: float) -> None:
    assert judged(kernel_ms, rchar).verdict.cls == "cpu"
