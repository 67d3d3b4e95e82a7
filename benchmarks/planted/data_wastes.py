"""Wastes in how batches are made. Each gives what is slow and what its fix changes."""

from __future__ import annotations

from .parts import Waste

DATASET = """
class Data(Dataset):
    def __init__(self):
{init}
    def __len__(self):
        return 4096
    def __getitem__(self, i):
{item}
"""


def dataset(init: str, item: str) -> str:
    indent = " " * 8
    lines = ["\n".join(indent + line for line in text.strip().split("\n")) for text in (init, item)]
    return DATASET.format(init=lines[0], item=lines[1])


FILES = """
self.folder = Path(__file__).resolve().parent / "files"
self.folder.mkdir(exist_ok=True)
for i in range(96):
    if (self.folder / f"{i}.bin").exists():
        continue
    with open(self.folder / f"{i}.bin", "wb") as file:
        file.write(np.random.default_rng(i).random(65536, np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
"""
READ_COLD = """
with open(self.folder / f"{i % 96}.bin", "rb") as file:  # HERE
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # HERE
    raw = file.read()  # HERE
return torch.from_numpy(np.frombuffer(raw, np.float32).reshape(256, 256).mean(1)), i % 10
"""
READ_ONCE = """
if i % 96 not in self.cache:
    raw = (self.folder / f"{i % 96}.bin").read_bytes()
    row = np.frombuffer(raw, np.float32).reshape(256, 256).mean(1)
    self.cache[i % 96] = torch.from_numpy(row)
return self.cache[i % 96], i % 10
"""
COLD_FILES = Waste(
    "files read from disk again and again, past the page cache",
    "io",
    ("TD101",),
    {"DATA": dataset(FILES, READ_COLD), "LOADER": "batch_size=32"},
    {"DATA": dataset(FILES + "\nself.cache = {}", READ_ONCE)},
    ("TD209",),
    change="loader.cache",
)

ASK_SERVICE = """
time.sleep(0.004)  # HERE
return torch.full((256,), i / 4096), i % 10
"""
SERVICE = Waste(
    "each sample asked of a service that answers after 4 ms",
    "io",
    ("TD101", "TD201"),
    {"DATA": dataset("pass", ASK_SERVICE), "LOADER": "batch_size=8"},
    {"LOADER": "batch_size=8, num_workers=4, persistent_workers=True"},
    change="loader.num_workers=4+loader.persistent_workers",
)

PACKED = """
self.packed = []
for i in range(128):
    self.packed.append(zlib.compress(np.random.default_rng(i).integers(0, 40, 60000).tobytes()))
"""
UNPACK = """
raw = np.frombuffer(zlib.decompress(self.packed[i % 128]), np.int64)  # HERE
return torch.from_numpy(raw[:25600].reshape(256, 100).mean(1).astype(np.float32)), i % 10
"""
UNPACKED = """
rows = [zlib.decompress(p) for p in self.packed]
rows = [np.frombuffer(r, np.int64)[:25600].reshape(256, 100).mean(1) for r in rows]
self.rows = [torch.from_numpy(r.astype(np.float32)) for r in rows]
"""
DECOMPRESS = Waste(
    "each sample decompressed on the training thread",
    "cpu",
    ("TD201", "TD202", "TD209"),
    {"DATA": dataset(PACKED, UNPACK), "LOADER": "batch_size=16"},
    {"LOADER": "batch_size=16, num_workers=1, persistent_workers=True"},
    ("TD201",),
    change="loader.num_workers=1+loader.persistent_workers",
)
DECOMPRESS_IN_WORKERS = Waste(
    "each sample decompressed by as many workers as there are cores",
    "cpu",
    ("TD202", "TD209", "TD205"),
    {"DATA": dataset(PACKED, UNPACK), "LOADER": "batch_size=32, num_workers=$CORES"},
    {"DATA": dataset(PACKED + UNPACKED, "return self.rows[i % 128], i % 10")},
    ("TD209",),
)

RECORDS = """
row = {"values": [((k * 7919) % 1000) / 500 - 1 for k in range(4096)], "label": 3}
self.lines = [json.dumps(dict(row, id=i)) for i in range(64)]
"""
PARSE = """
record = json.loads(self.lines[i % 64])  # HERE
return torch.as_tensor(np.array(record["values"], np.float32)[:256]), record["id"] % 10
"""
JSON = Waste(
    "each sample parsed from JSON",
    "cpu",
    ("TD201", "TD202", "TD209"),
    {"DATA": dataset(RECORDS, PARSE), "LOADER": "batch_size=32"},
    {"LOADER": "batch_size=32, num_workers=1, persistent_workers=True"},
    ("TD201",),
    change="loader.num_workers=1+loader.persistent_workers",
)

TEXTS = """
words = [f"w{k % 700}" for k in range(1500)]
self.texts = [" ".join(words[i:] + words[:i]) + "." for i in range(64)]
self.vocabulary = {f"w{k}": k for k in range(700)}
"""
TOKENISE = """
tokens = re.findall(r"\\w+|[^\\w\\s]", self.texts[i % 64].lower())  # HERE
ids = [self.vocabulary.get(token, 0) for token in tokens]  # HERE
counts = collections.Counter(ids)  # HERE
return torch.tensor([float(counts[k]) for k in range(256)]), i % 10
"""
TOKENS = Waste(
    "each text split into tokens by a regular expression",
    "cpu",
    ("TD201", "TD202", "TD209"),
    {"DATA": dataset(TEXTS, TOKENISE), "LOADER": "batch_size=32"},
    {"LOADER": "batch_size=32, num_workers=1, persistent_workers=True"},
    ("TD201",),
    change="loader.num_workers=1+loader.persistent_workers",
)

LISTS = Waste(
    "samples kept as Python lists and made into tensors one by one",
    "cpu",
    ("TD207",),
    {
        "DATA": dataset(
            "self.rows = [[(k * i % 97) / 97 for k in range(6000)] for i in range(64)]",
            "row = torch.tensor(self.rows[i % 64])  # HERE\nreturn row[:256], i % 10",
        ),
        "LOADER": "batch_size=64",
    },
    {
        "DATA": dataset(
            "self.rows = torch.tensor([[(k * i % 97) / 97 for k in range(6000)]"
            " for i in range(64)])",
            "return self.rows[i % 64][:256], i % 10",
        )
    },
    change="loader.cache",
)

COLLATE = """
def collate(rows):
    width = max(len(x) for x, _ in rows)
    table = []
    for x, _ in rows:
        line = []
        for k in range(width):  # HERE
            line.append(float(x[k]) if k < len(x) else 0.0)  # HERE
        table.append(line)
    return torch.tensor(table), torch.tensor([y for _, y in rows])
"""
SLOW_COLLATE = Waste(
    "a collate_fn that pads number by number",
    "cpu",
    ("TD206",),
    {
        "DATA": dataset("self.rows = torch.randn(256, 256)", "return self.rows[i % 256], i % 10")
        + COLLATE,
        "LOADER": "batch_size=32, collate_fn=collate",
    },
    {"LOADER": "batch_size=32"},
)

SMALL_FILES = """
self.folder = Path(__file__).resolve().parent / "parts"
self.folder.mkdir(exist_ok=True)
for i in range(256):
    if not (self.folder / f"{i}.npy").exists():
        np.save(self.folder / f"{i}.npy", np.random.default_rng(i).random(64, np.float32))
"""
OPEN_MANY = """
parts = [np.load(self.folder / f"{(i * 4 + k) % 256}.npy") for k in range(4)]  # HERE
return torch.from_numpy(np.concatenate(parts)), i % 10
"""
OPEN_ONCE = """
if i % 64 not in self.cache:
    parts = [np.load(self.folder / f"{(i * 4 + k) % 256}.npy") for k in range(4)]
    self.cache[i % 64] = torch.from_numpy(np.concatenate(parts))
return self.cache[i % 64], i % 10
"""
MANY_FILES = Waste(
    "four small files opened for each sample, all of them cached",
    "cpu",
    ("TD103", "TD201", "TD209"),
    {"DATA": dataset(SMALL_FILES, OPEN_MANY), "LOADER": "batch_size=64"},
    {"DATA": dataset(SMALL_FILES + "\nself.cache = {}", OPEN_ONCE)},
    change="loader.cache",
)

RESTARTS = Waste(
    "two workers started again after every eight batches",
    "loader",
    ("TD203",),
    {
        "DATA": "class Data(TensorDataset):\n    def __init__(self):\n"
        "        super().__init__(torch.randn(256, 256), torch.randint(0, 10, (256,)))\n",
        "LOADER": "batch_size=32, num_workers=2",
    },
    {"LOADER": "batch_size=32, num_workers=2, persistent_workers=True"},
    change="loader.persistent_workers",
)

SMALL = "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(256, 10)\n"
AT_ONCE = (
    "sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(40960)),"
    " batch_size=4096, drop_last=False), batch_size=None"
)
SINGLY = Waste(
    "large batches of small rows picked one by one from a TensorDataset",
    "cpu",
    ("TD213",),
    {
        "DATA": "class Data(TensorDataset):\n    def __init__(self):\n"
        "        super().__init__(torch.randn(40960, 256), torch.randint(0, 10, (40960,)))\n",
        "LOADER": "batch_size=4096, shuffle=True",
        "MODEL": SMALL,
    },
    {"LOADER": AT_ONCE},
    change="loader.whole_batches",
)

PICKED = Waste(
    "large batches of small rows picked one by one from arrays, by a dataset of one's own",
    "cpu",
    ("TD213",),
    {
        "DATA": """
class Data(Dataset):
    def __init__(self):
        dice = np.random.default_rng(0)
        self.x = dice.standard_normal((40960, 256)).astype("float32")
        self.y = dice.integers(0, 10, 40960)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]
""",
        "LOADER": "batch_size=4096, shuffle=True",
        "MODEL": SMALL,
    },
    {"LOADER": AT_ONCE},
    change="loader.whole_batches",
)

SENTENCES = """
class Data(Dataset):
    def __init__(self):
        dice = np.random.default_rng(0)
        self.lengths = dice.lognormal(3.2, 0.8, 1024).astype(int).clip(4, 160)
        self.x = [torch.from_numpy(dice.integers(1, 1000, n)) for n in self.lengths]
    def __len__(self):
        return 1024
    def __getitem__(self, i):
        return self.x[i], i % 10

def collate(rows):  # HERE
    x = nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True)  # HERE
    return x, torch.tensor([y for _, y in rows])
"""
SIMILAR = """
class Similar:
    def __init__(self, batch_size, pool):
        self.lengths, self.size, self.pool = Data().lengths, batch_size, batch_size * pool
    def __len__(self):
        return len(self.lengths) // self.size
    def __iter__(self):
        order = torch.randperm(len(self.lengths)).tolist()
        pools = [order[i : i + self.pool] for i in range(0, len(order), self.pool)]
        order = [i for pool in pools for i in sorted(pool, key=lambda i: self.lengths[i])]
        batches = [order[i : i + self.size] for i in range(0, len(order), self.size)]
        return iter([batches[k] for k in torch.randperm(len(batches)).tolist()])
"""
READER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        padding = x == 0
        hidden = self.body(self.words(x), src_key_padding_mask=padding)  # HERE
        return self.head(hidden.masked_fill(padding[..., None], 0).sum(1))
"""
PADDED = Waste(
    "sentences of very different lengths in one batch, padded to the longest",
    "compute",
    ("TD613",),
    {
        "DATA": SENTENCES,
        "LOADER": "batch_size=16, shuffle=True, collate_fn=collate",
        "MODEL": READER,
    },
    {
        "DATA": SENTENCES + SIMILAR,
        "LOADER": "batch_sampler=Similar(batch_size=16, pool=32), collate_fn=collate",
    },
    one_core=True,
)

FILTERED = """
def pool(threads):
    import ctypes
    folder = Path(np.__file__).resolve().parent.parent / "numpy.libs"
    library = ctypes.CDLL(str(next(folder.glob("libscipy_openblas*"))))
    names = "scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"
    getattr(library, next(name for name in names if hasattr(library, name)))(threads)

pool($CORES)  # its default; OMP_NUM_THREADS may say otherwise

def one_thread(worker):
    pool(1)

class Data(Dataset):
    def __init__(self):
        dice = np.random.default_rng(0)
        self.x = dice.standard_normal((64, 256, 256)).astype("float32")
        self.basis = dice.standard_normal((256, 256)).astype("float32")
    def __len__(self):
        return 4096
    def __getitem__(self, i):
        image = self.x[i % 64]
        for _ in range(2):
            image = self.basis @ image @ self.basis.T  # HERE
        return torch.from_numpy(image.mean(1)), i % 10
"""
POOLS = Waste(
    "matrix products in workers, each with a pool of as many threads as there are cores",
    "cpu",
    ("TD217",),
    {"DATA": FILTERED, "LOADER": "batch_size=16, num_workers=$CORES, persistent_workers=True"},
    {
        "LOADER": "batch_size=16, num_workers=$CORES, persistent_workers=True,"
        " worker_init_fn=one_thread",
    },
    change="loader.worker_threads=1",
)
