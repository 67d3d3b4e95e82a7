"""Trains a small character-level transformer on a text: nothing here is worth fixing.

Batches are slices of a tensor in memory, attention is the fused one, the loss is a built-in, the
optimizer works on all parameters at once, evaluation is rare and without gradients.

tdiag should find: class ``compute``, healthy, and no fix pushed on anybody.
"""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

DIM, HEADS, LAYERS, CONTEXT = 192, 6, 4, 64
WORDS = ("the", "small", "grey", "old", "fox", "owl", "river", "stone", "finds", "follows", "keeps")


def make_data(path: Path, words: int) -> str:
    """A text of random sentences, written once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draw = random.Random(1)
        text = " ".join(draw.choice(WORDS) for _ in range(words))
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)
    return path.read_text()


class Windows(Dataset):
    """Every window of ``CONTEXT`` characters, and the same moved on by one."""

    def __init__(self, text: str) -> None:
        letters = {letter: code for code, letter in enumerate(sorted(set(text)))}
        self.codes = torch.tensor([letters[letter] for letter in text])
        self.vocabulary = len(letters)

    def __len__(self) -> int:
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * CONTEXT
        window = self.codes[start : start + CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.project = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, DIM // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, DIM))
        return x + self.mlp(self.norm2(x))


class CharTransformer(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, DIM)
        self.position = nn.Parameter(torch.zeros(CONTEXT, DIM))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, vocabulary))

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(codes) + self.position))


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    losses = [cross_entropy(model(x.to(device)), y.to(device)).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def train(text: str, args: argparse.Namespace, device: torch.device) -> None:
    data = Windows(text)
    held_out = torch.utils.data.Subset(data, range(4 * args.batch_size))
    seen = torch.utils.data.Subset(data, range(4 * args.batch_size, len(data)))
    pin = device.type == "cuda"
    loader = DataLoader(seen, args.batch_size, shuffle=True, drop_last=True, pin_memory=pin)
    validation = DataLoader(held_out, args.batch_size, pin_memory=pin)
    model = CharTransformer(data.vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, loss, start = 0, torch.zeros(()), time.perf_counter()
    while step < args.steps:
        for codes, target in loader:
            logits = model(codes.to(device, non_blocking=True))
            loss = cross_entropy(logits, target.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                missed = evaluate(model, validation, device)
                print(f"step {step} loss {loss.item():.4f} held out {missed:.4f}")
            if step == args.steps:
                break
    seconds = time.perf_counter() - start
    print(f"{step} steps, {seconds / step * 1e3:.2f} ms each, last loss {loss.item():.6f}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--data", type=Path, default=Path(__file__).parent / ".tdiag_data")
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--steps", type=int, default=600)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train(make_data(args.data / "text.txt", 100_000), args, device)


if __name__ == "__main__":
    main()
