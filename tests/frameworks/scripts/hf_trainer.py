"""Hugging Face Trainer; transformers searches for torch before anything imports it."""

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens:
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        import torch

        ids = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2)
args = TrainingArguments(
    "output", per_device_train_batch_size=8, num_train_epochs=1000, report_to=[],
    save_strategy="no", logging_steps=500, disable_tqdm=True, use_cpu=True,
)  # fmt: skip
Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Tokens()).train()
