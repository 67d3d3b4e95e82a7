"""What is read, opened, widened and done again for a batch."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import BatchField, Storage
from tdiag.evidence.machine import Startup
from tdiag.evidence.steps import Budget, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.model.kind import Kind
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, MB, MS, budget, loaders, stack, stacks, system

STEP = budget(data_wait_io=30, data_wait_cpu=30, forward=20)
MACHINE = system(ram_available_bytes=32 * GB)


def result(
    code: str, *more: Kind, step: Budget = STEP, **loader: Any
) -> Finding | Abstained | None:
    return run_rule(find(code), Evidence().add(step, loaders(**loader), MACHINE, *more))


def finding(code: str, *more: Kind, **loader: Any) -> Finding:
    found = result(code, *more, **loader)
    assert isinstance(found, Finding), found
    return found


@pytest.mark.parametrize(("read_mb", "fires"), [(201, True), (199, False)])
def test_reading_counts_where_most_of_it_is_not_returned(read_mb: int, fires: bool) -> None:
    found = result("TD102", rchar_bytes=read_mb * 1.0 * MB, batch_bytes=100.0 * MB)
    assert isinstance(found, Finding) is fires


def test_what_reading_too_much_costs_goes_by_the_excess() -> None:
    """30 ms of the fetch are blocked, and 60 MB of excess take 6 to 30 ms to copy."""
    half = {
        "load_cpu_ns": 24.5e6,
        "runqueue_ns": None,
        "rchar_bytes": 61.0 * MB,
        "batch_bytes": 1.0 * MB,
    }
    found = finding("TD102", **half)
    assert found.speedup is not None
    low, high = 80 * (1 - 1 / found.speedup.low), found.at_best_ns / MS
    assert low == pytest.approx(6, abs=0.1)
    assert high == pytest.approx(30.5 * 60 / 61 + 29.5, abs=0.2)  # no more than there is on a core


def test_less_work_waits_less_for_a_core() -> None:
    """Half of the fetch queues for a core, so that a millisecond of work costs two."""
    alone = {"load_cpu_ns": 25e6, "runqueue_ns": None, "rchar_bytes": 61.0 * MB, "batch_bytes": 1e6}
    crowded = alone | {"runqueue_ns": 30e6}
    full = system(cores_allowed=2.0, cores_machine=2, machine_busy_cores=2.0, cores_used=0.9)
    lows = []
    for fetch in (alone, crowded):
        found = run_rule(find("TD102"), Evidence().add(STEP, loaders(**fetch), full))
        assert isinstance(found, Finding) and found.speedup is not None
        lows.append(80 * (1 - 1 / found.speedup.low))
    assert lows[1] == pytest.approx(2 * lows[0], rel=0.02)


def test_bytes_that_were_not_counted_are_not_taken_for_none() -> None:
    assert isinstance(result("TD102", rchar_bytes=None), Abstained)
    assert isinstance(result("TD102", batch_bytes=None), Abstained)


@pytest.mark.parametrize(
    ("opens", "size", "expected"),
    [
        (32.0, 90e3, Finding), (31.0, 90e3, type(None)), (64.0, float(1 << 20), type(None)),
        (None, None, Abstained), (64.0, None, Abstained), (0.0, None, type(None)),
    ],
)  # fmt: skip
def test_small_files_are_counted_per_sample(
    opens: float | None, size: float | None, expected: type
) -> None:
    found = result("TD103", opens=opens, opened_bytes=size, samples=64.0, load_cpu_ns=10e6)
    assert isinstance(found, expected)


def test_the_files_are_counted_and_weighed_in_all() -> None:
    small = {"opens": 128.0, "opened_bytes": 1e5, "samples": 64.0, "load_cpu_ns": 10e6}
    text = finding("TD103", dataset_len=10_000, **small).fix.text
    assert "Pack the 20,000 files, 1.86 GiB in all, into shards" in text
    assert "read them into memory once (29.8 GiB are free)" in text
    much = finding("TD103", dataset_len=1_000_000, **small).fix.text
    assert "read them into memory" not in much


@pytest.mark.parametrize(
    ("drawn", "expected"), [(False, Finding), (True, type(None)), (None, Abstained)]
)
def test_work_is_the_same_where_nothing_is_drawn(drawn: bool | None, expected: type) -> None:
    assert isinstance(result("TD209", random=drawn, samples=64.0), expected)


@pytest.mark.parametrize(
    ("passes", "run_ns", "fires"),
    [
        (1, 90_000 * MS, False),
        (2, 90_000 * MS, True),
        (1, None, True),  # tdiag ended it: how many epochs there were to be is not known
    ],
)
def test_a_training_of_one_epoch_repeats_nothing(
    passes: int, run_ns: int | None, fires: bool
) -> None:
    history = StepHistory(
        end_ns=(), durations_ns=(), windows=(), clean=(), epochs_ns=tuple(range(passes))
    )
    facts = (history, Startup(parts_ns={}, run_ns=run_ns))
    found = result("TD209", *facts, random=False, samples=64.0)
    assert isinstance(found, Finding) is fires


def test_results_are_kept_where_they_fit() -> None:
    """A batch of 64 samples is 38.5 MB: 10,000 samples are 6 GB, 50,000 are 30 GB of 32."""
    some = finding("TD209", random=False, samples=64.0, dataset_len=10_000, num_workers=2)
    assert "memory (5.60 GiB of 29.8 GiB free)" in some.fix.text
    assert "before the workers start" in some.fix.text
    assert some.speedup is not None and some.speedup.low > 1.1
    all_of_it = finding("TD209", random=False, samples=64.0)
    assert "on disk (28.0 GiB in all)" in all_of_it.fix.text
    assert all_of_it.speedup is not None and all_of_it.speedup.low == 1.0


def test_the_low_end_is_what_twins_saved_from_the_second_epoch_on() -> None:
    found = finding("TD209", random=False, samples=64.0, dataset_len=1000)
    assert found.speedup is not None
    kept = (1 - 1 / found.speedup.low) * 80 * MS  # the step
    assert kept == pytest.approx(0.9 * found.at_best_ns, rel=0.02)
    assert "from the second epoch on" in found.why_gain
    assert "from the second epoch on" in found.fix.text


def test_what_is_kept_in_memory_need_not_be_read_either() -> None:
    """Of 60 ms a batch 30 are blocked. Results on a disk are read again."""
    half = {"random": False, "samples": 64.0, "load_cpu_ns": 24.5e6, "runqueue_ns": None}
    asked = finding("TD209", dataset_len=10_000, batch_bytes=1.0 * MB, **half)
    assert asked.at_best_ns < 30 * MS, "no storage was read: a service, say"
    half["read_bytes"] = 20.0 * MB
    kept = finding("TD209", dataset_len=10_000, batch_bytes=1.0 * MB, **half)
    assert kept.at_best_ns > 54 * MS
    on_disk = finding("TD209", dataset_len=10_000_000, batch_bytes=1.0 * MB, **half)
    assert on_disk.at_best_ns < 30 * MS


def test_what_work_on_a_core_waits_for_is_kept_with_its_result_at_best() -> None:
    """A cache behind a Manager's proxy: of 60 ms a batch 36 are on a core, 24 wait for the pipe."""
    proxy = {"random": False, "samples": 64.0, "load_cpu_ns": 35e6, "runqueue_ns": None}
    kept = finding("TD209", dataset_len=10_000, batch_bytes=1.0 * MB, **proxy)
    assert kept.at_best_ns > 54 * MS
    assert kept.speedup is not None and kept.speedup.low < 1.7, "the answers may change"


def test_an_unsized_dataset_has_no_epochs_to_repeat() -> None:
    assert result("TD209", random=False, samples=64.0, dataset_len=None) is None


@pytest.mark.parametrize(("library", "fires"), [("pandas", True), ("PIL", False), ("", False)])
def test_tables_are_told_by_the_library_that_the_line_calls(library: str, fires: bool) -> None:
    line = replace(stack(18, 0.7, "get (core/indexing.py)", "data_wait"), library=library)
    found = result("TD210", stacks(training=(line,)))
    assert isinstance(found, Finding) is fires


def test_tables_need_samples_of_the_fetch() -> None:
    assert isinstance(result("TD210", stacks()), Abstained)


def field(dtype: str, low: float, high: float, **changes: Any) -> BatchField:
    plain = BatchField(
        name="0", dtype=dtype, bytes=40.0 * MB, minimum=low, maximum=high, integral=False,
        of_255=False,
    )  # fmt: skip
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("seen", "enough"),
    [
        (field("float32", 0.0, 1.0, of_255=True), "uint8"),
        (field("float32", 0.0, 255.0, integral=True), "uint8"),
        (field("float32", 0.0, 256.0, integral=True), ""),
        (field("float32", -2.1, 2.6), ""),
        (field("float32", 0.0, 0.0, of_255=True, integral=True), ""),  # nothing but zeros
        (field("float64", -2.1, 2.6), "float32"),
        (field("int64", 0.0, 1.0, integral=True), "uint8"),
        (field("int64", -1.0, 1.0, integral=True), "int8"),
        (field("int64", 0.0, 30_000.0, integral=True), "int16"),
        (field("int64", 0.0, 2.0**33, integral=True), ""),
        (field("uint8", 0.0, 255.0, integral=True), ""),
    ],
)
def test_the_narrowest_type_follows_from_the_values(seen: BatchField, enough: str) -> None:
    found = result(
        "TD208", fields=(seen,), batch_dtypes={f"torch.{seen.dtype}": 40.0 * MB},
        collate_ns=20e6, collate_cpu_ns=20e6,
    )  # fmt: skip
    assert isinstance(found, Finding) is bool(enough)
    if isinstance(found, Finding):
        assert f", {enough} is enough" in found.summary


def test_narrower_values_do_not_make_small_samples_cheaper_to_collate() -> None:
    """20 ms of collating, and 40 kB to copy."""
    seen = replace(field("float64", -2.1, 2.6), bytes=4e4)
    found = result(
        "TD208", fields=(seen,), batch_dtypes={"torch.float64": 4e4}, batch_bytes=4e4,
        collate_ns=20e6, collate_cpu_ns=20e6,
    )  # fmt: skip
    assert found is None


def test_only_pixels_that_were_divided_are_divided_again() -> None:
    wide = {"batch_dtypes": {"torch.float32": 40.0 * MB}, "collate_ns": 2e7, "collate_cpu_ns": 2e7}
    divided = finding("TD208", fields=(field("float32", 0.0, 1.0, of_255=True),), **wide)
    whole = finding("TD208", fields=(field("float32", 0.0, 255.0, integral=True),), **wide)
    assert ".div_(255)" in divided.fix.text
    assert ".div_" not in whole.fix.text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ns": 200 * MS, "local_ns": 100 * MS}, Finding),
        ({"ns": 199 * MS, "local_ns": 100 * MS}, type(None)),
        ({}, type(None)),  # no other disk
        (None, Abstained),
    ],
)
def test_storage_is_slow_from_twice_the_time_of_the_machines_own(
    changes: dict[str, int] | None, expected: type
) -> None:
    tried = Storage(folder="/mnt/x", filesystem="nfs4", files=24, bytes=9 * MB, **(changes or {}))
    kinds = () if changes is None else (tried,)
    assert isinstance(result("TD104", *kinds, load_cpu_ns=4e6, read_bytes=24e6), expected)


def test_data_that_do_not_fit_are_packed_instead() -> None:
    tried = Storage(
        folder="/mnt/x", filesystem="nfs4", local="/var/tmp", local_free_bytes=10 * GB, files=24,
        bytes=9 * MB, ns=200 * MS, local_ns=20 * MS,
    )  # fmt: skip
    cold = {"load_cpu_ns": 4e6, "read_bytes": 24e6, "rchar_bytes": 24e6}
    text = finding("TD104", tried, **cold).fix.text
    assert text.startswith("The data (17.5 GiB) does not fit on the local disk (9.31 GiB")
    small = finding("TD104", tried, dataset_len=1000, **cold).fix.text
    assert "Copy /mnt/x to the local disk" in small


def test_waiting_for_a_core_that_others_have_makes_no_preprocessing_of_a_blocked_read() -> None:
    crowded_out = {
        "load_ns": 60.0 * MS, "load_cpu_ns": 1.0 * MS, "runqueue_ns": 33.0 * MS,
        "collate_ns": 0.0, "collate_cpu_ns": 0.0, "read_bytes": 20.0 * MB, "num_workers": 0,
    }  # fmt: skip
    taken = system(cores_allowed=2.0, cores_machine=2, cores_used=0.6, machine_busy_cores=2.0)
    evidence = Evidence().add(STEP, loaders(**crowded_out), taken)
    fired = [c for c in ("TD101", "TD201", "TD202") if run_rule(find(c), evidence)]
    assert fired == ["TD101"]


@pytest.mark.parametrize(
    ("drawn", "workers", "change"),
    [
        (False, 0, "loader.cache"),
        (False, 2, "loader.cache+loader.num_workers=0"),
        (True, 0, "loader.num_workers=3"),  # samples made anew each time cannot be kept
    ],
)
def test_a_trial_of_files_in_memory_keeps_the_samples(
    drawn: bool, workers: int, change: str
) -> None:
    cold = {"load_cpu_ns": 4e6, "read_bytes": 24e6, "rchar_bytes": 24e6, "dataset_len": 1000}
    fix = finding("TD101", random=drawn, num_workers=workers, **cold).fix
    assert fix.action == "Read the dataset into memory once"
    assert fix.intervention == change
