"""As teaching notebooks write it: bare tensors, a generator of batches, SGD by hand."""

import random

import torch
from zoo_common import blobs, parser, report, seed_all


def data_iter(batch_size, features, labels):
    indices = list(range(len(features)))
    random.shuffle(indices)
    for i in range(0, len(indices), batch_size):
        chosen = torch.tensor(indices[i : i + batch_size])
        yield features[chosen], labels[chosen]


def linreg(x, w, b):
    return x @ w + b


def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


args = parser().parse_args()
seed_all()
features, labels = blobs()
labels = labels.float()
w = torch.normal(0, 0.01, size=(16, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in data_iter(8, features, labels):
        loss = squared_loss(linreg(x, w, b), y)
        loss.sum().backward()
        sgd([w, b], 0.01, 8)
        losses.append(loss.mean().item())
        if len(losses) == args.steps:
            break
    print(f"loss {losses[-1]:f}")
report([w, b], losses)
