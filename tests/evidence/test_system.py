"""The machine beside the run: differences of counters over the clean window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdiag.evidence.device import (
    DeviceClocks,
    DeviceNearness,
    DeviceUser,
    DeviceUsers,
    HeldDown,
    IdleDevices,
)
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.machine_samples import make_system
from tdiag.evidence.machine import System
from tdiag.model.kind import Kind

from .making import MS, Run, plain

SECOND = 1_000 * MS
MACHINE = {
    "kind": "machine", "t": 0, "cores_machine": 8, "cores_allowed": 4.0, "ram_total": 64 << 30,
    "ram_limit": 16 << 30, "gpus": [{"index": 0, "memory_total": 80 << 30}],
}  # fmt: skip


def sample(t: int, cpu: float, read: int | None, **more: Any) -> dict[str, Any]:
    return {
        "kind": "sample", "t": t, "busy_ns": 6 * t,
        "procs": {"100": [round(cpu * t), 1000, read]}, "ram_available": 8 << 30, "gpus": None,
    } | more  # fmt: skip


def system_of(
    folder: Path, *samples: dict[str, Any], torch: dict[str, Any] | None = None
) -> System:
    run = Run(folder)
    if torch:
        run.add("torch", **torch)
    run.steps(100, plain)  # from 1 s to 3.95 s
    lines = "".join(json.dumps(line) + "\n" for line in (MACHINE, *samples))
    (folder / "system.jsonl").write_text(lines + '{"kind":"sam')
    found = load_run(run.write()).get(System)
    assert found is not None
    return found


def test_use_is_measured_between_the_first_and_last_sample_inside(tmp_path: Path) -> None:
    """Before and after, other things ran."""
    found = system_of(
        tmp_path,
        sample(SECOND // 2, 0, 0, busy_ns=0),
        sample(2 * SECOND, 3, 100),
        sample(3 * SECOND, 3, 700),
        sample(9 * SECOND, 900, 10**9),
    )
    assert found.cores_used == pytest.approx(3)
    assert found.machine_busy_cores == pytest.approx(6)
    assert found.cores_machine == 8


def test_the_narrower_affinity_counts(tmp_path: Path) -> None:
    found = system_of(tmp_path, sample(2 * SECOND, 1, 0), torch={"cpus_allowed": 2})
    assert found.cores_allowed == 2


def test_without_two_samples_nothing_is_said_about_use(tmp_path: Path) -> None:
    found = system_of(tmp_path, sample(2 * SECOND, 3, 5))
    assert (found.cores_used, found.machine_busy_cores) == (None, None)
    assert found.rss_bytes == 1000


def test_a_busier_device_of_somebody_else_is_not_taken_for_the_programs(tmp_path: Path) -> None:
    about = [{"index": 0, "uuid": "GPU-a-1"}, {"index": 1, "uuid": "MIG-b-2"}]
    gpus = [
        {"index": 0, "util": 0.9, "throttle": ["power cap"]},
        {"index": 1, "util": 0.1, "throttle": ["thermal (hardware)"]},
    ]
    lines = (MACHINE | {"gpus": about}, *(sample(t * SECOND, 3, 0, gpus=gpus) for t in (2, 3)))
    path = tmp_path / "system.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    clean = Clean(np.ones(1, np.bool_), ((SECOND, 4 * SECOND),))

    def held_down(uuid: str | None) -> list[str]:
        clocks = make_system(path, clean.spans, None, None, uuid)[1:]
        return [held.reason for c in clocks if isinstance(c, DeviceClocks) for held in c.held_down]

    assert held_down("b-2") == ["thermal (hardware)"]
    assert held_down("a-1") == held_down(None) == ["power cap"]
    assert held_down("c-3") == []  # one that was not watched


def seen_of_devices(
    folder: Path, *gpus: dict[str, Any], near: list[int] | None = None
) -> list[Kind]:
    """In two samples, in which the training is process 100, first on CPU 1, then on CPU 9."""
    about = [{"index": gpu["index"], "cpus_near": near} for gpu in gpus]
    cpus = {2: {"100": 1}, 3: {"100": 9}}
    samples = (sample(t * SECOND, 3, 0, gpus=gpus, on_cpu=cpus[t]) for t in (2, 3))
    path = folder / "system.jsonl"
    lines = (MACHINE | {"gpus": about}, *samples)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return make_system(path, [(SECOND, 4 * SECOND)], None, None, pid=100)[1:]


def test_other_programs_on_the_device_and_devices_that_nobody_uses(tmp_path: Path) -> None:
    used = {"100": [0.5, "python"], "7": [0.2, "Xorg"], "8": [0.3, "python"]}
    gpus = [{"index": 0, "util": 0.9, "processes": used}, {"index": 1, "util": 0.0}]
    others = (DeviceUser(pid=8, name="python", frac=0.3), DeviceUser(pid=7, name="Xorg", frac=0.2))
    assert seen_of_devices(tmp_path, *gpus) == [
        DeviceUsers(samples=2, own_frac=0.5, others=others),
        IdleDevices(count=1, samples=2),
    ]


@pytest.mark.parametrize("processes", [None, {"4242": [0.9, None]}], ids=["none", "others"])
def test_without_the_runs_own_processes_nothing_is_said_of_others(
    processes: dict[str, Any] | None, tmp_path: Path
) -> None:
    """In a container the driver's numbers may be those of the machine."""
    gpu = {"index": 0, "util": 0.9, "processes": processes}
    assert seen_of_devices(tmp_path, gpu, {"index": 1, "util": None}) == []


def test_how_often_the_training_ran_on_the_devices_own_node(tmp_path: Path) -> None:
    (found,) = seen_of_devices(tmp_path, {"index": 0, "util": 0.9}, near=[0, 1, 2, 3])
    assert found == DeviceNearness(samples=2, near_frac=0.5, cpus_near=(0, 1, 2, 3))


def test_waiting_for_a_core_is_measured_over_the_clean_window(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.steps(100, plain)
    began = next(line for line in run.lines if line["kind"] == "window")
    began["runq"] = 7 * MS
    end = {"name": "baseline", "state": "end", "pass": 1}
    late = run.now + MS  # the window's end is recorded after the step's
    run.add("window", t=late, runq=7 * MS + (late - began["t"]) // 4, **end)
    (tmp_path / "system.jsonl").write_text(json.dumps(MACHINE) + "\n")
    found = load_run(run.write()).get(System)
    assert found is not None
    assert found.training_queued_frac == pytest.approx(0.25, abs=1e-6)


def clocks_of(folder: Path, *samples: dict[str, Any]) -> DeviceClocks | None:
    about = [{"index": index, "sm_max_mhz": 1980 - index} for index in (0, 1)]
    lines = (MACHINE | {"gpus": about}, *samples)
    (folder / "system.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_run(Run(folder).steps(100, plain).write()).get(DeviceClocks)


def test_the_clocks_of_that_device_and_what_holds_them_down(tmp_path: Path) -> None:
    def gpu(mhz: int, *reasons: str) -> list[dict[str, Any]]:
        used = {"index": 0, "util": 0.9, "sm_mhz": mhz, "throttle": list(reasons)}
        return [{"index": 1, "util": 0.0, "sm_mhz": 300, "throttle": ["power brake"]}, used]

    found = clocks_of(
        tmp_path,
        sample(2 * SECOND, 3, 0, gpus=gpu(1000, "power cap", "thermal (hardware)")),
        sample(5 * SECOND // 2, 3, 0, gpus=gpu(1400, "thermal (hardware)")),
        sample(3 * SECOND, 3, 0, gpus=gpu(210)),
    )
    assert found == DeviceClocks(
        samples=3,
        held_down=(
            HeldDown(reason="thermal (hardware)", frac=2 / 3, sm_mhz=1200),
            HeldDown(reason="power cap", frac=1 / 3, sm_mhz=1000),
        ),
        sm_max_mhz=1980,
    )


def test_where_the_driver_tells_no_reasons_clocks_are_unknown(tmp_path: Path) -> None:
    gpus = [{"index": 0, "util": 0.5, "throttle": None}]
    samples = [sample(second * SECOND, 3, 0, gpus=gpus) for second in (2, 3)]
    assert clocks_of(tmp_path, *samples) is None


def test_processes_besides_the_run_are_those_busy_throughout(tmp_path: Path) -> None:
    def others(t: int) -> dict[str, list[Any]]:
        return {"7": [t // 5, t, 3, "python3", True], "8": [t // 4, None, 1, "idle", None]}

    found = system_of(
        tmp_path,
        sample(2 * SECOND, 1, 0, others=others(2 * SECOND)),
        sample(3 * SECOND, 1, 0, others=others(3 * SECOND) | {"9": [SECOND, None, 1, "new", None]}),
    )
    (busy,) = found.others
    assert (busy.pid, busy.name, busy.threads, busy.torch) == (7, "python3", 3, True)
    assert (busy.cores, busy.wants) == (0.2, 1)


def test_ranks_below_another_tdiag_on_this_machine_are_the_runs_own(tmp_path: Path) -> None:
    def others(t: int) -> dict[str, list[Any]]:
        return {"7": [t, t, 1, "python3", True], "8": [t, t, 1, "stranger", True]}

    own, beside = tmp_path / "system.jsonl", tmp_path / "beside.jsonl"
    seconds = (2 * SECOND, 3 * SECOND)
    for path, procs in ((own, "100"), (beside, "7")):
        samples = (sample(t, 1, 0, procs={procs: [t, 1000, 0]}, others=others(t)) for t in seconds)
        path.write_text("".join(json.dumps(line) + "\n" for line in (MACHINE, *samples)))
    (system,) = make_system(own, [(SECOND, 4 * SECOND)], None, None, beside=[beside])
    assert isinstance(system, System)
    assert system.cores_used == 2 and [busy.name for busy in system.others] == ["stranger"]
