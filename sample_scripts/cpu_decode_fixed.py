"""Trains a small convolutional classifier on JPEG photographs: the fixed twin.

``cpu_decode.py`` decodes, resizes and normalises in every ``__getitem__``. Here what does not
change between epochs, decoding and resizing, is done once at the start and kept as bytes; the
random crop and flip are slices of those bytes, and the whole batch is normalised on the device.
Losses and weights are the same, bit for bit.

tdiag should find: no ``cpu``; most of the step is the model's own work.
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


def crop_and_flip(image: Tensor) -> Tensor:
    """``image``: bytes, channels × ``RESIZED`` × ``RESIZED``."""
    left, top = random.randint(0, RESIZED - CROP), random.randint(0, RESIZED - CROP)
    image = image[:, top : top + CROP, left : left + CROP]
    if random.random() < 0.5:
        image = image.flip(2)
    return image


class Photos(Dataset):
    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.jpg"))
        self.images = torch.stack([self.decode(path) for path in paths])

    @staticmethod
    def decode(path: Path) -> Tensor:
        with Image.open(path) as file:
            image = file.convert("RGB").resize((RESIZED, RESIZED), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return crop_and_flip(self.images[index]), index % CLASSES


def normalise(images: Tensor) -> Tensor:
    return (images.float() - 127.5) / 127.5


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
            loss = F.cross_entropy(model(normalise(images.to(device))), labels.to(device))
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
    options.add_argument("--steps", type=int, default=4000)
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
