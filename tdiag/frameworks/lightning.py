"""Lightning's ``Trainer``. Its DataLoader is the user's own, so those rules need no other words.

Names as in Lightning 2.2 to 2.6 (``lightning/pytorch/trainer/trainer.py``); a test asks the
installed version for each.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tdiag.frameworks.framework import Framework, LoggingPart

_COMPILE = "compile the LightningModule before Trainer.fit: model = torch.compile(model)"
_MOVES = "the Trainer moves batches with non_blocking=True by itself"

LIGHTNING = Framework(
    package="lightning",
    name="Lightning",
    fixes={
        "TD001": "return the scheduler with the optimizer from configure_optimizers()",
        "TD002": "return a torch.optim.AdamW from configure_optimizers()",
        "TD006": 'Trainer(precision="bf16-mixed"), or "16-mixed", which scales the loss',
        "TD007": "Trainer(accumulate_grad_batches={value})",
        "TD008": "Trainer(gradient_clip_val={value})",
        "TD301": f"DataLoader(..., pin_memory=True) in train_dataloader(); {_MOVES}",
        "TD302": _MOVES,
        "TD502": "compile the function that training_step calls for its loss",
        "TD601": 'Trainer(precision="bf16-mixed")',
        "TD602": "Trainer(benchmark=True)",
        "TD604": _COMPILE,
        "TD701": f"a larger batch in train_dataloader(), or {_COMPILE}",
        "TD702": "create the optimizer in configure_optimizers() with fused=True",
        "TD704": "Trainer(detect_anomaly=False, profiler=None), the defaults",
        "TD802": (
            "Trainer(val_check_interval=...) or Trainer(check_val_every_n_epoch=...), a larger"
            " number, or limit_val_batches for a smaller sample"
        ),
        "TD803": "ModelCheckpoint(every_n_train_steps={value}) among Trainer(callbacks=...)",
        "TD804": (
            "Trainer(log_every_n_steps={value}), and for the progress bar"
            " TQDMProgressBar(refresh_rate={value}) among Trainer(callbacks=...)"
        ),
        "TD901": 'Trainer(strategy="ddp")',
        "TD903": "Trainer(strategy=DDPStrategy(gradient_as_bucket_view=True, bucket_cap_mb=...))",
        "TD904": 'Trainer(strategy="ddp"), which does not search for unused parameters',
        "TD905": "Trainer(accumulate_grad_batches=...), which reduces the last micro-batch only",
    },
    evaluates=re.compile(r"(lightning/pytorch|pytorch_lightning)/loops/evaluation_loop\.py:"),
    prepares=re.compile(
        r"(lightning/pytorch|pytorch_lightning)/loops/fit_loop\.py:(_FitLoop\.)?setup_data$"
    ),
    follows=frozenset({"on_train_batch_end"}),
    runs="fit",
    logging=(
        LoggingPart(
            "the progress bar",
            re.compile(
                r"lightning/pytorch/callbacks/progress/|pytorch_lightning/callbacks/progress/"
            ),
            "TQDMProgressBar(refresh_rate={value}) among Trainer(callbacks=...), or"
            " Trainer(enable_progress_bar=False)",
        ),
        # It updates a metric in every call, whatever log_every_n_steps is.
        LoggingPart(
            "self.log",
            re.compile(r"lightning/(pytorch/)?core/module\.py:(LightningModule\.)?log(_dict)?$"),
            "call self.log only if self.global_step % {value} == 0, and self.log_dict once"
            " instead of self.log for each value",
        ),
        LoggingPart(
            "the logger",
            re.compile(
                r"lightning/(pytorch/|fabric/)?(loggers/"
                r"|trainer/connectors/logger_connector/.*(log|update_train_step)_metrics$"
                r"|callbacks/(lr_monitor|device_stats_monitor|throughput_monitor)\.py)"
            ),
            "Trainer(log_every_n_steps={value})",
        ),
    ),
)
PYTORCH_LIGHTNING = replace(LIGHTNING, package="pytorch_lightning")
