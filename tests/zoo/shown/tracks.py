"""A Kalman filter that carries one covariance for each track, though all are the same."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
motion = torch.eye(8) + 0.1 * torch.ones(8, 8).triu(1)
noise = torch.nn.Parameter(torch.zeros(8))
sensor = torch.nn.Linear(16, 8)
optimizer = torch.optim.SGD([noise, *sensor.parameters()], lr=1e-4)


def track(seen: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(len(seen), 8)
    spread = torch.diag(noise.exp()).expand(len(seen), 8, 8)
    loss = torch.zeros(())
    for step in range(seen.shape[1]):
        state = state @ motion.T
        spread = motion @ spread @ motion.T + torch.diag(noise.exp())
        gain = torch.linalg.solve(spread + torch.eye(8), spread).mT
        miss = seen[:, step] - state
        state = state + (gain @ miss.unsqueeze(-1)).squeeze(-1)
        spread = (torch.eye(8) - gain) @ spread
        loss = loss + miss.square().mean()
    return loss


while True:
    loss = track(sensor(torch.randn(512, 6, 16)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
