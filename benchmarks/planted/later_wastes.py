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
