"""Models and batches of three sizes, for drawn cases."""

from __future__ import annotations

WIDTHS = {"small": 128, "medium": 512, "large": 1024, "huge": 2048}  # huge: healthy ones only
BATCHES = {"small": 16, "medium": 64, "large": 128, "huge": 128}

LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, $H), nn.ReLU(), nn.Linear($H, $H), nn.ReLU(), nn.Linear($H, 10)
        )
    def forward(self, x):
        return self.layers(x)
"""
CONVOLUTIONS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, $H // 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d($H // 32, $H // 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d($H // 32, $H // 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
        )
        self.head = nn.Linear(4 * $H, 10)
    def forward(self, x):
        return self.head(self.body(x.view(-1, 1, 16, 16)))
"""
ATTENTION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(16, $H // 8), nn.Parameter(torch.zeros(16, $H // 8))
        layer = nn.TransformerEncoderLayer($H // 8, 4, $H // 2, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear($H // 8, 10)
    def forward(self, x):
        hidden = self.embed(x.view(-1, 16, 16)) + self.place
        return self.head(self.body(hidden).mean(1))
"""
RECURRENT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(16, $H // 4, batch_first=True)
        self.head = nn.Linear($H // 4, 10)
    def forward(self, x):
        return self.head(self.cells(x.view(-1, 16, 16))[0][:, -1])
"""
MODELS = {
    "layers": LAYERS,
    "convolutions": CONVOLUTIONS,
    "attention": ATTENTION,
    "recurrent": RECURRENT,
}

# Steps of 15 ms and more that compute: with less work, fetching and dispatch are a real share.
HEALTHY = (
    ("convolutions", "large"),
    ("convolutions", "huge"),
    ("attention", "large"),
    ("attention", "huge"),
    ("layers", "huge"),
)
