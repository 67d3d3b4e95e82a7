"""Trains a classifier on pooled backbone features that lie on disk, one file a sample.

What is slow: every sample is read from storage again in every epoch. A data set larger than the
RAM never stays in the page cache; the stand-in for one here is to read around the cache (O_DIRECT,
as loaders of such sets do, or ``posix_fadvise(DONTNEED)`` where the file system has no O_DIRECT).
So every read goes to the disk, which ``/proc/self/io`` (read_bytes) shows.

tdiag should find: class ``io``. The training thread waits for data most of the step, the fetches
are blocked rather than on a core, and the line is the read, reached from ``FeatureFiles``.

``io_reads_fixed.py`` reads each file once and keeps what the training uses of it, which does fit
into RAM. Losses and weights stay the same, bit for bit.
"""

import argparse
import math
import mmap
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SHAPE = (512, 256)  # channels × positions, float32: 512 KiB a file
CLASSES = 10
# Reading around the page cache needs page-aligned memory. Private: each worker gets its own.
BUFFER = mmap.mmap(-1, 4 * math.prod(SHAPE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def make_data(folder: Path, samples: int) -> None:
    """Writes ``samples`` files once, about 128 MiB in all, and waits until they are on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    centres = torch.randn(CLASSES, SHAPE[0], 1, generator=torch.Generator().manual_seed(1))
    for index in range(samples):
        path = folder / f"{index:05d}.f32"
        if path.exists():
            continue
        noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2 + index))
        with path.with_suffix(".part").open("wb") as file:
            file.write((0.1 * centres[index % CLASSES] + noise).numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).rename(path)


def read_cold(path: Path) -> np.ndarray:
    """The file's feature map, read around the page cache; valid until the next call."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:  # a file system without O_DIRECT
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.readv(descriptor, [BUFFER])
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return np.frombuffer(BUFFER, dtype=np.float32).reshape(SHAPE)


class FeatureFiles(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.f32"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pooled = read_cold(self.paths[index]).mean(axis=1)
        return torch.from_numpy(pooled), index % CLASSES


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(SHAPE[0], 256), nn.ReLU(), nn.Linear(256, CLASSES))


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, loss, start = 0, torch.zeros(()), time.perf_counter()
    while step < steps:
        for features, labels in loader:
            loss = F.cross_entropy(model(features.to(device)), labels.to(device))
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
    options.add_argument("--data", type=Path, default=Path(__file__).parent / ".tdiag_data")
    options.add_argument("--samples", type=int, default=256)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--steps", type=int, default=2000)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = args.data / "features"
    make_data(folder, args.samples)
    loader = DataLoader(FeatureFiles(folder), batch_size=args.batch_size, shuffle=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
