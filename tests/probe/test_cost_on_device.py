"""What calls cost a device, by their tensors. ``meta`` stands for the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tdiag.probe.capture import cost_on_device
from tdiag.probe.capture.cost_on_device import BYTES_PER_NS, OPERATIONS_PER_BYTE, device_ns
from tests.simulated.device import SimulatedCuda
from tests.simulated.loop import Loop


def there(*size: int) -> torch.Tensor:
    return torch.empty(size, device="meta")


BIG = there(4000, 5000)  # 80 MB
BYTES = 4000 * 5000 * 4


def operations(number: float) -> float:
    return number / OPERATIONS_PER_BYTE / BYTES_PER_NS


@pytest.mark.parametrize(
    ("name", "call", "ns"),
    [
        ("add", lambda: (BIG.add(1), (BIG,)), 2 * BYTES / BYTES_PER_NS),
        ("add_", lambda: (BIG.add_(1), (BIG,)), 2 * BYTES / BYTES_PER_NS),
        ("view", lambda: (BIG.view(-1), (BIG,)), 0),
        ("t", lambda: (BIG.t(), (BIG,)), 0),
        ("linear", lambda: (F.linear(BIG, there(3000, 5000)), (BIG, there(3000, 5000))),
         operations(2 * 4000 * 5000 * 3000)),
        ("__matmul__", lambda: (BIG @ there(5000, 3000), (BIG, there(5000, 3000))),
         operations(2 * 4000 * 5000 * 3000)),
        ("conv2d",
         lambda: (F.conv2d(there(64, 128, 66, 66), there(256, 128, 3, 3)),
                  (there(64, 128, 66, 66), there(256, 128, 3, 3))),
         operations(2 * 64 * 256 * 64 * 64 * 128 * 9)),
        ("cat", lambda: (torch.cat([BIG, BIG]), ([BIG, BIG],)), 4 * BYTES / BYTES_PER_NS),
        ("tolist", lambda: ([1.0], (BIG,)), 0),
        ("add", lambda: (torch.ones(9), (torch.ones(9),)), None),  # on the host
    ],
)  # fmt: skip
def test_a_call_costs_its_bytes_or_its_arithmetic(
    name: str, call: Callable[[], tuple[Any, Any]], ns: float | None
) -> None:
    result, args = call()
    found = device_ns(name, args, {}, result)
    assert found is None if ns is None else found == pytest.approx(ns, rel=0.01)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_a_shape_cost_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3000), torch.ones(4, 3000)])
    with pytest.raises(RuntimeError):
        _ = nested.shape
    monkeypatch.setattr(cost_on_device, "ON_HOST", "none")  # as if it were on a device
    assert device_ns("linear", (nested, torch.ones(3, 3000)), {}, nested * 2) == 180


def test_with_a_device_lines_are_weighed_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line launches as fast as the first, and costs the device a thousand times as
    much."""

    def body(cuda: SimulatedCuda) -> None:
        cuda.launch(30_000_000)
        small = there(40, 500).mul(2)  # small
        large = there(4000, 5000).mul(2)  # large
        del small, large

    run = Loop(tmp_path, monkeypatch, body, windows=["baseline", "ops"]).train(300)
    lines = Path(__file__).read_text().splitlines()
    of = {word: next(n for n, x in enumerate(lines, 1) if f"# {word}" in x)
          for word in ("small", "large")}  # fmt: skip
    work = {x["at"][1]: x["work"] for x in run.of("ops")[-1]["lines"] if x["at"]}
    assert work[of["large"]] == pytest.approx(1000 * work[of["small"]], rel=0.02)
