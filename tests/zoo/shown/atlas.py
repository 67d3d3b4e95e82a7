"""Batches that carry a large table, handed to the model by ``dataclasses.asdict``."""

import dataclasses

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
STARS, WIDTH, BATCH = 120_000, 64, 128


@dataclasses.dataclass
class Exposure:
    sky: torch.Tensor
    seen: torch.Tensor
    numbers: torch.Tensor


matcher = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, WIDTH)
)
optimizer = torch.optim.SGD(matcher.parameters(), lr=0.01)
sky = torch.randn(STARS, WIDTH)


def loss_of(sky: torch.Tensor, seen: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    scores = matcher(seen) @ sky[numbers].T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(seen)))


while True:
    numbers = torch.randint(0, STARS, (BATCH,))
    exposure = Exposure(sky, sky[numbers] + 0.1 * torch.randn(BATCH, WIDTH), numbers)
    loss = loss_of(**dataclasses.asdict(exposure))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
