"""A run on a device whose traces show no device is never judged as one on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import Device, DeviceTime
from tdiag.evidence.from_run import load_run
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.base import DATA_WAIT
from tdiag.rules.catalogue import Rule, all_rules
from tests.evidence.making import Run, plain

H100 = {"kind": "cuda", "index": 0, "name": "NVIDIA H100", "uuid": None, "memory": 80 << 30}
OWN = "the script runs its own torch profiler"


def run_on(folder: Path, device: dict[str, Any] | None = H100, allocated: int = 1 << 20) -> Run:
    """Thirty clean steps of the usual loop; a third of them is backward."""
    run = Run(folder)
    names = [device["name"]] if device else []
    run.add("torch", version="2.13.0", devices=names, device=device, intra_op=1, inter_op=1)
    run.add("flags")
    run.steps(30, plain)
    run.add("window", t=run.now, name="baseline", state="end", step=run.number, drained=0)
    run.lines[-1]["pass"] = 1
    run.open("trace")
    run.lines[-1]["allocated"] = allocated
    return run


def traced(run: Run, file: str, steps: int, *events: dict[str, Any]) -> None:
    run.add("trace", file=file, steps=steps, events=9, t=run.now, device=True)
    seen = [host("ProfilerStep#0", 0, 30), host("aten::mm", 7, 1, "cpu_op"), *events]
    (run.folder / file).write_text(json.dumps({"traceEvents": seen}))


def host(name: str, ms: float, dur_ms: float, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ms * 1000,
            "dur": dur_ms * 1000, "pid": 100, "tid": 100, "args": {}}  # fmt: skip


KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9000, "dur": 8000, "pid": 0, "tid": 7,
          "args": {"device": 0, "stream": 7}}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "reason", "advice"),
    [
        (H100, "recorded no kernels", "dcgmi profile --pause"),
        (H100 | {"kind": "hpu", "name": "Gaudi"}, "cannot trace a device of kind hpu", "vendor"),
    ],
)
def test_without_kernels_the_verdict_is_unknown_and_says_why(
    tmp_path: Path, device: dict[str, Any], reason: str, advice: str
) -> None:
    run = run_on(tmp_path, device)
    traced(run, "host.json", 1)
    found = diagnose(load_run(run.write()))
    assert found.verdict.cls == "unknown"
    assert device["name"] in found.verdict.summary
    assert reason in found.verdict.summary
    assert advice in found.verdict.summary


def test_what_kineto_said_is_part_of_the_reason(tmp_path: Path) -> None:
    run = run_on(tmp_path)
    traced(run, "host.json", 1)
    run.lines[-1]["faults"] = ["CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"]
    found = diagnose(load_run(run.write()))
    assert "MULTIPLE_SUBSCRIBERS" in found.verdict.summary


def test_a_script_that_profiles_itself_is_told_to_stop_that(tmp_path: Path) -> None:
    run = run_on(tmp_path)
    run.lines = [line for line in run.lines if line["kind"] != "flags"]
    run.add("flags", profiler=True)
    run.add("window", name="trace", state="skipped", why=OWN)
    found = diagnose(load_run(run.write()))
    assert found.verdict.cls == "unknown"
    assert OWN in found.verdict.summary
    assert "tdiag analyze" in found.verdict.summary


def test_a_skipped_trace_is_the_reason(tmp_path: Path) -> None:
    run = run_on(tmp_path)
    run.add("window", name="trace", state="skipped", why="one step has 900000 events")
    assert "one step has 900000 events" in diagnose(load_run(run.write())).verdict.summary


def test_a_device_that_holds_nothing_is_not_what_the_run_computed_on(tmp_path: Path) -> None:
    run = run_on(tmp_path, allocated=0)
    evidence = load_run(run.write())
    found = diagnose(evidence)
    assert evidence.get(Device) is None
    assert "no trace shows" not in found.verdict.summary
    assert found.environment["device"] == "cpu"


def test_an_older_probe_names_the_device_too(tmp_path: Path) -> None:
    run = run_on(tmp_path)
    next(line for line in run.lines if line["kind"] == "torch")["device"] = None
    evidence = load_run(run.write())
    assert evidence.get(Device) == Device(kind="cuda", name="NVIDIA H100")


def test_memory_is_torchs_own_on_the_processes_own_device(tmp_path: Path) -> None:
    run = run_on(tmp_path)
    run.lines[-1].update(peak=7 << 30, reserved=9 << 30)
    run.open("ops")
    run.lines[-1].update(allocated=1, peak=8 << 30, reserved=10 << 30)
    assert load_run(run.write()).get(DeviceMemory) == DeviceMemory(
        peak_allocated_bytes=8 << 30, peak_reserved_bytes=10 << 30, capacity_bytes=80 << 30
    )


def test_of_several_traces_the_one_with_kernels_is_read(tmp_path: Path) -> None:
    """The second pass's is longer, but by then another tool had taken CUPTI."""
    run = run_on(tmp_path)
    traced(run, "short.json", 1, KERNEL)
    traced(run, "long.json", 5)
    evidence = load_run(run.write())
    assert evidence.get(DeviceTime) is not None
    assert diagnose(evidence).verdict.cls != "unknown"


CLAIMING = [
    rule
    for rule in all_rules()
    if (budget := rule.fires().get(Budget)) is not None
    and not budget.has_device
    and isinstance(finding := run_rule(rule, rule.fires()), Finding)
    and not finding.advisory
]


@pytest.mark.parametrize("rule", CLAIMING, ids=lambda rule: rule.code)
def test_no_rule_for_a_cpu_claims_a_gain_on_a_device_that_was_not_traced(rule: Rule) -> None:
    evidence = rule.fires()
    on_cpu = run_rule(rule, evidence)
    budget = evidence.get(Budget)
    assert budget is not None and isinstance(on_cpu, Finding)
    evidence.add(replace(budget, has_device=True, blind=True))
    found = run_rule(rule, evidence)
    if set(on_cpu.components) <= {*DATA_WAIT, "gc"}:
        assert isinstance(found, Finding)
        assert found.speedup is not None and found.speedup.low == 1.0
    else:
        assert found is None or isinstance(found, Abstained) or found.advisory


def test_most_rules_for_a_cpu_were_tried() -> None:
    assert len(CLAIMING) > 20
