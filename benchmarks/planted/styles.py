"""How people write a training script: one template a style, with holes for a :class:`Parts`.

A template is {file: text}; the first file is run. ``clock()`` is called once a step and says when
``--steps`` of them are over; without that option a script trains for ever.
"""

from __future__ import annotations

HEAD = """import argparse, collections, gc, json, math, os, re, sys, time, zlib
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 10**9
COLD, _times = 4, []

def clock():
    _times.append(time.perf_counter())
    if len(_times) == STEPS + COLD:
        print(f"{(_times[-1] - _times[COLD - 1]) / STEPS * 1e3:.4f} ms a step")
    return len(_times) >= STEPS + COLD

"""
PARTS = "$DATA\n$MODEL\n$LOSS\n$OPTIMIZER\n$AFTER\n"

PLAIN = {
    "train.py": HEAD
    + PARTS
    + """
torch.manual_seed(0)
$SETUP
model = Net()
optimizer = make_optimizer(model)
loader = DataLoader(Data(), $LOADER)  # FIX
step = 0
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        after_step(step, model, loss)
        step += 1
        if clock():
            sys.exit()
"""
}

FUNCTIONS = {
    "main.py": HEAD
    + PARTS
    + """
def train_one_epoch(model, loader, optimizer, done):
    for inputs, targets in loader:
        outputs = model(inputs)
        loss = loss_of(outputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        after_step(done, model, loss)
        done += 1
        if clock():
            return -1
    return done

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    $SETUP
    model = Net()
    optimizer = make_optimizer(model)
    loader = DataLoader(Data(), $LOADER)  # FIX
    done = 0
    while done >= 0:
        done = train_one_epoch(model, loader, optimizer, done)

if __name__ == "__main__":
    main()
"""
}

TRAINER = {
    "fit.py": HEAD
    + PARTS
    + """
class Callback:
    def on_step_end(self, trainer, loss):
        after_step(trainer.global_step, trainer.model, loss)

class Trainer:
    def __init__(self, model, loader, callbacks=()):
        self.model, self.loader, self.callbacks = model, loader, list(callbacks)
        self.optimizer = make_optimizer(model)
        self.global_step = 0

    def training_step(self, batch):
        x, y = batch
        return loss_of(self.model(x), y)

    def fit(self):
        while True:
            for batch in self.loader:
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
                for callback in self.callbacks:
                    callback.on_step_end(self, loss)
                self.global_step += 1
                if clock():
                    return

if __name__ == "__main__":
    torch.manual_seed(0)
    $SETUP
    Trainer(Net(), DataLoader(Data(), $LOADER), [Callback()]).fit()  # FIX
"""
}

PACKAGE = {
    "project/train.py": """from project.common import *
from project.data import *
from project.model import Net, loss_of, make_optimizer, after_step

def run():
    torch.manual_seed(0)
    $SETUP
    model = Net()
    optimizer = make_optimizer(model)
    loader = DataLoader(Data(), $LOADER)  # FIX
    step = 0
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            after_step(step, model, loss)
            step += 1
            if clock():
                return

if __name__ == "__main__":
    run()
""",
    "project/__init__.py": "",
    "project/common.py": HEAD,
    "project/data.py": "from project.common import *\n\n$DATA\n",
    "project/model.py": "from project.common import *\n\n$MODEL\n$LOSS\n$OPTIMIZER\n$AFTER\n",
}

CONFIG = {
    "configured.py": HEAD
    + PARTS
    + """
config = json.loads(Path(__file__).with_name("config.json").read_text())
torch.manual_seed(config["seed"])
$SETUP
model = Net()
optimizer = make_optimizer(model)
loader = DataLoader(Data(), $LOADER)  # FIX
batches = iter(loader)
step = 0
while not clock():
    batch = next(batches, None)
    if batch is None:
        batches = iter(loader)
        batch = next(batches)
    optimizer.zero_grad(set_to_none=config["set_to_none"])
    loss = loss_of(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    after_step(step, model, loss)
    step += 1
""",
    "config.json": '{"seed": 0, "set_to_none": true}',
}

GENERATOR = {
    "gen.py": HEAD
    + PARTS
    + """
def batches(data, size):
    while True:
        for start in range(0, len(data) - size, size):
            rows = [data[i] for i in range(start, start + size)]
            yield torch.stack([torch.as_tensor(r[0]) for r in rows]), torch.as_tensor(
                [int(r[1]) for r in rows]
            )

torch.manual_seed(0)
$SETUP
model = Net()
optimizer = make_optimizer(model)
for step, (x, y) in enumerate(batches(Data(), $BATCH)):  # FIX
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    after_step(step, model, loss)
    if clock():
        break
"""
}

STREAM = {
    "stream.py": HEAD
    + PARTS
    + """
class Stream(IterableDataset):
    def __init__(self, source):
        self.source = source
    def __iter__(self):
        while True:
            for i in range(len(self.source)):
                yield self.source[i]

def main():
    torch.manual_seed(0)
    $SETUP
    model = Net()
    optimizer = make_optimizer(model)
    loader = DataLoader(Stream(Data()), $LOADER)  # FIX
    for step, (x, y) in enumerate(loader):
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step(step, model, loss)
        if clock():
            break

if __name__ == "__main__":
    main()
"""
}

ACCUMULATION = {
    "accumulate.py": HEAD
    + PARTS
    + """
ACCUMULATE = 2
torch.manual_seed(0)
$SETUP
model = Net()
optimizer = make_optimizer(model)
loader = DataLoader(Data(), $LOADER)  # FIX
micro = step = 0
while True:
    for x, y in loader:
        loss = loss_of(model(x), y) / ACCUMULATE
        loss.backward()
        micro += 1
        if micro % ACCUMULATE:
            continue
        optimizer.step()
        optimizer.zero_grad()
        after_step(step, model, loss)
        step += 1
        if clock():
            sys.exit()
"""
}
