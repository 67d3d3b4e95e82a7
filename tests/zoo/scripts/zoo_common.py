"""What every zoo script shares: ``--steps``, a little data, and the line that compares runs.

``ZOO_DEVICE=cuda`` makes a CUDA twin of each script: tensors and random numbers are made there.
"""

import argparse
import hashlib
import os
import random
import struct
from collections.abc import Iterable

import torch
from torch import Tensor, nn

if DEVICE := os.environ.get("ZOO_DEVICE"):
    torch.set_default_device(DEVICE)

    class DeviceGenerator(torch.Generator):
        def __new__(cls, device: str = DEVICE) -> "DeviceGenerator":
            return super().__new__(cls, device)

    torch.Generator = DeviceGenerator


def parser() -> argparse.ArgumentParser:
    """``--steps N``: how many optimizer updates the script makes before it stops."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    return options


def seed_all() -> None:
    random.seed(7)
    torch.manual_seed(7)


def blobs(samples: int = 64, features: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Gaussian clusters: ``(samples, features)`` float32 and ``(samples,)`` int64 labels."""
    made = torch.Generator().manual_seed(11)
    centres = torch.randn(classes, features, generator=made) * 2
    labels = torch.randint(classes, (samples,), generator=made)
    return centres[labels] + torch.randn(samples, features, generator=made), labels


def make_model(features: int = 16, classes: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))


def report(weights: Iterable[Tensor], losses: Iterable[float]) -> None:
    """Prints ``RESULT <sha256 of weights> <sha256 of losses>``.

    The second digest also takes the next draw of ``random`` and of torch, so that a watcher that
    used up random numbers shows even when nothing in the script drew any afterwards.
    """
    weight_hash, loss_hash = hashlib.sha256(), hashlib.sha256()
    for tensor in weights:
        weight_hash.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for loss in losses:
        loss_hash.update(struct.pack("<d", loss))
    loss_hash.update(struct.pack("<dd", random.random(), torch.rand(()).item()))
    print("RESULT", weight_hash.hexdigest(), loss_hash.hexdigest(), flush=True)
