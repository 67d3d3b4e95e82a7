"""What is recorded about a DataLoader and a fetch, apart from times: opened files, random numbers,
values.

Files are counted in every measured fetch; the rest only in the first few fetches of a process,
during the run's warm-up.
"""

from __future__ import annotations

import builtins
import functools
import io
import itertools
import os
import pathlib
import random
import sys
import threading
import types
from typing import Any

import torch

from . import places
from .containers import containers_of
from .models import finite, nbytes, plain, strided_sample
from .patches import Patches, hidden
from .pictures import DecodeWatch
from .wire import is_user_file

FEW = 3  # files whose size is read, and folders named, in one fetch
# Opened by Python or by the system, not by the dataset.
NOT_DATA = (".py", ".pyc", ".so", ".pth")
NOT_FILES = ("/proc/", "/sys/", "/dev/")
MOST_OPENS = 100_000  # paths remembered of one fetch
MOST_OBJECTS, DEEPEST = 1000, 6  # objects and depth of a dataset to search for generators
MOST_ITEMS = 100  # of a collection: a list of transforms is shorter, and samples hold no generators
PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)


class _Opens:
    """Counts what one thread opens while it fetches.

    An audit hook would see every way to open a file, but it can never be removed, and it makes each
    ``id()`` of the program cost thirty times as much. So ``open`` is wrapped during a fetch.
    """

    def __init__(self) -> None:
        self.patches = Patches()
        self.paths: list[str] = []

    def begin(self) -> None:
        self.end()  # an earlier fetch raised
        self.paths = []
        self.thread = threading.get_ident()
        for owner in (builtins, io, os):
            self.patches.set(owner, "open", self._watched(owner.open))

    def end(self) -> list[str]:
        self.patches.undo()
        return self.paths

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def open(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self.thread:
                self._opened(args[0] if args else kwargs.get("file", kwargs.get("path")))
            return original(*args, **kwargs)

        return hidden(open)

    def _opened(self, path: Any) -> None:
        if isinstance(
            path, (bytes, pathlib.PurePath)
        ):  # not an object that only claims to be a path
            path = os.fsdecode(path)
        data = isinstance(path, str) and not path.endswith(NOT_DATA)
        if data and not path.startswith(NOT_FILES) and len(self.paths) < MOST_OPENS:
            self.paths.append(path)


_opens = _Opens()
_pictures = DecodeWatch()


def begin(closely: bool) -> Any:
    """A fetch begins. ``closely``: whether random states are compared, too."""
    states = _random_states() if closely else None
    _opens.begin()
    _pictures.begin()
    return states


def end(states: Any) -> dict[str, Any]:
    """The fetch ended: `opens`, `folders` [[folder, files opened]…], `pictures` if Pillow decoded
    any and, for the first fetches, `opened` (mean bytes of a few of the files) and `random`."""
    paths, decoded = _opens.end(), _pictures.end()
    record: dict[str, Any] = {"opens": len(paths)}
    if decoded is not None:
        record["pictures"] = decoded
    if paths:
        folders: dict[str, int] = {}
        for path in paths:
            folder = os.path.dirname(path)
            folders[folder] = folders.get(folder, 0) + 1
        most = sorted(folders.items(), key=lambda item: -item[1])[:FEW]
        record["folders"] = [(os.path.abspath(folder), opens) for folder, opens in most]
    if states is not None:
        record["random"] = _random_states() != states
        if paths:
            record["opened"] = _mean_size(paths[:FEW])
    return record


def leave() -> None:
    """The fetch raised."""
    _opens.end()
    _pictures.end()


def values_of(batch: Any, dataset: Any) -> dict[str, Any]:
    """`fields` of the batch; `own_generator`: the dataset may hold a random generator."""
    with torch._C.DisableTorchFunction():
        fields = describe_fields(batch)
    return {"fields": fields, "own_generator": _holds_generator(dataset)}


def _random_states() -> tuple[Any, ...]:
    """States of the global generators of modules that are in use."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=True) if numpy is not None else ()
    with torch._C.DisableTorchFunction():
        return (
            random.getstate(),
            tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state),
            torch.get_rng_state().tolist(),
        )


def _mean_size(paths: list[str]) -> int | None:
    sizes = [os.path.getsize(path) for path in paths if os.path.isfile(path)]
    return sum(sizes) // len(sizes) if sizes else None


def _holds_generator(dataset: Any) -> bool:
    """Whether there is a generator of random numbers in its attributes, its classes' attributes,
    its transforms, or the globals that its methods name. True for a dataset too large to search,
    because it may have one."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.Generator, numpy.RandomState)
    seen: set[int] = set()
    level = [dataset]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            if id(value) in seen or issubclass(type(value), PLAIN):
                continue
            seen.add(id(value))
            if len(seen) > MOST_OBJECTS:
                return True
            if issubclass(type(value), kinds):
                return True
            below += _parts(value)
        level = below
    return False


def _parts(value: Any) -> list[Any]:
    """The parts of a value: a collection's first items, else the values of its attributes and its
    classes' own, and the globals that its methods name. Calls no user code."""
    if type(value) in (list, tuple, dict):
        return list(itertools.islice(value.values() if type(value) is dict else value, MOST_ITEMS))
    try:
        parts = list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        parts = []
    if type(value) is types.FunctionType:
        return parts + _globals_of(value)
    if issubclass(type(value), (type, types.ModuleType)):
        return []
    for cls in type(value).__mro__:
        if not places.is_users_module(cls.__module__):
            continue
        for name, own in vars(cls).items():
            if name == "__init__":
                continue  # it ran before the fetches; what it stored is in the attributes
            parts += _globals_of(own) if type(own) is types.FunctionType else [own]
    return parts


def _globals_of(function: types.FunctionType) -> list[Any]:
    names = function.__code__.co_names
    return [function.__globals__[name] for name in names if name in function.__globals__]


MOST_TENSORS = 256  # a batch of thousands of small tensors is estimated from its first ones
MOST_FIELDS = 16
MOST_PADDED = 5_000_000  # numbers of a tensor that is searched for padding, in 27 ms on one core
MOST_EMPTY_FRAC = 0.1  # of the positions before a sequence's end; heuristic: few features are all 0
OF_255_WITHIN = 1e-3  # float32 represents k ÷ 255 to 1e-7, and times 255 to 1e-5; bfloat16 does not


def count_bytes(batch: Any) -> tuple[int | None, dict[str, int] | None]:
    """Bytes of all tensors in a batch, and by dtype; (None, None) if there are none."""
    dtypes: dict[str, int] = {}
    left = [MOST_TENSORS]

    def visit(value: Any, depth: int) -> None:
        if left[0] <= 0 or depth > 6:
            return
        if isinstance(value, torch.Tensor):
            left[0] -= 1
            name = str(value.dtype).replace("torch.", "")
            dtypes[name] = dtypes.get(name, 0) + value.numel() * value.element_size()
        elif isinstance(value, dict):
            for inner in value.values():
                visit(inner, depth + 1)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                visit(inner, depth + 1)

    visit(batch, 0)
    return (sum(dtypes.values()), dtypes) if dtypes else (None, None)


def describe_fields(batch: Any) -> list[dict[str, Any]]:
    """For each of the first tensors in a batch: `name` (its keys and indices, "image", "0.1"),
    `dtype`, `bytes`, and from a sample of its values `min`, `max`, `integral` (all are whole) and
    `of_255` (all are whole multiples of 1 ÷ 255 in 0..1: scaled bytes)."""
    found: list[dict[str, Any]] = []

    def visit(value: Any, name: str) -> None:
        if len(found) >= MOST_FIELDS or name.count(".") > 4:
            return
        if isinstance(value, torch.Tensor):
            found.append({"name": name, **_field(value)})
        elif isinstance(value, dict):
            for key, inner in value.items():
                visit(inner, f"{name}.{key}" if name else str(key))
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                visit(inner, f"{name}.{number}" if name else str(number))

    visit(batch, "")
    return found


def _field(tensor: torch.Tensor) -> dict[str, Any]:
    field = {"dtype": str(tensor.dtype).replace("torch.", ""), "bytes": nbytes(tensor)}
    readable = plain(tensor) and tensor.device.type == "cpu"
    values = strided_sample(tensor) if readable else None
    if values is None:
        return field
    low, high = finite(float(values.min())), finite(float(values.max()))
    if low is None or high is None:
        return field
    scaled = values * 255
    near = bool((scaled - scaled.round()).abs().max() < OF_255_WITHIN)
    return {
        **field,
        "min": low,
        "max": high,
        "integral": bool((values == values.round()).all()),
        "of_255": low >= 0.0 and high <= 1.0 and near,
        "padded": _padded(tensor),
    }


def _padded(tensor: torch.Tensor) -> list[int] | None:
    """Sequences of features that end in zeros: samples, their positions with padding, the positions
    of the longest, and the sum without padding. Time is the second or the last of three dimensions,
    whichever has more padding. None for another form, without padding, for masks, and for samples
    that all end at the same position or are empty in between, which is their content."""
    if tensor.dim() != 3 or not tensor.is_floating_point() or min(tensor.shape) < 2:
        return None
    if tensor.numel() > MOST_PADDED or bool(((tensor == 0) | (tensor == tensor.max())).all()):
        return None
    found: list[list[int]] = []
    for dim in (1, 2):
        used = (tensor != 0).any(dim=3 - dim)
        positions = torch.arange(1, used.shape[1] + 1)
        lengths = (used * positions).amax(1)
        longest = int(lengths.max())
        whole = int(used.sum()) >= (1 - MOST_EMPTY_FRAC) * int(lengths.sum())
        if longest and whole and int(lengths.min()) < longest:
            found.append([len(lengths), used.shape[1], longest, int(lengths.sum())])
    return min(found, key=lambda x: x[3] / (x[0] * x[1]), default=None)


def describe_loader(loader: Any, at: Any) -> dict[str, Any]:
    """The fields of the `loader` record; ``at``: where it was made."""
    dataset = _innermost(loader.dataset)
    # torch gives its IterableDataset a __getitem__, too.
    stream = isinstance(dataset, torch.utils.data.IterableDataset)
    read = None if stream else getattr(type(dataset), "__getitem__", None)
    read = read or getattr(type(dataset), "__iter__", None)
    collate = _users_collate(loader.collate_fn)
    return {
        "at": at,
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "drop_last": bool(loader.drop_last),
        "in_order": getattr(loader, "in_order", None),
        "start_method": _start_method(loader),
        "dataset_class": _class_name(dataset),
        "dataset_at": places.definition(read),
        "dataset_len": length(dataset),
        "containers": containers_of(dataset),
        "sampler_len": _pass_length(loader),
        "sampler_at": _sampler_at(loader),
        "sampler_class": type(loader.sampler).__name__,
        "collate_name": _function_name(collate),
        "collate_at": places.definition(collate),
    }


def _start_method(loader: Any) -> str:
    """How its workers start, or would. Asking for the default's name would settle it, and a later
    ``set_start_method`` would fail; the first of all methods is the default."""
    import multiprocessing

    context = loader.multiprocessing_context or multiprocessing
    name = context.get_start_method(allow_none=True)
    return name or multiprocessing.get_all_start_methods()[0]


def _users_collate(collate: Any) -> Any:
    """The function itself; what it wraps, if it is a library's object around one of the user's
    (transformers' RemoveColumnsCollator)."""
    if _is_users(collate):
        return collate
    inside = getattr(collate, "__dict__", {}).values()
    return next((value for value in inside if callable(value) and _is_users(value)), collate)


def _is_users(function: Any) -> bool:
    place = places.definition(function)
    return place is not None and is_user_file(place[0])


def _function_name(function: Any) -> str:
    """The name of the function; for a partial, of what it calls; for an object, of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _class_name(dataset: Any) -> str:
    """Dataset class name; torch's own if the subclass inherits how samples are read."""
    kind = type(dataset)
    reads = [base for base in kind.__mro__ if {"__getitem__", "__iter__"} & vars(base).keys()]
    torchs = reads and reads[0].__module__.startswith("torch.utils.data.")
    return (reads[0] if torchs else kind).__name__


def _innermost(dataset: Any) -> Any:
    """The user's dataset inside torch's own wrappers (Subset, …)."""
    for _ in range(10):
        inner = getattr(dataset, "dataset", None)
        if inner is None or not type(dataset).__module__.startswith("torch."):
            break
        dataset = inner
    return dataset


def _pass_length(loader: Any) -> int | None:
    """Samples of one pass, if torch's own batch sampler asks the sampler for them."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return None
    own = type(loader.batch_sampler) not in (type(None), torch.utils.data.BatchSampler)
    return None if own else length(loader.sampler)


def _sampler_at(loader: Any) -> list[Any] | None:
    """Where the user's own sampler chooses the samples; None for torch's."""
    for sampler in (loader.batch_sampler, loader.sampler):
        if at := places.definition(getattr(type(sampler), "__iter__", None)):
            return at
    return None


def length(dataset: Any) -> int | None:
    """``len`` of a map-style dataset; None for streams and if it fails."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    try:
        return len(dataset)
    except Exception:  # the user's __len__ may do anything; then the length is unknown
        return None
