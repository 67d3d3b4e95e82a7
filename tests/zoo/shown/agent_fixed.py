"""The same updates from states that were gathered beforehand."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
STEPS = 128


def rollout() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    states, actions, rewards = [], [], []
    state = torch.zeros(8)
    for _ in range(STEPS):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        actions.append(action)
        state = 0.9 * state + 0.1 * torch.randn(8) + 0.01 * action
        rewards.append(-state.abs().sum())
    return torch.stack(states), torch.stack(actions), torch.stack(rewards)


states, actions, rewards = rollout()
for _ in range(100_000):
    for _ in range(4):
        chosen = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        loss = -(chosen * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
