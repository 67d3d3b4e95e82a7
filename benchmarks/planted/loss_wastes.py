"""Wastes in the loss and in the model. Each gives what is slow and what its fix changes."""

from __future__ import annotations

from .parts import Waste

BRANCHES = Waste(
    "a margin loss that asks of every row whether it counts",
    "python_loss",
    ("TD501",),
    {
        "LOSS": """
def loss_of(output, target):
    total = output.sum() * 0
    for i in range(len(output)):  # HERE
        right = output[i, target[i]]  # HERE
        worst = output[i].max()  # HERE
        if worst > right:  # HERE
            total = total + (worst - right)  # HERE
        elif right < 1:  # HERE
            total = total + 1 - right  # HERE
    return total / len(output)
""",
        "LOADER": "batch_size=64",
    },
    {
        "LOSS": """
def loss_of(output, target):
    right = output.gather(1, target[:, None])[:, 0]
    worst = output.max(1).values
    return torch.where(worst > right, worst - right, (1 - right).clamp(min=0)).mean()
"""
    },
)

PAIRS = Waste(
    "a contrastive loss over all pairs of a batch, two nested loops",
    "python_loss",
    ("TD501",),
    {
        "LOSS": """
def loss_of(output, target):
    terms = []
    for i in range(16):  # HERE
        for j in range(i + 1, 16):  # HERE
            distance = (output[i] - output[j]).pow(2).sum()  # HERE
            if target[i] == target[j]:  # HERE
                terms.append(distance)  # HERE
            else:
                terms.append(nn.functional.relu(2 - distance))  # HERE
    return torch.stack(terms).mean()
"""
    },
    {
        "LOSS": """
def loss_of(output, target):
    i, j = torch.triu_indices(16, 16, 1)
    distance = (output[i] - output[j]).pow(2).sum(1)
    same = target[i] == target[j]
    return torch.where(same, distance, nn.functional.relu(2 - distance)).mean()
"""
    },
)

MINING = Waste(
    "hard examples chosen with .item() and sorted()",
    "python_loss",
    ("TD501",),
    {
        "LOSS": """
def loss_of(output, target):
    losses = []
    for i in range(len(output)):  # HERE
        one = nn.functional.cross_entropy(output[i : i + 1], target[i : i + 1])  # HERE
        losses.append((one.item(), one))  # HERE
    hardest = sorted(losses, key=lambda pair: -pair[0])[: len(losses) // 2]
    return sum(one for _, one in hardest) / len(hardest)  # HERE
""",
        "LOADER": "batch_size=96",
    },
    {
        "LOSS": """
def loss_of(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses.topk(len(losses) // 2).values.mean()
"""
    },
)

SMALL_CALLS = Waste(
    "a loss summed class by class out of small calls",
    "python_loss",
    ("TD502", "TD501"),
    {
        "LOSS": """
def loss_of(output, target):
    chance = output.softmax(1)
    total = 0.0
    for c in range(10):  # HERE
        for power in (1, 2, 3, 4, 5, 6):  # HERE
            mask = (target == c).float()  # HERE
            total = total + ((chance[:, c] - mask).abs() ** power).mean()  # HERE
    return total
"""
    },
    {
        "LOSS": """
def loss_of(output, target):
    off = (output.softmax(1) - nn.functional.one_hot(target, 10)).abs()
    powers = torch.arange(1.0, 7.0)
    return (off[..., None] ** powers).mean(0).sum()
"""
    },
)

COLUMNS = Waste(
    "a model that works column by column in a Python loop",
    "overhead",
    # TD701 is the rule of loops in the forward pass since after the first run.
    ("TD701", "TD711", "TD709"),
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(256)), nn.Parameter(torch.zeros(256))
        self.head = nn.Linear(256, 10)
    def forward(self, x):
        columns = []
        for k in range(256):  # HERE
            columns.append(torch.tanh(x[:, k] * self.scale[k] + self.shift[k]))  # HERE
        return self.head(torch.stack(columns, 1))
"""
    },
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(256)), nn.Parameter(torch.zeros(256))
        self.head = nn.Linear(256, 10)
    def forward(self, x):
        return self.head(torch.tanh(x * self.scale + self.shift))
"""
    },
)

SMALL_BODY = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )
    def forward(self, x):
"""
ROWS = Waste(
    "a model that takes the samples of a batch one by one",
    "overhead",
    ("TD712",),
    {
        "MODEL": SMALL_BODY
        + """\
        rows = []
        for row in x:  # HERE
            rows.append(self.body(row))  # HERE
        return torch.stack(rows)
"""
    },
    {
        "MODEL": SMALL_BODY
        + """\
        return self.body(x)
"""
    },
)

CELLS = Waste(
    "a recurrent cell in a loop over a sequence",
    "overhead",
    ("TD712",),
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 64), nn.Linear(64, 10)
    def forward(self, x):
        x = x.view(len(x), 32, 8)
        h = c = x.new_zeros(len(x), 64)
        for t in range(32):  # HERE
            h, c = self.cell(x[:, t], (h, c))  # HERE
        return self.head(h)
"""
    },
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.cells(x.view(len(x), 32, 8))[0][:, -1])
"""
    },
)

SEQUENCES = """
class Data(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(64, 256, 32), torch.randint(0, 10, (1024,))
    def __len__(self):
        return 1024
    def __getitem__(self, i):
        return self.x[i % 64], self.y[i]
"""
ATTENDING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(32, 3 * 64), nn.Linear(64, 10)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        {attend}
        return self.head(out.mean(1))
"""
FOLDED = Waste(
    "attention of three dimensions, which no fused kernel takes",
    "compute",
    ("TD614",),
    {
        "DATA": SEQUENCES,
        "LOADER": "batch_size=32",
        "MODEL": ATTENDING.format(
            attend="out = nn.functional.scaled_dot_product_attention(q, k, v)  # HERE"
        ),
    },
    {
        "MODEL": ATTENDING.format(
            attend="q, k, v = q[:, None], k[:, None], v[:, None]\n"
            "        out = nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]"
        )
    },
    one_core=True,
)
