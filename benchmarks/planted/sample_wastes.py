"""Wastes in the work on a sample. For drawn cases."""

from __future__ import annotations

from .data_wastes import dataset
from .parts import Waste

CACHED = ("TD209",)  # the twin does the work once a sample, not each time
FASTER = ("-",)  # the twin does the same work in fewer calls: no rule's formula is about that

PERMUTED = Waste(
    "a permutation of a large index for each sample, of which 256 entries are used",
    "cpu",
    (),
    {
        "DATA": dataset(
            "self.rng = np.random.default_rng(0)\nself.pool = torch.randn($N)",
            """
order = self.rng.permutation($N)[:256]  # HERE
return self.pool[torch.from_numpy(order)], i % 10
""",
        )
    },
    {
        "DATA": dataset(
            "self.rng = np.random.default_rng(0)\nself.pool = torch.randn($N)",
            "return self.pool[torch.from_numpy(self.rng.integers(0, $N, 256))], i % 10",
        )
    },
    twin=FASTER,
    amounts=(8_000, 40_000, 150_000),
)

RESIZE = """
def resize(image, size):
    rows, columns = (np.linspace(0, n - 1.001, size) for n in image.shape[:2])
    top, left = rows.astype(int), columns.astype(int)
    down, right = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = image[top][:, left] * (1 - right) + image[top][:, left + 1] * right  # HERE
    lower = image[top + 1][:, left] * (1 - right) + image[top + 1][:, left + 1] * right  # HERE
    return upper * (1 - down) + lower * down  # HERE
"""
IMAGES = "self.images = np.random.default_rng(0).random((64, 96, 96, 3))"
RESIZED = Waste(
    "each image resized by array arithmetic, the same every epoch",
    "cpu",
    (),
    {
        "DATA": RESIZE
        + dataset(
            IMAGES,
            """
small = resize(self.images[i % 64], $N)  # HERE
gray = small.mean(2).astype(np.float32).reshape(-1)  # HERE
return torch.from_numpy(gray[:256].copy()), i % 10
""",
        )
    },
    {
        "DATA": RESIZE.replace("  # HERE", "")
        + dataset(
            IMAGES
            + """
small = [resize(image, $N).mean(2).astype(np.float32) for image in self.images]
self.x = torch.from_numpy(np.stack([image.reshape(-1)[:256] for image in small]))
""",
            "return self.x[i % 64], i % 10",
        )
    },
    twin=CACHED,
    amounts=(16, 48, 128),
)

SOUND = "self.sound = np.random.default_rng(0).standard_normal((32, 70_000)).astype(np.float32)"
SPECTRUM = Waste(
    "a spectrogram from a random start, frame by frame in a Python loop",
    "cpu",
    (),
    {
        "DATA": dataset(
            SOUND,
            """
start = int(torch.randint(0, 1000, ()))
window, frames = np.hanning(510), []
for k in range($N):  # HERE
    piece = self.sound[i % 32, start + 256 * k : start + 256 * k + 510]  # HERE
    frames.append(np.abs(np.fft.rfft(piece * window)))  # HERE
return torch.from_numpy(np.mean(frames, 0).astype(np.float32)), i % 10
""",
        )
    },
    {
        "DATA": dataset(
            SOUND + "\nself.window = torch.hann_window(510)",
            """
start = int(torch.randint(0, 1000, ()))
sound = torch.from_numpy(self.sound[i % 32, start : start + 256 * $N + 254])
frames = torch.fft.rfft(sound.unfold(0, 510, 256) * self.window)
return frames.abs().mean(0), i % 10
""",
        )
    },
    twin=FASTER,
    amounts=(10, 50, 250),
)

WINDOWS = Waste(
    "sliding windows of a series put together as Python lists",
    "cpu",
    (),
    {
        "DATA": dataset(
            "self.series = [math.sin(k / 9) for k in range(8000)]",
            """
rows = [[self.series[i + k + j] for j in range($N)] for k in range(256)]  # HERE
return torch.tensor(rows).mean(1), i % 10  # HERE
""",
        )
    },
    {
        "DATA": dataset(
            "self.series = torch.arange(8000).div(9).sin()",
            "return self.series[i : i + 255 + $N].unfold(0, $N, 1).mean(1), i % 10",
        )
    },
    twin=FASTER,
    amounts=(2, 8, 40),
)

RECORDS = """
self.records = []
for k in range(64):
    boxes = [{"box": [k, j, 4, 5], "score": 0.5, "tags": ["a", "b"]} for j in range($N)]
    self.records.append({"x": torch.randn(256), "boxes": boxes, "label": k % 10})
"""
COPIED = Waste(
    "copy.deepcopy of a nested record for each sample",
    "cpu",
    (),
    {
        "DATA": "import copy\n"
        + dataset(
            RECORDS,
            """
record = copy.deepcopy(self.records[i % 64])  # HERE
return record["x"] + len(record["boxes"]) / $N, record["label"]
""",
        )
    },
    {
        "DATA": dataset(
            RECORDS,
            """
record = self.records[i % 64]
return record["x"] + len(record["boxes"]) / $N, record["label"]
""",
        )
    },
    twin=FASTER,
    amounts=(4, 20, 120),
)

MERGES = """
def merged(text, ranks):
    parts = list(text)
    while len(parts) > 1:  # HERE
        twos = [a + b for a, b in zip(parts, parts[1:])]  # HERE
        pairs = [(ranks.get(two, 99), k) for k, two in enumerate(twos)]  # HERE
        rank, k = min(pairs)  # HERE
        if rank == 99:  # HERE
            break
        parts[k : k + 2] = [parts[k] + parts[k + 1]]  # HERE
    return parts
"""
TEXTS = """
self.texts = [("lower newest widest " * 20)[k : k + $N] for k in range(64)]
self.ranks = {pair: k for k, pair in enumerate(["es", "est", "lo", "low", "wi", "er", "ne"])}
"""
COUNTED = """
counts = torch.zeros(256)
for part in parts:
    counts[sum(part.encode()) % 256] += 1
"""
MERGED = Waste(
    "byte pairs merged in Python for each text, the same every epoch",
    "cpu",
    (),
    {
        "DATA": MERGES
        + dataset(
            TEXTS,
            "parts = merged(self.texts[i % 64], self.ranks)  # HERE\n"
            + COUNTED
            + "return counts, i % 10",
        )
    },
    {
        "DATA": MERGES.replace("  # HERE", "")
        + dataset(
            TEXTS
            + """
self.x = torch.zeros(64, 256)
for k, text in enumerate(self.texts):
    for part in merged(text, self.ranks):
        self.x[k, sum(part.encode()) % 256] += 1
""",
            "return self.x[i % 64], i % 10",
        )
    },
    twin=CACHED,
    amounts=(12, 40, 120),
)

PICTURES = """
import io
from PIL import Image
self.pictures = []
for k in range(48):
    pixels = np.random.default_rng(k).integers(0, 255, ($N // 8, $N // 8, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize(($N, $N)).save(file, "JPEG")
    self.pictures.append(file.getvalue())
"""
DECODED = Waste(
    "JPEG pictures decoded, turned and scaled down by Pillow, the same every epoch",
    "cpu",
    (),
    {
        "DATA": "import io\nfrom PIL import Image\n"
        + dataset(
            PICTURES,
            """
picture = Image.open(io.BytesIO(self.pictures[i % 48])).convert("L")  # HERE
picture = picture.rotate(7).resize((16, 16))  # HERE
return torch.from_numpy(np.asarray(picture, np.float32).reshape(-1) / 255), i % 10
""",
        )
    },
    {
        "DATA": "import io\nfrom PIL import Image\n"
        + dataset(
            PICTURES
            + """
turned = [Image.open(io.BytesIO(p)).convert("L").rotate(7) for p in self.pictures]
small = [np.asarray(p.resize((16, 16)), np.float32).reshape(-1) / 255 for p in turned]
self.x = torch.from_numpy(np.stack(small))
""",
            "return self.x[i % 48], i % 10",
        )
    },
    twin=CACHED,
    amounts=(48, 128, 320),
)

REPLAYED = Waste(
    "a replay buffer kept as a list, sampled by random.sample and stacked",
    "cpu",
    (),
    {
        "DATA": "import random\n"
        + dataset(
            "self.buffer = [(torch.randn(256), k % 10) for k in range(4000)]",
            """
chosen = random.sample(self.buffer, $N)  # HERE
return torch.stack([x for x, _ in chosen]).mean(0), chosen[0][1]  # HERE
""",
        )
    },
    {
        "DATA": dataset(
            "self.x, self.y = torch.randn(4000, 256), [k % 10 for k in range(4000)]",
            """
chosen = torch.randint(0, 4000, ($N,))
return self.x[chosen].mean(0), self.y[chosen[0]]
""",
        )
    },
    twin=FASTER,
    amounts=(24, 96, 400),
)
