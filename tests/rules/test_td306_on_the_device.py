"""A data set that would fit on the device."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import Transfers
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Startup
from tdiag.evidence.steps import StepHistory
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import example, find
from tdiag.rules.examples import GB, MB, MS, at, budget, copy, device_holds

RULE = find("TD306")


def judged(*kinds: Any, **changes: Any) -> Finding | Abstained | None:
    evidence = RULE.fires()
    known = evidence.get(Loaders)
    assert known is not None
    mine = Loaders(loaders=(replace(known.loaders[0], **changes),))
    return run_rule(RULE, evidence.add(mine, *kinds))


@pytest.mark.parametrize(
    "changes",
    [
        {"random": True},  # augmented
        {"collate_at": at(20, "padded")},  # sizes may differ
        {"dataset_at": at(12, "__iter__")},
        {"dataset_len": None},
        {"batch_bytes": 256 * 1.2 * MB},  # 72 GB in all, with 2 GB in use of 80
    ],
)
def test_silent_where_the_data_cannot_stay_there(changes: dict[str, Any]) -> None:
    assert isinstance(judged(), Finding)
    assert judged(**changes) is None


def test_silent_where_the_device_hardly_waits_or_is_full() -> None:
    assert judged(budget(device=True, data_wait_cpu=0.2, compute=9.8)) is None
    assert judged(device_holds(75 * GB)) is None
    assert judged(budget(data_wait_cpu=4, forward=6)) is None


def test_a_training_of_one_epoch_sends_each_sample_once() -> None:
    history = StepHistory(
        end_ns=(1,), durations_ns=(1,), windows=("baseline",), clean=(True,), epochs_ns=(1,)
    )
    startup = Startup(parts_ns={}, run_ns=1)
    assert judged(history, startup) is None
    assert isinstance(judged(history), Finding)


def test_what_is_not_known_is_said() -> None:
    assert isinstance(judged(random=None), Abstained)


def test_copies_of_other_tensors_count_at_best_only() -> None:
    found = judged(Transfers(copies=(copy(bytes=0.8 * MB, exposed_ns=1e6),)))
    mine = judged()
    assert isinstance(found, Finding) and isinstance(mine, Finding)
    assert found.at_best_ns == mine.at_best_ns == pytest.approx(5 * MS)
    assert found.recoverable_ns < mine.recoverable_ns


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_code_gives_the_batches_of_the_loader(drop_last: bool) -> None:
    import torch

    found = judged(batch_size=4, drop_last=drop_last)
    assert isinstance(found, Finding) and found.fix.code
    dataset = [(torch.full((2,), float(k)), k) for k in range(10)]
    scope: dict[str, Any] = {"dataset": dataset, "device": "cpu", "epochs": 1, "seen": []}
    exec(found.fix.code + "\n        seen.append(batch)", scope)
    assert [len(labels) for _, labels in scope["seen"]] == [4, 4, 2][: 2 if drop_last else 3]
    labels = torch.cat([labels for _, labels in scope["seen"]])
    assert len(set(labels.tolist())) == len(labels)
    assert all((x[:, 0] == y).all() for x, y in scope["seen"])


def test_the_example_is_where_the_loader_is_made() -> None:
    assert example(RULE).at == at(41)
