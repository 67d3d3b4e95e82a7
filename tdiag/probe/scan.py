"""What a module is made of, read once, when it is first called."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from .tensors import nbytes

MOST_CLASSES = 60
# Layers that compute something else in training than in evaluation.
MODE_DEPENDENT = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.RReLU,
)
_CONVOLUTION = torch.nn.modules.conv._ConvNd


def scan(module: torch.nn.Module) -> dict[str, Any]:
    """`classes` {class: how many}, `mode_dependent` (classes), `dtypes` {dtype: bytes of
    parameters}, `conv_bytes` and of these `channels_last_bytes` (weights of 4 dimensions)."""
    layers = list(module.modules())
    classes = Counter(type(layer).__name__ for layer in layers)
    dtypes: dict[str, int] = {}
    for parameter in module.parameters():
        name = str(parameter.dtype).replace("torch.", "")
        dtypes[name] = dtypes.get(name, 0) + nbytes(parameter)
    weights = [layer.weight for layer in layers if isinstance(layer, _CONVOLUTION)]
    flat = [w for w in weights if w.dim() == 4]
    last = [w for w in flat if w.is_contiguous(memory_format=torch.channels_last)
            and not w.is_contiguous()]  # fmt: skip
    return {
        "classes": dict(classes.most_common(MOST_CLASSES)),
        "mode_dependent": sorted(
            {type(layer).__name__ for layer in layers if isinstance(layer, MODE_DEPENDENT)}
        ),
        "dtypes": dtypes,
        "conv_bytes": sum(map(nbytes, flat)),
        "channels_last_bytes": sum(map(nbytes, last)),
    }


def find_ddp(module: torch.nn.Module) -> Any:
    """The DistributedDataParallel that is or lies in this module, or None."""
    return next(
        (m for m in module.modules() if type(m).__name__ == "DistributedDataParallel"), None
    )


def ddp_settings(ddp: Any) -> dict[str, Any]:
    """The fields of the `ddp` record: how it was told to reduce the gradients."""
    data = ddp._get_ddp_logging_data()
    return {
        "find_unused_parameters": bool(ddp.find_unused_parameters),
        "static_graph": bool(ddp.static_graph),
        "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
        "bucket_bytes": int(getattr(ddp, "bucket_bytes_cap", 0)) or None,
        "comm_hook": str(data.get("comm_hook") or ""),
        "parameter_bytes": sum(nbytes(p) for p in ddp.parameters() if p.requires_grad),
    }
