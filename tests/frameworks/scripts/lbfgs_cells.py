"""As pytorch/examples/time_sequence_prediction: LBFGS over LSTMCells in a Python loop."""

import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
        self.linear = nn.Linear(51, 1)

    def forward(self, series):
        outputs = []
        h1 = c1 = h2 = c2 = torch.zeros(series.size(0), 51)
        for value in series.split(1, dim=1):
            h1, c1 = self.first(value, (h1, c1))
            h2, c2 = self.second(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
data = torch.sin(torch.arange(500) / 20 + torch.rand(97, 1) * 100)
model = Sequence()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)


def closure():
    optimizer.zero_grad()
    loss = criterion(model(data[3:, :-1]), data[3:, 1:])
    loss.backward()
    return loss


for step in range(100):
    print("step", step, optimizer.step(closure).item(), flush=True)
