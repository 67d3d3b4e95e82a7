"""Two models, two optimizers: the discriminator steps first, then the generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, parser, report, seed_all

args = parser().parse_args()
seed_all()
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
criterion = nn.BCEWithLogitsLoss()
loader = DataLoader(TensorDataset(blobs()[0]), batch_size=8, shuffle=True)

losses: list[float] = []
step = 0
while step < args.steps:
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 8))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss_d = criterion(discriminator(real), ones) + criterion(
            discriminator(fake.detach()), zeros
        )
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        loss_g = criterion(discriminator(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        losses += [loss_d.item(), loss_g.item()]
        step += 1
        if step == args.steps:
            break
report([*generator.parameters(), *discriminator.parameters()], losses)
