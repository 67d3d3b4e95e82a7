"""Learns embeddings in which two views of the same instance lie close and others apart.

What is slow: ``instance_loss`` goes through the pairs of the batch one by one, asks the label with
an ``if`` and adds up ``1 - cos`` or ``max(0, cos - margin)``. Each pair costs several operations on
tensors of 64 numbers, the ``if`` reads a tensor's value, and backward walks all those nodes again.

tdiag should find: class ``python_loss``, at the loop in ``instance_loss``, with the number of
operations and of values read there; the cost in backward belongs to it too.

``python_loss_fixed.py`` is one expression over the whole batch (``torch.where``). The loss is the
same number up to rounding, at least 100 times faster.
"""

import argparse
import time

import torch
from torch import Tensor, nn

MARGIN = 0.2
FEATURES, WIDTH = 96, 64


def instance_loss(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Mean cosine embedding loss of pairs; ``labels`` is 1 for the same instance, −1 otherwise."""
    total = torch.zeros((), device=first.device)
    for a, b, label in zip(first, second, labels, strict=True):
        cosine = torch.dot(a, b) / (a.norm() * b.norm())
        if label == 1:
            total = total + (1 - cosine)
        elif cosine.item() > MARGIN:
            total = total + (cosine - MARGIN)
    return total / len(labels)


class PairSampler:
    """Pairs of noisy views of ``instances`` prototypes, half of them of the same instance."""

    def __init__(self, instances: int, batch_size: int, device: torch.device) -> None:
        self.random = torch.Generator().manual_seed(1)
        self.prototypes = torch.randn(instances, FEATURES, generator=self.random).to(device)
        self.batch_size, self.device = batch_size, device

    def views(self, chosen: Tensor) -> Tensor:
        noise = torch.randn(len(chosen), FEATURES, generator=self.random).to(self.device)
        return self.prototypes[chosen] + 0.5 * noise

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        instances, size = len(self.prototypes), self.batch_size
        first = torch.randint(instances, (size,), generator=self.random)
        offset = torch.randint(1, instances, (size,), generator=self.random)
        same = torch.rand(size, generator=self.random) < 0.5
        second = torch.where(same, first, (first + offset) % instances)
        labels = torch.where(same, 1, -1).to(self.device)
        return self.views(first), self.views(second), labels


def train(batch_size: int, device: torch.device, steps: int) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, WIDTH)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pairs = PairSampler(500, batch_size, device)
    loss, start = torch.zeros(()), time.perf_counter()
    for step in range(1, steps + 1):
        first, second, labels = pairs.batch()
        loss = instance_loss(model(first), model(second), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    seconds = time.perf_counter() - start
    print(f"{steps} steps, {seconds / steps * 1e3:.2f} ms each, last loss {loss.item():.6f}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--batch-size", type=int, default=768)
    options.add_argument("--steps", type=int, default=600)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train(args.batch_size, device, args.steps)


if __name__ == "__main__":
    main()
