"""Fits a surrogate network to a simulated response, from NumPy tables.

What is slow: NumPy makes float64, so the first attempt ended in "expected Double but found Float",
and ``model.double()`` made the message go away. Ever since, every matrix product runs in float64,
which a CPU does at half the speed and a GPU at a small fraction of it. Nothing else is wrong:
nearly all of the step is spent computing.

tdiag should find: class ``compute``; with rule 610, that the work is done in float64.

``compute_fixed.py`` converts the table to float32 once. The loss is the same to about four digits.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

INPUTS, OUTPUTS, WIDTH = 32, 4, 512


def simulate(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Settings ``(samples, INPUTS)`` and responses ``(samples, OUTPUTS)`` of a smooth system."""
    draw = np.random.default_rng(1)
    settings = draw.standard_normal((samples, INPUTS))
    mixing = draw.standard_normal((INPUTS, OUTPUTS)) / INPUTS**0.5
    return settings, np.sin(2 * settings @ mixing) + 0.1 * (settings**2) @ mixing


def make_model() -> nn.Module:
    sizes = [INPUTS, WIDTH, WIDTH, WIDTH, WIDTH]
    layers: list[nn.Module] = []
    for index in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[index], sizes[index + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, OUTPUTS))


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = make_model().double().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    step, start = 0, time.perf_counter()
    loss: Tensor = torch.zeros(())
    while step < steps:
        for settings, response in loader:
            loss = F.mse_loss(model(settings.to(device)), response.to(device))
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
    options.add_argument("--samples", type=int, default=16384)
    options.add_argument("--batch-size", type=int, default=512)
    options.add_argument("--steps", type=int, default=600)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings, response = simulate(args.samples)
    data = TensorDataset(torch.from_numpy(settings), torch.from_numpy(response))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
