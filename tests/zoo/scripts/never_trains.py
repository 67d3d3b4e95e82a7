"""Imports torch and computes, but never trains: no loader, no backward, no optimizer."""

import torch
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
model = make_model()
x, _ = blobs()
with torch.no_grad():
    outputs = [model(x).mean().item() for _ in range(args.steps)]
report(model.parameters(), outputs)
