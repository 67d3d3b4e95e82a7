"""What a case is made of: the parts that fill a style, and a waste that replaces some of them."""

from __future__ import annotations

from dataclasses import dataclass, field

# A step of 5–10 ms on a slow core, so that a waste of 20 ms and more is most of the time.
PARTS = {
    "DATA": """
class Data(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))
    def __len__(self):
        return 1024
    def __getitem__(self, i):
        return self.x[i], self.y[i]
""",
    "LOADER": "batch_size=32",
    "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    def forward(self, x):
        return self.layers(x)
""",
    "LOSS": """
def loss_of(output, target):
    return nn.functional.cross_entropy(output, target)
""",
    "OPTIMIZER": """
def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
""",
    "AFTER": """
def after_step(step, model, loss):
    pass
""",
    "SETUP": "pass",
}


@dataclass(frozen=True)
class Waste:
    """``cls`` and ``codes``: the verdict and the rules that by construction may lead; any of the
    codes is right. ``slow`` replaces parts; ``fixed`` replaces some of those again, as the rules
    advise, {} where there is no twin. Lines that end in ``# HERE`` are the culprit's; where a
    loader's settings are part of the cure, the line that makes it (``# FIX``) is right, too.
    ``twin``: the rules whose fix ``fixed`` makes, whose prediction it is held against; default: any
    of ``codes``; of a drawn case without codes, what leads at the culprit's line. ``change``: what
    ``tdiag try --set`` takes that does the same as ``fixed``, if anything does.

    For drawn cases: ``amounts`` are the values that ``$N`` may take, from little waste to much;
    ``also`` are classes that are right as well; ``without`` names styles that it does not fit;
    ``left`` says what still slows the twin down, so that the twin is not drawn as healthy.
    ``beside``: rules that are right about that. Their findings may come first, and then the line
    of the next one is judged."""

    what: str
    cls: str
    codes: tuple[str, ...]
    slow: dict[str, str]
    fixed: dict[str, str] = field(default_factory=dict)
    twin: tuple[str, ...] = ()
    change: str = ""
    one_core: bool = False  # run on one core: its share of work has nothing to do with threads
    amounts: tuple[int, ...] = (1,)
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    left: str = ""
    beside: tuple[str, ...] = ()
