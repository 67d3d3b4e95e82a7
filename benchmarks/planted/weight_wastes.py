"""Wastes in what is done with each of many weights. For drawn cases."""

from __future__ import annotations

from .around_wastes import after
from .parts import Waste

MANY = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(256, 256), nn.Linear(256, 10)
        self.gates = nn.ParameterList(nn.Parameter(torch.ones(32)) for _ in range($N))
    def forward(self, x):
        gate = torch.cat(list(self.gates)).mean()
        return self.head(torch.relu(self.stem(x))) * gate
"""
FOREACH = """
def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
"""


AVERAGED = Waste(
    "a moving average of many weights, one by one in a loop",
    "overhead",
    (),
    {
        "MODEL": MANY,
        "OPTIMIZER": FOREACH,
        "AFTER": after(
            """
for name, value in model.named_parameters():  # HERE
    if name not in SHADOW:  # HERE
        SHADOW[name] = value.detach().clone()
    SHADOW[name] = 0.999 * SHADOW[name] + 0.001 * value.detach()  # HERE
""",
            "SHADOW = {}",
        ),
    },
    {
        "AFTER": after(
            """
values = [value.detach() for value in model.parameters()]
if not SHADOW:
    SHADOW.extend(value.clone() for value in values)
torch._foreach_lerp_(SHADOW, values, 0.001)
""",
            "SHADOW = []",
        )
    },
    amounts=(150, 400, 1000),
    left="many small weights",
    beside=("TD738",),
)

NORMS = """
import itertools
NORMS, COUNT = collections.deque(maxlen=100), itertools.count()
def note(optimizer, *_):
    step = next(COUNT)
    norms = {{}}
    if {when}:
        for group in optimizer.param_groups:  # HERE
            for k, p in enumerate(group["params"]):  # HERE
                if p.grad is not None:  # HERE
                    norms[k] = p.grad.norm().item(), p.grad.abs().max().item()  # HERE
    NORMS.append(norms)

def make_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    optimizer.register_step_pre_hook(note)
    return optimizer
"""
NORMS_NOTED = Waste(
    "each gradient's norm noted with .item() before each step",
    "overhead",
    (),
    {"MODEL": MANY, "OPTIMIZER": NORMS.format(when="True")},
    {"OPTIMIZER": NORMS.format(when="step % 100 == 50").replace("  # HERE", "")},
    amounts=(150, 400, 1000),
    also=("logging",),
    left="many small weights",
    beside=("TD738",),
)

FINITE = Waste(
    "each weight asked after each step whether it is finite",
    "overhead",
    (),
    {
        "MODEL": MANY,
        "OPTIMIZER": FOREACH,
        "AFTER": after(
            """
for name, value in model.named_parameters():  # HERE
    if not torch.isfinite(value).all() or value.abs().max() > 1e6:  # HERE
        raise FloatingPointError(name)
"""
        ),
    },
    {
        "AFTER": after(
            """
if not math.isfinite(loss.item()):
    raise FloatingPointError(step)
"""
        )
    },
    amounts=(150, 400, 1000),
    left="many small weights",
    beside=("TD738",),
)

BEST = """
if BEST.get("loss", 1e9) {than} loss.item():
    BEST["loss"] = loss.item()
    BEST["model"] = copy.deepcopy(model)  # HERE
"""
KEPT = Waste(
    "the whole model copied by deepcopy after almost each step, to keep the best",
    "checkpoint",
    (),
    {
        "MODEL": MANY,
        "OPTIMIZER": FOREACH,
        "AFTER": after(BEST.format(than="!="), "import copy\nBEST = {}"),
    },
    {
        "AFTER": after(
            """
if step % 200 == 100:
    BEST["model"] = copy.deepcopy(model)
""",
            "import copy\nBEST = {}",
        )
    },
    amounts=(150, 400, 1000),
    also=("overhead", "memory"),
    left="many small weights",
    beside=("TD738",),
)
