"""The same with 64 environments at once."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
ENVIRONMENTS, STEPS = 64, 2


def rollout() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    states, actions, rewards = [], [], []
    state = torch.zeros(ENVIRONMENTS, 8)
    for _ in range(STEPS):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        actions.append(action)
        state = 0.9 * state + 0.1 * torch.randn(ENVIRONMENTS, 8) + 0.01 * action[:, None]
        rewards.append(-state.abs().sum(1))
    return torch.cat(states), torch.cat(actions), torch.cat(rewards)


for _ in range(100_000):
    states, actions, rewards = rollout()
    for _ in range(4):
        chosen = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        loss = -(chosen * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
