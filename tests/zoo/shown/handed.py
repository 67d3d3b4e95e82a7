"""A worker that sends the samples of a batch as they are, four tensors each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Graphs(Dataset):
    def __init__(self):
        self.sizes = torch.randint(8, 30, (2048,)).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        size = self.sizes[i]
        return torch.randn(size, 16), torch.randint(size, (2, 2 * size)), torch.randn(1)


def merged(graphs):
    nodes, edges, wanted = zip(*graphs, strict=True)
    sizes = torch.tensor([len(x) for x in nodes])
    starts = (sizes.cumsum(0) - sizes).tolist()
    ends = torch.cat([e + start for e, start in zip(edges, starts, strict=True)], 1)
    owner = torch.repeat_interleave(torch.arange(len(nodes)), sizes)
    return torch.cat(nodes), ends, owner, torch.cat(wanted)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.head = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, nodes, ends, owner, number):
        hidden = self.into(nodes).relu()
        hidden = hidden.index_add(0, ends[1], hidden[ends[0]])
        return self.head(hidden.new_zeros(number, 64).index_add(0, owner, hidden))[:, 0]


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(
        Graphs(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True,
        collate_fn=list,
    )  # fmt: skip
    while True:
        for graphs in loader:
            nodes, ends, owner, wanted = merged(graphs)
            loss = (model(nodes, ends, owner, len(wanted)) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
