"""Data for the scripts of the manifest, generated: each function fills one folder."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np

WORDS = 5_000
SEED = 0


def text(lines: int) -> str:
    """Lines of words that are as frequent as words are: 1 / rank (Zipf's law)."""
    draw = random.Random(SEED)
    names = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    return "\n".join(" ".join(draw.choices(names, weights, k=20)) for _ in range(lines)) + "\n"


def words(folder: Path) -> None:
    """The three files of WikiText-2's layout, a tenth of its size."""
    for name, lines in (("train", 10_000), ("valid", 500), ("test", 500)):
        (folder / f"{name}.txt").write_text(text(lines))


def characters(folder: Path) -> None:
    """Character codes below 65, in the files that nanoGPT's ``prepare.py`` writes."""
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))
    draw = np.random.default_rng(SEED)
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        draw.integers(0, 65, count, dtype=np.uint16).tofile(folder / f"{name}.bin")


def wikitext(folder: Path) -> None:
    """The one file that Lightning's ``WikiText2`` reads."""
    (folder / "wikitext-2.txt").write_text(text(30_000))


def waves(folder: Path) -> None:
    """Sines of random phase, a tenth as long as ``generate_sine_wave.py`` makes them."""
    import torch

    phase = np.random.default_rng(SEED).integers(-80, 80, (100, 1))
    torch.save(np.sin((np.arange(100) + phase) / 20), folder / "traindata.pt")


def cora(folder: Path) -> None:
    """Random words and classes for the papers of ``cora.cites``, which the repository has."""
    draw = np.random.default_rng(SEED)
    papers = sorted(set((folder / "cora.cites").read_text().split()))
    with (folder / "cora.content").open("w") as content:
        for paper in papers:
            has = (draw.random(1433) < 0.0127).astype(int)  # 18 of 1,433 words, as in Cora
            label = f"class{draw.integers(7)}"
            content.write("\t".join([paper, *map(str, has), label]) + "\n")
