"""Hugging Face Trainer, plain or with what is named (``logger``, ``checkpoint``); transformers
searches for torch before anything imports it."""

import sys

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens:
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        import torch

        ids = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


what = sys.argv[1:]
config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2)
args = TrainingArguments(
    "output", per_device_train_batch_size=8, num_train_epochs=1000, report_to=[],
    logging_steps=1 if "logger" in what else 500, disable_tqdm="logger" not in what, use_cpu=True,
    save_strategy="steps" if "checkpoint" in what else "no", save_steps=2, save_total_limit=1,
)  # fmt: skip
Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Tokens()).train()
