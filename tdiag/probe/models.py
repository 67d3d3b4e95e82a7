"""What is read from a module when it is first called: its layers, and its input tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from . import accelerator
from .by_tensor import ByTensor
from .wire import MOST_GRAPH_NODES

# A stride through a large tensor: 65,536 values are read in well under a millisecond, and what is
# true of all of them is true of all but a few in a hundred thousand of the rest.
MOST_VALUES = 65_536


def nbytes(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():  # no code of a subclass of tensors
        return tensor.numel() * tensor.element_size()


def node_of(tensor: torch.Tensor) -> Any:
    """Its node in the graph, or None; also None for a view whose node torch cannot make: it was
    taken without gradients, and its base was changed with gradients (in torch.optim.LBFGS)."""
    try:
        with torch._C.DisableTorchFunction():  # no code of a subclass of tensors
            return tensor.grad_fn
    except RuntimeError:
        return None


def class_name(module: torch.nn.Module) -> str:
    """Of a scripted module: that of the one that it was made from."""
    own = type(module).__name__
    scripted = isinstance(module, torch.jit.ScriptModule)
    return str(getattr(module, "original_name", own)) if scripted else own


def nodes_below(roots: Iterable[torch.Tensor]) -> set[Any]:
    """The nodes of the graph of these tensors, about ``MOST_GRAPH_NODES`` at most."""
    seen = {node for node in map(node_of, roots) if node is not None}
    left = list(seen)
    while left and len(seen) < MOST_GRAPH_NODES:  # a node takes about a microsecond
        for node, _ in left.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                left.append(node)
    return seen


def plain(tensor: Any) -> bool:
    """Whether it is a dense tensor whose values can be read: no subclass, not sparse, not meta."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type in accelerator.READABLE
        and not tensor.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def recorded_by_jit() -> bool:
    """Whether torch.jit.trace runs: it would make ops of tdiag's a part of the script's graph."""
    return torch._C._get_tracing_state() is not None


def watched_by_script() -> bool:
    """Whether tdiag's ops would be seen: by the script's profiler, its dispatch mode, a CUDA
    graph."""
    if torch._C._autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack():
        return True
    return accelerator.capturing()


def strided_sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """At most about ``MOST_VALUES`` of its values, float64; None if that would copy all of it.

    The stride is not a multiple of 2 or 3, so that no channel of an image is skipped.
    """
    if tensor.is_complex() or not tensor.is_contiguous() or not tensor.numel():
        return None
    stride = max(1, tensor.numel() // MOST_VALUES)
    while stride > 1 and (stride % 2 == 0 or stride % 3 == 0):
        stride += 1
    return tensor.detach().view(-1)[::stride].to(torch.float64)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


MOST_LOOKS, MOST_TENSORS = 2, 4  # calls of a module, tensors of a call
# Keywords under which models receive their targets.
LABELS = {"label", "labels", "label_ids", "target", "targets", "y"}
MOST_CHANNELS = 16  # with more they are features, not channels of an image
# The first samples of a batch, up to 262,144 float32 values: about a millisecond.
MOST_BYTES = 1 << 20


def describe(args: Any, kwargs: Any) -> list[dict[str, Any]]:
    """For each of the first floating-point tensors among the arguments: `name` (its place, or
    keyword), `first` (it is the first tensor of all except labels; a later one may be a mask, a
    state, a number), `dtype`, `shape`, `mean` and `std` (per channel, dimension 1, for 3 or more
    dimensions; else over all values), `min`, `max`, `binary` (only zeros and ones)."""
    named = [*((str(n), value) for n, value in enumerate(args)), *kwargs.items()]
    given: list[tuple[str, torch.Tensor]] = []
    for name, value in named:
        given += _tensors(name, value)
    found = [(name, tensor) for name, tensor in given if _readable(tensor)]
    first = next((name for name, _ in given if name.rsplit(".", 1)[-1] not in LABELS), None)
    if watched_by_script():
        return []
    with torch.no_grad(), torch._C.DisableTorchFunction():
        looked = [(name, _describe(tensor)) for name, tensor in found[:MOST_TENSORS]]
    return [
        {"name": name, "first": name == first, **about}
        for name, about in looked
        if about is not None
    ]


def _tensors(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, (list, tuple)):
        inner = list(enumerate(value))
    return [(f"{name}.{key}", v) for key, v in inner if isinstance(v, torch.Tensor)]


def _readable(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of numbers that no other module has computed."""
    given = plain(tensor) and tensor.is_floating_point() and tensor.grad_fn is None
    return bool(given and tensor.numel())


def _describe(tensor: torch.Tensor) -> dict[str, Any] | None:
    whole = list(tensor.shape)
    if tensor.dim():
        share = max(1, len(tensor) * MOST_BYTES // max(1, nbytes(tensor)))
        tensor = tensor[:share]
    values = tensor.to(torch.float32)
    low, high = finite(float(values.min())), finite(float(values.max()))
    if low is None or high is None:
        return None
    by_channel = values.dim() >= 3 and values.shape[1] <= MOST_CHANNELS
    rows = values.transpose(0, 1).flatten(1) if by_channel else values.reshape(1, -1)
    return {
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "shape": whole,
        "mean": rows.mean(1).tolist(),
        "std": rows.std(1, correction=0).tolist(),
        "min": low,
        "max": high,
        "binary": bool(((values == 0) | (values == 1)).all()),
    }


# How many weights' values are compared, per module and in total; and numbers of each.
WEIGHTS_OF_ONE, MOST_WEIGHTS, NUMBERS = 4, 32, 64


class FrozenValues:
    """A few numbers of weights that nothing trains, kept from one window to the next, because a
    script may change them by hand, to an average of the trained ones."""

    def __init__(self) -> None:
        self.known: ByTensor[list[float]] = ByTensor(MOST_WEIGHTS)

    def note(self, weight: torch.Tensor) -> None:
        if weight in self.known or len(self.known) == MOST_WEIGHTS:
            return
        if plain(weight) and not watched_by_script():
            self.known.keep(weight, _numbers(weight))

    def note_all(self, module: torch.nn.Module) -> None:
        """Note a module that is called for the first time."""
        frozen = (parameter for parameter in module.parameters() if not parameter.requires_grad)
        for weight in islice(frozen, WEIGHTS_OF_ONE):
            self.note(weight)

    def changed(self) -> bool:
        return any(_numbers(weight) != before for weight, before in self.known.alive())


def _numbers(weight: torch.Tensor) -> list[float]:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        flat = weight.detach().reshape(-1)
        found: list[float] = flat[:: max(1, len(flat) // NUMBERS)][:NUMBERS].tolist()
    return found


MOST_CLASSES = 60
# Layers that compute something different in training and in evaluation.
MODE_DEPENDENT = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.RReLU,
)
_CONVOLUTION = torch.nn.modules.conv._ConvNd


def scan(module: torch.nn.Module) -> dict[str, Any]:
    """`classes` {class: how many}, `mode_dependent` (classes), `dtypes` and `devices` {dtype, type
    of device: bytes of parameters}, `conv_bytes` and of these `channels_last_bytes` (weights of 4
    dimensions)."""
    layers = list(module.modules())
    classes = Counter(map(class_name, layers))
    dtypes: dict[str, int] = {}
    devices: dict[str, int] = {}
    for parameter in module.parameters():
        name, where = str(parameter.dtype).replace("torch.", ""), parameter.device.type
        dtypes[name] = dtypes.get(name, 0) + nbytes(parameter)
        devices[where] = devices.get(where, 0) + nbytes(parameter)
    weights = [layer.weight for layer in layers if isinstance(layer, _CONVOLUTION)]
    flat = [w for w in weights if w.dim() == 4]
    last = [w for w in flat if w.is_contiguous(memory_format=torch.channels_last)
            and not w.is_contiguous()]  # fmt: skip
    return {
        "classes": dict(classes.most_common(MOST_CLASSES)),
        "mode_dependent": sorted(
            {class_name(layer) for layer in layers if isinstance(layer, MODE_DEPENDENT)}
        ),
        "dtypes": dtypes,
        "devices": devices,
        "conv_bytes": sum(map(nbytes, flat)),
        "channels_last_bytes": sum(map(nbytes, last)),
    }


def find_ddp(module: torch.nn.Module) -> Any:
    """The DistributedDataParallel that this module is or contains, or None."""
    return next(
        (m for m in module.modules() if type(m).__name__ == "DistributedDataParallel"), None
    )


def ddp_settings(ddp: Any) -> dict[str, Any]:
    """The fields of the `ddp` record: how it reduces the gradients."""
    data = ddp._get_ddp_logging_data()
    return {
        "find_unused_parameters": bool(ddp.find_unused_parameters),
        "static_graph": bool(ddp.static_graph),
        "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
        "bucket_bytes": int(getattr(ddp, "bucket_bytes_cap", 0)) or None,
        "comm_hook": str(data.get("comm_hook") or ""),
        "parameter_bytes": sum(nbytes(p) for p in ddp.parameters() if p.requires_grad),
    }


def sent_buffers(ddp: Any) -> list[torch.Tensor]:
    """The buffers that rank 0 sends before each forward."""
    return list(ddp.modules_buffers) if ddp.will_sync_module_buffers() else []


def updated(optimizers: Iterable[Any]) -> set[int]:
    """Ids of the parameters in a group whose learning rate is not 0."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(p) for group in groups if learning_rate(group) != 0 for p in group["params"]}


def learning_rate(group: dict[str, Any]) -> float | None:
    """A group's learning rate; None if it has none, or on a device, where reading it would wait."""
    rate = group.get("lr")
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else None
    return float(rate) if isinstance(rate, (int, float)) else None
