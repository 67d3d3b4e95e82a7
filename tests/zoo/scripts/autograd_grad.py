"""Neither ``backward`` nor an optimizer: ``torch.autograd.grad`` and a functional update."""

import torch
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
model = make_model()
params = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()))
        params = {
            name: (p - 0.05 * grad).detach().requires_grad_()
            for (name, p), grad in zip(params.items(), grads, strict=True)
        }
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(params.values(), losses)
