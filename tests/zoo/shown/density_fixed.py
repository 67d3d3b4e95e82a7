"""The network of `density.py` with the factors of its covariances, unchecked."""

import torch
from torch.distributions import MultivariateNormal

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 24 * 24))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)


def density(x: torch.Tensor) -> MultivariateNormal:
    raw = net(x).view(-1, 24, 24)
    factor = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=1, dim2=2).exp())
    return MultivariateNormal(torch.zeros(24), scale_tril=factor, validate_args=False)


while True:
    x, y = torch.randn(128, 32), torch.randn(128, 24)
    loss = -density(x).log_prob(y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
