"""A dataset of the user's own that only picks samples from memory is not preprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, at, budget, loaders, op_line, ops, system
from tdiag.rules.feed import PICK_NS

BATCH = 256


def own_dataset(each_ns: float, cores_used: float = 0.98, **changes: Any) -> dict[str, Finding]:
    """What fires where ``__getitem__`` takes so long, and half of the step waits for it."""
    load = each_ns * BATCH
    loader = {
        "dataset_class": "Mine", "dataset_at": at(12, "__getitem__"), "dataset_len": 10_000,
        "batch_size": BATCH, "samples": float(BATCH), "batch_bytes": 12e3, "random": False,
        "load_ns": load, "load_cpu_ns": load, "collate_ns": load / 2, "collate_cpu_ns": load / 2,
        "runqueue_ns": 0.0,
    }  # fmt: skip
    rest = 1.5 * load / 1e6 / 3
    step = budget(data_wait_cpu=1.5 * load / 1e6, forward=rest, backward=rest, optimizer=rest)
    machine = system(
        cores_allowed=1.0, cores_machine=64, cores_used=cores_used, ram_available_bytes=64 * GB
    )  # fmt: skip
    evidence = Evidence().add(step, loaders(**{**loader, **changes}), machine)
    codes = ("TD201", "TD202", "TD206", "TD209", "TD213")
    return {found.code: found for found in run_rules(evidence, [find(c) for c in codes])[0]}


def test_picked_samples_are_indexed_in_whole_batches() -> None:
    found = own_dataset(0.6 * PICK_NS)
    assert set(found) == {"TD213"}
    fix = found["TD213"].fix
    assert "__getitem__ at train.py:12 then gets a list of indices" in fix.text
    assert fix.safety == "review", "the class's code has to bear a list of indices"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sampler_class": "RandomSampler"}, "BatchSampler(RandomSampler(dataset), 256, False)"),
        (
            {"sampler_class": "SequentialSampler", "drop_last": True},
            "BatchSampler(SequentialSampler(dataset), 256, True)",
        ),
        ({"sampler_class": "DistributedSampler"}, "BatchSampler(sampler, 256, False)  # the"),
        ({"sampler_len": None}, "# batches: the loader's batch_sampler"),
    ],
)
def test_whole_batches_hold_the_samples_that_the_loader_chooses_now(
    changes: dict[str, Any], code: str
) -> None:
    """A RandomSampler in place of a DistributedSampler would give every rank all the data."""
    assert code in own_dataset(0.6 * PICK_NS, **changes)["TD213"].fix.code


def test_dearer_samples_are_preprocessed() -> None:
    assert set(own_dataset(2 * PICK_NS)) == {"TD202", "TD206", "TD209"}


def test_a_service_asked_for_each_sample_is_not_memory() -> None:
    """The core has next to nothing to do with it, and yet it takes long."""
    load = 10 * PICK_NS * BATCH
    found = own_dataset(10 * PICK_NS, load_cpu_ns=load / 20, cores_used=0.4)
    assert "TD213" not in found


def test_a_stream_has_nothing_to_index() -> None:
    found = own_dataset(0.6 * PICK_NS, dataset_len=None)
    assert set(found) == {"TD206"}


def test_samples_that_were_not_counted_are_not_taken_for_picked() -> None:
    found = own_dataset(0.6 * PICK_NS, samples=None, batch_size=None)
    assert "TD202" in found


@pytest.mark.parametrize("function", ["", "train"])
def test_what_torchs_own_collating_converts_is_no_line_of_the_users(
    function: str, tmp_path: Path
) -> None:
    """256 arrays become tensors below ``for x, y in loader:``; the loop holds no values."""
    script = tmp_path / "train.py"
    script.write_text("for x, y in loader:\n    loss = model(x)\n    row = torch.tensor(a)\n")
    taking, training, own = (at(n, function, str(script)) for n in (1, 2, 3))
    collating = replace(
        op_line(1, "data_wait", 256, constructions=256.0, elapsed_ns=9e6), at=taking
    )
    building = replace(op_line(3, "prepare", 64, constructions=64.0, elapsed_ns=9e6), at=own)
    lines = (collating, replace(op_line(2, "forward", 9), at=training))
    step = budget(data_wait_cpu=14, prepare=9, forward=8, backward=12)
    assert run_rule(find("TD207"), Evidence().add(step, loaders(), ops(*lines))) is None
    found = run_rule(find("TD207"), Evidence().add(step, loaders(), ops(*lines, building)))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 3


@pytest.mark.parametrize(
    ("batch", "own", "share"),
    [(256, True, 0.75), (64, False, 0.75), (32, False, 0.3), (32, True, 0)],
)
def test_whole_batches_surely_save_what_they_saved_at_this_size(
    batch: int, own: bool, share: float
) -> None:
    """Of the time beyond copying, which is next to nothing here."""
    changes = {"batch_size": batch, "samples": float(batch), "batch_bytes": 12.0}
    if not own:
        changes |= {"dataset_at": None, "dataset_class": "TensorDataset"}
    found = own_dataset(4000 * batch / BATCH, **changes)["TD213"]
    assert found.speedup is not None
    waited = 0.5  # of the step
    assert found.speedup.low == pytest.approx(1 / (1 - share * waited), abs=0.01)
