"""`tdiag analyze`: traces in, the report of `tdiag run` out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from tdiag import report
from tdiag.cli.analyze import SHOWN_BYTES, analyze
from tdiag.errors import RunError, UsageError
from tdiag.evidence.from_trace import executors
from tests.launch.harness import TDIAG, Terminal
from tests.trace.making import Event, call, kernel, launched, note, op, step, write

app = typer.Typer()
app.command()(analyze)


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def steps(wait: float) -> list[Event]:
    """Four steps of 1 ms compute after so many µs of waiting for data."""
    events = []
    for number in range(4):
        at = number * (1000 + wait)
        events += [
            step(number, at, 1000 + wait),
            note("enumerate(DataLoader)#X.__next__", at, wait),
            op("aten::mm", at + wait, 20),
            call("cudaLaunchKernel", at + wait, 5, number + 1),
            kernel("gemm", at + wait, 1000, number + 1),
        ]
    return events


def test_a_starved_device_is_input_bound(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", steps(3000))
    found = json.loads(run(path, "--json"))
    assert found["verdict"]["class"] == "input"
    assert found["verdict"]["share"] == pytest.approx(0.75, abs=0.01)
    assert sum(part["ns"] for part in found["budget"]) == found["step"]["mean_ns"] == 4_000_000


def test_a_busy_device_is_compute_bound(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", steps(10))
    assert json.loads(run(path, "--json"))["verdict"]["class"] == "compute"


def test_nothing_captured_is_its_own_verdict(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [step(1, 0, 100), op("aten::mm", 1, 50)])
    assert json.loads(run(path, "--json"))["verdict"]["class"] == "no_device_activity"
    assert " 0%" not in run(path)


def test_damage_is_told_in_the_report(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", steps(3000))
    path.write_text(path.read_text()[:-400])
    assert "breaks off at byte" in run(path, "--all").replace("\n", " ")


def test_what_changed_since_another_trace(tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "a.json", steps(3000)), write(tmp_path / "b.json", steps(500))
    text = run(fast, "--against", slow)
    assert "verdict before: Input-bound" in text
    changes = text[text.index("What changed") :].splitlines()
    assert any("4.00 ms, now: 1.50 ms (-62%)" in line for line in changes)
    waits = [line.split() for line in changes if line.startswith("  data wait ")]
    assert waits == [["data", "wait", "3.000", "0.500", "-2.500", "-83%"]]


def test_what_changed_is_told_to_programs(tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "a.json", steps(3000)), write(tmp_path / "b.json", steps(500))
    found = json.loads(run(fast, "--against", slow, "--json"))
    schema = Path(report.__file__).with_name("comparison.schema.json")
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(found)
    assert found == json.loads(run(fast, "--against", slow, "--format", "json"))
    assert (found["schema_version"], found["verdict_before"]) == (1, "input")
    assert (found["step"]["before"], found["step"]["after"]) == (4e6, 1.5e6)
    assert found["tables"][0]["title"] == "Budget"
    assert found["tables"][0]["rows"][0] == {
        "name": "data_wait",
        "unit": "ns",
        "before": 3e6,
        "after": 0.5e6,
        "at_most": "",
    }


def test_changes_have_no_other_format(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", steps(10))
    with pytest.raises(UsageError, match="--against has no sarif format"):
        run(path, "--against", path, "--format", "sarif")


def ranks(folder: Path, *parts: tuple[float, float]) -> Path:
    """A trace a rank of four 1 ms steps: so many µs waiting for data, so many computing, and a
    collective until the step ends."""
    for rank, (wait, compute) in enumerate(parts):
        events = []
        for number in range(4):
            at, issued = number * 1000, number * 1000 + wait
            correlations = 2 * number + 1, 2 * number + 2
            events += [
                step(number, at, 1000),
                note("enumerate(DataLoader)#X.__next__", at, wait),
                op("aten::mm", issued, 10),
                *launched("gemm", issued, issued, compute, correlations[0]),
                *launched("ncclDevKernel_AllReduce", issued + 5, issued + compute,
                          1000 - wait - compute, correlations[1]),
            ]  # fmt: skip
        info = {"rank": rank, "world_size": len(parts)}
        write(folder / f"r{rank}.json", events, distributedInfo=info)
    return folder


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files are read by a child each, which takes half a second to start."""
    monkeypatch.setattr(executors, "in_children", lambda paths: map(executors.read_alone, paths))


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    folder = ranks(tmp_path, (10, 90), (10, 800), (10, 200))
    text = run(folder)
    assert "◄ the others wait for it" in text
    lines = text[text.index(" Ranks ──") :].splitlines()
    assert lines[0].endswith(" ms per step")
    assert [re.split("  +", line.strip())[:3] for line in lines[2:5]] == [
        ["0", "1.0", "0.9"], ["◄ 1", "1.0", "0.2"], ["2", "1.0", "0.8"],
    ]  # fmt: skip


@pytest.mark.usefixtures("read_here")
def test_the_verdict_names_the_straggler_and_its_own_cause(tmp_path: Path) -> None:
    found = json.loads(run(ranks(tmp_path, (10, 300), (600, 300), (10, 300)), "--json"))
    assert found["verdict"]["class"] == "input"
    summary = found["verdict"]["summary"]
    assert summary.startswith(
        "Rank 1 makes the other 2 ranks wait 590 µs per step (59%): it spends 590 µs more waiting"
        " for data than they do. In rank 1, 60% of the step goes to waiting for data"
    )


@pytest.mark.usefixtures("read_here")
def test_a_rank_that_only_computes_longer_is_the_bottleneck(tmp_path: Path) -> None:
    found = json.loads(run(ranks(tmp_path, (0, 300), (0, 900)), "--json"))["verdict"]
    assert (found["class"], found["runner_up"], found["healthy"]) == ("straggler", "compute", False)
    assert found["share"] == pytest.approx(0.6, abs=0.01)
    assert (
        "Rank 1 makes the other rank wait 600 µs per step (60%): it spends 600 µs more computing"
        in (found["summary"])
    )
    assert "healthy" not in found["summary"]


@pytest.mark.usefixtures("read_here")
def test_ranks_that_arrive_together_have_no_straggler(tmp_path: Path) -> None:
    folder = ranks(tmp_path, (10, 300), (10, 320), (10, 310))
    text = run(folder)
    assert "◄" not in text
    assert "makes the other" not in json.loads(run(folder, "--json"))["verdict"]["summary"]


@pytest.mark.usefixtures("read_here")
def test_unrelated_traces_are_not_merged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", steps(10), distributedInfo={"rank": 0})
    with pytest.raises(UsageError, match="not the ranks of one job"):
        run(tmp_path / "a.json", tmp_path / "b.json")


def test_what_is_no_trace_ends_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("hello")
    with pytest.raises(RunError) as error:
        run(path)
    assert error.value.exit_code == 2


def test_output_goes_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", steps(10))
    assert run(path, "--json", "-o", tmp_path / "out.json") == ""
    assert json.loads((tmp_path / "out.json").read_text())["schema_version"]


def test_a_large_file_is_read_with_a_bar_that_goes_away(tmp_path: Path) -> None:
    junk = {"Junk": "x" * (1 << 20)}
    long = [note("long", 0, 10) | {"args": junk} for _ in range(1 + (SHOWN_BYTES >> 20))]
    name = f"[bold]{'a-long-name' * 10}.pt.trace.json"
    write(tmp_path / name, [*steps(3000), *long])
    terminal = Terminal([*TDIAG, "analyze", name], tmp_path)
    try:
        assert terminal.end() == 0
    finally:
        terminal.kill()
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.text)
    assert re.search(r"reading ━+ 22\.\d/22\.\d MB \[bold\]a-long", plain)
    shown = "\n".join(terminal.lines())
    assert "reading" not in shown and "Input" in shown


def test_of_a_run_of_tdiag_it_says_where_the_rest_is(tmp_path: Path) -> None:
    """The trace of a run knows next to nothing of what the run knows."""
    write(tmp_path / "t.json", steps(10))
    assert not [note for note in notes_of(tmp_path) if "tdiag report" in note]
    (tmp_path / "diagnosis.json").write_text("{}")
    assert [note for note in notes_of(tmp_path) if note.endswith(f"tdiag report {tmp_path}")]


def notes_of(path: Path) -> list[str]:
    return [note["text"] for note in json.loads(run(path, "--json"))["notes"]]
