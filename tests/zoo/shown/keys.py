"""A queue of keys that is joined with each batch and cut off."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
ROWS, WIDTH, BATCH = 30_000, 64, 256
encoder = torch.nn.Sequential(
    torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, WIDTH)
)
queue = torch.randn(ROWS, WIDTH)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)

while True:
    anchors = torch.randn(BATCH, 128)
    ours = encoder(anchors)
    theirs = queue[torch.randint(0, ROWS, (512,))]
    loss = (ours @ theirs.T).logsumexp(1).mean() - (ours * ours.detach()).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([queue, ours.detach()])[-ROWS:]
