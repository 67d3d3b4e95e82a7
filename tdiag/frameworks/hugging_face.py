"""Hugging Face ``transformers.Trainer``: settings are ``TrainingArguments``.

Names as in transformers 4.40 and 5.23 (``src/transformers/training_args.py``); a test asks the
installed version for each.
"""

from __future__ import annotations

import re

from tdiag.frameworks.framework import Framework, LoggingPart


def _argument(setting: str) -> str:
    return f"TrainingArguments({setting})"


_WORKERS = _argument("dataloader_num_workers={value}")
_COMPILE = _argument("torch_compile=True")
_GROUPED = _argument('train_sampling_strategy="group_by_length"')
_FUSED = _argument('optim="adamw_torch_fused"')

TRAINER = Framework(
    package="transformers",
    name="Hugging Face Trainer",
    fixes={
        "TD001": _argument('lr_scheduler_type="cosine"'),
        "TD002": _FUSED,
        "TD004": _argument("dataloader_drop_last=True"),
        "TD006": f"{_argument('bf16=True')}, or fp16=True, which scales the loss",
        "TD007": _argument("gradient_accumulation_steps={value}"),
        "TD008": _argument("max_grad_norm={value}"),
        "TD101": f"overlap the reads with {_WORKERS}",
        "TD201": _WORKERS,
        "TD203": _argument("dataloader_persistent_workers=True"),
        "TD204": _argument("dataloader_prefetch_factor={value}"),
        "TD205": _WORKERS,
        "TD206": "change the function that is passed as Trainer(data_collator=...)",
        "TD301": f"{_argument('dataloader_pin_memory=True')}; the Trainer moves the batch",
        "TD502": f"{_COMPILE}, which compiles the model and the loss inside it",
        "TD601": f"{_argument('bf16=True')}; to keep float32, tf32=True",
        "TD604": _COMPILE,
        "TD606": _argument("per_device_train_batch_size={value}"),
        "TD608": (
            'make the model with attn_implementation="sdpa", and with "eager" only where its'
            " attention weights are read"
        ),
        "TD613": (
            "let Trainer(data_collator=DataCollatorWithPadding(tokenizer)) pad each batch, not the"
            " tokenizer to its max_length; then"
            f" {_GROUPED} saves more"
        ),
        "TD614": (
            "set the dropout of attention to 0 in the model's config (attention_dropout,"
            " attention_probs_dropout_prob or attn_pdrop)"
        ),
        "TD701": "a larger per_device_train_batch_size, or TrainingArguments(torch_compile=True)",
        "TD702": _FUSED,
        "TD725": _argument('debug=""') + ', if the hook is that of debug="underflow_overflow"',
        "TD802": (
            _argument('eval_strategy="steps", eval_steps=...')
            + ", a larger number; if metrics need less than all logits,"
            " Trainer(preprocess_logits_for_metrics=...) keeps only that"
        ),
        "TD803": _argument('save_strategy="steps", save_steps={value}'),
        "TD804": (
            f"{_argument('logging_steps={value}')}; without the progress bar"
            f" {_argument('disable_tqdm=True')}"
        ),
        "TD806": (
            f"{_argument('gradient_checkpointing=True')}, or half the per_device_train_batch_size"
            " and twice the gradient_accumulation_steps"
        ),
        "TD807": _argument("gradient_checkpointing=False"),
        "TD809": f"{_argument('torch_empty_cache_steps=None')}, its default",
        "TD813": (
            _argument('optim="adamw_bnb_8bit"')
            + ", with bitsandbytes; on several devices "
            + _argument('fsdp="full_shard"')
        ),
        "TD903": f"try smaller and larger {_argument('ddp_bucket_cap_mb=...')}",
        "TD904": _argument("ddp_find_unused_parameters=False"),
    },
    evaluates=re.compile(r"transformers/trainer\.py:(Trainer\.)?_?(evaluate|evaluation_loop)$"),
    collects=re.compile(r"transformers/trainer_pt_utils\.py:(EvalLoopContainer\.|nested_)"),
    follows=frozenset({"on_step_end", "on_substep_end", "on_log"}),
    runs="train",
    logging=(
        # Before Python 3.11 a sampled name has no class; then only tqdm's own frames show it.
        LoggingPart(
            "the progress bar",
            re.compile(r"transformers/trainer_callback\.py:ProgressCallback\.|/tqdm/"),
            _argument("disable_tqdm=True"),
        ),
        LoggingPart(
            "the logger",
            re.compile(
                r"transformers/(trainer\.py:(Trainer\.)?log$|integrations/integration_utils\.py:"
                r"|trainer_callback\.py:PrinterCallback\.|utils/notebook\.py:)"
            ),
            _argument("logging_steps={value}"),
        ),
    ),
)
