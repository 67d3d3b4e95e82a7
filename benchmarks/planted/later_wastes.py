"""Wastes added after cases had been drawn and recorded. They are never drawn, so that a seed still
draws the same cases."""

from __future__ import annotations

from .data_wastes import dataset
from .parts import Waste

PICTURES = """
self.pictures = []
for k in range(24):
    colours = np.random.default_rng(k).integers(0, 255, (12, 16, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((1024, 768)).save(file, "JPEG", quality=85)
    self.pictures.append(file.getvalue())
"""
SMALL = """
    small = picture.convert("L").resize((16, 16))  # HERE
    return transforms(small)
"""
OPENED = """
import io, random
from PIL import Image
def transforms(small):
    if random.random() < 0.5:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.asarray(small, np.float32).reshape(-1) / 255)
def read(file):
    picture = Image.open(file)  # HERE
"""
ITEM = "return read(io.BytesIO(self.pictures[i % 24])), i % 10"
TOO_LARGE = Waste(
    "JPEG pictures of 1024 × 768 decoded in full for inputs of 16 × 16, flipped at random",
    "cpu",
    ("TD220",),
    {"DATA": OPENED + SMALL + dataset(PICTURES, ITEM), "LOADER": "batch_size=8"},
    {
        "DATA": OPENED.replace("  # HERE", "")
        + "    picture.draft(None, (16, 16))\n"
        + SMALL.strip("\n").replace("  # HERE", "")
        + "\n"
        + dataset(PICTURES, ITEM)
    },
)
SLOPED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10))
    def forward(self, x):
        x = x.detach().requires_grad_()
        return self.layers(x), x
"""
SMOOTH = """
    return nn.functional.cross_entropy(scores, target) + 0.01 * slopes.square().mean()
"""
ONE_BY_ONE = Waste(
    "the slope of each sample's score, one call of autograd.grad each",
    "python_loss",
    ("TD729",),
    {
        "MODEL": SLOPED,
        "LOSS": """
def slope(score, x):
    return torch.autograd.grad(score, x, create_graph=True)[0]  # HERE
def loss_of(output, target):
    scores, x = output
    slopes = torch.stack([slope(scores[i, 0], x)[i] for i in range(len(x))])  # HERE
"""
        + SMOOTH,
    },
    {
        "LOSS": """
def loss_of(output, target):
    scores, x = output
    slopes = torch.autograd.grad(scores[:, 0].sum(), x, create_graph=True)[0]
"""
        + SMOOTH,
    },
)
FACTORED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(256, 1024), nn.Linear(1024, 10)
        self.left, self.right = (nn.Parameter(torch.randn(32, 32) / 6) for _ in range(2))
    def forward(self, x):
        x = self.wide(x).relu()
"""
OUTER = Waste(
    "a layer whose weight is written out as the Kronecker product of two factors",
    "compute",
    ("TD730",),
    {
        "MODEL": FACTORED
        + """
        weight = torch.kron(self.left, self.right)  # HERE
        return self.head((x @ weight).relu())  # HERE
"""
    },
    {
        "MODEL": FACTORED
        + """
        x = self.left.T @ x.view(-1, 32, 32) @ self.right
        return self.head(x.flatten(1).relu())
"""
    },
    one_core=True,
)
BY_INPUT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 10))
    def forward(self, x):
        parts = [part.detach().requires_grad_() for part in x.chunk(4, 1)]
        return self.layers(torch.cat(parts, 1)), parts
"""
FLAT = """
    flat = sum(slope.square().mean() for slope in slopes)
    return nn.functional.cross_entropy(scores, target) + 0.01 * flat
"""
SEPARATE = Waste(
    "the slopes of a score by four parts of the input, one call of autograd.grad each",
    "compute",
    ("TD747",),
    {
        "MODEL": BY_INPUT,
        "LOSS": """
def slope(scores, part):
    return torch.autograd.grad(scores.sum(), part, create_graph=True)[0]  # HERE
def loss_of(output, target):
    scores, parts = output
    slopes = [slope(scores, part) for part in parts]  # HERE
"""
        + FLAT,
    },
    {
        "MODEL": BY_INPUT,
        "LOSS": """
def loss_of(output, target):
    scores, parts = output
    slopes = torch.autograd.grad(scores.sum(), parts, create_graph=True)
"""
        + FLAT,
    },
    one_core=True,
)
DECAYED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048))
        self.head = nn.Linear(2048, 10)
    def forward(self, x):
"""
DECAY = Waste(
    "the squares of all weights summed in each step for the loss",
    "compute",
    ("TD748",),
    {
        "MODEL": DECAYED
        + """
        squares = sum(p.pow(2).sum() for p in self.parameters())  # HERE
        return self.head(self.layers(x)), squares
""",
        "LOSS": """
def loss_of(output, target):
    return nn.functional.cross_entropy(output[0], target) + 1e-5 * output[1]
""",
    },
    {
        "MODEL": DECAYED
        + """
        return self.head(self.layers(x)), None
""",
        "LOSS": """
def loss_of(output, target):
    return nn.functional.cross_entropy(output[0], target)
""",
    },
    one_core=True,
)
