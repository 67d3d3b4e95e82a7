"""`tdiag analyze`: traces in, the report of `tdiag run` out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tdiag.cli.analyze import analyze
from tdiag.errors import RunError, UsageError
from tests.trace.making import Event, call, kernel, note, op, step, write

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
    assert "0%" not in run(path)


def test_damage_is_told_in_the_report(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", steps(3000))
    path.write_text(path.read_text()[:-400])
    assert "breaks off at byte" in run(path, "--all").replace("\n", " ")


def test_what_changed_since_another_trace(tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "a.json", steps(3000)), write(tmp_path / "b.json", steps(500))
    text = run(fast, "--against", slow)
    changed = [line.split() for line in text.splitlines() if line.split()[:1] == ["data_wait"]]
    assert changed[-1] == ["data_wait", "3.0", "0.5", "-2.5"]
    assert "verdict before: input" in text


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    for number, communication in enumerate((900, 100, 800)):
        waiting = kernel("ncclDevKernel_AllReduce", 1000 - communication, communication)
        events = [step(1, 0, 1000), kernel("gemm", 0, 100), waiting]
        write(
            tmp_path / f"r{number}.json", events, distributedInfo={"rank": number, "world_size": 3}
        )
    lines = run(tmp_path).splitlines()
    marked = [line for line in lines if "the others wait for it" in line]
    assert len(marked) == 1
    assert marked[0].split()[0] == "1"


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
