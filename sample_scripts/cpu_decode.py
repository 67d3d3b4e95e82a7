"""Trains a small convolutional classifier on JPEG photographs.

What is slow: ``Photos.__getitem__`` decodes, resizes, crops, flips and normalises each photograph
with Pillow, on one core, in the training process (``num_workers=0``), while the model waits. The
files are small and stay in the page cache: this is CPU work, not storage.

tdiag should find: class ``cpu``. The fetches are on a core nearly all of their time, the line is
the decode in ``Photos.__getitem__``, and the loader has no workers.

``cpu_decode_fixed.py`` decodes and resizes once, keeps bytes, and normalises the whole batch. The
random crops and flips are the same, and so are losses and weights, bit for bit.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STORED = (640, 480)  # width, height of the photographs on disk
RESIZED, CROP = 72, 64
CLASSES = 8


def make_data(folder: Path, samples: int) -> None:
    """Draws ``samples`` smooth random pictures, tinted by class, and saves them as JPEG."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(samples):
        path = folder / f"{index:05d}.jpg"
        if path.exists():
            continue
        draw = np.random.default_rng(index)
        coarse = draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        coarse[..., index % 3] //= 1 + index % CLASSES
        picture = Image.fromarray(coarse).resize(STORED, Image.Resampling.BICUBIC)
        picture.save(path.with_suffix(".part"), format="JPEG", quality=92)
        path.with_suffix(".part").rename(path)


def crop_and_flip(image: Image.Image) -> Image.Image:
    left, top = random.randint(0, RESIZED - CROP), random.randint(0, RESIZED - CROP)
    image = image.crop((left, top, left + CROP, top + CROP))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


class Photos(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB").resize((RESIZED, RESIZED), Image.Resampling.LANCZOS)
        pixels = np.asarray(crop_and_flip(image), dtype=np.float32)
        pixels = (pixels - 127.5) / 127.5
        return torch.tensor(pixels).permute(2, 0, 1).contiguous(), index % CLASSES


def make_model() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outer), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step, loss, start = 0, torch.zeros(()), time.perf_counter()
    while step < steps:
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
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
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--steps", type=int, default=800)
    args = options.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = args.data / "photos"
    make_data(folder, args.samples)
    loader = DataLoader(Photos(folder), batch_size=args.batch_size, shuffle=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
