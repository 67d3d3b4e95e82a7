"""One entry a rule: what a planted GPU run launches, its fixed twin, and what tdiag must say.

Ops stand for what they would be on a device: a call of ``send`` or ``send_again`` is a copy to it,
and ``item`` the copy of a value to the host. The script is a real training on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulated.inject import GB, Gpu, Work

Launches = Mapping[str, tuple[Work, ...]]

LOOP = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(1))
        self.host = torch.ones(1 << 20)

    def forward(self, x):
        y = self.conv(x).mean((2, 3))
        {forward}
        return self.linear(torch.relu(y))

def send(batch):
    return batch.to("cpu", copy=True)

def send_again(constant):
    return constant.to("meta")

def read(loss):
    return loss.item()

def think():
    return 0.0 * sum(range(50_000))

torch.manual_seed(0)
data = torch.randn(4, 8, 3, 16, 16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
for step in range(10**9):
    batch = send(data[step % 4])
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
PLAIN = LOOP.format(forward="pass", after="pass")
READS = LOOP.format(forward="y = y + read(y.mean()) + think()", after="pass")
MAKES = LOOP.format(forward="y = y * torch.tensor([1.0])", after="pass")
KEEPS = LOOP.format(forward="y = y * self.scale", after="pass")
SELECTS = LOOP.format(
    forward="y = y + torch.masked_select(y, y > 0).sum() + think() + think() + think()",
    after="pass",
)
MASKS = LOOP.format(forward="y = y + torch.where(y > 0, y, 0).sum()", after="pass")
ATTENDS = """q = y.reshape(4, 2, 8)
        w = torch.softmax(q @ q.transpose(1, 2), -1)
        y = (w @ q).reshape(8, 8)"""
FUSES = """q = y.reshape(4, 1, 2, 8)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q).reshape(8, 8)"""
# The device ``meta`` stands for the GPU: what the probe sees is a move between two devices.
SENDS_AGAIN = LOOP.format(forward="send_again(self.host)", after="pass")
BIASED = PLAIN.replace("nn.Conv2d(3, 8, 3)", "nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))")
UNBIASED = BIASED.replace("nn.Conv2d(3, 8, 3)", "nn.Conv2d(3, 8, 3, bias=False)")
FLOAT64 = PLAIN.replace("torch.manual_seed(0)", "torch.set_default_dtype(torch.float64)")
TABLE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding({rows}, 8)
        self.linear = nn.Linear(8, 1)

    def forward(self, rows):
        return self.linear(self.table(rows))

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
for step in range(10**9):
    loss = model(torch.randint({rows}, (64,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LARGE_TABLE, SMALL_TABLE = TABLE.format(rows=100_000), TABLE.format(rows=256)
PRODUCT = """
import torch

torch.set_default_dtype(torch.bfloat16)
data = torch.randn(64, 64)
model = torch.nn.Linear(64, {columns})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
for step in range(10**9):
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
UNEVEN, PADDED = PRODUCT.format(columns=101), PRODUCT.format(columns=104)
SLOW_ATTENTION = LOOP.format(
    forward="""q = y.reshape(4, 2, 8)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q).reshape(8, 8)""",
    after="pass",
)
TOKENS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 32, padding_idx=0)
        self.linear = nn.Linear(32, 32)

    def forward(self, tokens):
        return self.linear(self.table(tokens))

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
tokens = torch.randint(1, 1000, (8, 64))
tokens[:, {length}:] = 0
for step in range(10**9):
    loss = model(tokens).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PADDED_TOKENS, FULL_TOKENS = TOKENS.format(length=16), TOKENS.format(length=64)
WIDE = """
import torch

data = torch.randn(512, 1024)
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
for step in range(10**9):
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAIN_ATTENTION = LOOP.format(forward=ATTENDS, after="pass")
FUSED_ATTENTION = LOOP.format(forward=FUSES, after="pass")
LOADED = PLAIN.replace(
    "for step in range(10**9):\n    batch = send(data[step % 4])",
    "from torch.utils.data import DataLoader\n"
    "samples = data.reshape(32, 3, 16, 16).repeat(64, 1, 1, 1)\n"
    "while True:\n  for batch in DataLoader(samples, batch_size=8):",
)
STACKED = LOADED.replace("    loss = model(batch)", "    loss = model(send(batch))")
AUGMENTED = STACKED.replace(
    "samples = data.reshape",
    "class Turned(torch.utils.data.Dataset):\n"
    "    def __len__(self):\n"
    "        return 2048\n"
    "    def __getitem__(self, i):\n"
    "        return samples[i] if torch.rand(()) < 0.5 else samples[i].flip(-1)\n"
    "samples = data.reshape",
).replace("DataLoader(samples,", "DataLoader(Turned(),")
MADE = PLAIN.replace("    batch = send(", "    sum(range(300_000))\n    batch = send(")
CLASSES = """
import torch
from torch import nn

def objective(hidden, targets):
    return nn.functional.cross_entropy(head(hidden), targets)

torch.manual_seed(0)
hidden, targets = torch.randn(512, 32), torch.randint({classes}, (512,))
body, head = nn.Linear(32, 32), nn.Linear(32, {classes})
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01, foreach=True)
for step in range(10**9):
    loss = objective(body(hidden), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
VOCABULARY, FEW_CLASSES = CLASSES.format(classes=5000), CLASSES.format(classes=50)

# What the step computes, 40 ms: kernels as cuBLAS and cuDNN name them on matrix units.
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>"
COMPUTE: dict[str, tuple[Work, ...]] = {
    "aten::convolution": (Work(12_000, CONV),),
    "aten::addmm": (Work(6_000, GEMM),),
    "aten::convolution_backward": (Work(16_000, CONV),),
    "aten::mm": (Work(3_000, GEMM),),
}
HEALTHY_COPY = (Work(2_000, kind="pinned", stream=20),)
# The host awaits the first kernel, and has nothing queued for the device while it thinks; the later
# kernels hide the rest of what it does.
DRAINED = {name: (Work(400.0, GEMM),) for name in COMPUTE} | {
    "aten::convolution": (Work(3_000.0, CONV),)
}
GIVEN_BACK = tuple(Work(0.0, kind=kind) for kind in ("free", "malloc") for _ in range(40))
# A few ms of launches that the device outruns.
SMALL = {name: (Work(2.0, GEMM),) for name in COMPUTE}


def with_(**changes: tuple[Work, ...]) -> Launches:
    """``COMPUTE`` with other work of these ops (``mm=…``)."""
    return COMPUTE | {f"aten::{name}": work for name, work in changes.items()}


@dataclass(frozen=True)
class Case:
    """``cls``: of the verdict, ``compute`` where the rule's gain is within compute. ``line``: a
    part of the script's line that the finding points to, "" = the rule names no line."""

    code: str
    cls: str
    planted: Launches
    fixed: Launches
    script: str = PLAIN
    fixed_script: str = ""
    line: str = ""
    sync_line: str = ""  # of the script; torch warns that it synchronises
    gpu: Gpu = field(default_factory=Gpu)
    fixed_gpu: Gpu | None = None
    fixed_cls: str = "compute"


CASES = (
    Case(
        "TD301", "h2d", line="return batch.to(",
        planted={**COMPUTE, "send": (Work(30_000, kind="pageable", bytes=300 << 20),)},
        fixed={**COMPUTE, "send": HEALTHY_COPY},
    ),
    Case(
        "TD302", "h2d", line="return batch.to(",
        planted={**COMPUTE, "send": (Work(15_000, kind="pinned"),)},
        fixed={**COMPUTE, "send": HEALTHY_COPY},
    ),
    Case(
        "TD303", "h2d", line="torch.tensor([1.0])", script=MAKES, fixed_script=KEEPS,
        planted=with_(lift_fresh=(Work(15_000, kind="pageable", bytes=4),)),
        fixed=COMPUTE,
    ),
    Case(
        "TD304", "h2d", line="return constant.to(", script=SENDS_AGAIN, fixed_script=KEEPS,
        planted={**COMPUTE, "send_again": (Work(15_000, kind="pageable", bytes=4 << 20),)},
        fixed=COMPUTE,
    ),
    Case(
        "TD305", "h2d", line="return batch.to(",
        planted={**COMPUTE, "send": (Work(25_000, kind="value"),)},
        fixed={**COMPUTE, "send": HEALTHY_COPY},
    ),
    Case(
        # Nine tenths of 40 ms make the batch; the device has a few ms of work meanwhile.
        "TD214", "cpu", script=MADE, gpu=Gpu(host_us=40_000.0), planted=SMALL,
        fixed_script=PLAIN, fixed=COMPUTE,
    ),
    Case(
        # The twin's samples are drawn at random: each epoch has others.
        "TD306", "h2d", script=STACKED, fixed_script=AUGMENTED, line="DataLoader(",
        planted={**COMPUTE, "send": (Work(30_000, kind="pageable", bytes=8 * 3 * 1024),)},
        fixed={**COMPUTE, "send": (Work(30_000, kind="pageable", bytes=8 * 3 * 1024),)},
        fixed_cls="h2d",
    ),
    Case(
        "TD401", "sync", line="return loss.item()", script=READS,
        planted={**DRAINED,
                 "aten::item": (Work(1.5, kind="value", bytes=4),)},
        fixed=with_(item=()),
    ),
    Case(
        "TD402", "sync", line="masked_select", script=SELECTS, fixed_script=MASKS,
        sync_line="masked_select",
        planted={**DRAINED,
                 "aten::masked_select": (Work(1.5, kind="value", bytes=4),)},
        fixed=COMPUTE,
    ),
    Case(
        "TD403", "sync", line="return loss.item()", script=READS,
        planted={**DRAINED,
                 "aten::item": (Work(0.0, kind="synchronize"),)},
        fixed=with_(item=()),
    ),
    Case(
        "TD601", "compute", line="self.linear(",
        planted=with_(addmm=(Work(40_000, "ampere_sgemm_128x64_tn"),)),
        fixed=COMPUTE,
    ),
    Case(
        "TD602", "compute", line="self.conv(x)", planted=COMPUTE, fixed=COMPUTE,
        fixed_gpu=Gpu(cudnn_benchmark=True),
    ),
    Case(
        "TD603", "compute", line="self.conv(x)",
        planted=with_(convolution=(
            Work(9_000, "void cudnn::ops::nchwToNhwcKernel<float>"), Work(12_000, CONV)
        )),
        fixed=COMPUTE,
    ),
    Case(
        "TD604", "compute", line="def forward",
        planted=with_(relu=tuple(Work(4_000, ADD) for _ in range(6))),
        fixed=with_(relu=(Work(600, "triton_poi_fused_relu_0"),)),
    ),
    Case(
        # A T4 multiplies 8.1 × 10¹² numbers a second: 0.13 ms for each of these six products.
        "TD605", "compute", script=WIDE, gpu=Gpu(name="Tesla T4", capability=(7, 5), host_us=200.0),
        planted={"aten::addmm": (Work(180, GEMM),), "aten::mm": (Work(180, GEMM),)},
        fixed_cls="overhead",
        fixed={"aten::addmm": (Work(5, GEMM),), "aten::mm": (Work(5, GEMM),)},
    ),
    Case(
        "TD606", "overhead", script=LOADED, line="DataLoader(",
        gpu=Gpu(allocated=2 * GB), planted=SMALL, fixed=COMPUTE,
    ),
    Case(
        "TD607", "compute", line="self.conv(x)", script=BIASED, fixed_script=UNBIASED,
        planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        "TD608", "compute", script=PLAIN_ATTENTION, fixed_script=FUSED_ATTENTION,
        line="torch.softmax(",
        planted=with_(bmm=(Work(6_000, GEMM),), _softmax=(Work(9_000, SOFTMAX),)),
        fixed=COMPUTE,
    ),
    Case(
        "TD609", "compute", line="model(data)", script=UNEVEN, fixed_script=PADDED,
        planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        "TD610", "compute", line="torch.float64", script=FLOAT64, fixed_script=PLAIN,
        planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        "TD611", "compute", line="self.table(rows)", script=LARGE_TABLE, fixed_script=SMALL_TABLE,
        planted={**COMPUTE, "aten::_fused_adam_": (Work(20_000, ADAM),)}, fixed=COMPUTE,
    ),
    Case(
        "TD612", "compute", planted=COMPUTE, fixed=COMPUTE,
        gpu=Gpu(sm_mhz=1_000, throttle=("thermal (hardware)",)), fixed_gpu=Gpu(),
    ),
    Case(
        "TD613", "compute", line="self.table(tokens)", script=PADDED_TOKENS,
        fixed_script=FULL_TOKENS, planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        "TD614", "compute", line="scaled_dot_product_attention(", script=SLOW_ATTENTION,
        fixed_script=FUSED_ATTENTION,
        planted=with_(bmm=(Work(6_000, GEMM),), _softmax=(Work(9_000, SOFTMAX),)), fixed=COMPUTE,
    ),
    Case(
        "TD806", "memory", gpu=Gpu(allocated=78 * GB), fixed_gpu=Gpu(allocated=40 * GB),
        planted=with_(convolution=(*GIVEN_BACK, Work(12_000, CONV))),
        fixed=COMPUTE,
    ),
    Case(
        # 512 rows of 5,000 classes: 10 MB, three times over.
        "TD812", "compute", line="def objective", script=VOCABULARY, fixed_script=FEW_CLASSES,
        gpu=Gpu(memory=100 << 20, allocated=95 << 20), planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        # Adam's state is twice the table: 6.4 MB.
        "TD813", "compute", line="optimizer = ", script=LARGE_TABLE, fixed_script=SMALL_TABLE,
        gpu=Gpu(memory=10_000_000, allocated=9_500_000), planted=COMPUTE, fixed=COMPUTE,
    ),
    Case(
        "TD809", "memory",
        planted=with_(convolution=(*GIVEN_BACK, Work(12_000, CONV))),
        fixed=COMPUTE,
    ),
)  # fmt: skip
