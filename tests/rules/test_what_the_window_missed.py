"""Rules say nothing of what the clean steps could not show, and name what fits the case."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.steps import StepHistory, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, MB, at, budget, loaders, phases, stack, stacks, system, threads
from tdiag.rules.log_lines import logs


def history(*epochs: int) -> StepHistory:
    """Ten steps of 100 ns, the last eight clean."""
    return StepHistory(
        end_ns=tuple(range(100, 1100, 100)),
        durations_ns=(100,) * 10,
        windows=("warmup",) * 2 + ("baseline",) * 8,
        clean=(False,) * 2 + (True,) * 8,
        epochs_ns=epochs,
    )


@pytest.mark.parametrize("code", ["TD801", "TD802", "TD803"])
def test_nothing_is_cleared_that_no_clean_step_could_show(code: str) -> None:
    """Evaluations and checkpoints mostly come at the end of an epoch."""
    evidence = find(code).clear()
    evidence.add(budget(forward=10), phases(forward=10), history(5))
    missed = run_rule(find(code), evidence)
    assert isinstance(missed, Abstained) and "no end of an epoch" in missed.missing
    assert run_rule(find(code), evidence.add(history(5, 650))) is None


@pytest.mark.parametrize(
    ("times", "epochs", "surely"),
    [(1, (5,), False), (2, (5,), True), (1, (5, 650), True)],
)
@pytest.mark.parametrize(("code", "phase"), [("TD802", "evaluation"), ("TD803", "checkpoint")])
def test_what_was_seen_once_may_be_rare(
    code: str, phase: str, times: int, epochs: tuple[int, ...], surely: bool
) -> None:
    """One in eight clean steps may be one in a thousand; two, or one in each epoch, tell."""
    parts = {"forward": 60.0, phase: 40.0}
    clean = Steps(
        durations_ns=(100,) * 8, mean_ns=100, median_ns=100, p90_ns=100, count=8,
        boundary="optimizer", total_steps_seen=10,
    )  # fmt: skip
    evidence = find(code).fires().add(
        budget(**parts), phases({phase: times / 8}, **parts), history(*epochs), clean
    )  # fmt: skip
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding) and found.speedup is not None
    assert (found.speedup.low > 1) is surely
    assert ("may be rare" in found.why_gain) is not surely


@pytest.mark.parametrize(("epochs", "surely"), [((5,), False), ((5, 350), True)])
def test_reads_of_a_first_epoch_may_not_come_again(epochs: tuple[int, ...], surely: bool) -> None:
    """The page cache serves the second one; reads that persist in it are waste for sure."""
    found = run_rule(find("TD101"), find("TD101").fires().add(history(*epochs)))
    assert isinstance(found, Finding) and found.speedup is not None
    assert (found.speedup.low > 1) is surely
    assert ("page cache" in found.why_gain) is not surely


@pytest.mark.parametrize(
    ("leaf", "writes"),
    [
        ("track (aim/sdk/run.py)", True),
        ("print (site-packages/rich/console.py)", True),
        ("dumps (json/__init__.py)", False),  # text in memory: a message, perhaps
        ("parse (claim/reader.py)", False),
        ("join (enrich/table.py)", False),
    ],
)
def test_a_package_that_ends_like_a_logger_is_none(leaf: str, writes: bool, tmp_path: Path) -> None:
    line: StackLine = replace(stack(1, 0.2, leaf), at=replace(at(1), file=str(tmp_path / "x.py")))
    assert logs(line) is writes


@pytest.mark.parametrize(
    ("library", "words"), [("pandas", "to_numpy(dtype"), ("polars", "to_torch("),
                           ("datasets", 'with_format("torch")'), ("pyarrow", "to_numpy()")],
)  # fmt: skip
def test_a_table_is_converted_in_its_own_words(library: str, words: str) -> None:
    evidence = find("TD210").fires()
    rows = replace(stack(18, 0.6, "get", "data_wait"), library=library)
    found = run_rule(find("TD210"), evidence.add(stacks(training=(rows,))))
    assert isinstance(found, Finding) and words in found.fix.code


def test_fewer_workers_leave_a_core_to_the_training() -> None:
    crowd = loaders(num_workers=8, load_ns=200e6, load_cpu_ns=50e6, runqueue_ns=150e6)
    evidence = find("TD205").fires().add(crowd, system(cores_allowed=4.0, cores_used=3.98))
    found = run_rule(find("TD205"), evidence)
    assert isinstance(found, Finding)
    assert found.fix.intervention is not None
    assert int(found.fix.intervention.removeprefix("loader.num_workers=")) <= 3


def test_four_ranks_share_the_cores_that_workers_are_asked_of() -> None:
    """Three cores are free: for one process two workers, not for each of four."""
    evidence = find("TD201").fires().add(system(cores_allowed=4.0, cores_used=1.0))
    assert isinstance(run_rule(find("TD201"), evidence), Finding)
    evidence.add(threads(1, processes=4), system(cores_allowed=4.0, cores_used=3.9))
    assert run_rule(find("TD201"), evidence) is None


@pytest.mark.parametrize("code", ["TD101", "TD103", "TD209"])
def test_memory_for_cached_data_is_shared_by_the_ranks(code: str) -> None:
    evidence = find(code).fires()
    alone = run_rule(find(code), evidence)
    shared = run_rule(find(code), evidence.add(threads(1, processes=100_000)))
    assert isinstance(alone, Finding)
    assert not isinstance(shared, Finding) or "memory" not in shared.fix.action


def test_batches_in_flight_of_all_ranks_fill_the_memory() -> None:
    evidence = find("TD211").clear()
    assert run_rule(find("TD211"), evidence) is None
    assert isinstance(run_rule(find("TD211"), evidence.add(threads(1, processes=64))), Finding)


def test_a_rate_set_by_hand_each_epoch_has_no_occasion_in_the_first() -> None:
    missed = run_rule(find("TD001"), find("TD001").fires().add(history(5)))
    assert isinstance(missed, Abstained) and "no second epoch" in missed.missing
    assert isinstance(run_rule(find("TD001"), find("TD001").fires().add(history(5, 650))), Finding)
    streaming = find("TD001").fires().add(history())  # without a loader nothing counts epochs
    assert isinstance(run_rule(find("TD001"), streaming), Finding)


def test_a_short_evaluation_that_records_gradients_still_holds_their_memory() -> None:
    """It takes 1 % of the time: there is little to gain, but the graphs fill memory."""
    evidence = find("TD801").fires().add(budget(forward=99, evaluation=1))
    found = run_rule(find("TD801"), evidence)
    assert isinstance(found, Finding)
    assert found.advisory and found.recoverable_ns == 0


def test_reads_of_the_first_epoch_alone_are_no_sure_gain_of_a_cache() -> None:
    """Of 60 ms a batch 36 are blocked on storage."""
    half = loaders(
        random=False, samples=64.0, load_cpu_ns=24.5e6, runqueue_ns=None, read_bytes=20.0 * MB,
        dataset_len=10_000, batch_bytes=1.0 * MB,
    )  # fmt: skip
    step = budget(data_wait_cpu=60, forward=20)
    seen = Evidence().add(step, half, system(ram_available_bytes=96 * GB))
    first, later = (
        run_rule(find("TD209"), seen.add(history(*epochs))) for epochs in ((5,), (5, 350))
    )
    assert isinstance(first, Finding) and isinstance(later, Finding)
    assert first.speedup and later.speedup
    assert first.speedup.high == later.speedup.high
    assert first.speedup.low < later.speedup.low - 0.5
