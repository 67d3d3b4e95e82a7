"""Matrix products of float32 tensors run on faster units (TF32, bfloat16)."""

import functools

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, at

NAME = "torch.float32_matmul_precision"


def lower(text: str) -> str:
    if text not in ("high", "medium"):
        raise ValueError("takes high (TF32) or medium (bfloat16)")
    return text


def install(trial: Trial, value: str) -> None:
    import torch

    original = torch.set_float32_matmul_precision
    before = torch.get_float32_matmul_precision()

    @functools.wraps(original)
    def set_float32_matmul_precision(precision: str) -> None:
        if precision != value:
            line = caller()
            trial.applied(NAME, f"{precision}{at(line)} → {value}", line)
        original(value)

    trial.patches.set(torch, "set_float32_matmul_precision", hidden(set_float32_matmul_precision))
    if before == value:
        trial.refused(NAME, f"the precision is {value} already")
    else:
        original(value)
        # Again after warm-up: the script may have set torch.backends.cuda.matmul.allow_tf32.
        trial.probe.when_warm(lambda: original(value))
        trial.sets(NAME, f"{before} → {value}")


CHANGE = Change(
    name=NAME,
    does="Matrix products of float32 tensors run on faster units (TF32, bfloat16).",
    safety=ROUNDING,
    takes="high or medium",
    parse=lower,
    absent="torch was not imported",
    limits="convolutions have their own setting; a device without such units gets no faster",
    edit='torch.set_float32_matmul_precision("high")',
    install=install,
)
