"""Wastes in where samples come from: tables, databases, archives, shards. For drawn cases."""

from __future__ import annotations

from .data_wastes import dataset
from .parts import Waste

CACHED = ("TD209", "TD210")  # the twin converts everything once

FRAME = """
import pandas as pd
table = np.random.default_rng(0).standard_normal((512, 256))
self.table = pd.DataFrame(table, columns=[f"f{k}" for k in range(256)])
self.table["label"] = [i % 10 for i in range(512)]
"""
FRAME_ROWS = Waste(
    "rows of a DataFrame by .iloc, one sample at a time",
    "cpu",
    (),
    {
        "DATA": dataset(
            FRAME,
            """
rows = [self.table.iloc[(i + k) % 512] for k in range($N)]  # HERE
x = sum(row.drop("label").to_numpy(np.float32) for row in rows) / $N  # HERE
return torch.from_numpy(x), int(rows[0]["label"])  # HERE
""",
        )
    },
    {
        "DATA": dataset(
            FRAME
            + """
self.x = torch.from_numpy(self.table.drop(columns="label").to_numpy(np.float32))
self.y = self.table["label"].tolist()
""",
            """
rows = [(i + k) % 512 for k in range($N)]
return self.x[rows].mean(0), self.y[rows[0]]
""",
        )
    },
    twin=CACHED,
    amounts=(1, 2, 5),
)

FRAME_LOOKUP = Waste(
    "rows of a DataFrame chosen by comparing a whole column",
    "cpu",
    (),
    {
        "DATA": dataset(
            """
import pandas as pd
self.x = torch.randn(512, 256)
self.index = pd.DataFrame({"id": range($N), "row": [k % 512 for k in range($N)]})
""",
            """
found = self.index[self.index["id"] == i % $N]  # HERE
return self.x[int(found["row"].iloc[0])], i % 10  # HERE
""",
        )
    },
    {
        "DATA": dataset(
            "self.x = torch.randn(512, 256)\nself.row = [k % 512 for k in range($N)]",
            "return self.x[self.row[i % $N]], i % 10",
        )
    },
    twin=CACHED,
    amounts=(1000, 60_000, 400_000),
)

ROWS_TABLE = """
import sqlite3
path = Path(__file__).resolve().parent / "samples.db"
path.unlink(missing_ok=True)
self.base = sqlite3.connect(path)
self.base.execute("CREATE TABLE samples (id INTEGER, label INTEGER, x BLOB)")
dice = np.random.default_rng(0)
rows = ((k, k % 10, dice.random(256, np.float32).tobytes()) for k in range($N))
self.base.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
self.base.commit()
"""
SQLITE = Waste(
    "a query for each sample on a column without an index",
    "cpu",
    (),
    {
        "DATA": dataset(
            ROWS_TABLE,
            """
query = "SELECT x, label FROM samples WHERE id = ?"
x, label = self.base.execute(query, (i % $N,)).fetchone()  # HERE
return torch.from_numpy(np.frombuffer(x, np.float32).copy()), label
""",
        )
    },
    {
        "DATA": dataset(
            ROWS_TABLE
            + """
rows = self.base.execute("SELECT x, label FROM samples ORDER BY id").fetchall()
self.x = torch.from_numpy(np.stack([np.frombuffer(x, np.float32) for x, _ in rows]))
self.y = [label for _, label in rows]
""",
            "return self.x[i % $N], self.y[i % $N]",
        )
    },
    twin=CACHED,
    amounts=(500, 2000, 8000),
    also=("io",),
)

SHARDS = """
self.folder = Path(__file__).resolve().parent / "shards"
self.folder.mkdir(exist_ok=True)
for k in range(8):
    torch.save({"x": torch.randn($N, 256), "y": list(range($N))}, self.folder / f"{k}.pt")
"""
SHARD_LOADED = Waste(
    "a whole shard loaded by torch.load for each sample",
    "cpu",
    (),
    {
        "DATA": dataset(
            SHARDS,
            """
shard = torch.load(self.folder / f"{i % 8}.pt")  # HERE
return shard["x"][i % $N], shard["y"][i % $N] % 10
""",
        )
    },
    {
        "DATA": dataset(
            SHARDS + 'self.shards = [torch.load(self.folder / f"{k}.pt") for k in range(8)]\n',
            """
shard = self.shards[i % 8]
return shard["x"][i % $N], shard["y"][i % $N] % 10
""",
        )
    },
    twin=CACHED,
    amounts=(16, 256, 1500),
    also=("io",),
)

ARRAYS = """
self.folder = Path(__file__).resolve().parent / "arrays"
self.folder.mkdir(exist_ok=True)
for k in range(8):
    rows = np.random.default_rng(k).random(($N, 256), np.float32)
    np.savez_compressed(self.folder / f"{k}.npz", x=rows)
"""
ARRAY_UNPACKED = Waste(
    "a compressed array of many rows unpacked by np.load for each sample",
    "cpu",
    (),
    {
        "DATA": dataset(
            ARRAYS,
            """
rows = np.load(self.folder / f"{i % 8}.npz")["x"]  # HERE
return torch.from_numpy(rows[i % $N].copy()), i % 10
""",
        )
    },
    {
        "DATA": dataset(
            ARRAYS + 'self.rows = [np.load(self.folder / f"{k}.npz")["x"] for k in range(8)]\n',
            "return torch.from_numpy(self.rows[i % 8][i % $N]), i % 10",
        )
    },
    twin=CACHED,
    amounts=(4, 16, 64),
    also=("io",),
)

ARCHIVE = """
import zipfile
self.path = Path(__file__).resolve().parent / "samples.zip"
with zipfile.ZipFile(self.path, "w") as archive:
    for k in range($N):
        archive.writestr(f"{k}.bin", np.full(256, k, np.float32).tobytes())
"""
ZIP_OPENED = Waste(
    "a zip archive opened, and its directory read, for each sample",
    "cpu",
    (),
    {
        "DATA": dataset(
            ARCHIVE,
            """
import zipfile
with zipfile.ZipFile(self.path) as archive:  # HERE
    raw = archive.read(f"{i % $N}.bin")  # HERE
return torch.from_numpy(np.frombuffer(raw, np.float32) / $N), i % 10
""",
        )
    },
    {
        "DATA": dataset(
            ARCHIVE
            + """
with zipfile.ZipFile(self.path) as archive:
    raw = [archive.read(f"{k}.bin") for k in range($N)]
self.x = torch.from_numpy(np.stack([np.frombuffer(r, np.float32) / $N for r in raw]))
""",
            "return self.x[i % $N], i % 10",
        )
    },
    twin=CACHED,
    amounts=(16, 100, 500),
    also=("io",),
)

TARRED = """
import io, tarfile
self.path = Path(__file__).resolve().parent / "samples.tar"
with tarfile.open(self.path, "w") as archive:
    for k in range($N):
        info = tarfile.TarInfo(f"{k}.bin")
        info.size = 1024
        archive.addfile(info, io.BytesIO(np.full(256, k, np.float32).tobytes()))
"""
TAR_SEARCHED = Waste(
    "a tar archive searched from its beginning for each sample",
    "cpu",
    (),
    {
        "DATA": dataset(
            TARRED,
            """
import tarfile
with tarfile.open(self.path) as archive:  # HERE
    raw = archive.extractfile(f"{i % $N}.bin").read()  # HERE
return torch.from_numpy(np.frombuffer(raw, np.float32) / $N), i % 10
""",
        )
    },
    {
        "DATA": dataset(
            TARRED
            + """
with tarfile.open(self.path) as archive:
    self.starts = [member.offset_data for member in archive]
self.bytes = self.path.read_bytes()
""",
            """
raw = np.frombuffer(self.bytes, np.float32, 256, self.starts[i % $N])
return torch.from_numpy(raw / $N), i % 10
""",
        )
    },
    twin=CACHED,
    amounts=(4, 16, 60),
    also=("io",),
)

TEXT_FILE = """
self.path = Path(__file__).resolve().parent / "samples.csv"
dice = np.random.default_rng(0)
with open(self.path, "w") as file:
    for _ in range($N):
        file.write(",".join(f"{v:.4f}" for v in dice.random(256)) + "\\n")
"""
CSV_FROM_START = Waste(
    "a CSV file read from its beginning up to each sample's line",
    "cpu",
    (),
    {
        "DATA": dataset(
            TEXT_FILE,
            """
with open(self.path) as file:  # HERE
    for k, line in enumerate(file):  # HERE
        if k == i % $N:  # HERE
            break
return torch.tensor([float(v) for v in line.split(",")]), i % 10  # HERE
""",
        )
    },
    {
        "DATA": dataset(
            TEXT_FILE
            + 'self.x = torch.from_numpy(np.loadtxt(self.path, np.float32, delimiter=","))\n',
            "return self.x[i % $N], i % 10",
        )
    },
    twin=CACHED,
    amounts=(32, 128, 600),
    also=("io",),
)

WRITTEN_THROUGH = Waste(
    "each sample written to a cache file with fsync",
    "io",
    (),
    {
        "DATA": dataset(
            """
self.x = torch.randn(512, 256)
self.folder = Path(__file__).resolve().parent / "written"
self.folder.mkdir(exist_ok=True)
""",
            """
with open(self.folder / f"{i % 64}.bin", "wb") as file:  # HERE
    file.write(self.x[i % 512].numpy().tobytes() * $N)  # HERE
    os.fsync(file.fileno())  # HERE
return self.x[i % 512], i % 10
""",
        ),
        "LOADER": "batch_size=16",
    },
    {"DATA": dataset("self.x = torch.randn(512, 256)", "return self.x[i % 512], i % 10")},
    twin=("-",),
    amounts=(1, 16, 128),
)

POLLED = Waste(
    "each sample waited for by polling, as of a service that answers late",
    "io",
    (),
    {
        "DATA": dataset(
            "self.x = torch.randn(512, 256)",
            """
ready = time.monotonic() + $N * 1e-4
while time.monotonic() < ready:  # HERE
    time.sleep(2e-4)  # HERE
return self.x[i % 512], i % 10
""",
        ),
        "LOADER": "batch_size=16",
    },
    {"DATA": dataset("self.x = torch.randn(512, 256)", "return self.x[i % 512], i % 10")},
    twin=("-",),
    amounts=(4, 12, 40),
)
