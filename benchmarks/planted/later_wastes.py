"""Wastes added after cases had been drawn and recorded. They are never drawn, so that a seed still
draws the same cases."""

from __future__ import annotations

from .data_wastes import dataset
from .parts import Waste

PICTURES = """
self.pictures = []
for k in range(24):
    colours = np.random.default_rng(k).integers(0, 255, (12, 16, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((1024, 768)).save(file, "JPEG", quality=85)
    self.pictures.append(file.getvalue())
"""
SMALL = """
    small = picture.convert("L").resize((16, 16))  # HERE
    return transforms(small)
"""
OPENED = """
import io, random
from PIL import Image
def transforms(small):
    if random.random() < 0.5:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.asarray(small, np.float32).reshape(-1) / 255)
def read(file):
    picture = Image.open(file)  # HERE
"""
ITEM = "return read(io.BytesIO(self.pictures[i % 24])), i % 10"
TOO_LARGE = Waste(
    "JPEG pictures of 1024 × 768 decoded in full for inputs of 16 × 16, flipped at random",
    "cpu",
    ("TD220",),
    {"DATA": OPENED + SMALL + dataset(PICTURES, ITEM), "LOADER": "batch_size=8"},
    {
        "DATA": OPENED.replace("  # HERE", "")
        + "    picture.draft(None, (16, 16))\n"
        + SMALL.strip("\n").replace("  # HERE", "")
        + "\n"
        + dataset(PICTURES, ITEM)
    },
)
