"""Wastes around the work of a step. Each gives what is slow and what its fix changes."""

from __future__ import annotations

from .parts import Waste

DEEP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.gates = nn.ParameterList(nn.Parameter(torch.ones(64)) for _ in range(400))
        self.head = nn.Linear(256, 10)
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        gate = torch.stack(list(self.gates)).mean()
        return self.head(x) * gate
"""
HAND_WRITTEN = Waste(
    "an optimizer that updates 400 parameters one by one, in Python",
    "overhead",
    ("TD710", "TD702"),
    {
        "MODEL": DEEP,
        "OPTIMIZER": """
class HandSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for p in group["params"]:  # HERE
                state = self.state[p]
                if not state:
                    state["v"] = torch.zeros_like(p)
                    state["s"] = torch.ones_like(p)
                state["v"].mul_(0.9).add_(p.grad)  # HERE
                state["s"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)  # HERE
                p.sub_(group["lr"] * state["v"] / (state["s"].sqrt() + 1e-8))  # HERE

def make_optimizer(model):
    return HandSGD(model.parameters(), lr=0.001)
""",
    },
    {
        "OPTIMIZER": """
def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.001, foreach=True)
"""
    },
    beside=("TD738",),
)

ANOMALY = Waste(
    "anomaly detection left on",
    "overhead",
    ("TD704",),
    {"SETUP": "torch.autograd.set_detect_anomaly(True)", "MODEL": DEEP, "LOADER": "batch_size=4"},
    {"SETUP": "pass"},
    change="torch.anomaly=off",
    beside=("TD738",),
)

THREADS = Waste(
    "eight times as many threads as cores",
    "overhead",
    ("TD706",),
    {"SETUP": "torch.set_num_threads(8 * $CORES)"},
    {"SETUP": "torch.set_num_threads($CORES)"},
    change="torch.num_threads=$CORES",
)

COLLECTS = Waste(
    "a full garbage collection each step over a large heap",
    "overhead",
    ("TD707",),
    {
        "AFTER": """
HEAP = [{"id": i, "tags": [i]} for i in range(200_000)]
def after_step(step, model, loss):
    gc.collect()
"""
    },
    {"AFTER": "def after_step(step, model, loss):\n    pass\n"},
    change="ceiling.gc",
)

EVALUATE = """
HELD_OUT = [torch.randn(64, 256) for _ in range(24)]
def after_step(step, model, loss):
    if step % 4 == 0:
        model.eval()
        {context}
            for x in HELD_OUT:
                model(x).argmax(1)  # HERE
        model.train()
"""
OFTEN = Waste(
    "24 batches evaluated every four steps",
    "eval",
    ("TD802",),
    {"AFTER": EVALUATE.format(context="with torch.no_grad():")},
    {
        "AFTER": EVALUATE.format(context="with torch.no_grad():").replace(
            "step % 4 == 0", "step % 40 == 0"
        )
    },
)
WITH_GRADIENTS = Waste(
    "24 batches evaluated every four steps, recording gradients",
    "eval",
    ("TD801", "TD802"),
    {"AFTER": EVALUATE.format(context="if True:")},
    {"AFTER": EVALUATE.format(context="with torch.no_grad():")},
    ("TD801",),
    change="evaluation.no_grad",
)

SAVES = Waste(
    "a checkpoint of 40 MB every other step",
    "checkpoint",
    ("TD803",),
    {
        "AFTER": """
WEIGHTS = torch.randn(10_000_000)
def after_step(step, model, loss):
    if step % 2 == 0:
        torch.save({"model": model.state_dict(), "ema": WEIGHTS}, "last.pt")  # HERE
"""
    },
    {
        "AFTER": """
WEIGHTS = torch.randn(10_000_000)
def after_step(step, model, loss):
    if step % 100 == 0:
        torch.save({"model": model.state_dict(), "ema": WEIGHTS}, "last.pt")
"""
    },
)

SHARDED = """
import torch.distributed.checkpoint as dcp
import warnings
warnings.filterwarnings("ignore")
WEIGHTS = torch.randn(10_000_000)
def after_step(step, model, loss):
    if step % {every} == 0:
        state = {{"model": model.state_dict(), "ema": WEIGHTS}}
        dcp.save(state, checkpoint_id="last", no_dist=True)  # HERE
"""
SAVES_SHARDS = Waste(
    "a checkpoint of 40 MB every other step, by torch.distributed.checkpoint",
    "checkpoint",
    ("TD803",),
    {"AFTER": SHARDED.format(every=2)},
    {"AFTER": SHARDED.format(every=100)},
)

LOGS = Waste(
    "all weights written to a JSON log each step",
    "logging",
    ("TD804",),
    {
        "AFTER": """
import logging
logging.basicConfig(filename="train.log", level=logging.INFO)
def after_step(step, model, loss):
    for name, value in model.named_parameters():
        if value.numel() < 10_000 or step % 2:
            logging.info("%s %s", name, value[:60].tolist())  # HERE
"""
    },
    {
        "AFTER": """
import logging
logging.basicConfig(filename="train.log", level=logging.INFO)
def after_step(step, model, loss):
    if step % 50 == 0:
        for name, value in model.named_parameters():
            if value.numel() < 10_000 or step % 2:
                logging.info("%s %s", name, value[:60].tolist())
"""
    },
)

CLIPS = Waste(
    "gradients of 400 parameters clipped by hand, with .item()",
    "overhead",
    ("TD705", "TD711", "TD709"),
    {
        "MODEL": DEEP,
        "LOSS": """
def clip(model):
    total = 0.0
    for p in model.parameters():  # HERE
        if p.grad is not None:  # HERE
            total += p.grad.pow(2).sum().item()  # HERE
    scale = min(1.0, 1.0 / (math.sqrt(total) + 1e-6))
    for p in model.parameters():  # HERE
        if p.grad is not None:  # HERE
            p.grad.mul_(scale)  # HERE

def loss_of(output, target):
    return nn.functional.cross_entropy(output, target)
""",
        "OPTIMIZER": """
def make_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    optimizer.register_step_pre_hook(lambda *_: clip(model))
    return optimizer
""",
    },
    {
        "LOSS": """
def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)

def loss_of(output, target):
    return nn.functional.cross_entropy(output, target)
"""
    },
    beside=("TD738",),
)

DOUBLE = Waste(
    "float64 model and data, from NumPy's default",
    "compute",
    ("TD610",),
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        ).double()
    def forward(self, x):
        return self.layers(x.double())
""",
        "LOADER": "batch_size=256",
    },
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
    def forward(self, x):
        return self.layers(x)
"""
    },
    one_core=True,
    change="model.float32",
)

TABLE_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200_000, 32$SPARSE)
        self.head = nn.Linear(32, 10)
    def forward(self, x):
        return self.head(self.table(x).mean(1))  # HERE
"""
TABLE = Waste(
    "an embedding table of which a step looks up few rows, with dense gradients",
    "compute",
    ("TD611",),
    {
        "DATA": """
class Data(Dataset):
    def __init__(self):
        self.x, self.y = torch.randint(0, 200_000, (4096, 8)), torch.randint(0, 10, (4096,))
    def __len__(self):
        return 4096
    def __getitem__(self, i):
        return self.x[i], self.y[i]
""",
        "LOADER": "batch_size=64",
        "MODEL": TABLE_NET.replace("$SPARSE", ""),
        "OPTIMIZER": """
def make_optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.01)
""",
    },
    {"MODEL": TABLE_NET.replace("$SPARSE", ", sparse=True")},
)
