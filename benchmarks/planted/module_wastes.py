"""Wastes in the model's forward pass. For drawn cases; ``$H`` is the width that the size gives."""

from __future__ import annotations

from .parts import Waste


def net(init: str, forward: str, above: str = "") -> str:
    indent = " " * 8
    parts = ["\n".join(indent + line for line in t.strip().split("\n")) for t in (init, forward)]
    return (
        f"{above}\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{parts[0]}\n    def forward(self, x):\n{parts[1]}\n"
    )


def model(init: str, forward: str, fixed_init: str, fixed: str) -> tuple[dict[str, str], ...]:
    return {"MODEL": net(init, forward)}, {"MODEL": net(fixed_init or init, fixed)}


BODY = """
self.body = nn.Sequential(
    nn.Linear(256, $H), nn.ReLU(), nn.Linear($H, $H), nn.ReLU(), nn.Linear($H, 10)
)
"""

HEADS = Waste(
    "attention head by head, each with projections of its own",
    "overhead",
    (),
    *model(
        """
self.q = nn.ModuleList(nn.Linear(16, 4) for _ in range($N))
self.k = nn.ModuleList(nn.Linear(16, 4) for _ in range($N))
self.v = nn.ModuleList(nn.Linear(16, 4) for _ in range($N))
self.head = nn.Linear(4 * $N, 10)
""",
        """
tokens, heads = x.view(-1, 16, 16), []
for q, k, v in zip(self.q, self.k, self.v):  # HERE
    weight = (q(tokens) @ k(tokens).transpose(1, 2) / 2).softmax(2)  # HERE
    heads.append(weight @ v(tokens))  # HERE
return self.head(torch.cat(heads, 2).mean(1))
""",
        "self.qkv, self.head = nn.Linear(16, 12 * $N), nn.Linear(4 * $N, 10)",
        """
q, k, v = self.qkv(x.view(-1, 16, 16)).view(-1, 16, 3, $N, 4).permute(2, 0, 3, 1, 4)
weight = (q @ k.transpose(2, 3) / 2).softmax(3)
return self.head((weight @ v).transpose(1, 2).flatten(2).mean(1))
""",
    ),
    amounts=(8, 24, 64),
    also=("compute",),
    left="attention over short sequences, small calls",
)

EXPERTS = Waste(
    "experts one by one, each with the rows that a mask picks",
    "overhead",
    (),
    *model(
        """
self.gate = nn.Linear(256, $N)
self.experts = nn.ModuleList(nn.Linear(256, 10) for _ in range($N))
""",
        """
choice, out = self.gate(x).argmax(1), x.new_zeros(len(x), 10)
for number, expert in enumerate(self.experts):  # HERE
    rows = (choice == number).nonzero()[:, 0]  # HERE
    out = out.index_add(0, rows, expert(x[rows]))  # HERE
return out
""",
        """
self.gate = nn.Linear(256, $N)
self.experts = nn.Linear(256, $N * 10)
""",
        """
choice, every = self.gate(x).argmax(1), self.experts(x).view(-1, $N, 10)
return every[torch.arange(len(x)), choice]
""",
    ),
    amounts=(16, 48, 160),
)

PATCHES = Waste(
    "patches of an image embedded one by one",
    "overhead",
    (),
    *model(
        "self.embed, self.head = nn.Linear(256 // $N**2, 32), nn.Linear(32, 10)",
        """
image, size, patches = x.view(-1, 16, 16), 16 // $N, []
for row in range($N):  # HERE
    for column in range($N):  # HERE
        patch = image[:, row * size : (row + 1) * size, column * size : (column + 1) * size]  # HERE
        patches.append(torch.relu(self.embed(patch.flatten(1))))  # HERE
return self.head(torch.stack(patches, 1).mean(1))
""",
        "",
        """
size = 16 // $N
image = x.view(-1, $N, size, $N, size).transpose(2, 3)
patches = torch.relu(self.embed(image.reshape(-1, $N * $N, size * size)))
return self.head(patches.mean(1))
""",
    ),
    amounts=(4, 8, 16),
)

GROWING = Waste(
    "features put together by torch.cat in a growing loop",
    "overhead",
    (),
    *model(
        "self.weight, self.head = nn.Parameter(torch.randn($N)), nn.Linear($N, 10)",
        """
out = x.new_zeros(len(x), 0)
for k in range($N):  # HERE
    out = torch.cat([out, torch.tanh(x[:, k : k + 1] * self.weight[k])], 1)  # HERE
return self.head(out)
""",
        "",
        "return self.head(torch.tanh(x[:, :$N] * self.weight))",
    ),
    amounts=(32, 90, 250),
    also=("compute", "memory"),  # copying what grows is work of its own
)

POSITIONS = Waste(
    "a constant table of positions computed number by number in each forward pass",
    "overhead",
    (),
    *model(
        BODY,
        """
table = []
for place in range($N):  # HERE
    angles = [place / 10_000 ** (k / 16) for k in range(16)]  # HERE
    table.append([math.sin(a) for a in angles])  # HERE
places = torch.tensor(table)[:16]  # HERE
return self.body(x + places.flatten())
""",
        BODY
        + """
table = [[math.sin(place / 10_000 ** (k / 16)) for k in range(16)] for place in range(16)]
self.register_buffer("places", torch.tensor(table).flatten())
""",
        "return self.body(x + self.places)",
    ),
    amounts=(300, 1000, 8000),
)

LAPLACIAN = Waste(
    "powers of a constant graph's Laplacian computed in each forward pass",
    "compute",
    (),
    *model(
        BODY + 'self.register_buffer("near", (torch.rand(256, 256) < 0.05).float())',
        """
degree = self.near.sum(1).clamp(min=1).rsqrt()
step = degree[:, None] * self.near * degree
spread = step
for _ in range($N):  # HERE
    spread = spread @ step  # HERE
return self.body(x @ spread)
""",
        BODY
        + """
near = (torch.rand(256, 256) < 0.05).float()
degree = near.sum(1).clamp(min=1).rsqrt()
step = degree[:, None] * near * degree
spread = step
for _ in range($N):
    spread = spread @ step
self.register_buffer("spread", spread)
""",
        "return self.body(x @ self.spread)",
    ),
    amounts=(4, 15, 60),
)

SINGULAR = Waste(
    "a weight's spectral norm by a full decomposition in each forward pass",
    "compute",
    (),
    *model(
        BODY,
        """
with torch.no_grad():
    largest = torch.linalg.svdvals(self.body[0].weight[:$N])[0]  # HERE
return self.body(x) / largest.clamp(min=1)
""",
        BODY + 'self.register_buffer("u", torch.randn($N))',
        """
with torch.no_grad():
    weight = self.body[0].weight[:$N]
    u = nn.functional.normalize(self.u[: len(weight)], dim=0)
    v = nn.functional.normalize(weight.T @ u, dim=0)
    u = weight @ v
    self.u[: len(u)] = u
return self.body(x) / u.norm().clamp(min=1)
""",
    ),
    amounts=(64, 128, 256),
)

PENALTY = """
x = x.detach().requires_grad_()
out = self.body(x)
self.calls = self.calls + 1
if torch.is_grad_enabled() and self.calls % {every} == 0:
    slope, = torch.autograd.grad(out.sum(), x, create_graph=True)  # HERE
    out = out + 0.01 * slope.pow(2).sum(1, keepdim=True)  # HERE
return out
"""
PENALISED = Waste(
    "a gradient penalty at each step, with a graph of the gradient, where every 16th is enough",
    "compute",
    (),
    {"MODEL": net(BODY + "self.calls = 0", PENALTY.format(every=1))},
    {"MODEL": net(BODY + "self.calls = 0", PENALTY.format(every=16).replace("  # HERE", ""))},
    without=("gan",),
)

TWICE = Waste(
    "further forward passes, with gradients, for a figure that is only logged",
    "compute",
    (),
    *model(
        BODY,
        """
others = [self.body(x + 0.01 * k) for k in range($N)]  # HERE
self.spread = torch.stack(others).std(0, correction=0).mean()  # HERE
return self.body(x)
""",
        "",
        "return self.body(x)",
    ),
    amounts=(2, 4, 8),
)

GATES = Waste(
    "a gated recurrent unit written out over time steps",
    "overhead",
    (),
    *model(
        """
self.cell_in, self.cell = nn.Linear(256 // $N, 96), nn.Linear(32, 96)
self.head = nn.Linear(32, 10)
""",
        """
x, h = x.view(len(x), $N, -1), x.new_zeros(len(x), 32)
for t in range($N):  # HERE
    gates, old = self.cell_in(x[:, t]), self.cell(h)  # HERE
    reset = torch.sigmoid(gates[:, :32] + old[:, :32])  # HERE
    update = torch.sigmoid(gates[:, 32:64] + old[:, 32:64])  # HERE
    new = torch.tanh(gates[:, 64:] + reset * old[:, 64:])  # HERE
    h = update * h + (1 - update) * new  # HERE
return self.head(h)
""",
        "self.cells, self.head = nn.GRU(256 // $N, 32, batch_first=True), nn.Linear(32, 10)",
        "return self.head(self.cells(x.view(len(x), $N, -1))[0][:, -1])",
    ),
    amounts=(16, 32, 64),
    left="a recurrent layer of small steps",
)

HOOKED = Waste(
    "hooks on every layer that note mean and deviation with .item()",
    "overhead",
    (),
    {
        "MODEL": net(
            """
self.stem, self.head = nn.Linear(256, 32), nn.Linear(32, 10)
self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range($N))
for layer in self.layers:
    layer.register_forward_hook(note)
""",
            """
x = self.stem(x)
for layer in self.layers:
    x = x + torch.relu(layer(x))
return self.head(x)
""",
            """
NOTES = collections.deque(maxlen=4000)
def note(module, inputs, output):
    NOTES.append((output.mean().item(), output.std().item()))  # HERE
    NOTES.append((output.abs().max().item(), (output == 0).float().mean().item()))  # HERE
""",
        )
    },
    {
        "MODEL": net(
            """
self.stem, self.head = nn.Linear(256, 32), nn.Linear(32, 10)
self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range($N))
""",
            """
x = self.stem(x)
for layer in self.layers:
    x = x + torch.relu(layer(x))
return self.head(x)
""",
        )
    },
    amounts=(8, 24, 60),
    also=("logging",),
    left="many small layers",
)

BROADCAST = Waste(
    "a matrix product written as a broadcast product and a sum",
    "compute",
    (),
    *model(
        """
self.weight = nn.Parameter(torch.randn(256, $N) / 16)
self.head = nn.Sequential(nn.ReLU(), nn.Linear($N, 10))
""",
        """
hidden = (x[:, :, None] * self.weight).sum(1)  # HERE
return self.head(hidden)
""",
        "",
        "return self.head(x @ self.weight)",
    ),
    amounts=(16, 48, 128),
    also=("memory",),
)

SMALL_LAYERS = Waste(
    "one small output layer for each of many targets",
    "overhead",
    (),
    *model(
        """
self.stem = nn.Sequential(nn.Linear(256, 64), nn.ReLU())
self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range($N))
""",
        """
x = self.stem(x)
out = torch.cat([head(x) for head in self.heads], 1)  # HERE
return out.view(len(x), 10, -1).mean(2)
""",
        """
self.stem = nn.Sequential(nn.Linear(256, 64), nn.ReLU())
self.heads = nn.Linear(64, $N)
""",
        "return self.heads(self.stem(x)).view(len(x), 10, -1).mean(2)",
    ),
    amounts=(40, 120, 400),
)
