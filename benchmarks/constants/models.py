"""Small models on one core: wider numbers, one call instead of many, recording, a profiler."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from constants import Figures, interleaved, measures, times_as_fast

nn = torch.nn


def dense(width: int, depth: int) -> Any:
    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, 10))


class Last(nn.Module):  # type: ignore[misc]
    """The output of a recurrent layer, without its state."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


def convolutions() -> Any:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3))


def training(model: Any, x: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


class Reader(nn.Module):  # type: ignore[misc]
    """Words looked up, a layer over their positions, and its mean."""

    def __init__(self, layer: Any, width: int, channels_first: bool = False) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(1000, width), layer, nn.Linear(width, 10)
        self.turn = channels_first

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        y = self.layer(x.transpose(1, 2)).transpose(1, 2) if self.turn else self.layer(x)
        return self.head(y.mean(1))


def readers(width: int) -> dict[str, Any]:
    return {
        "layers": Reader(nn.Sequential(nn.Linear(width, width), nn.ReLU()), width),
        "convolution": Reader(nn.Conv1d(width, width, 5, padding=2), width, channels_first=True),
        "GRU": Reader(Last(nn.GRU(width, width, batch_first=True)), width),
        "transformer layer": Reader(nn.TransformerEncoderLayer(width, 4, batch_first=True), width),
    }


@measures(thresholds__FEWER_ROWS_FRAC="least")
def fewer_rows() -> Figures:
    """The time that batches of sequences of similar length save ÷ the positions they save."""
    figures, generator = {}, torch.Generator().manual_seed(0)
    for batch in (16, 64):
        words = (3.2 + 0.8 * torch.randn(50, batch, generator=generator)).exp().clamp(4, 160)
        longest = [int(row.max()) for row in words[5::10]]
        alike = [int(row.max()) for row in words.flatten().sort()[0].view(50, batch)[5::10]]
        for width in (64, 256):
            for name, model in readers(width).items():
                one, other = (
                    [training(model, torch.randint(1000, (batch, n))) for n in lengths]
                    for lengths in (longest, alike)
                )
                slow, fast = interleaved(partial(all_of, one), partial(all_of, other))
                saved = 1 - sum(alike) / sum(longest)
                figures[f"{name}, {batch} × {width}"] = (1 - fast / slow) / saved
    return figures


def all_of(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()


@measures(td610_float64_by_accident__FASTER_HIGH="most")
def float64() -> Figures:
    softmax = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Tanh(), nn.Softmax(dim=-1))
    made = {
        "dense": (lambda: dense(512, 2), torch.randn(256, 512)),
        "convolutions": (convolutions, torch.randn(32, 3, 32, 32)),
        "GELU, tanh, softmax": (lambda: softmax, torch.randn(2048, 256)),
        "LSTM": (lambda: Last(nn.LSTM(128, 128, batch_first=True)), torch.randn(32, 40, 128)),
    }
    figures = {}
    for name, (make, x) in made.items():
        figures[name] = times_as_fast(*_wide_and_narrow(make, x))
    return figures


def _wide_and_narrow(make: Any, x: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    model = make()
    return training(copy.deepcopy(model).double(), x.double()), training(model, x)


def one_by_one(model: Any, x: Any) -> Callable[[], None]:
    """A call for each sample, and one backward of all."""

    def work() -> None:
        torch.cat([model(sample) for sample in x.split(1)]).square().mean().backward()

    return work


def all_at_once(model: Any, x: Any) -> Callable[[], None]:
    return lambda: model(x).square().mean().backward()


@measures(td712_model_called_in_a_loop__WORKING_HIGH="most")
def samples_at_once() -> Figures:
    made = {
        "2 × Linear(32)": (dense(32, 1), torch.randn(32, 32)),
        "3 × Linear(256)": (dense(256, 2), torch.randn(32, 256)),
        "convolutions": (convolutions(), torch.randn(32, 3, 16, 16)),
        "LSTM(32)": (Last(nn.LSTM(32, 32, batch_first=True)), torch.randn(32, 10, 32)),
    }
    return {
        name: times_as_fast(one_by_one(model, x), all_at_once(model, x))
        for name, (model, x) in made.items()
    }


def layer_by_layer(layers: Any, x: Any) -> Callable[[], None]:
    """Many layers of one input, and one backward of all."""

    def work() -> None:
        torch.cat([layer(x) for layer in layers], 1).square().mean().backward()

    return work


@measures(
    td719_layers_share_an_input__MERGED_LOW="least",
    td719_layers_share_an_input__MERGED_HIGH="most",
)
def layers_at_once() -> Figures:
    figures = {}
    for number, wide, out, batch in (
        (16, 64, 1, 16), (16, 256, 8, 64), (16, 256, 32, 128), (64, 64, 4, 64), (64, 256, 10, 128),
        (256, 64, 1, 32), (256, 256, 4, 64),
    ):  # fmt: skip
        layers = [nn.Linear(wide, out) for _ in range(number)]
        x = torch.randn(batch, wide, requires_grad=True)
        figures[f"{number} × Linear({wide}, {out}) of {batch}"] = times_as_fast(
            layer_by_layer(layers, x), all_at_once(nn.Linear(wide, number * out), x)
        )
    return figures


@measures(
    td719_layers_share_an_input__FEW_LOW="least", td719_layers_share_an_input__FEW_HIGH="most"
)
def gates_at_once() -> Figures:
    """Four layers of one input, and one that is four times as wide."""
    figures = {}
    for wide, out, side, batch in (
        (4, 16, 8, 8), (16, 16, 8, 32), (16, 16, 16, 16), (32, 32, 16, 8), (64, 64, 16, 8),
    ):  # fmt: skip
        layers = [nn.Conv2d(wide, out, 3, padding=1) for _ in range(4)]
        x = torch.randn(batch, wide, side, side, requires_grad=True)
        figures[f"4 × Conv2d({wide}, {out}, 3) of {batch} × {side}²"] = times_as_fast(
            layer_by_layer(layers, x), all_at_once(nn.Conv2d(wide, 4 * out, 3, padding=1), x)
        )
    for wide, out, batch in ((16, 16, 16), (64, 64, 32), (128, 128, 64), (256, 256, 128)):
        linear = [nn.Linear(wide, out) for _ in range(4)]
        x = torch.randn(batch, wide, requires_grad=True)
        figures[f"4 × Linear({wide}, {out}) of {batch}"] = times_as_fast(
            layer_by_layer(linear, x), all_at_once(nn.Linear(wide, 4 * out), x)
        )
    return figures


def cells(cell: Any, x: Any) -> Callable[[], None]:
    """Steps of a sequence, each of which waits for the one before."""

    def work() -> None:
        state, out = None, []
        for at in x.unbind(1):
            state = cell(at, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        torch.stack(out, 1).square().mean().backward()

    return work


def of_sequences(name: str, *sizes: tuple[int, int]) -> Iterator[tuple[str, float, float]]:
    """Of sequences of 40 steps, by size: the time of the cells, and that of one call, ns."""
    cell, layer = getattr(nn, f"{name}Cell"), getattr(nn, name)
    for width, batch in sizes:
        x = torch.randn(batch, 40, width)
        one_call = all_at_once(Last(layer(width, width, batch_first=True)), x)
        yield f"{name}({width}) of {batch}", *interleaved(cells(cell(width, width), x), one_call)


@cache
def short(name: str) -> dict[str, tuple[float, float]]:
    """By size: a step of the sequence by a cell, and by one call on all of them, with backward, in
    times a ``torch.add`` without gradients, as the probe measures it."""
    one = torch.zeros(1)
    (adds,) = interleaved(lambda: [torch.add(one, one) for _ in range(100)])
    per_add = 100 / adds / 40
    sizes = (16, 4), (64, 16), (64, 64), (128, 16)
    return {
        size: (slow * per_add, fast * per_add) for size, slow, fast in of_sequences(name, *sizes)
    }


def saved_per_call(name: str) -> Figures:
    return {size: slow - fast for size, (slow, fast) in short(name).items()}


def left_per_step(name: str) -> Figures:
    return {size: fast for size, (_, fast) in short(name).items()}


@measures(cells__LSTM_LOW="least", cells__LSTM_HIGH="most")
def lstm_cells() -> Figures:
    return saved_per_call("LSTM")


@measures(cells__GRU_LOW="least", cells__GRU_HIGH="most")
def gru_cells() -> Figures:
    return saved_per_call("GRU")


@measures(cells__RNN_LOW="least", cells__RNN_HIGH="most")
def rnn_cells() -> Figures:
    return saved_per_call("RNN")


@measures(cells__LSTM_LEFT="least")
def lstm_sequence() -> Figures:
    return left_per_step("LSTM")


@measures(cells__GRU_LEFT="least")
def gru_sequence() -> Figures:
    return left_per_step("GRU")


@measures(cells__RNN_LEFT="least")
def rnn_sequence() -> Figures:
    return left_per_step("RNN")


@measures(cells__LSTM_TIMES="most")
def lstm_ratios() -> Figures:
    return {size: slow / fast for size, (slow, fast) in short("LSTM").items() if "(16)" not in size}


@measures(cells__OTHER_TIMES="most")
def other_ratios() -> Figures:
    return {x: slow / fast for x, (slow, fast) in (short("GRU") | short("RNN")).items()}


@measures(cells__LONG_HIGH="most")
def long_cells() -> Figures:
    sizes = (128, 128), (256, 64), (512, 16), (512, 64)
    names = "LSTM", "GRU", "RNN"
    return {size: slow / fast for name in names for size, slow, fast in of_sequences(name, *sizes)}


@measures(
    td801_evaluation_records_gradients__RECORDING_LOW_FRAC="least",
    td801_evaluation_records_gradients__RECORDING_HIGH_FRAC="most",
)
def recording() -> Figures:
    layer = nn.TransformerEncoderLayer(128, 4, batch_first=True, dropout=0.0)
    made = {
        "MLP": (dense(64, 3), torch.randn(32, 64)),
        "CNN": (convolutions(), torch.randn(16, 3, 32, 32)),
        "transformer layer": (layer, torch.randn(8, 64, 128)),
        "LSTM": (Last(nn.LSTM(64, 64, batch_first=True)), torch.randn(16, 40, 64)),
    }
    figures = {}
    for name, (model, x) in made.items():
        slow, fast = interleaved(partial(model, x), torch.no_grad()(partial(model, x)))
        figures[name] = 1 - fast / slow
    return figures


def cart_pole(state: list[float], push: int) -> list[float]:
    """One step of the classic control problem (Barto, Sutton and Anderson, 1983)."""
    x, speed, angle, turning = state
    sine, cosine = math.sin(angle), math.cos(angle)
    force = (10.0 if push else -10.0) + 0.05 * turning * turning * sine
    turns = (9.8 * sine - cosine * force / 1.1) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    moves = force / 1.1 - 0.05 * turns * cosine / 1.1
    new = [x + 0.02 * speed, speed + 0.02 * moves, angle + 0.02 * turning, turning + 0.02 * turns]
    return new if abs(new[2]) < 0.21 and abs(new[0]) < 2.4 else [0.0, 0.01, 0.02, 0.0]


@measures(td810_rollouts_take_over__EIGHT_AT_ONCE="median")
def rollouts() -> Figures:
    """Environment steps a second of eight together against one, a draw from the policy each."""

    def acting(width: int, environments: int) -> Callable[[], None]:
        policy = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        states = [[0.0, 0.01, 0.02, 0.0] for _ in range(environments)]

        def step() -> None:
            with torch.no_grad():
                chances = torch.distributions.Categorical(logits=policy(torch.tensor(states)))
                pushes = chances.sample().tolist()
            states[:] = map(cart_pole, states, pushes)

        return step

    return {
        f"policy of {width}": 8 * times_as_fast(acting(width, 1), acting(width, 8))
        for width in (32, 64, 128)
    }


@measures(replayed__PROFILED_TIMES="most")
def profiled() -> Figures:
    """A step of small ops under torch.profiler, as tdiag's window records it and with less."""
    step = training(dense(32, 8), torch.randn(16, 32))
    figures = {}
    for name, more in (("plain", False), ("shapes, stacks, memory", True)):

        def under(more: bool = more) -> list[float]:
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                record_shapes=more, with_stack=more, profile_memory=more,
            ):  # fmt: skip
                return interleaved(step, turns=5)

        figures[name] = under()[0] / interleaved(step)[0]
    return figures


@measures(base__NOISE_FLOOR_FRAC="most")
def with_itself() -> Figures:
    """By how much a training differs from itself, interleaved."""
    made = {
        "dense": (lambda: dense(128, 2), torch.randn(32, 128)),
        "convolutions": (convolutions, torch.randn(8, 3, 16, 16)),
        "LSTM": (lambda: Last(nn.LSTM(32, 32, batch_first=True)), torch.randn(16, 10, 32)),
    }
    figures = {}
    for name, (make, x) in made.items():
        one, other = interleaved(training(make(), x), training(make(), x), turns=41)
        figures[name] = abs(1 - one / other)
    return figures
