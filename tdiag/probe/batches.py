"""Says what a DataLoader is, and measures what it hands out."""

from __future__ import annotations

from typing import Any

import torch

from . import places
from .tensors import finite, nbytes, plain, strided_sample

MOST_TENSORS = 256  # a batch of thousands of small tensors is weighed by its first ones
MOST_FIELDS = 16
OF_255_WITHIN = 1e-3  # float32 holds k ÷ 255 to 1e-7, and times 255 to 1e-5; bfloat16 does not


def count_bytes(batch: Any) -> tuple[int | None, dict[str, int] | None]:
    """Bytes of all tensors in a batch, and by dtype; (None, None) where there is none."""
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
    """Of each of the first tensors in a batch: `name` (its keys and indices, "image", "0.1"),
    `dtype`, `bytes`, and of a sample of its values `min`, `max`, `integral` (all are whole) and
    `of_255` (all are whole multiples of 1 ÷ 255 in 0..1: bytes that were scaled)."""
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
    }


def describe_loader(loader: Any, at: Any) -> dict[str, Any]:
    """The fields of the `loader` record; ``at``: where it was made."""
    dataset = _innermost(loader.dataset)
    read = getattr(type(dataset), "__getitem__", None) or getattr(type(dataset), "__iter__", None)
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else None
    if method is None and loader.num_workers:
        import multiprocessing

        method = multiprocessing.get_start_method()
    return {
        "at": at,
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "drop_last": bool(loader.drop_last),
        "in_order": getattr(loader, "in_order", None),
        "start_method": method,
        "dataset_class": _class_name(dataset),
        "dataset_at": places.definition(read),
        "dataset_len": length(dataset),
        "sampler_len": _pass_length(loader),
        "collate_name": getattr(
            loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__
        ),
        "collate_at": places.definition(loader.collate_fn),
    }


def _class_name(dataset: Any) -> str:
    """Of its class; of torch's where a subclass reads its samples as that does."""
    kind = type(dataset)
    reads = [base for base in kind.__mro__ if {"__getitem__", "__iter__"} & vars(base).keys()]
    torchs = reads and reads[0].__module__.startswith("torch.utils.data.")
    return (reads[0] if torchs else kind).__name__


def _innermost(dataset: Any) -> Any:
    """Through torch's own wrappers (Subset, …) to the dataset that the user wrote."""
    for _ in range(10):
        inner = getattr(dataset, "dataset", None)
        if inner is None or not type(dataset).__module__.startswith("torch."):
            break
        dataset = inner
    return dataset


def _pass_length(loader: Any) -> int | None:
    """Samples of one pass, where torch's own batch sampler asks the sampler for them."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return None
    own = type(loader.batch_sampler) not in (type(None), torch.utils.data.BatchSampler)
    return None if own else length(loader.sampler)


def length(dataset: Any) -> int | None:
    """``len`` of a map-style dataset; None for streams and whatever refuses."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    try:
        return len(dataset)
    except Exception:  # the user's __len__ may do anything; not knowing is an answer
        return None
