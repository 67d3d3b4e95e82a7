"""The budget adds up, whatever it is made from."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tdiag.diagnose.budget import apportion, make_budget
from tdiag.evidence.device import Device, DeviceTime
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.kind import Kind
from tdiag.rules.base import known_to
from tdiag.rules.examples import MS, at, loaders, op_line, ops, phases, stack, stacks


def steps(mean_ms: float, count: int = 100) -> Steps:
    ns = round(mean_ms * MS)
    return Steps(
        durations_ns=(ns,) * count, mean_ns=ns, median_ns=ns, p90_ns=ns, count=count,
        boundary="optimizer", total_steps_seen=count,
    )  # fmt: skip


def on_device(host_ms: dict[str, float] | None = None, **parts_ms: float) -> DeviceTime:
    parts = {name: ms * MS for name, ms in parts_ms.items()}
    return DeviceTime(
        step_ns=sum(parts.values()), components_ns=parts, busy_frac=0.5, kernels_per_step=10,
        mean_kernel_ns=1e5, launch_starved_ns=0, streams=1,
        host_ns={name: ms * MS for name, ms in (host_ms or {}).items()},
    )  # fmt: skip


def budget_of(*kinds: Kind) -> dict[str, float]:
    found = make_budget(Evidence().add(*kinds))
    assert found is not None
    assert sum(found.components_ns.values()) == found.step_ns
    return {name: ns / MS for name, ns in found.components_ns.items()}


def host(**wall_ms: float) -> tuple[Steps, Phases]:
    return steps(sum(wall_ms.values())), phases(**wall_ms)


@pytest.mark.parametrize("seed", range(200))
def test_apportioned_parts_add_up_exactly_and_move_less_than_a_nanosecond(seed: int) -> None:
    chance = random.Random(seed)
    whole = [chance.randrange(10**9) for _ in range(chance.randrange(1, 12))]
    count = chance.randrange(1, 1000)
    parts = {str(i): ns / count for i, ns in enumerate(whole)}
    total = round(sum(whole) / count)
    rounded = apportion(parts, total)
    assert sum(rounded.values()) == total
    assert all(abs(rounded.get(name, 0) - ns) <= 1.01 for name, ns in parts.items())


def test_what_the_parts_leave_out_is_unattributed() -> None:
    assert apportion({"forward": 40.0}, 100) == {"forward": 40, "unattributed": 60}


def test_data_wait_is_split_by_what_its_fetches_did() -> None:
    """Of 60 ms, 15 on a core and 30 waiting for one: of the fetch itself, half is storage."""
    loader = loaders(
        load_ns=60.0 * MS, load_cpu_ns=15.0 * MS, runqueue_ns=30.0 * MS, collate_ns=0.0,
        collate_cpu_ns=0.0,
    )  # fmt: skip
    assert budget_of(*host(data_wait=40, forward=60), loader) == {
        "data_wait_io": 20, "data_wait_cpu": 20, "forward": 60,
    }  # fmt: skip


@pytest.mark.parametrize("unmeasured", [{"load_cpu_ns": None}, {"fetch_count": 0}])
def test_data_wait_that_cannot_be_split_stays_whole(unmeasured: dict[str, object]) -> None:
    found = budget_of(*host(data_wait=40, forward=60), loaders(**unmeasured))
    assert found == {"data_wait": 40, "forward": 60}


def test_starting_workers_is_neither_io_nor_cpu() -> None:
    clean, wait = host(data_wait=40, forward=60)
    wait = replace(wait, iterator_start_ns=30.0 * MS)
    busy = {"load_cpu_ns": 55.0 * MS, "runqueue_ns": 0.0}
    found = budget_of(clean, wait, loaders(num_workers=2, **busy))
    assert found == {"data_wait": 30, "data_wait_cpu": 10, "forward": 60}
    found = budget_of(clean, wait, loaders(num_workers=0, **busy))
    assert found == {"data_wait_cpu": 40, "forward": 60}


def test_after_step_is_other() -> None:
    assert budget_of(*host(forward=60, after_step=40)) == {"forward": 60, "other": 40}


def test_device_activity_stays_what_it_was_and_idle_time_shrinks_to_the_clean_step() -> None:
    """The profiler slows the host: 200 ms were traced, the clean step takes 100."""
    found = budget_of(*host(forward=100), on_device(compute=50, h2d=10, launch=100, sync=40))
    assert found["compute"] == 50
    assert found["h2d"] == 10
    assert found["launch"] + found["sync"] == pytest.approx(40)
    assert found["launch"] == pytest.approx(2.5 * found["sync"])


def test_data_wait_comes_from_the_clean_window() -> None:
    """Under the profiler the loader caught up; in the clean steps the device waited for it."""
    found = budget_of(
        *host(data_wait=60, forward=40), on_device(compute=20, launch=30, data_wait=1)
    )
    assert found == {"compute": 20, "data_wait": 50, "launch": 30}


def test_a_wait_that_the_device_works_through_costs_nothing() -> None:
    found = budget_of(
        *host(data_wait=30, forward=70), on_device({"data_wait": 30}, compute=95, launch=5)
    )
    assert found == {"compute": 95, "launch": 5}


def test_only_the_part_of_a_wait_in_which_the_device_idles_counts() -> None:
    found = budget_of(
        *host(data_wait=40, forward=60),
        on_device({"data_wait": 20}, compute=60, data_wait=10, launch=60),
    )
    assert found == {"compute": 60, "data_wait": 20, "launch": 20}


def test_evaluation_and_checkpoints_come_whole_from_the_clean_window() -> None:
    """The few traced steps had none."""
    found = budget_of(
        *host(forward=50, evaluation=40, checkpoint=10), on_device(compute=30, launch=60)
    )
    assert found == {"evaluation": 40, "checkpoint": 10, "compute": 30, "launch": 20}


@pytest.mark.parametrize(("idle_ms", "made"), [(19.0, 0.0), (21.0, 21.0)])
def test_a_device_that_idles_for_long_before_the_forward_waits_for_a_batch_made_by_hand(
    idle_ms: float, made: float
) -> None:
    rest = 100 - idle_ms
    parts = budget_of(*host(prepare=50, forward=50), on_device(compute=rest, prepare=idle_ms))
    assert parts.get("prepare", 0.0) == pytest.approx(made)
    assert parts.get("other", 0.0) == pytest.approx(idle_ms - made)


def after_and_before(*conversions: str) -> tuple[Stacks, Ops]:
    """As many samples of a line below the step as of one above the forward."""
    return stacks(
        (
            stack(10, 0.3, phase="prepare", function="train"),
            stack(90, 0.3, phase="prepare", function="train"),
        )
    ), ops(
        op_line(50, "forward", 9, at=at(50, "train")),
        op_line(70, "optimizer", 9, at=at(70, "train")),
        op_line(90, "prepare", 1, at=at(90, "train"), conversions=dict.fromkeys(conversions, 1.0)),
    )


def test_work_after_the_step_makes_no_batch_on_a_device_either() -> None:
    traced = on_device(compute=60, prepare=40)
    device = Device(kind="cuda", name="NVIDIA A100")
    clean = host(prepare=50, forward=50)
    halves = budget_of(*clean, traced, device, *after_and_before())
    assert halves["prepare"] == halves["other"] == pytest.approx(20)
    # A line that reads a value waits for the step's own work, which is no work after it.
    reading = budget_of(*clean, traced, device, *after_and_before("item"))
    assert reading["prepare"] == pytest.approx(40)


def test_few_samples_move_as_much_as_is_sure() -> None:
    """Of 30 samples beside the step, all lie after it: at least 88 % of its time, not all."""
    sampled, calls = after_and_before()
    after = replace(sampled, samples=100, training=sampled.training[1:])
    parts = budget_of(*host(prepare=50, forward=50), after, calls)
    least, _ = known_to(1.0, 30)
    assert parts["other"] == pytest.approx(50 * least)
    few = replace(after, training=(replace(after.training[0], self_frac=0.2),))
    assert budget_of(*host(prepare=50, forward=50), few, calls)["prepare"] == pytest.approx(50)


def test_a_device_cannot_be_busier_than_the_time_there_is() -> None:
    found = budget_of(*host(forward=80), on_device(compute=90, comm=30, launch=5))
    assert found == {"compute": 60, "comm": 20}


def test_a_bare_trace_is_its_own_step() -> None:
    found = make_budget(Evidence().add(on_device(compute=60, launch=40)))
    assert found == Budget(
        step_ns=100 * MS, components_ns={"compute": 60 * MS, "launch": 40 * MS}, has_device=True
    )


def test_a_trace_without_device_work_keeps_the_host_phases() -> None:
    assert budget_of(*host(forward=100), on_device(launch=50)) == {"forward": 100}


def test_without_steps_there_is_no_budget() -> None:
    assert make_budget(Evidence()) is None
    assert make_budget(Evidence().add(phases(forward=10))) is None
