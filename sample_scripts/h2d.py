"""Trains a convolutional net on batches prepared in host memory: shows its fault on CUDA only.

What is slow: the batches lie in ordinary, pageable memory. ``images.to(device)`` first has the
driver copy them into a buffer of its own and holds up the training thread meanwhile, so that copy
and compute take turns.

tdiag should find, on CUDA: class ``h2d``, pageable copies at the line of ``.to(device)`` with their
gigabytes per second. On a CPU nothing is copied, ``.to`` returns the tensor itself, and there
should be no word about copies; the script says so.

``h2d_fixed.py`` pins the batches once and copies them without blocking. Same losses and weights.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
NEEDS_CUDA = (
    "This sample needs a CUDA device, and there is none: nothing is copied here, so no report can"
    " show slow copies. On a CPU it does the same as its twin."
)


class PreparedBatches(Dataset):
    """Whole batches of float32 images, as an offline preparation left them in memory."""

    def __init__(self, batches: int, batch_size: int, side: int) -> None:
        random = torch.Generator().manual_seed(1)
        tints = torch.randn(CLASSES, 3, 1, 1, generator=random)
        self.batches: list[tuple[Tensor, Tensor]] = []
        for _ in range(batches):
            labels = torch.randint(CLASSES, (batch_size,), generator=random)
            images = tints[labels] + torch.randn(batch_size, 3, side, side, generator=random)
            self.batches.append((images, labels))

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.batches[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=8, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step, loss, start = 0, torch.zeros(()), time.perf_counter()
    while step < steps:
        for images, labels in loader:
            images = images.to(device)
            labels = labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == steps:
                break
    seconds = time.perf_counter() - start
    print(f"{steps} steps, {seconds / steps * 1e3:.2f} ms each, last loss {loss.item():.6f}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--batches", type=int, default=8)
    options.add_argument("--batch-size", type=int, default=None, help="256 on CUDA, 32 on a CPU")
    options.add_argument("--side", type=int, default=None, help="224 on CUDA, 128 on a CPU")
    options.add_argument("--steps", type=int, default=2000)
    args = options.parse_args()
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    if not cuda:
        print(NEEDS_CUDA)
    size, side = args.batch_size or (256 if cuda else 32), args.side or (224 if cuda else 128)
    data = PreparedBatches(args.batches, size, side)
    train(DataLoader(data, batch_size=None, shuffle=True), device, args.steps)


if __name__ == "__main__":
    main()
