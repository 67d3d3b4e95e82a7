"""Joint sales of shops: the covariance of 6 factors is written out."""

import torch
from torch.distributions import MultivariateNormal

torch.manual_seed(0)
torch.set_num_threads(1)
SHOPS, FACTORS = 96, 6
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU())
mean, spread = torch.nn.Linear(128, SHOPS), torch.nn.Linear(128, SHOPS)
factors = torch.nn.Linear(128, SHOPS * FACTORS)
layers = torch.nn.ModuleList([net, mean, spread, factors])
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)


def chain(hidden: torch.Tensor) -> MultivariateNormal:
    f = 0.1 * factors(hidden).view(-1, SHOPS, FACTORS)
    d = torch.nn.functional.softplus(spread(hidden)) + 0.1
    covariance = f @ f.mT + torch.diag_embed(d)
    return MultivariateNormal(mean(hidden), covariance, validate_args=False)


while True:
    hidden = net(torch.randn(128, 32))
    loss = -chain(hidden).log_prob(torch.randn(128, SHOPS)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
