"""The model is several modules called one after another, with plain tensor code between."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, parser, report, seed_all

args = parser().parse_args()
seed_all()
encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
bottleneck = nn.Linear(32, 8)
decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
classifier = nn.Linear(8, 4)
reconstruction, classification = nn.MSELoss(), nn.CrossEntropyLoss()
modules = [encoder, bottleneck, decoder, classifier]
parameters = [p for module in modules for p in module.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)

losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        code = bottleneck(encoder(x))
        code = code / (code.norm(dim=1, keepdim=True) + 1e-6)
        loss = reconstruction(decoder(code), x) + classification(classifier(code), y)
        for p in parameters:
            p.grad = None
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(parameters, losses)
