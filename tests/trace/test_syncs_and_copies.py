"""A wait is expensive by the device idle it causes, not by how long it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.device import DeviceTime, Sync, Syncs, Transfers
from tdiag.evidence.store import Evidence
from tests.trace.making import Event, call, copy, evidence_of, kernel, launched, note, op, step

US = 1000


def syncs(evidence: Evidence) -> dict[str, Sync]:
    found = evidence.get(Syncs)
    assert found is not None
    return {sync.name: sync for sync in found.syncs}


def sync_us(evidence: Evidence) -> float:
    found = evidence.get(DeviceTime)
    assert found is not None
    return found.components_ns.get("sync", 0.0) / US


def queued(count: int) -> list[Event]:
    """Kernels of 100 µs launched far ahead: the device runs without a gap."""
    return [e for i in range(count) for e in launched("k", 10 * i, 10 + 100 * i, 100, i + 1)]


def test_waiting_for_a_busy_device_costs_nothing(tmp_path: Path) -> None:
    events = [step(1, 0, 1010), *queued(10), call("cudaStreamSynchronize", 100, 800)]
    evidence = evidence_of(tmp_path, events)
    assert syncs(evidence)["cudaStreamSynchronize"].host_ns == 800 * US
    assert syncs(evidence)["cudaStreamSynchronize"].idle_after_ns == 0
    assert sync_us(evidence) <= 10  # the launch of the very first kernel


def test_draining_the_queue_costs_the_idle_that_follows(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        *launched("k", 0, 10, 390, 1),
        call("cudaStreamSynchronize", 10, 395),  # returns 5 µs after the device ran dry
        *launched("k", 600, 610, 390, 2),
    ]
    evidence = evidence_of(tmp_path, events)
    # The device worked for 390 of the wait, more than the gap of 210: without the wait there
    # were no gap.
    assert syncs(evidence)["cudaStreamSynchronize"].idle_after_ns == 210 * US
    assert sync_us(evidence) == 210


def test_a_short_wait_explains_no_long_gap(tmp_path: Path) -> None:
    """The host was the slow one anyway: only what the call took is its fault."""
    events = [
        step(1, 0, 1000),
        *launched("k", 0, 10, 20, 1),
        call("cudaStreamSynchronize", 30, 4),
        *launched("k", 900, 910, 20, 2),
    ]
    evidence = evidence_of(tmp_path, events)
    assert syncs(evidence)["cudaStreamSynchronize"].idle_after_ns == 4 * US
    assert sync_us(evidence) == 4


def test_a_copy_that_blocks_is_a_synchronisation_in_disguise(tmp_path: Path) -> None:
    blocking = [
        call("cudaMemcpyAsync", 100, 60, 5),
        copy("Memcpy DtoH (Device -> Pageable)", 140, 15, 5),
    ]
    free = [call("cudaMemcpyAsync", 300, 5, 6), copy("Memcpy DtoH (Device -> Pinned)", 340, 15, 6)]
    evidence = evidence_of(tmp_path, [step(1, 0, 1000), kernel("k", 0, 100), *blocking, *free])
    found = syncs(evidence)["cudaMemcpyAsync"]
    assert found.count == 1
    assert found.host_ns == 60 * US


def test_item_counts_only_where_it_waited_for_the_device(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        kernel("k", 0, 100),
        op("aten::item", 50, 80), call("cudaStreamSynchronize", 60, 60),
        op("aten::item", 300, 5),  # of a tensor on the host
    ]  # fmt: skip
    found = syncs(evidence_of(tmp_path, events))["aten::item"]
    assert (found.count, found.host_ns) == (1, 80 * US)


def test_no_gap_counts_for_two_calls(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        *launched("k", 0, 0, 100, 1),
        call("cudaMemcpyAsync", 50, 55, 5), copy("Memcpy DtoH (Device -> Pageable)", 90, 10, 5),
        call("cudaStreamSynchronize", 110, 10),
        *launched("k", 300, 320, 100, 2),
    ]  # fmt: skip
    evidence = evidence_of(tmp_path, events)
    found = syncs(evidence)
    # The copy's call lost 50 of lead and idled 5; the other idled 10 and lost nothing.
    assert found["cudaMemcpyAsync"].idle_after_ns == (5 + 50) * US
    assert found["cudaStreamSynchronize"].idle_after_ns == 10 * US
    assert sync_us(evidence) == 65


def test_the_profilers_own_synchronisation_at_its_end_is_no_finding(tmp_path: Path) -> None:
    events = [
        step(1, 0, 500), *launched("k", 0, 10, 100, 1), *launched("k", 20, 700, 100, 2),
        call("cudaDeviceSynchronize", 510, 290),
    ]  # fmt: skip
    assert syncs(evidence_of(tmp_path, events)) == {}


def test_hip_names_are_known(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), kernel("k", 0, 100), call("hipStreamSynchronize", 50, 60)]
    assert "hipStreamSynchronize" in syncs(evidence_of(tmp_path, events))


def test_copies_by_direction_and_memory(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        kernel("k", 200, 100),
        call("cudaMemcpyAsync", 90, 15, 3),
        copy("Memcpy HtoD (Pageable -> Device)", 100, 50, 3, size=4000),
        copy("Memcpy HtoD (Pinned -> Device)", 250, 100, size=9000),
        copy("Memcpy DtoH (Device -> Host)", 500, 10, size=8),
        copy("Memcpy DtoD (Device -> Device)", 600, 10),
    ]
    found = evidence_of(tmp_path, events).get(Transfers)
    assert found is not None
    seen = {(c.direction, c.memory): c for c in found.copies}
    assert set(seen) == {("h2d", "pageable"), ("h2d", "pinned"), ("d2h", "unknown")}
    pageable, pinned = seen["h2d", "pageable"], seen["h2d", "pinned"]
    assert (pageable.count, pageable.bytes) == (1, 4000)
    assert pageable.host_blocked_ns == 15 * US
    assert (pinned.device_ns, pinned.exposed_ns) == (100 * US, 50 * US)


def test_a_copy_of_unknown_size_has_no_bytes(tmp_path: Path) -> None:
    unknown = copy("Memcpy HtoD (Host -> Device)", 100, 50)
    del unknown["args"]["bytes"]
    found = evidence_of(tmp_path, [step(1, 0, 1000), unknown]).get(Transfers)
    assert found is not None
    assert found.copies[0].bytes is None


def test_nothing_copied_is_measured_as_such(tmp_path: Path) -> None:
    found = evidence_of(tmp_path, [step(1, 0, 1000), kernel("k", 0, 10)]).get(Transfers)
    assert found == Transfers(copies=())


TO_HOST, TO_DEVICE = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def cropped(direction: str) -> list[Event]:
    """Two blocking copies, of which the first waited for work before the crop; then a busy device;
    no step is marked."""
    return [
        *(call("cudaMemcpyAsync", 0, 2000, 1), copy(direction, 1980, 10, 1)),
        *(call("cudaMemcpyAsync", 2010, 200, 2), copy(direction, 2190, 10, 2)),
        *(e for i in range(9) for e in launched("k", 2220 + 10 * i, 2230 + 100 * i, 100, 3 + i)),
    ]


@pytest.mark.parametrize("direction", [TO_HOST, TO_DEVICE])
def test_a_gap_at_the_head_of_a_crop_is_no_verdict(tmp_path: Path, direction: str) -> None:
    evidence = evidence_of(tmp_path, cropped(direction))
    found = evidence.get(DeviceTime)
    assert found is not None
    assert found.step_ns == (2230 + 900 - 1980) * US  # from the first device work on
    assert "2.0 ms before the first device work" in " ".join(n.text for n in evidence.notes)
    copied = "d2h" if direction == TO_HOST else "h2d"
    assert found.components_ns.pop(copied) == 20 * US
    # Both directions: the second call's 190 of idle, and the 10 of lead that it cost the host.
    rest = {"compute": 900 * US, "sync": 200 * US, "launch": 15 * US, "other": 15 * US}
    assert found.components_ns == rest


def test_marked_steps_keep_their_head(tmp_path: Path) -> None:
    events = [step(1, 0, 3130), *cropped(TO_HOST)]
    found = evidence_of(tmp_path, events).get(DeviceTime)
    assert found is not None and found.step_ns == 3130 * US


@pytest.mark.parametrize(
    ("outer", "inner", "advice"),
    [
        ("aten::to", "aten::copy_", "non_blocking=True"),
        ("aten::index", "aten::nonzero", "depends on values"),
        ("aten::is_nonzero", "aten::_local_scalar_dense", "torch.where"),
        ("aten::item", "aten::_local_scalar_dense", "total.item()"),
    ],
)
def test_a_synchronisation_names_its_op_and_annotation(
    tmp_path: Path, outer: str, inner: str, advice: str
) -> None:
    events = [
        step(1, 0, 1000), note("generate masks", 50, 900),
        *launched("k", 0, 10, 100, 1),
        op(outer, 60, 80), op(inner, 65, 70), call("cudaStreamSynchronize", 70, 60),
        *launched("k", 500, 510, 100, 2),
    ]  # fmt: skip
    evidence = evidence_of(tmp_path, events)
    found = next(f for f in diagnose(evidence).findings if f.code == "TD401")
    assert f"mostly in {outer} > {inner} (generate masks)" in found.summary
    assert advice in found.fix.text + found.fix.code
