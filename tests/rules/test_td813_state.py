"""The optimizer's state in a full memory: sharded over ranks, or in 8 bits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, device_holds, environment

RULE = find("TD813")
DDP = Ddp(
    find_unused_parameters=False, static_graph=False, gradient_as_bucket_view=False,
    bucket_bytes=None, comm_hook="", parameter_bytes=0, unused_parameters=None, backwards=1.0,
    synced=1.0, buffer_bytes=0, constant_buffer_bytes=0,
)  # fmt: skip


def judged(*kinds: Any, **changes: Any) -> Finding | Abstained | None:
    evidence = RULE.fires()
    known = evidence.get(Optimizers)
    assert known is not None
    changed = replace(known.optimizers[0], **changes)
    return run_rule(RULE, evidence.add(Optimizers(optimizers=(changed,)), *kinds))


@pytest.mark.parametrize(
    "changes",
    [
        {"state_bytes": 25 * GB},  # three quarters of it are 24 % of 78 GB
        {"state_bytes": 0},  # SGD without momentum
        {"name": "Adafactor"},
    ],
)
def test_silent_where_little_would_be_freed(changes: dict[str, Any]) -> None:
    found = judged()
    assert isinstance(found, Finding) and found.advisory
    assert "bitsandbytes.optim.AdamW8bit" in found.fix.text and "31.4 GiB" in found.fix.text
    assert judged(**changes) is None


def test_unread_state_is_not_judged() -> None:
    assert isinstance(judged(state_bytes=None), Abstained)
    assert judged(environment()) is None  # no device


def test_ranks_that_repeat_it_share_it() -> None:
    job = environment(device="NVIDIA A100", device_count=1, world_size=4)
    found = judged(job, DDP, name="Lion")
    assert isinstance(found, Finding)
    assert "optimizer_class=Lion" in found.fix.code and "fully_shard" in found.fix.text
    adam = judged(job, DDP)
    assert isinstance(adam, Finding) and "optimizer_class=torch.optim.AdamW" in adam.fix.code
    alone = judged(job)  # sharded by something else, or each rank trains a model of its own
    assert isinstance(alone, Finding) and "8 bits" in alone.fix.text


def test_nothing_is_said_with_memory_to_spare() -> None:
    assert judged(device_holds(70 * GB)) is None
