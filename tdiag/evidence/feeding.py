"""What feeds the training: loaders, batches, their storage, and the tensors that reach the
model."""

from __future__ import annotations

import math

from tdiag.evidence.torch_ops import SameInput
from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC

# Heuristic: a longer epoch is meant to be endless; at 1,000 samples per second it takes 11 days.
ENDLESS_SAMPLES = 10**9


class InputTensor(Kind, frozen=True, kw_only=True):
    """A floating-point tensor as an outermost module receives it in training.

    ``name``: its place among the arguments ("0", "1.image") or its keyword. Mean and standard
    deviation are per channel (dimension 1 of 3 or more, up to 16 channels), else over all values;
    from the first samples of two batches, up to 1 MiB of each.
    """

    name: str
    module: str
    module_at: Place | None
    dtype: str
    shape: tuple[int, ...]  # of the last batch inspected
    channel_mean: tuple[float, ...]
    channel_std: tuple[float, ...]
    minimum: float
    maximum: float
    first: bool = True  # the module's first tensor, integers included, except labels
    binary: bool = False  # only zeros and ones


class Inputs(Kind, frozen=True, kw_only=True):
    """The model's inputs in the first training steps, after all changes to the batches. Empty if it
    takes no floating-point tensors."""

    tensors: tuple[InputTensor, ...]


class PaddedLookup(Kind, frozen=True, kw_only=True):
    """Tokens of batch × sequence that a line looks up in embedding tables, over all counted steps.
    ``positions``: looked up, padding included; ``tokens``: without padding; ``longest``: positions
    if each batch were only as long as its longest sequence. ``by``: how padding is recognised, by a
    ``mask`` or the table's ``padding_idx``."""

    at: Place | None
    by: str
    sequences: int
    positions: int
    longest: int
    tokens: int


class PaddedLookups(Kind, frozen=True, kw_only=True):
    """Lookups whose padding can be recognised; those without padding are not listed. ``packed``:
    some sequences were packed afterwards, so their padding was not computed."""

    lookups: tuple[PaddedLookup, ...]
    packed: bool


class PaddedField(Kind, frozen=True, kw_only=True):
    """Sequences of features of different lengths, padded with zeros; sums over the first batches.
    ``positions``: with padding; ``longest``: of them if each batch were as long as its longest
    sequence; ``used``: without padding."""

    sequences: int
    positions: int
    longest: int
    used: int


class BatchField(Kind, frozen=True, kw_only=True):
    """One tensor of the batches. ``name``: its keys and indices in the batch ("image", "0.1").

    Values come from a sample of at most 65,536 in each of the first few batches; None if they were
    not read (not contiguous, infinite). ``integral``: all were whole numbers. ``of_255``: all were
    whole multiples of 1 ÷ 255 within 0..1, like pixels that were bytes before. ``padded``: None
    without padding in any batch.
    """

    name: str
    dtype: str
    bytes: float
    minimum: float | None
    maximum: float | None
    integral: bool | None
    of_255: bool | None
    padded: PaddedField | None = None


class Shrunk(Kind, frozen=True, kw_only=True):
    """JPEG pictures that Pillow decoded in full and that were then scaled down as a whole; means
    per batch. ``scale``: 2, 4 or 8, by which the decoder could have divided width and height;
    ``careful_scale``: the same for a picture with twice the final width and height, at least 1."""

    scale: int
    careful_scale: int
    pictures: float
    decode_ns: float  # CPU time; so are the next two
    resize_ns: float
    between_ns: float  # the thread's CPU time between the two


class Pictures(Kind, frozen=True, kw_only=True):
    """The JPEG pictures of a batch that Pillow decoded. ``at``: the user's line that caused the
    decoding of the first ``shrunk`` one; ``size`` and ``to``: its size before and after scaling."""

    decoded: float
    shrunk: tuple[Shrunk, ...]
    at: Place | None
    size: tuple[int, int] | None
    to: tuple[int, int] | None


class Container(Kind, frozen=True, kw_only=True):
    """A list, tuple, dict or set that a dataset holds: its attribute, type, number of items, and
    the type of the first one."""

    attribute: str
    type: str
    items: int
    item_type: str


class WorkerMemory(Kind, frozen=True, kw_only=True):
    """Memory that each worker of a training loader wrote and shares with no other process: at the
    end, and how much more that is than ``seconds`` before. Means over the workers, bytes."""

    loader: int
    workers: int
    private_bytes: float
    grown_bytes: float
    seconds: float


class Loader(Kind, frozen=True, kw_only=True):
    """One DataLoader and its fetches in the clean window. Means are per fetched batch.

    ``load``: loading the samples (``dataset[i]``); ``collate``: the ``collate_fn``; both are
    measured where they run. ``cpu``: CPU time of the fetching thread, minus the kernel's for reads
    from storage. ``runqueue``: its time ready to run but waiting for a core (schedstat). The rest
    of the wall time is blocked. ``role``: ``train`` if its batches led to backward, else ``eval``.
    """

    id: int
    role: str
    created_at: Place | None
    iterated_at: Place | None = None  # the line that last began a pass over it
    in_a_row: int = 1  # the most passes over it between two training steps
    dataset_class: str
    dataset_at: Place | None  # __getitem__ / __iter__ of the dataset
    dataset_len: int | None
    collate_name: str
    collate_at: Place | None  # None for torch's own collate
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    in_order: bool | None
    start_method: str | None
    worker_start_ns: tuple[int, ...]  # duration of each start of the workers
    fetch_count: int
    fetch_ns: tuple[int, ...]  # wall time of each fetch (load + collate)
    load_ns: float | None
    load_cpu_ns: float | None
    collate_ns: float | None
    collate_cpu_ns: float | None
    runqueue_ns: float | None
    read_bytes: float | None  # from storage (page-cache misses), per batch
    rchar_bytes: float | None  # through read() calls, cached or not, per batch
    major_faults: float | None
    batch_bytes: float | None
    batch_dtypes: dict[str, float] | None  # bytes per batch by dtype
    drop_last: bool | None = None
    # CPU time of loading that the kernel took, with that for reads from storage, per batch.
    kernel_ns: float | None = None
    samples: float | None = None  # per batch fetched
    # Files that Python opened during a fetch, per batch, and by folder (the most frequent); files
    # that a library opens in C are not seen. ``opened_bytes``: mean size of some of the files.
    opens: float | None = None
    open_folders: tuple[tuple[str, float], ...] = ()
    opened_bytes: float | None = None
    # Whether fetches drew from the global generators of random, numpy or torch, or the dataset
    # holds its own generator. False does not exclude one that is created for each sample.
    random: bool | None = None
    fields: tuple[BatchField, ...] = ()
    # CPU time of a worker's other threads during a fetch, and the threads in each worker that
    # Python did not start (C libraries' pools). None without workers: in the training process
    # torch's own threads may spin at the same time.
    pool_cpu_ns: float | None = None
    pool_threads: int | None = None
    # Samples of one pass over it, on this rank, according to its sampler; None if unknown (a
    # stream, the user's own batch sampler, a run from before this was recorded).
    sampler_len: int | None = None
    made: int = 1  # how many equal DataLoaders this line made one after another
    sampler_class: str = ""  # class that chooses the samples; "" = unknown
    containers: tuple[Container, ...] = ()  # large ones, which the dataset holds
    pictures: Pictures | None = None  # None if Pillow decoded no JPEG
    # What its first worker called with the same input and result as before; numbers per fetch.
    again: tuple[SameInput, ...] = ()

    @property
    def reads_files(self) -> bool:
        """Whether most of loading's CPU time copies files that are in memory already: it is the
        kernel's, and ``read()`` returns at least what the batch holds."""
        kernel, read = self.kernel_ns or 0.0, self.rchar_bytes or 0.0
        mostly = kernel > MAJORITY_FRAC * (self.load_cpu_ns or 0.0)
        return bool(kernel) and mostly and read >= (self.batch_bytes or math.inf)

    @property
    def streams(self) -> bool:
        """Whether the user's own ``__iter__`` makes the samples."""
        return self.dataset_at is not None and self.dataset_at.function.endswith("__iter__")

    @property
    def epoch_samples(self) -> int | None:
        """Samples of one epoch, on this rank. None without epochs: for a stream, and for a sampler
        that gives more samples than the dataset has (``num_samples=10**10`` for an endless loop
        over the loader)."""
        if self.sampler_len is None or self.dataset_len is None:
            return None
        endless = self.sampler_len > self.dataset_len or self.sampler_len >= ENDLESS_SAMPLES
        return None if endless else self.sampler_len

    def blocked_frac(self) -> float | None:
        """Share of the fetch wall time spent neither on a core nor waiting for one, 0..1."""
        if self.load_ns is None or self.load_cpu_ns is None:
            return None
        wall = self.load_ns + (self.collate_ns or 0.0)
        busy = self.load_cpu_ns + (self.collate_cpu_ns or 0.0) + (self.runqueue_ns or 0.0)
        busy += self.awaited_cpu_ns()
        return max(0.0, 1.0 - busy / wall) if wall else None

    def awaited_cpu_ns(self) -> float:
        """CPU time of the worker's other threads during a fetch, at most the time that the fetching
        thread was off its core: it waits for them (a pool of decoding threads), not for storage."""
        wall = (self.load_ns or 0.0) + (self.collate_ns or 0.0)
        busy = (self.load_cpu_ns or 0.0) + (self.collate_cpu_ns or 0.0)
        return min(self.pool_cpu_ns or 0.0, max(0.0, wall - busy - (self.runqueue_ns or 0.0)))


class Loaders(Kind, frozen=True, kw_only=True):
    """Every DataLoader that was iterated during the run."""

    loaders: tuple[Loader, ...]

    def train(self) -> Loader | None:
        """The training loader that fetched longest in total, or None."""
        mine = [x for x in self.loaders if x.role == "train" and x.fetch_count]
        return max(mine, key=lambda x: sum(x.fetch_ns), default=None)


class FetchPart(Kind, frozen=True, kw_only=True):
    """A Python function and its own time per step (without the functions it calls). ``at``: the
    user's innermost function around it."""

    name: str
    ns: float
    at: Place | None


class TracedFetches(Kind, frozen=True, kw_only=True):
    """Requests for a batch in a trace (``enumerate(DataLoader)``), per step.

    ``workers``: whether the loader has any, from its iterator's name; None if it has both kinds or
    another. ``parts``: where the requesting thread spent most of its time, longest first; empty if
    no Python functions were recorded (``with_stack``).
    """

    workers: bool | None
    count: float
    wall_ns: float
    parts: tuple[FetchPart, ...]


class Storage(Kind, frozen=True, kw_only=True):
    """Cold reads of some files of the folder in which fetches opened most files: there, and of
    copies on a local disk of the machine.

    ``bytes`` of ``files`` files took ``ns`` in ``folder`` and ``local_ns`` in ``local``. All of
    these are None if there is no other disk to compare with. Filesystem types as the system names
    them ("nfs4", "ext4"), "" = unknown.
    """

    folder: str
    filesystem: str
    local: str | None = None
    local_filesystem: str = ""
    local_free_bytes: int | None = None
    files: int | None = None
    bytes: int | None = None
    ns: int | None = None
    local_ns: int | None = None
