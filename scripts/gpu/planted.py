"""Trainings with a planted fault, their fixed twins, and what tdiag must say of them."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.programs import TAKE_TURN

# The frame of the planted trainings. `{marks}` stand for what a fault and its fix differ in.
TRAINING = (
    """
import sys, time, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
device = torch.device("cuda")
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1e6
WIDTH, WARM_UP = 2048, 20

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
            {forward}
        return x

{setup}
model = Net().to(device)
optimizer = {optimizer}
host = [torch.randn({batch}, WIDTH) for _ in range(4)]
ready = [x.to(device) for x in host]
began = None
torch.cuda.synchronize()
"""
    + TAKE_TURN
    + """
for step in range(10**9):
    if step == WARM_UP:
        torch.cuda.synchronize(); began = time.perf_counter()
    if began and time.perf_counter() - began > seconds:
        break
    batch = {send}
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled={autocast}):
        loss = model(batch).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
torch.cuda.synchronize()
print("STEP_NS", (time.perf_counter() - began) * 1e9 / (step - WARM_UP))
"""
)
_ADAMW = "torch.optim.AdamW(model.parameters(), lr=1e-5, fused={})"
HEALTHY = {
    "setup": "", "forward": "pass", "batch": "16384", "send": "ready[step % 4]", "after": "pass",
    "autocast": "True", "optimizer": _ADAMW.format(True),
}  # fmt: skip


def training(**changes: str) -> str:
    """The planted training with these marks; the others are healthy for a large device."""
    return TRAINING.format(**{**HEALTHY, **changes})


@dataclass(frozen=True)
class Planted:
    """A fault, its fix, and what tdiag must say. ``cls``: None where the class may vary with the
    device. ``line``: text of the line that the finding names, "" where it names none."""

    code: str
    cls: str | None
    fault: dict[str, str]
    fix: dict[str, str]
    line: str = ""


# Eight heads of 256 over 512 positions.
_HEADS = "q = x.view(-1, 512, 8, 256).transpose(1, 2)"
_JOINED = ".transpose(1, 2).reshape(x.shape)"

# Other models in place of `Net`, of a batch of WIDTH numbers each.
_CONVOLUTIONS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(8))
    def forward(self, x):
        x = x.view(-1, 128, 16, 16)
        for layer in self.layers:
            x = F.relu(layer(x))
        return x
"""
_NORMED = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias={bias}) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(8))
    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x)))
        return x
"""
_LOOKS_UP = """class Net(nn.Module):
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
_PREDICTS = """class Net(nn.Module):
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
_CONSTANT = """class Net(nn.Module):
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
_FACTORED = """class Net(nn.Module):
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
_BY_KIND = """class Net(nn.Module):
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
_SEPARATE = """class Net(nn.Module):
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
_CODES = """class Net(nn.Module):
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
_FIELD = """class Net(nn.Module):
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
_DERIVED = {
    "in separate calls":
        "found = [torch.autograd.grad(u.sum(), x, create_graph=True)[0] for x in coordinates]",
    "in one call": "found = torch.autograd.grad(u.sum(), coordinates, create_graph=True)",
    "of each element":
        "found = [torch.cat([torch.autograd.grad(u[i, 0], coordinates[0],"
        " create_graph=True)[0][i:i + 1] for i in range(len(x))])]",
    "of their sum": "found = [torch.autograd.grad(u.sum(), coordinates[0], create_graph=True)[0]]",
}  # fmt: skip
_EACH_ITS_OWN = """class Each:
    def __init__(self, parameters):
        self.all = [torch.optim.AdamW([p], lr=1e-5, fused=True) for p in parameters]
    def zero_grad(self):
        for one in self.all: one.zero_grad()
    def step(self):
        for one in self.all: one.step()
"""
# A second model, which learns from what the first one makes.
_CRITIC = """critic = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(device)
learns = torch.optim.AdamW(critic.parameters(), lr=1e-5, fused=True)
"""
_JUDGED = """
    with torch.autocast("cuda", dtype=torch.bfloat16):
        judged = critic({}).float().square().mean()
    judged.backward()
    learns.step()
    learns.zero_grad()
"""
_NEIGHBOURS = """
neighbour = torch.randint(0, 16384, (16384,), device=device)
adjacency = F.one_hot(neighbour, 16384).to(torch.bfloat16)
"""
# Compiled before the program has its turn.
_COMPILED = """def compiled(net):
    net = torch.compile(net.to(device))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        net(torch.randn(16384, WIDTH, device=device)).float().square().mean().backward()
    net.zero_grad()
    return net
Net = (lambda N: lambda: compiled(N()))(Net)
"""
_AS_ONE_GRAPH = _COMPILED.replace("16384", "4").replace(
    "net.to(device)", "net.to(device), mode='reduce-overhead'"
)
_LAST = "Net = (lambda N: lambda: N().to(memory_format=torch.channels_last))(Net)"
# TD606 wins samples and not steps, TD612 needs heat, TD806 a device that others leave empty: these
# have injected runs only (tests/simulated).
PLANTED = (
    Planted(
        "TD301", "h2d", line="batch = ",
        fault={"send": "host[step % 4].to(device)"},
        fix={"send": "ready[step % 4]"},
    ),
    Planted(
        "TD302", "h2d", line="batch = ",
        fault={"setup": "pinned = torch.randn(65536, WIDTH).pin_memory()",
               "send": "pinned.to(device)[:16384]"},
        fix={"send": "ready[step % 4]"},
    ),
    Planted(
        "TD303", None, line="x = x + torch.zeros",
        fault={"batch": "2048", "forward": "x = x + torch.zeros(2048, WIDTH).cuda()"},
        fix={"batch": "2048", "forward": "x = x + torch.zeros(2048, WIDTH, device=device)"},
    ),
    Planted(
        "TD304", None, line="x = x + constant",
        fault={"batch": "2048", "setup": "constant = torch.ones(2048, WIDTH)",
               "forward": "x = x + constant.to(device)"},
        fix={"batch": "2048", "setup": "constant = torch.ones(2048, WIDTH, device=device)",
             "forward": "x = x + constant"},
    ),
    Planted(
        "TD305", "h2d", line="kept = ",
        fault={"after": "kept = model.layers[0].weight.detach().repeat(8, 1).cpu()"},
        fix={},
    ),
    Planted(
        "TD401", None, line="x = x * float",
        fault={"batch": "8192", "forward": "x = x * float(x.isfinite().all())"},
        fix={"batch": "8192", "forward": "x = x * x.isfinite().all()"},
    ),
    Planted(
        "TD402", None, line="torch.masked_select",
        fault={"batch": "8192", "forward": "x = x + torch.masked_select(x, x > 0).mean()"},
        fix={"batch": "8192", "forward": "x = x + torch.where(x > 0, x, 0).mean()"},
    ),
    Planted(
        "TD403", None, line="torch.cuda.synchronize(); pass",
        fault={"batch": "8192", "forward": "torch.cuda.synchronize(); pass"},
        fix={"batch": "8192"},
    ),
    Planted("TD601", "compute", fault={"autocast": "False"}, fix={}),
    Planted(
        "TD604", "compute",
        fault={"forward": "for _ in range(12): x = torch.tanh(x) * 1.01 + 0.01"},
        fix={"setup": _COMPILED,
             "forward": "for _ in range(12): x = torch.tanh(x) * 1.01 + 0.01"},
    ),
    Planted(
        "TD608", "compute", line="torch.softmax",
        fault={"forward": f"{_HEADS}; x = x + (torch.softmax(q @ q.mT / 16, -1) @ q)" + _JOINED},
        fix={"forward": f"{_HEADS}; x = x + F.scaled_dot_product_attention(q, q, q)" + _JOINED},
    ),
    Planted(
        "TD602", None,
        fault={"setup": _CONVOLUTIONS, "batch": "8192"},
        fix={"setup": _CONVOLUTIONS + "torch.backends.cudnn.benchmark = True", "batch": "8192"},
        line="x = F.relu(layer(x))",
    ),
    Planted(
        "TD603", None,
        fault={"setup": _CONVOLUTIONS, "batch": "8192"},
        fix={"setup": _CONVOLUTIONS + _LAST, "batch": "8192"},
        line="x = F.relu(layer(x))",
    ),
    Planted(
        "TD607", None, line="x = F.relu(norm(layer(x)))",
        fault={"setup": _NORMED.format(bias=True)},
        fix={"setup": _NORMED.format(bias=False)},
    ),
    Planted("TD609", None, fault={"setup": "WIDTH = 2047"}, fix={}),
    Planted(
        "TD610", "compute", line="torch.float64",
        fault={"setup": "torch.set_default_dtype(torch.float64)", "autocast": "False"},
        fix={"autocast": "False"},
    ),
    Planted(
        "TD611", None, line="self.table(tokens)",
        fault={"setup": _LOOKS_UP.format(rows=2_000_000, shorter="pass"), "batch": "64"},
        fix={"setup": _LOOKS_UP.format(rows=1_000, shorter="pass"), "batch": "64"},
    ),
    Planted(
        "TD613", None, line="self.table(tokens)",
        fault={"setup": _LOOKS_UP.format(rows=1_000, shorter="tokens[:, 64:] = 0"),
               "batch": "2048"},
        fix={"setup": _LOOKS_UP.format(rows=1_000, shorter="tokens = tokens[:, :64]"),
             "batch": "2048"},
    ),
    Planted(
        "TD614", None, line="scaled_dot_product_attention",
        fault={"forward": "q = x.view(-1, 512, 256); x = x +"
                          " F.scaled_dot_product_attention(q, q, q).reshape(x.shape)"},
        fix={"forward": "q = x.view(-1, 1, 512, 256); x = x +"
                        " F.scaled_dot_product_attention(q, q, q).reshape(x.shape)"},
    ),
    Planted(
        "TD701", "overhead",
        fault={"batch": "4"}, fix={"batch": "4", "setup": _AS_ONE_GRAPH},
    ),
    Planted(
        "TD702", None,
        fault={"batch": "64", "optimizer": _ADAMW.format(False)}, fix={"batch": "64"},
    ),
    Planted(
        "TD719", "overhead", line="torch.cat([head(x)",
        fault={"batch": "256", "setup": _SEPARATE.format(wide=1)},
        fix={"batch": "256", "setup": _SEPARATE.format(wide=64)},
    ),
    Planted(
        "TD720", "compute", line="made = self.fixed",
        fault={"setup": _CONSTANT.format(
            before="", each="made = self.fixed @ self.fixed.T / 100")},
        fix={"setup": _CONSTANT.format(
            before="self.register_buffer('made', self.fixed @ self.fixed.T / 100)",
            each="made = self.made")},
    ),
    Planted(
        "TD724", "overhead", line="torch.autograd.grad(model(row)",
        fault={"batch": "64", "after": "for row in batch[:32].split(1): torch.autograd.grad("
               "model(row).float().square().mean(), model.layers[0].weight)"},
        fix={"batch": "64", "after": "torch.autograd.grad("
             "model(batch[:32]).float().square().mean(), model.layers[0].weight)"},
    ),
    Planted(
        "TD727", "compute", line="x = x + torch.tanh",
        fault={"forward": "x = x + torch.tanh(layer(x)) * torch.sigmoid(layer(x))"},
        fix={"forward": "y = layer(x); x = x + torch.tanh(y) * torch.sigmoid(y)"},
    ),
    Planted(
        "TD728", "compute", line="x = x + layer",
        fault={"forward": "x = x + layer(x.view(-1, 512, WIDTH))[:, -1].mean()"},
        fix={"forward": "x = x + layer(x.view(-1, 512, WIDTH)[:, -1]).mean()"},
    ),
    Planted(
        "TD729", None, line="torch.autograd.grad(u[i, 0]",
        fault={"batch": "32", "setup": _FIELD.format(derived=_DERIVED["of each element"])},
        fix={"batch": "32", "setup": _FIELD.format(derived=_DERIVED["of their sum"])},
    ),
    Planted(
        "TD732", "compute", line="judged.backward()",
        fault={"setup": _CRITIC, "after": _JUDGED.format("model(batch)")},
        fix={"setup": _CRITIC, "after": _JUDGED.format("model(batch).detach()")},
    ),
    Planted(
        "TD733", "compute", line="y = F.gelu(layer(y))",
        fault={"batch": "2048", "setup": _PREDICTS.format(last="")},
        fix={"batch": "2048", "setup": _PREDICTS.format(last="[:, -1:]")},
    ),
    Planted(
        "TD736", "overhead", line="torch.optim.AdamW([p]",
        fault={"batch": "64", "setup": _EACH_ITS_OWN,
               "optimizer": "Each(model.parameters())"},
        fix={"batch": "64"},
    ),
    Planted(
        "TD737", "compute", line="unused = ",
        fault={"forward": "unused = torch.tanh(layer(x)).mean()"},
        fix={},
    ),
    Planted(
        "TD738", None, line="codes = torch.stack",
        fault={"batch": "2048", "setup": _CODES.format(
            kept="nn.ParameterList(list(codes))", joined="torch.stack(list(self.codes))")},
        fix={"batch": "2048", "setup": _CODES.format(
            kept="nn.Parameter(codes)", joined="self.codes")},
    ),
    Planted(
        "TD739", "compute", line="adjacency @ x",
        fault={"setup": _NEIGHBOURS, "forward": "x = adjacency @ x"},
        fix={"setup": _NEIGHBOURS, "forward": "x = x.index_select(0, neighbour)"},
    ),
    Planted(
        "TD741", None, line="F.linear(x, layer.weight",
        fault={"batch": "4096", "setup": _FACTORED.format(
            applied="F.linear(x, layer.weight + b @ a, layer.bias)")},
        fix={"batch": "4096", "setup": _FACTORED.format(
            applied="layer(x) + x @ a.T @ b.T")},
    ),
    Planted(
        "TD743", None, line="torch.fft.rfft",
        fault={"forward": "x = x + torch.fft.rfft(x.float(), 2053).abs().mean()"},
        fix={"forward": "x = x + torch.fft.rfft(x.float(), 2048).abs().mean()"},
    ),
    Planted(
        "TD745", None, line="weight[kind]",
        fault={"batch": "1024", "setup": _BY_KIND.format(
            picked="(x.unsqueeze(1) @ weight[kind]).squeeze(1)")},
        fix={"batch": "1024", "setup": _BY_KIND.format(picked="(x @ weight)[kind, rows]")},
    ),
    Planted(
        "TD747", None, line="torch.autograd.grad(u.sum(), x,",
        fault={"setup": _FIELD.format(derived=_DERIVED["in separate calls"])},
        fix={"setup": _FIELD.format(derived=_DERIVED["in one call"])},
    ),
    Planted(
        "TD750", None, line="torch.tanh(parts[:, t])",
        fault={"batch": "4096", "forward": "parts = x.view(-1, 32, 64); x = torch.stack("
               "[torch.tanh(parts[:, t]) for t in range(32)], 1).reshape(x.shape)"},
        fix={"batch": "4096", "forward": "parts = x.view(-1, 32, 64); x = torch.stack("
             "[torch.tanh(part) for part in parts.unbind(1)], 1).reshape(x.shape)"},
    ),
    Planted(
        "TD809", "memory", line="",
        fault={"after": "torch.cuda.empty_cache()"},
        fix={},
    ),
)  # fmt: skip

# Changes of `tdiag try` that matter on a device, a fault that each fixes, and the fix by hand. The
# others (loaders, Python, threads) are tested without one.
_READS = "x = x * float(x.isfinite().all())"
TRIED: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = (
    ("optimizer.fused", {"batch": "64", "optimizer": _ADAMW.format(False)}, {"batch": "64"}),
    ("torch.autocast=bfloat16", {"autocast": "False"}, {}),
    (
        "torch.float32_matmul_precision=high",
        {"autocast": "False"},
        {"autocast": "False", "setup": "torch.backends.cuda.matmul.allow_tf32 = True"},
    ),
    (
        "torch.compile",
        {"forward": "for _ in range(12): x = torch.tanh(x) * 1.01 + 0.01"},
        {"setup": "Net = (lambda N: lambda: torch.compile(N()))(Net)",
         "forward": "for _ in range(12): x = torch.tanh(x) * 1.01 + 0.01"},
    ),
    (
        "torch.cudnn_benchmark",
        {"setup": _CONVOLUTIONS, "batch": "8192"},
        {"setup": _CONVOLUTIONS + "torch.backends.cudnn.benchmark = True", "batch": "8192"},
    ),
    (
        "model.channels_last",
        {"setup": _CONVOLUTIONS, "batch": "8192"},
        {"setup": _CONVOLUTIONS + _LAST, "batch": "8192"},
    ),
    ("ceiling.reads", {"batch": "512", "forward": _READS}, {"batch": "512"}),
)  # fmt: skip
