"""The device budget: unions, never sums, and components that add up to the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tdiag.evidence.device import DeviceTime, Kernels, Syncs, Transfers
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.from_trace.device_time import charge
from tdiag.evidence.ranks import Communication
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tests.trace.making import (
    Event,
    call,
    copy,
    evidence_of,
    kernel,
    launched,
    note,
    op,
    span,
    step,
    trace_of,
)

US = 1000


def device(evidence: Evidence) -> DeviceTime:
    found = evidence.get(DeviceTime)
    assert found is not None
    assert sum(found.components_ns.values()) == pytest.approx(found.step_ns, abs=1e-6)
    return found


def us(found: DeviceTime) -> dict[str, float]:
    return {name: ns / US for name, ns in found.components_ns.items()}


def budget(tmp_path: Path, *events: Event, **metadata: object) -> dict[str, float]:
    return us(device(evidence_of(tmp_path, [step(1, 0, 1000), *events], **metadata)))


def test_overlapping_kernels_count_once(tmp_path: Path) -> None:
    found = budget(
        tmp_path,
        kernel("a", 100, 200),
        kernel("b", 150, 100),  # overlaps on the same stream
        kernel("c", 200, 200, stream=8),
        kernel("zero", 900, 0),
    )
    assert found == {"compute": 300, "other": 700}


def test_compute_hides_what_it_overlaps(tmp_path: Path) -> None:
    found = budget(
        tmp_path,
        kernel("gemm", 100, 100),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 150, 200, stream=20),
        copy("Memcpy HtoD (Pinned -> Device)", 300, 100),
        copy("Memcpy DtoH (Device -> Pageable)", 380, 70),
    )
    assert found == {"compute": 100, "comm": 150, "h2d": 50, "d2h": 50, "other": 650}


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "void dpsk::ep::dispatch(int4*)",
        "two_shot_all_reduce_kernel",
        "vllm::cross_device_reduce_1stage<half, 8>",
    ],
)
def test_communication_by_any_name(tmp_path: Path, name: str) -> None:
    evidence = evidence_of(tmp_path, [step(1, 0, 1000), kernel(name, 100, 50), kernel("k", 0, 10)])
    assert us(device(evidence))["comm"] == 50
    comm = evidence.get(Communication)
    assert comm is not None
    assert (comm.total_ns, comm.exposed_ns, comm.count) == (50 * US, 50 * US, 1)


def test_idle_belongs_to_what_the_host_did(tmp_path: Path) -> None:
    found = budget(
        tmp_path,
        kernel("k", 0, 100),
        note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 300),
        op("aten::stack", 150, 50),  # inside the loader: still waiting for data
        call("cudaMalloc", 450, 100),
        op("aten::mm", 600, 90),
        note("Optimizer.step#SGD.step", 750, 150),
        op("aten::add_", 800, 20),
    )
    assert found == {
        "compute": 100, "data_wait": 300, "alloc": 100, "launch": 90, "optimizer": 150,
        "other": 260,
    }  # fmt: skip


def test_an_op_that_computes_on_the_host_is_no_launching(tmp_path: Path) -> None:
    """``torch.zeros(n).cuda()``: filled on the host, then copied. An op as long that asks something
    of the device launches."""
    found = budget(
        tmp_path,
        kernel("k", 0, 100),
        op("aten::zeros", 200, 310),
        op("aten::fill_", 205, 300),
        op("aten::mm", 600, 250),
        *launched("k", 700, 900, 50, 7),
    )
    assert (found["cpu_ops"], found["launch"]) == (300, 260)


def test_phases_name_what_a_trace_cannot(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [step(1, 0, 1000), kernel("k", 0, 100), op("aten::mm", 200, 700)])
    phases = [("loss", 300 * US, 500 * US), ("evaluation", 600 * US, 650 * US)]
    found = us(device(device_evidence(trace, phases=phases)))
    assert found["python_loss"] == 200
    assert found["evaluation"] == 50
    assert found["launch"] == 450


@pytest.mark.parametrize("loader", [False, True])
def test_the_host_makes_a_batch_where_no_loader_is_asked(loader: bool, tmp_path: Path) -> None:
    """200 µs of Python and a torch call of 100; with a loader, what follows the batch launches."""
    trace = trace_of(tmp_path, [step(1, 0, 1000), kernel("k", 0, 100), op("aten::mm", 300, 100)])
    phases = [("prepare", 200 * US, 500 * US), *[("data_wait", 150 * US, 200 * US)] * loader]
    found = us(device(device_evidence(trace, phases=phases)))
    assert found.get("prepare", 0) == (0 if loader else 300)
    assert found.get("launch", 0) == (100 if loader else 0)


def test_gpu_user_annotations_are_no_work(tmp_path: Path) -> None:
    found = budget(
        tmp_path,
        kernel("k", 100, 50),
        span("gpu_user_annotation", "ProfilerStep#1", 0, 1000, pid=0, tid=7),
    )
    assert found["compute"] == 50


def test_python_functions_with_pid_0_are_no_work(tmp_path: Path) -> None:
    python = span("python_function", "train.py(3): loop", 0, 1000, pid=0, tid=0)
    assert budget(tmp_path, kernel("k", 100, 50), python)["compute"] == 50


def test_kernels_without_a_usable_launch(tmp_path: Path) -> None:
    """Correlation 0, none, or launched before the window: the time counts all the same."""
    unlinked = kernel("none", 300, 50)
    del unlinked["args"]["correlation"]
    evidence = evidence_of(
        tmp_path,
        [step(1, 0, 1000), call("cudaLaunchKernel", 1, 2, 0), kernel("zero", 100, 50), unlinked,
         kernel("before", 500, 50, correlation=77)],
    )  # fmt: skip
    assert us(device(evidence))["compute"] == 150
    assert any(
        "3 device events were launched outside" in text
        for text in (note.text for note in evidence.notes)
    )


def test_a_graph_launch_owns_hundreds_of_kernels(tmp_path: Path) -> None:
    nodes = [kernel(f"node{i}", 100 + 2 * i, 1, correlation=5) for i in range(300)]
    evidence = evidence_of(tmp_path, [step(1, 0, 1000), call("cudaGraphLaunch", 50, 30, 5), *nodes])
    assert us(device(evidence))["compute"] == 300
    assert not [note for note in evidence.notes if "outside" in note.text]
    assert device(evidence).kernels_per_step == 300


def test_kernels_before_their_launch(tmp_path: Path) -> None:
    """Clock skew between host and device moves no time out of the budget."""
    found = budget(tmp_path, *launched("k", 200, 150, 40, 3), *launched("k", 400, 350, 40, 4))
    assert found["compute"] == 80


def test_unknown_accelerators_count_by_their_streams(tmp_path: Path) -> None:
    found = budget(
        tmp_path,
        span("npu_kernel", "MatMulV2", 100, 200, device=0, stream=3),
        span("npu_meta", "note", 500, 100),
        span("mtia_ccp_events", "event_wait", 0, 900, stream=2),
        span("mtia_ccp_events", "pe_exe", 600, 50, stream=2),
    )
    assert found["compute"] == 250


def test_no_device_activity_is_a_result_not_zero(tmp_path: Path) -> None:
    devices = [{"id": i, "name": "A100"} for i in range(8)]
    events = [step(1, 0, 1000), op("aten::mm", 10, 100), call("cudaLaunchKernel", 20, 5, 3)]
    evidence = evidence_of(tmp_path, events, deviceProperties=devices)
    for kind in (DeviceTime, Kernels, Transfers, Syncs):
        assert evidence.get(kind) is None
        assert "no device activity was captured" in evidence.missing[kind]


def test_a_trace_without_any_event_misses_everything(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [])
    assert not evidence.facts
    assert "no host and no device events" in evidence.missing[DeviceTime]


def test_launch_starved_time_is_idle_before_late_launches(tmp_path: Path) -> None:
    """Queued early: the device was late, not the host. Launched into an idle device: starved."""
    evidence = evidence_of(
        tmp_path,
        [step(1, 0, 1000), *launched("a", 0, 10, 90, 1), *launched("queued", 20, 150, 50, 2),
         *launched("late", 300, 310, 100, 3)],
    )  # fmt: skip
    # From the first launch's return, 5–10, to that of the late one, 200–305; not 100–150.
    assert device(evidence).launch_starved_ns == (5 + 105) * US


BURST = [e for i in range(20) for e in launched("k", 5000 + 20 * i, 5005 + 20 * i, 5, 1 + i)]
RETURNED = 5400


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([], id="python-alone"),
        pytest.param([op("aten::copy_", RETURNED, 3000)], id="op-on-the-host"),
        pytest.param([call("cudaFree", RETURNED, 3000)], id="context"),
        pytest.param([call("cudaLaunchKernel", RETURNED, 3000, 90)], id="lazy-loading"),
        pytest.param(
            [
                call("cudaStreamBeginCapture", RETURNED, 5),
                *[call("cudaLaunchKernel", RETURNED + 10 * i, 5, 1000 + i) for i in range(1, 200)],
                call("cudaStreamEndCapture", RETURNED + 2100, 5),
            ],
            id="graph-capture",
        ),
    ],
)
def test_a_pause_of_the_host_is_not_the_cost_of_launches(
    tmp_path: Path, between: list[Event]
) -> None:
    """5 ms before the first launch and 3 ms in the middle, beside 20 µs from launch to launch."""
    rest = [e for i in range(20) for e in launched("k", 8400 + 20 * i, 8405 + 20 * i, 5, 90 + i)]
    if between and between[0]["args"].get("correlation") == 90:
        rest = [rest[1], *rest[2:]]  # the slow call is the one that launched the first kernel
    evidence = evidence_of(tmp_path, [step(1, 0, 9000), *BURST, *between, *rest])
    found = device(evidence)
    assert found.step_ns - sum(found.components_ns.get(n, 0) for n in ("compute",)) > 8000 * US
    # From launch to launch 20 µs, of which the kernel runs 5.
    assert 500 * US < found.launch_starved_ns < 700 * US


def test_per_step_values(tmp_path: Path) -> None:
    events = [step(i, 100 * i, 100) for i in range(4)]
    events += [kernel("k", 100 * i + 20, 30) for i in range(4)]
    found = device(evidence_of(tmp_path, events))
    assert found.step_ns == 100 * US
    assert us(found) == {"compute": 30, "other": 70}
    assert found.kernels_per_step == 1
    assert found.mean_kernel_ns == 30 * US
    assert found.busy_frac == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(30))
def test_charging_agrees_with_counting_it_out(seed: int) -> None:
    random = np.random.default_rng(seed)
    ends, lead = np.sort(random.integers(0, 500, 40)), random.integers(0, 9, 40)
    begins, demand = np.sort(random.integers(0, 500, 60)), random.integers(0, 9, 60)
    used, met = charge(ends, lead, begins, demand)
    store = 0
    moments = [(t, 0, x) for t, x in zip(ends, lead, strict=True)]
    moments += [(t, 1, x) for t, x in zip(begins, demand, strict=True)]
    moments.sort(key=lambda moment: moment[:2])
    expected = []
    for _, is_demand, amount in moments:
        if is_demand:
            expected.append(min(store, amount))
            store -= expected[-1]
        else:
            store += amount
    assert met.tolist() == expected
    assert used.sum() == met.sum()
    assert (used <= lead).all()


def test_the_latest_lead_is_charged_first() -> None:
    ends, lead = np.array([10, 20]), np.array([5, 3])
    used, met = charge(ends, lead, np.array([15, 25, 30]), np.array([1, 4, 9]))
    assert used.tolist() == [5, 3]
    assert met.tolist() == [1, 4, 3]


def test_a_sampled_trace_attributes_no_idle_time(tmp_path: Path) -> None:
    ops = [op("aten::mm", 200 + i, 1, **{"External id": 7 * i + 1}) for i in range(50)]
    evidence = evidence_of(tmp_path, [step(1, 0, 1000), kernel("k", 0, 100), *ops])
    assert us(device(evidence)) == {"compute": 100, "unattributed": 900}
    assert any("sampled" in text for text in (note.text for note in evidence.notes))
    steps = evidence.get(TracedSteps)
    assert steps is not None
    assert steps.sampled


def test_a_wait_for_data_costs_the_gaps_that_follow(tmp_path: Path) -> None:
    """The loader kept the host while the device worked off the queue: no lead is left."""
    found = budget(
        tmp_path,
        *launched("k", 0, 10, 190, 1),
        note("enumerate(DataLoader)#X.__next__", 20, 200),  # idle for 20 of these
        *launched("k", 250, 260, 700, 2),
    )
    # Without the wait the second kernel runs 200–900, and the host is long done by then.
    assert found == {"compute": 890, "data_wait": 100, "launch": 5, "other": 5}


def test_the_queue_is_as_deep_as_the_host_is_ahead(tmp_path: Path) -> None:
    """Five launches at once, each kernel 100 µs: none, then one, two, three, four are not done."""
    ahead = [e for i in range(5) for e in launched("k", 10 * i, 20 + 100 * i, 100, i + 1)]
    assert device(evidence_of(tmp_path, [step(1, 0, 1000), *ahead])).queue_depth == 2
    one_by_one = [e for i in range(5) for e in launched("k", 110 * i, 110 * i + 8, 90, i + 1)]
    assert device(evidence_of(tmp_path, [step(1, 0, 1000), *one_by_one])).queue_depth == 0
    unlaunched = evidence_of(tmp_path, [step(1, 0, 1000), kernel("k", 10, 100)])
    assert device(unlaunched).queue_depth is None


def test_occupancy_is_a_mean_over_time(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), kernel("gemm", 0, 300), kernel("gemm", 400, 100)]
    events += [kernel("vectorized_elementwise", 600, 10)]
    events[1]["args"]["est. achieved occupancy %"] = 20
    events[2]["args"]["est. achieved occupancy %"] = 60
    found = evidence_of(tmp_path, events).get(Kernels)
    assert found is not None
    assert {x.family: x.occupancy_frac for x in found.families} == {
        "gemm": pytest.approx(0.3),
        "elementwise": None,
    }
