"""The script does not release the device memory that torch caches."""

from typing import Any

from ..change import SAME, Change, Trial, off
from ..skipped import skip

NAME = "torch.empty_cache"


def install(trial: Trial, value: Any) -> None:
    import torch

    for name in ("cuda", "xpu", "mps", "accelerator"):
        device = getattr(torch, name, None)
        if hasattr(device, "empty_cache"):
            skip(trial, NAME, device, "empty_cache")


CHANGE = Change(
    name=NAME,
    does="torch.cuda.empty_cache() does nothing where the script calls it.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="the script does not call torch.cuda.empty_cache()",
    limits="torch holds more memory, which another program on the device may need",
    edit="remove torch.cuda.empty_cache() from the loop",
    install=install,
)
