"""What backward takes for a generator behind its critic, against its share of the graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import nn

from constants import Figures, interleaved, measures
from tdiag.probe.graph_parts import parts

BATCH = 32


class Cells(nn.Module):
    """A sequence of series, step by step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, hidden), nn.Linear(hidden, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, made = x.new_zeros(len(x), self.cell.hidden_size), []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            made.append(self.out(state))
        return torch.stack(made, 1)


class Series(nn.Module):
    def __init__(self, features: int, hidden: int, out: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(features, hidden, batch_first=True), nn.Linear(hidden, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


def encoder(features: int, width: int, layers: int, out: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return nn.Sequential(
        nn.Linear(features, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, out)
    )


def dense(*widths: int) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*layers)


def pictures(channels: int) -> tuple[nn.Module, nn.Module]:
    """As DCGAN (Radford et al. 2016)."""
    most = 4 * channels
    generator = nn.Sequential(
        nn.Linear(64, most * 16), nn.Unflatten(1, (most, 4, 4)),
        nn.ConvTranspose2d(most, most // 2, 4, 2, 1), nn.BatchNorm2d(most // 2), nn.ReLU(),
        nn.ConvTranspose2d(most // 2, channels, 4, 2, 1), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.ConvTranspose2d(channels, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(1, channels, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(channels, most // 2, 4, 2, 1), nn.BatchNorm2d(most // 2), nn.LeakyReLU(0.2),
        nn.Conv2d(most // 2, most, 4, 2, 1), nn.BatchNorm2d(most), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(most * 16, 1),
    )  # fmt: skip
    return generator, critic


def adversaries() -> Iterator[tuple[str, nn.Module, nn.Module, tuple[int, ...]]]:
    """A name, generator, critic, and the size of the noise."""
    yield "dense layers", dense(32, 1024, 1024, 784), dense(784, 512, 512, 1), (32,)
    yield "dense layers, a larger critic", dense(32, 128, 784), dense(784, 2048, 2048, 1), (32,)
    for channels in (16, 48):
        yield f"pictures, {channels} channels", *pictures(channels), (64,)
    yield "LSTM", Series(8, 64, 6), Series(6, 64, 1), (24, 8)
    yield "cells", Cells(48), dense(6, 32, 1), (24, 8)
    yield "encoders", encoder(8, 64, 2, 6), encoder(6, 64, 1, 1), (24, 8)


@measures(graph_shares__LEAST_HELD_FRAC="least")
def fakes_not_detached() -> Figures:
    """The part of backward that the generator takes ÷ the least of its shares of the graph."""
    figures = {}
    for name, generator, critic, size in adversaries():
        noise, mine = torch.randn(BATCH, *size), {id(p) for p in generator.parameters()}
        fakes = [generator(noise), generator(noise).detach()]
        graphs = [critic(x).mean() for x in fakes]
        by_owner = parts(graphs[0].grad_fn, lambda leaf, mine=mine: id(leaf) in mine)
        shares = []
        for what in ("nodes", "products", "numbers"):
            every = sum(getattr(part, what) for part in by_owner.values())
            shares.append(getattr(by_owner[frozenset({True})], what) / every)
        whole, left = interleaved(*(lambda g=g: g.backward(retain_graph=True) for g in graphs))
        figures[name] = (1 - left / whole) / min(shares)
    return figures
