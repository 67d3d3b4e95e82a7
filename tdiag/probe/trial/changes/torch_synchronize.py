"""The script does not wait for all of the device's work."""

from typing import Any

from ..change import SAME, Change, Trial, off
from ..skipped import skip

NAME = "torch.synchronize"


def install(trial: Trial, value: Any) -> None:
    import torch

    for name in ("cuda", "xpu", "mps", "accelerator"):
        device = getattr(torch, name, None)
        if hasattr(device, "synchronize"):
            skip(trial, NAME, device, "synchronize")


CHANGE = Change(
    name=NAME,
    does="torch.cuda.synchronize() does nothing where the script calls it.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="the script does not call torch.cuda.synchronize()",
    limits="the script's own timings then measure only launching; a script that reads memory of a"
    " copy with non_blocking=True gets other numbers",
    edit="remove torch.cuda.synchronize() from the loop",
    install=install,
)
