"""Making batches: picking samples, handing them over, opening files, indexing tables."""

from __future__ import annotations

import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from constants import Figures, interleaved, measures, times_as_fast
from tdiag.rules.feed import COPY_BYTES_PER_S

TRIED = (2, 4, 8, 16, 32, 64)
WORTH_IT = 1.25  # times as fast: indexing at once has to pay for changing the dataset


class Own(Dataset[Any]):
    """A user's class that holds tensors."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Any:
        return self.x[index], self.y[index]


def tensors(width: int) -> tuple[Any, Any]:
    rows = min(4096, (1 << 23) // width)
    return torch.randn(rows, width), torch.randint(10, (rows,))


def fetching(dataset: Any, samples: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One batch: sample by sample and collated; by one list of indices."""
    indices = torch.randperm(len(dataset))[:samples].tolist()
    collate = torch.utils.data.default_collate
    return lambda: collate([dataset[k] for k in indices]), lambda: dataset[indices]


def saved(make: Callable[[Any, Any], Any], *shapes: tuple[int, int]) -> Figures:
    """Of the time beyond copying the batch, as the rule has it."""
    figures = {}
    for samples, width in shapes:
        x, y = tensors(width)
        one_by_one, at_once = interleaved(*fetching(make(x, y), samples))
        beyond = one_by_one - samples * (x[0].nbytes + y[0].nbytes) / COPY_BYTES_PER_S * 1e9
        figures[f"{samples} × {width}"] = (one_by_one - at_once) / beyond
    return figures


@measures(td213_samples_indexed_singly__SMALL_SAVING_LOW_FRAC="least")
def indexed_few() -> Figures:
    return saved(TensorDataset, (16, 10), (16, 784), (16, 1024), (32, 784), (32, 1024))


@measures(td213_samples_indexed_singly__OWN_SMALL_SAVING_LOW_FRAC="least")
def indexed_few_own() -> Figures:
    return saved(Own, (16, 10), (16, 784), (16, 1024), (32, 784), (32, 1024))


@measures(td213_samples_indexed_singly__SAVING_LOW_FRAC="least")
def indexed() -> Figures:
    return saved(TensorDataset, (64, 10), (64, 784), (256, 10), (256, 784), (1024, 10), (1024, 256))


@measures(feed__MIN_SAMPLES_AT_ONCE="most")
def samples_at_once() -> Figures:
    """The smallest batch from which on one list of indices is faster by ``WORTH_IT``."""
    figures = {}
    for width in (10, 784):
        dataset = TensorDataset(*tensors(width))
        wins = {count: times_as_fast(*fetching(dataset, count)) for count in TRIED}
        poor = [count for count in TRIED if wins[count] < WORTH_IT]
        figures[f"rows of {width}"] = float(2 * max(poor, default=1))
    return figures


@measures(feed__PICK_NS="most")
def picking() -> Figures:
    x, y = tensors(64)
    arrays, lists = (x.numpy(), y.numpy()), (x.tolist(), y.tolist())
    made = {"tensors": (x, y), "arrays": arrays, "lists": lists}
    return {name: interleaved(lambda a=a, b=b: (a[7], b[7]))[0] for name, (a, b) in made.items()}


@measures(td210_table_indexed_per_sample__TENSOR_SPEEDUP="most")
def rows_of_a_table() -> Figures:
    """Of columns of one type; a row of a frame of mixed types takes longer still."""
    import pandas

    x, y = tensors(20)
    table, labels = pandas.DataFrame(x.numpy()), pandas.Series(y.numpy())
    rows: dict[str, Callable[[], Any]] = {
        "iloc, values": lambda: (torch.tensor(table.iloc[7].values), labels.iloc[7]),
        "iloc, to_numpy": lambda: (torch.tensor(table.iloc[7].to_numpy()), labels.iloc[7]),
        "loc, values": lambda: (torch.tensor(table.loc[7].values), labels.loc[7]),
    }
    return {name: times_as_fast(row, lambda: (x[7], y[7])) for name, row in rows.items()}


@measures(td103_many_small_files__OPEN_NS="least")
def opening() -> Figures:
    """A file of 20 kB, opened, read and closed, against reading as much from an open one."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        single = Path(folder) / "0"
        single.write_bytes(bytes(20_000))
        shard = Path(folder) / "shard"
        shard.write_bytes(bytes(20_000 * 64))

        def path_opened() -> bytes:
            with single.open("rb") as file:
                return file.read()

        with shard.open("rb") as opened:

            def of_shard() -> bytes:
                opened.seek(20_000 * 7)
                return opened.read(20_000)

            for turn in range(3):
                alone, together = interleaved(path_opened, of_shard)
                figures[f"turn {turn}"] = alone - together
    return figures


def handed_over(numbers: int) -> float:
    """Taking a ready batch from a worker and reading it, beside reading one made here; median ns
    of this process's CPU time, so that waiting for the worker does not count."""

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield torch.ones(numbers)

    batches = iter(DataLoader(Batches(), batch_size=None, num_workers=1))
    here, taken = torch.ones(numbers), []
    for _ in range(40):
        time.sleep(0.02)
        began = time.process_time_ns()
        next(batches).sum()
        handed = time.process_time_ns()
        here.sum()
        taken.append(2 * handed - began - time.process_time_ns())
    return statistics.median(taken[5:])


@measures(feed__HANDOVER_HIGH_NS="most")
def handover() -> Figures:
    return {f"{k}: 4 kB": handed_over(1_000) for k in range(3)}


@measures(feed__HANDOVER_NS_PER_BYTE="most")
def handover_of_bytes() -> Figures:
    numbers = 2_500_000
    return {
        f"{k}: 10 MB": (handed_over(numbers) - handed_over(1_000)) / (4 * numbers) for k in range(3)
    }


@measures(feed__CORE_WORTH_LOW="least")
def second_core() -> Figures:
    """What two workers win over none at pure decoding on two cores, wall time."""
    packed = [zlib.compress(torch.randn(4000).numpy().tobytes() * 4) for _ in range(512)]

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return len(packed)

        def __getitem__(self, index: int) -> Any:
            return torch.frombuffer(bytearray(zlib.decompress(packed[index])), dtype=torch.float32)

    def epoch(workers: int) -> float:
        batches = iter(DataLoader(Samples(), batch_size=16, num_workers=workers))
        for _ in range(6):
            next(batches)
        began = time.perf_counter()
        left = sum(1 for _ in batches)
        return (time.perf_counter() - began) / left

    return {f"turn {turn}": epoch(0) / epoch(2) - 1 for turn in range(5)}


@measures(td613_padding_computed__LEFT_BY_POOLS_FRAC="most")
def padding() -> Figures:
    """Padding that pools of 50 batches leave, sequences of at most 512 sorted by length within a
    pool."""
    figures = {}
    generator = torch.Generator().manual_seed(0)
    for sequences in (2_000, 20_000):
        uniform = torch.randint(1, 513, (sequences,), generator=generator).double()
        normal = torch.randn(sequences, generator=generator).double()
        for name, lengths in {
            "uniform": uniform, "σ 0.5": (4 + 0.5 * normal).exp(), "σ 1": (4 + normal).exp(),
        }.items():  # fmt: skip
            for batch in (8, 64):
                pools = lengths.round().clamp(1, 512).split(50 * batch)
                batches = [part for pool in pools for part in pool.sort().values.split(batch)]
                padded = sum(float(part.max()) * len(part) for part in batches)
                left = 1 - sum(float(part.sum()) for part in batches) / padded
                figures[f"{name}, {sequences} in batches of {batch}"] = left
    return figures


@measures(feed__COPY_BYTES_PER_S="least", td102_reads_beyond_use__FAST_COPY_BYTES_PER_S="most")
def copying() -> Figures:
    """Into fresh memory (large) and into memory that torch or malloc kept (small)."""
    figures = {}
    for size in (1 << 16, 1 << 20, 1 << 24, 1 << 27):
        source = torch.ones(size // 4)
        figures[f"{size >> 10} KiB"] = size / interleaved(source.clone)[0] * 1e9
    return figures


# Width, height, quality, and the pixels from one patch of another colour to the next.
PHOTOGRAPHS = (
    (512, 384, 75, 8),
    (1024, 768, 85, 64),
    (1024, 768, 85, 8),
    (1024, 768, 95, 2),
    (4000, 3000, 90, 40),
)


@cache
def drafted() -> tuple[Figures, Figures]:
    """What of decoding and of scaling to half of what is left when Pillow decodes a JPEG at half
    and less of its size. The latter times the scale: the rows get shorter, or fewer as well."""
    import io

    import numpy
    from PIL import Image

    decoding, resizing = {}, {}
    for width, height, quality, patch in PHOTOGRAPHS:
        colours = (height // patch, width // patch, 3)
        noise = numpy.random.default_rng(0).integers(0, 255, colours)
        file = io.BytesIO()
        picture = Image.fromarray(noise.astype(numpy.uint8)).resize((width, height))
        picture.save(file, "JPEG", quality=quality)

        def decoded(scale: int, data: bytes = file.getvalue()) -> Any:
            opened = Image.open(io.BytesIO(data))
            opened.draft(None, (opened.width // scale, opened.height // scale))
            opened.load()
            return opened

        for scale in (2, 4, 8):
            whole, less = interleaved(lambda: decoded(1), lambda s=scale: decoded(s))
            case = f"{width} × {height}, quality {quality}, patches of {patch}, by {scale}"
            decoding[case] = less / whole
            to = (width // (2 * scale), height // (2 * scale))
            works = [
                lambda p=p, to=to: p.resize(to, Image.Resampling.BILINEAR)
                for p in (decoded(1), decoded(scale))
            ]
            before, after = interleaved(*works)
            resizing[case] = after / before * scale
    return decoding, resizing


@measures(
    td220_pictures_decoded_too_large__DECODING_LEFT_LEAST="least",
    td220_pictures_decoded_too_large__DECODING_LEFT_MOST="most",
)
def decoding_drafted() -> Figures:
    return drafted()[0]


@measures(
    td220_pictures_decoded_too_large__RESIZING_LEFT_LEAST="least",
    td220_pictures_decoded_too_large__RESIZING_LEFT_MOST="most",
)
def resizing_drafted() -> Figures:
    return drafted()[1]
