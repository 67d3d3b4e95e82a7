"""Files that the loop waits for where it makes its batches without a DataLoader (TD106)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rules
from tdiag.diagnose.preparing import prepared_by
from tdiag.diagnose.verdict import judge
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    environment,
    flags,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
)

KEEPS = """
class Samples:
    def __getitem__(self, i):
        with open(self.folder / f"{i}.bin", "wb") as file:
            file.write(self.x[i].tobytes())
            os.fsync(file.fileno())
        print("made", json.dumps(i))
        return self.x[i]


def batches(data, size):
    for start in range(0, len(data), size):
        rows = [data[i] for i in range(start, start + size)]
        log.write(str(start))
        yield torch.stack(rows)


def train(data):
    for batch in batches(data, 16):
        log.write(str(step))
        model(batch).backward()
        yield step


@contextlib.contextmanager
def timed(name):
    began = time.time()
    yield
    log.write(name + str(time.time() - began))
"""


def line_of(source: Path, text: str, function: str, share: float) -> StackLine:
    number = next(i for i, line in enumerate(KEEPS.splitlines(), 1) if text in line)
    found = stack(number, share, f"{function} (slow/gen.py)", "prepare", function)
    return replace(found, at=at(number, function, str(source)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (path := tmp_path / "gen.py").write_text(KEEPS)
    return path


def made(*lines: StackLine, on_core_ms: float | None, agent: str = "") -> Evidence:
    """40 of 60 ms are between steps, ``on_core_ms`` of them on a core; None: unknown."""
    making = phases(prepare=40, forward=20)
    making = replace(making, cpu_ns={} if on_core_ms is None else {"prepare": on_core_ms * MS})
    step = budget(prepare=40, forward=20)
    calls = ops(op_line(60, "forward", 9, at=at(60, "main")))
    return Evidence().add(
        step, making, system(), environment(), stacks(lines), calls, flags(agent_library=agent)
    )


def findings_of(evidence: Evidence) -> dict[str, Finding]:
    return {finding.code: finding for finding in run_rules(evidence)[0]}


def test_a_sample_that_is_written_to_a_file_each_time_is_storage_and_no_log(source: Path) -> None:
    lines = [
        line_of(source, "fsync", "Samples.__getitem__", 0.35),
        line_of(source, "with open", "Samples.__getitem__", 0.2),
        line_of(source, "x[i].tobytes", "Samples.__getitem__", 0.1),
    ]
    evidence = made(*lines, on_core_ms=15)
    found = findings_of(evidence)
    assert "TD804" not in found
    assert found["TD106"].location == lines[0].at
    low, high = found["TD106"].speedup.low, found["TD106"].speedup.high  # type: ignore[union-attr]
    assert 1.4 < low < 1.8 and high > 2.9  # 20 of 60 ms are hidden; at best 20 ms are left
    verdict = judge(evidence, budget(prepare=40, forward=20), list(found.values()))
    assert verdict.cls == "io" and "waiting for files between steps" in verdict.summary


@pytest.mark.parametrize(
    ("text", "function", "logged"),
    [
        ("x[i].tobytes", "Samples.__getitem__", False),
        ('print("made"', "Samples.__getitem__", True),  # not a file
        ("log.write(str(start", "batches", False),  # a generator that gives batches
        ("log.write(str(step", "train", True),  # one that trains
        ("log.write(name", "timed", True),  # a with block
    ],
)
def test_what_gives_data_may_write_files(
    source: Path, text: str, function: str, logged: bool
) -> None:
    found = findings_of(made(line_of(source, text, function, 0.6), on_core_ms=15))
    assert ("TD804" in found) is logged


@pytest.mark.parametrize(
    ("on_core_ms", "text", "agent", "fires"),
    [
        (15, "fsync", "", True),
        (None, "fsync", "", False),
        (25, "fsync", "", False),  # it works: files in the page cache are copied
        (15, "rows = [", "", False),  # it waits for what is not known
        (15, "fsync", "gymnasium", False),  # an environment that the agent steps
    ],
)
def test_only_waiting_at_lines_of_files_counts(
    source: Path, on_core_ms: float | None, text: str, agent: str, fires: bool
) -> None:
    evidence = made(line_of(source, text, "batches", 0.6), on_core_ms=on_core_ms, agent=agent)
    assert ("TD106" in findings_of(evidence)) is fires
    if not agent:
        assert (prepared_by(evidence) == "io") is fires
