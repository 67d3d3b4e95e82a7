"""What the planted trainings compute with: models in place of `Net`, and what is set up."""

from __future__ import annotations

# Other models in place of `Net`, of a batch of WIDTH numbers each.
CONVOLUTIONS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(8))
    def forward(self, x):
        x = x.view(-1, 128, 16, 16)
        for layer in self.layers:
            x = F.relu(layer(x))
        return x
"""
NORMED = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias={bias}) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(8))
    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x)))
        return x
"""
LOOKS_UP = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding({rows}, 256, padding_idx=0)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))
    def forward(self, x):
        tokens = 1 + (x[:, :256].abs() * 1000).long() % ({rows} - 1)
        {shorter}
        y = self.table(tokens)
        for layer in self.layers:
            y = F.gelu(layer(y))
        return y
"""
# A sequence that each pass through the model makes longer, from the whole of it or its last row.
PREDICTS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
    def forward(self, x):
        rows = x.unsqueeze(1)
        for _ in range(16):
            y = rows{last}
            for layer in self.layers:
                y = F.gelu(layer(y))
            rows = torch.cat([rows, y[:, -1:]], 1)
        return rows
"""
# Rows are mixed by a constant matrix.
CONSTANT = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.register_buffer("fixed", torch.randn(16384, 4096) / 64)
        {before}
    def forward(self, x):
        {each}
        for layer in self.layers[:4]:
            x = F.gelu(layer(x))
        x = made @ x
        for layer in self.layers[4:]:
            x = F.gelu(layer(x))
        return x
"""
# Frozen layers with factors of rank 16.
FACTORED = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(8))
        self.a = nn.ParameterList(torch.randn(16, WIDTH) / 50 for _ in range(8))
        self.b = nn.ParameterList(torch.randn(WIDTH, 16) / 50 for _ in range(8))
    def forward(self, x):
        for layer, a, b in zip(self.layers, self.a, self.b):
            x = F.gelu({applied})
        return x
"""
# Rows of 64 numbers, each multiplied with one of eight matrices.
BY_KIND = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 64, 64) / 8 for _ in range(4))
    def forward(self, x):
        x = x.reshape(-1, 64)
        rows = torch.arange(len(x), device=device)
        kind = rows % 8
        for weight in self.weights:
            x = F.gelu({picked})
        return x
"""
# Sixty-four layers of four outputs, or one of all.
SEPARATE = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 4 * {wide}) for _ in range(64 // {wide}))
    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return torch.cat([head(x) for head in self.heads], 1)
"""
# A code of WIDTH numbers for each of 512 kinds of rows.
CODES = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        codes = torch.randn(512, WIDTH) / 50
        self.codes = {kept}
    def forward(self, x):
        codes = {joined}
        x = x + codes[torch.arange(len(x), device=device) % 512]
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x
"""
# A field of three coordinates, and what its derivatives must be.
FIELD = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3] + [256] * 6 + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
    def forward(self, x):
        coordinates = [x[:, n:n + 1].requires_grad_() for n in range(3)]
        u = torch.cat(coordinates, 1)
        for layer in self.layers:
            u = torch.tanh(layer(u))
        {derived}
        return torch.cat(found, 1)
"""
DERIVED = {
    "in separate calls":
        "found = [torch.autograd.grad(u.sum(), x, create_graph=True)[0] for x in coordinates]",
    "in one call": "found = torch.autograd.grad(u.sum(), coordinates, create_graph=True)",
    "of each element":
        "found = [torch.cat([torch.autograd.grad(u[i, 0], coordinates[0],"
        " create_graph=True)[0][i:i + 1] for i in range(len(x))])]",
    "of their sum": "found = [torch.autograd.grad(u.sum(), coordinates[0], create_graph=True)[0]]",
}  # fmt: skip


def field(derived: str) -> str:
    """``derived``: a key of DERIVED."""
    return FIELD.format(derived=DERIVED[derived])


EACH_ITS_OWN = """class Each:
    def __init__(self, parameters):
        self.all = [torch.optim.AdamW([p], lr=1e-5, fused=True) for p in parameters]
    def zero_grad(self):
        for one in self.all: one.zero_grad()
    def step(self):
        for one in self.all: one.step()
"""
# A second model, which learns from what the first one makes.
CRITIC = """critic = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(device)
learns = torch.optim.AdamW(critic.parameters(), lr=1e-5, fused=True)
"""
JUDGED = """
    with torch.autocast("cuda", dtype=torch.bfloat16):
        judged = critic({}).float().square().mean()
    judged.backward()
    learns.step()
    learns.zero_grad()
"""
NEIGHBOURS = """
neighbour = torch.randint(0, 16384, (16384,), device=device)
adjacency = F.one_hot(neighbour, 16384).to(torch.bfloat16)
"""
# Compiled before the program has its turn.
COMPILED = """def compiled(net):
    net = torch.compile(net.to(device))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        net(torch.randn(16384, WIDTH, device=device)).float().square().mean().backward()
    net.zero_grad()
    return net
Net = (lambda N: lambda: compiled(N()))(Net)
"""
AS_ONE_GRAPH = COMPILED.replace("16384", "4").replace(
    "net.to(device)", "net.to(device), mode='reduce-overhead'"
)
LAST = "Net = (lambda N: lambda: N().to(memory_format=torch.channels_last))(Net)"
