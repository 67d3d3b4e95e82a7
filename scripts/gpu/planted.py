"""Trainings with a planted fault, their fixed twins, and what tdiag must say of them."""

from __future__ import annotations

from dataclasses import dataclass

from gpu import models
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
        fix={"setup": models.COMPILED,
             "forward": "for _ in range(12): x = torch.tanh(x) * 1.01 + 0.01"},
    ),
    Planted(
        "TD608", "compute", line="torch.softmax",
        fault={"forward": f"{_HEADS}; x = x + (torch.softmax(q @ q.mT / 16, -1) @ q)" + _JOINED},
        fix={"forward": f"{_HEADS}; x = x + F.scaled_dot_product_attention(q, q, q)" + _JOINED},
    ),
    Planted(
        "TD602", None,
        fault={"setup": models.CONVOLUTIONS, "batch": "8192"},
        fix={"setup": models.CONVOLUTIONS + "torch.backends.cudnn.benchmark = True",
             "batch": "8192"},
        line="x = F.relu(layer(x))",
    ),
    Planted(
        "TD603", None,
        fault={"setup": models.CONVOLUTIONS, "batch": "8192"},
        fix={"setup": models.CONVOLUTIONS + models.LAST, "batch": "8192"},
        line="x = F.relu(layer(x))",
    ),
    Planted(
        "TD607", None, line="x = F.relu(norm(layer(x)))",
        fault={"setup": models.NORMED.format(bias=True)},
        fix={"setup": models.NORMED.format(bias=False)},
    ),
    Planted("TD609", None, fault={"setup": "WIDTH = 2047"}, fix={}),
    Planted(
        "TD610", "compute", line="torch.float64",
        fault={"setup": "torch.set_default_dtype(torch.float64)", "autocast": "False"},
        fix={"autocast": "False"},
    ),
    Planted(
        "TD611", None, line="self.table(tokens)",
        fault={"setup": models.LOOKS_UP.format(rows=2_000_000, shorter="pass"), "batch": "64"},
        fix={"setup": models.LOOKS_UP.format(rows=1_000, shorter="pass"), "batch": "64"},
    ),
    Planted(
        "TD613", None, line="self.table(tokens)",
        fault={"setup": models.LOOKS_UP.format(rows=1_000, shorter="tokens[:, 64:] = 0"),
               "batch": "2048"},
        fix={"setup": models.LOOKS_UP.format(rows=1_000, shorter="tokens = tokens[:, :64]"),
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
        fault={"batch": "4"}, fix={"batch": "4", "setup": models.AS_ONE_GRAPH},
    ),
    Planted(
        "TD702", None,
        fault={"batch": "64", "optimizer": _ADAMW.format(False)}, fix={"batch": "64"},
    ),
    Planted(
        "TD719", "overhead", line="torch.cat([head(x)",
        fault={"batch": "256", "setup": models.SEPARATE.format(wide=1)},
        fix={"batch": "256", "setup": models.SEPARATE.format(wide=64)},
    ),
    Planted(
        "TD720", "compute", line="made = self.fixed",
        fault={"setup": models.CONSTANT.format(
            before="", each="made = self.fixed @ self.fixed.T / 100")},
        fix={"setup": models.CONSTANT.format(
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
        fault={"batch": "32", "setup": models.field("of each element")},
        fix={"batch": "32", "setup": models.field("of their sum")},
    ),
    Planted(
        "TD732", "compute", line="judged.backward()",
        fault={"setup": models.CRITIC, "after": models.JUDGED.format("model(batch)")},
        fix={"setup": models.CRITIC, "after": models.JUDGED.format("model(batch).detach()")},
    ),
    Planted(
        "TD733", "compute", line="y = F.gelu(layer(y))",
        fault={"batch": "2048", "setup": models.PREDICTS.format(last="")},
        fix={"batch": "2048", "setup": models.PREDICTS.format(last="[:, -1:]")},
    ),
    Planted(
        "TD736", "overhead", line="torch.optim.AdamW([p]",
        fault={"batch": "64", "setup": models.EACH_ITS_OWN,
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
        fault={"batch": "2048", "setup": models.CODES.format(
            kept="nn.ParameterList(list(codes))", joined="torch.stack(list(self.codes))")},
        fix={"batch": "2048", "setup": models.CODES.format(
            kept="nn.Parameter(codes)", joined="self.codes")},
    ),
    Planted(
        "TD739", "compute", line="adjacency @ x",
        fault={"setup": models.NEIGHBOURS, "forward": "x = adjacency @ x"},
        fix={"setup": models.NEIGHBOURS, "forward": "x = x.index_select(0, neighbour)"},
    ),
    Planted(
        "TD741", None, line="F.linear(x, layer.weight",
        fault={"batch": "4096", "setup": models.FACTORED.format(
            applied="F.linear(x, layer.weight + b @ a, layer.bias)")},
        fix={"batch": "4096", "setup": models.FACTORED.format(
            applied="layer(x) + x @ a.T @ b.T")},
    ),
    Planted(
        "TD743", None, line="torch.fft.rfft",
        fault={"forward": "x = x + torch.fft.rfft(x.float(), 2053).abs().mean()"},
        fix={"forward": "x = x + torch.fft.rfft(x.float(), 2048).abs().mean()"},
    ),
    Planted(
        "TD745", None, line="weight[kind]",
        fault={"batch": "1024", "setup": models.BY_KIND.format(
            picked="(x.unsqueeze(1) @ weight[kind]).squeeze(1)")},
        fix={"batch": "1024", "setup": models.BY_KIND.format(picked="(x @ weight)[kind, rows]")},
    ),
    Planted(
        "TD747", None, line="torch.autograd.grad(u.sum(), x,",
        fault={"setup": models.field("in separate calls")},
        fix={"setup": models.field("in one call")},
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
        {"setup": models.CONVOLUTIONS, "batch": "8192"},
        {"setup": models.CONVOLUTIONS + "torch.backends.cudnn.benchmark = True", "batch": "8192"},
    ),
    (
        "model.channels_last",
        {"setup": models.CONVOLUTIONS, "batch": "8192"},
        {"setup": models.CONVOLUTIONS + models.LAST, "batch": "8192"},
    ),
    ("ceiling.reads", {"batch": "512", "forward": _READS}, {"batch": "512"}),
)  # fmt: skip
