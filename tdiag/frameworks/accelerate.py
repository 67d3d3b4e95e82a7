"""Hugging Face Accelerate under the user's own loop.

Names as in accelerate 0.30 to 1.15 (``accelerate/accelerator.py``); a test asks the installed
version for each.
"""

from __future__ import annotations

import re

from tdiag.frameworks.framework import Framework, LoggingPart

_DDP = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({0})])"
_ACCUMULATE = (
    "Accelerator(gradient_accumulation_steps={0}), with accelerator.accumulate(model): around the"
    " micro-batch"
)

ACCELERATE = Framework(
    package="accelerate",
    name="Accelerate",
    fixes={
        "TD006": 'Accelerator(mixed_precision="bf16"), or "fp16", which scales the loss',
        "TD007": _ACCUMULATE.format("{value}"),
        "TD008": "accelerator.clip_grad_norm_(model.parameters(), {value}) before the step",
        "TD301": (
            "DataLoader(..., pin_memory=True) before accelerator.prepare, and"
            " Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))"
        ),
        "TD302": "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))",
        "TD601": 'Accelerator(mixed_precision="bf16")',
        "TD604": 'Accelerator(dynamo_backend="inductor")',
        "TD701": 'a larger batch, or Accelerator(dynamo_backend="inductor")',
        "TD903": _DDP.format("gradient_as_bucket_view=True, bucket_cap_mb=..."),
        "TD904": _DDP.format("find_unused_parameters=False"),
        "TD905": _ACCUMULATE.format("..."),
    },
    logging=(
        LoggingPart(
            "accelerator.log",
            re.compile(r"accelerate/(tracking\.py:|accelerator\.py:(Accelerator\.)?log$)"),
            "accelerator.log(values, step) every {value} steps",
        ),
        LoggingPart(
            "accelerator.print",
            re.compile(r"accelerate/(logging\.py:|accelerator\.py:(Accelerator\.)?print$)"),
            "accelerator.print(...) and its logger every {value} steps",
        ),
    ),
)
