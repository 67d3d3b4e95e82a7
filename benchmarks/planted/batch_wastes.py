"""Wastes in making batches: collate functions, samplers, workers. For drawn cases."""

from __future__ import annotations

from .data_wastes import dataset
from .parts import Waste

FASTER = ("-",)  # the twin does the same work in fewer calls: no rule's formula is about that

PLAIN_DATA = dataset("self.x = torch.randn(512, 256)", "return self.x[i % 512], i % 10")

SPANS = """
def collate(rows):
    masks = []
    for x, _ in rows:
        start = int(x[0].abs() * 3) % $N
        masks.append([[float(a <= b + start) for a in range($N)] for b in range($N)])  # HERE
    bias = torch.tensor(masks).mean((1, 2))  # HERE
    return torch.stack([x for x, _ in rows]) + bias[:, None], torch.tensor([y for _, y in rows])
"""
MASKS_COLLATED = Waste(
    "a collate_fn that writes an attention mask entry by entry",
    "cpu",
    (),
    {"DATA": PLAIN_DATA + SPANS, "LOADER": "batch_size=$B, collate_fn=collate"},
    {
        "DATA": PLAIN_DATA
        + """
def collate(rows):
    x = torch.stack([x for x, _ in rows])
    start = (x[:, 0].abs() * 3).int() % $N
    a, b = torch.arange($N), torch.arange($N)[:, None]
    bias = (a <= b + start[:, None, None]).float().mean((1, 2))
    return x + bias[:, None], torch.tensor([y for _, y in rows])
"""
    },
    twin=("TD206",),
    amounts=(8, 24, 64),
)

ANNOTATED = (
    PLAIN_DATA
    + """
class Box:
    def __init__(self, k):
        self.corner, self.size, self.name = (k, k + 1), [4.0, 5.0], f"box {k}"  # HERE

class Batch(tuple):
    pass

def collate(rows):
    batch = Batch((torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])))
    batch.boxes = [Box(k) for k in range($N * len(rows))]  # HERE
    return batch
"""
)
OBJECTS_SENT = Waste(
    "batches from a worker that carry many small Python objects",
    "loader",
    (),
    {
        "DATA": ANNOTATED,
        "LOADER": "batch_size=$B, num_workers=1, persistent_workers=True, collate_fn=collate",
    },
    {"DATA": PLAIN_DATA, "LOADER": "batch_size=$B, num_workers=1, persistent_workers=True"},
    twin=FASTER,
    amounts=(20, 80, 300),
    also=("cpu", "input"),
    without=("accelerate",),  # it sends only tensors on
    left="the transfer between processes",
)

CHOOSING = """
class Weighted:
    def __init__(self, batch_size):
        self.size, self.weight = batch_size, np.random.default_rng(0).random($N)
    def __len__(self):
        return 64
    def __iter__(self):
        {choose}
"""
WEIGHTED = Waste(
    "a sampler that draws each batch by weights over a large index",
    "cpu",
    (),
    {
        "DATA": PLAIN_DATA
        + CHOOSING.format(
            choose="""for _ in range(64):
            chance = self.weight / self.weight.sum()  # HERE
            yield np.random.choice($N, self.size, p=chance).tolist()  # HERE
"""
        ),
        "LOADER": "batch_sampler=Weighted(batch_size=$B)",
    },
    {
        "DATA": PLAIN_DATA
        + CHOOSING.format(
            choose="""if not hasattr(self, "total"):
            self.total = self.weight.cumsum() / self.weight.sum()
        for _ in range(64):
            yield np.searchsorted(self.total, np.random.random(self.size)).tolist()
"""
        )
    },
    twin=FASTER,
    amounts=(40_000, 200_000, 1_500_000),
    also=("loader", "input"),
)

ORDERING = """
class Ordered:
    def __init__(self, batch_size):
        self.size = batch_size
        self.length = np.random.default_rng(0).integers(1, 900, $N).tolist()
        self.order = None
    def __len__(self):
        return 8
    def __iter__(self):
        {order}
        for k in range(8):
            yield order[k * self.size : (k + 1) * self.size]
"""
SORTED = Waste(
    "all indices sorted by a Python key at the start of each short epoch",
    "cpu",
    (),
    {
        "DATA": "import random\n"
        + PLAIN_DATA
        + ORDERING.format(
            order="order = sorted(range($N), key=lambda i: (self.length[i], random.random()))"
            "  # HERE"
        ),
        "LOADER": "batch_sampler=Ordered(batch_size=$B)",
    },
    {
        "DATA": PLAIN_DATA
        + ORDERING.format(
            order="""if self.order is None:
            self.order = np.argsort(self.length, kind="stable").tolist()
        order = self.order"""
        )
    },
    twin=FASTER,
    amounts=(20_000, 120_000, 500_000),
    also=("loader", "input"),
)
