"""The folder for TensorBoard: what it holds, when it is made again, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
from tdiag.evidence.from_trace.trace_files import read_files
from tdiag.model.diagnosis import Diagnosis
from tdiag.trace import read_trace
from tdiag.view import curves, tensorboard
from tdiag.view.lanes import CATEGORY
from tests.evidence.making import Run, plain
from tests.report.samples import CPU_BOUND
from tests.trace.making import op, step, write

from .making import make_run

Scalars = dict[str, list[tuple[int, float, float]]]


def read(folder: Path) -> tuple[Scalars, dict[str, str]]:
    """Tag → (step, wall time, value), and tag → text, of a folder's one event file."""
    scalars: Scalars = defaultdict(list)
    texts: dict[str, str] = {}
    (path,) = folder.glob("events.out.tfevents.*")
    for raw in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(raw)
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "text":
                texts[value.tag] = value.tensor.string_val[0].decode()
            else:
                scalars[value.tag].append((event.step, event.wall_time, value.simple_value))
    return scalars, texts


def diagnosed(run: Path) -> Diagnosis:
    return diagnose(load_run(run))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "20261121-run")


def test_scalars_are_the_steps_the_budget_and_the_machine(run: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(run)
    scalars, texts = read(tensorboard.of_run(run, diagnosis, tmp_path).folder)
    assert [(step, value) for step, _, value in scalars["step/clean ms"]] == [
        (number, 30.0) for number in range(30)
    ]
    assert [step for step, _, _ in scalars["step/profiled ms"]] == [30, 31]
    assert {value for _, _, value in scalars["phase/data wait ms"]} == {4.0}
    budget = {tag: {value for _, _, value in points} for tag, points in scalars.items()
              if tag.startswith("budget/")}  # fmt: skip
    assert len(budget) == len(diagnosis.budget)
    assert sum(value for values in budget.values() for value in values) == pytest.approx(30.0)
    assert [value for _, _, value in scalars["system/cores in use"]] == [3.0]
    assert scalars["step/clean ms"][0][1] == pytest.approx(1_700_000_001.03)
    assert texts["report/00 verdict"].startswith("### ")
    assert diagnosis.verdict.summary[:20] in texts["report/00 verdict"]


def test_each_finding_is_a_text_of_its_own_with_its_evidence_unfolded() -> None:
    texts = curves.report_texts(CPU_BOUND)
    assert [tag.split("/")[1][:8] for tag in texts] == [
        "00 verdi", "01 step ", "02 TD201", "03 TD207", "04 worth", "05 large", "06 could",
        "07 how i",
    ]  # fmt: skip
    assert "**Evidence**\n\n| | | |" in texts["report/02 TD201 loader-short-of-workers"]
    assert not any("details>" in text for text in texts.values())


def test_the_trace_is_copied_with_the_lanes_of_its_time(run: Path, tmp_path: Path) -> None:
    (original,) = (run / "tensorboard").iterdir()
    before = original.read_bytes()
    view = tensorboard.of_run(run, diagnosed(run), tmp_path)
    trace = read_trace(view.folder / "host_100.pt.trace.json.gz")
    seen: dict[str, list[Any]] = defaultdict(list)
    for name, category in zip(trace.name.tolist(), trace.category.tolist(), strict=True):
        seen[trace.categories[category]].append(trace.names[name])
    assert seen["user_annotation"] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert sum(name.startswith("enumerate(DataLoader)") for name in seen["cpu_op"]) == 2
    assert {"step 30", "data_wait", "fetch"} <= set(seen[CATEGORY])
    assert not {"step 5", "baseline"} & set(seen[CATEGORY])
    assert original.read_bytes() == before
    assert view.events == 6 and view.notes == []


def test_it_is_made_again_when_something_changed(run: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(run)
    first = tensorboard.of_run(run, diagnosis, tmp_path)
    (file,) = first.folder.glob("events*")
    made = file.stat().st_mtime_ns
    assert tensorboard.of_run(run, diagnosis, tmp_path) == first
    assert file.stat().st_mtime_ns == made
    (run / "diagnosis.json").write_text("{}")
    assert tensorboard.of_run(run, diagnosis, tmp_path) == first
    assert file.stat().st_mtime_ns > made
    (first.folder.parent / tensorboard.STAMP).write_text("{")
    assert tensorboard.of_run(run, diagnosis, tmp_path) == first


def test_another_number_of_steps_is_another_copy(run: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(run)
    assert tensorboard.of_run(run, diagnosis, tmp_path, 1).events == 3
    view = tensorboard.of_run(run, diagnosis, tmp_path)
    assert view.events == 6 and len(list(view.folder.glob("*.gz"))) == 1


def test_each_rank_is_a_run_and_the_report_stands_above(run: Path, tmp_path: Path) -> None:
    other = Run(tmp_path / "other", pid=101).steps(40, plain)
    other.lines[0] |= {"rank": 1, "world_size": 2}
    events = other.write() / "events" / "101.jsonl"
    events.rename(run / "events" / "101.jsonl")
    view = tensorboard.of_run(run, diagnosed(run), tmp_path)
    assert "report/00 verdict" in read(view.folder)[1]
    assert "budget/forward ms" in read(view.folder / "rank 0")[0]
    scalars, texts = read(view.folder / "rank 1")
    assert not texts and "budget/forward ms" not in scalars
    # While the lead is profiled, everybody waits: only its clean windows count.
    assert [step for step, _, _ in scalars["step/clean ms"]] == list(range(30))


def test_a_run_without_a_trace_or_steps_still_shows_its_report(tmp_path: Path) -> None:
    run = Run(tmp_path / "run").write()
    view = tensorboard.of_run(run, diagnosed(run), tmp_path)
    scalars, texts = read(view.folder)
    assert not scalars and texts["report/00 verdict"].startswith("### No verdict")


def test_traces_of_ranks_lie_together_and_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "my job"
    folder.mkdir()
    for rank in range(2):
        events = [step(n, 1000 * n, 900 + rank) for n in range(3)] + [op("aten::add", 1, 500)]
        info = {"distributedInfo": {"rank": rank}}
        write(folder / f"trace{rank}.json", events, **info)
    ranks = dict(enumerate(read_files(sorted(folder.iterdir()))))
    diagnosis = diagnose(merge_ranks({n: found.evidence for n, found in ranks.items()}))
    view = tensorboard.of_traces(folder.name, ranks, diagnosis, tmp_path / "scratch")
    assert view.folder.name == "my_job"
    assert sorted(p.name for p in view.folder.glob("*.gz")) == [
        "trace0_0.pt.trace.json.gz", "trace1_1.pt.trace.json.gz",
    ]  # fmt: skip
    scalars, _ = read(view.folder / "rank 1")
    assert [value for _, _, value in scalars["step/traced ms"]] == pytest.approx([1, 1, 0.901])


def test_views_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    views = [tensorboard.View(tmp_path / place / "run") for place in "ab"]
    for view in views:
        view.folder.mkdir(parents=True)
    logdir = tensorboard.gather(views, tmp_path / "runs")
    assert sorted(p.name for p in logdir.iterdir()) == ["run", "run-2"]


def test_making_it_needs_neither_torch_nor_tensorflow(run: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.view import perfetto, tensorboard
run = Path({str(run)!r})
tensorboard.of_run(run, diagnose(load_run(run)), Path("."))
perfetto.write(run)
print([m for m in ("torch", "tensorflow", "pandas") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
