"""One TensorBoard for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trace.making import call, copy, kernel, note, op, step, write

from .making import NEXT_CALL, make_run
from .serving import DEVICE, RANKS, RUN, Shown, loaded, shown


def device_trace(path: Path) -> Path:
    """Three steps of 100 ms: 40 waiting, 5 copying, 30 in a matrix kernel, the rest other."""
    events = []
    for number in range(3):
        at, first, second = number * 100_000, 2 * number + 1, 2 * number + 2
        external = {"External id": 10 * number + 1}
        events += [
            step(number, at, 100_000),
            note(NEXT_CALL, at, 40_000),
            op("aten::to", at + 41_000, 6_000, **external),
            call("cudaMemcpyAsync", at + 41_000, 10, first),
            copy("Memcpy HtoD (Pageable -> Device)", at + 42_000, 5_000, first),
            op("aten::mm", at + 50_000, 200, **{"External id": 10 * number + 2}),
            call("cudaLaunchKernel", at + 50_000, 10, second),
            kernel("ampere_sgemm_128x64_nn", at + 50_100, 30_000, second),
        ]
        events[-5]["args"] |= external
        events[-4]["args"] |= external
        for event in events[-2:]:
            event["args"]["External id"] = 10 * number + 2
    return write(path, events)


def rank_traces(folder: Path) -> Path:
    folder.mkdir()
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for number in range(2):
            at = number * 10_000
            gather = note("gloo:all_reduce", at + 5_000, 3_000 - 1_000 * rank)
            gather["args"] |= {"External id": 5 + number}
            events += [step(number, at, 10_000), op("aten::mm", at + 100, 4_000), gather]
        write(folder / f"host_{rank}.pt.trace.json", events, distributedInfo={"rank": rank})
    return folder


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_run(folder / ".tdiag" / "runs" / RUN, start_unix_ns=1)
    device_trace(folder / DEVICE)
    rank_traces(folder / RANKS)
    return folder


@pytest.fixture(scope="session")
def page(here: Path) -> Iterator[Shown]:
    with shown(here, RUN, DEVICE, RANKS) as page:
        loaded(page, 3)
        yield page
