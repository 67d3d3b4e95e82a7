"""Wastes in what is written: logs, pictures, checkpoints. For drawn cases."""

from __future__ import annotations

from .around_wastes import NOTHING, after
from .parts import Waste

HISTOGRAMS = """
if step % {every} == 0:
    NOTED.clear()
    for name, value in model.named_parameters():
        counts, edges = np.histogram(value.detach().numpy(), 64)  # HERE
        NOTED[name] = counts.tolist(), edges.tolist()  # HERE
"""
HISTOGRAMS_NOTED = Waste(
    "a histogram of each weight, every few steps",
    "logging",
    (),
    {"AFTER": after(HISTOGRAMS.format(every="$N"), "NOTED = {}")},
    {"AFTER": after(HISTOGRAMS.format(every=400), "NOTED = {}").replace("  # HERE", "")},
    amounts=(4, 2, 1),
    also=("overhead",),
)

PACKED = """
if step % {every} == 0:
    state = pickle.dumps({{k: v.numpy() for k, v in model.state_dict().items()}})  # HERE
    with gzip.open("last.pkl.gz", "wb", 1) as file:  # HERE
        file.write(state)  # HERE
"""
PACKED_SAVES = Waste(
    "weights pickled and compressed by gzip every few steps",
    "checkpoint",
    (),
    {"AFTER": after(PACKED.format(every="$N"), "import gzip, pickle")},
    {"AFTER": after(PACKED.format(every=500), "import gzip, pickle").replace("  # HERE", "")},
    amounts=(10, 4, 1),
)

WRITTEN = """
lines = {{"step": step, "loss": loss.item(), "time": time.time()}}
{when}
for k in range({count}):  # HERE
    LOG.write(json.dumps(dict(lines, part=k)) + "\\n")  # HERE
    LOG.flush()  # HERE
    os.fsync(LOG.fileno())  # HERE
"""
SYNCED_LOG = Waste(
    "lines of a JSON log, each flushed to the disk with fsync",
    "logging",
    (),
    {"AFTER": after(WRITTEN.format(when="", count="$N"), 'LOG = open("log.jsonl", "w")')},
    {
        "AFTER": after(
            """
lines = {"step": step, "loss": loss.item(), "time": time.time()}
for k in range($N):
    LOG.write(json.dumps(dict(lines, part=k)) + "\\n")
""",
            'LOG = open("log.jsonl", "w")',
        )
    },
    amounts=(1, 4, 12),
    also=("io",),
)

ROWS_WRITTEN = Waste(
    "rows of weights written as text to a CSV file after each step",
    "logging",
    (),
    {
        "AFTER": after(
            """
if step % 100 == 0:
    TABLE.seek(0)
values = next(model.parameters()).detach().flatten()
rows = values[torch.arange($N * 64) % len(values)].view(-1, 64)
for row in rows:  # HERE
    csv.writer(TABLE).writerow([f"{v:.5f}" for v in row.tolist()])  # HERE
""",
            'import csv\nTABLE = open("weights.csv", "w")',
        )
    },
    {
        "AFTER": after(
            """
if step % 100 == 0:
    np.save("weights.npy", next(model.parameters()).detach().numpy())
"""
        )
    },
    amounts=(40, 150, 800),
)

PIXELS = Waste(
    "a picture of weights written pixel by pixel after each step",
    "logging",
    (),
    {
        "AFTER": after(
            """
values = next(model.parameters()).detach().flatten()
values = values[torch.arange($N * $N) % len(values)].view($N, $N)
values = ((values - values.min()) / (values.max() - values.min() + 1e-9)).tolist()
with open("weights.ppm", "w") as file:
    file.write("P2 $N $N 255\\n")
    for row in values:  # HERE
        for value in row:  # HERE
            file.write(f"{int(255 * value)} ")  # HERE
        file.write("\\n")
"""
        )
    },
    NOTHING,
    amounts=(96, 160, 360),
)

PRINTED = Waste(
    "tensors printed after each step",
    "logging",
    (),
    {
        "AFTER": after(
            """
weight = next(model.parameters()).detach()
for k in range($N):
    print(step, k, loss, weight * k, file=OUTPUT)  # HERE
""",
            'OUTPUT = open(os.devnull, "w")',
        )
    },
    {"AFTER": after("print(step, loss.item(), file=OUTPUT)", 'OUTPUT = open(os.devnull, "w")')},
    amounts=(4, 12, 40),
    also=("overhead",),
)

SIGNED = Waste(
    "all weights hashed after each step for a log of reproducibility",
    "overhead",
    (),
    {
        "AFTER": after(
            """
if step % $N == 0:
    for name, value in model.state_dict().items():
        text = repr(value.flatten()[:20_000].tolist())  # HERE
        DIGESTS.append((name, hashlib.sha256(text.encode()).hexdigest()))  # HERE
""",
            "import hashlib\nDIGESTS = collections.deque(maxlen=100)",
        )
    },
    {
        "AFTER": after(
            """
if step % 200 == 0:
    for name, value in model.state_dict().items():
        DIGESTS.append((name, hashlib.sha256(value.numpy().tobytes()).hexdigest()))
""",
            "import hashlib\nDIGESTS = collections.deque(maxlen=100)",
        )
    },
    amounts=(8, 3, 1),
    also=("logging",),
)
