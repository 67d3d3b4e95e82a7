"""Further styles, for drawn cases: templates like ``styles``."""

from __future__ import annotations

from .styles import HEAD, PARTS

ACCELERATE = {
    "accelerated.py": HEAD
    + "from accelerate import Accelerator\n"
    + PARTS
    + """
def main():
    torch.manual_seed(0)
    $SETUP
    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = make_optimizer(model)
    loader = DataLoader(Data(), $LOADER)  # FIX
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while True:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            after_step(step, accelerator.unwrap_model(model), loss)
            step += 1
            if clock():
                return

if __name__ == "__main__":
    main()
"""
}

NESTED = {
    "run_training.py": HEAD
    + "import logging\n"
    + PARTS
    + """
logger = logging.getLogger("training")

def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--log-every", type=int, default=100)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    $SETUP
    model = Net()
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k / 1000))
    state = {"step": 0}

    def forward_backward(batch):
        x, y = batch
        loss = loss_of(model(x), y)
        loss.backward()
        return loss

    def train_step(batch):
        optimizer.zero_grad()
        loss = forward_backward(batch)
        optimizer.step()
        schedule.step()
        after_step(state["step"], model, loss)
        if state["step"] % args.log_every == 0:
            logger.info("step %d loss %.3f", state["step"], loss.item())
        state["step"] += 1
        return clock()

    loader = DataLoader(Data(), $LOADER)  # FIX
    while not any(train_step(batch) for batch in loader):
        pass

if __name__ == "__main__":
    main()
"""
}

HIERARCHY = {
    "app/main.py": """from app.common import *
from app.base import BaseTrainer
from app.parts import *

class Classifier(BaseTrainer):
    def build(self):
        self.model = Net()
        self.optimizer = make_optimizer(self.model)
        self.loader = DataLoader(Data(), $LOADER)  # FIX
    def compute_loss(self, batch):
        inputs, labels = self.unpack(batch)
        return loss_of(self.model(inputs), labels)
    def on_batch_end(self, loss):
        super().on_batch_end(loss)
        after_step(self.step, self.model, loss)

if __name__ == "__main__":
    torch.manual_seed(0)
    $SETUP
    Classifier().run()
""",
    "app/__init__.py": "",
    "app/base.py": """from app.common import *

class BaseTrainer:
    def __init__(self):
        self.step, self.history = 0, collections.deque(maxlen=100)
        self.build()
    def build(self):
        raise NotImplementedError
    def compute_loss(self, batch):
        raise NotImplementedError
    def unpack(self, batch):
        return batch[0], batch[1]
    def on_batch_end(self, loss):
        self.history.append(loss.detach())
    def optimize(self, loss):
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
    def run_epoch(self):
        for batch in self.loader:
            loss = self.compute_loss(batch)
            self.optimize(loss)
            self.on_batch_end(loss)
            self.step += 1
            if clock():
                return True
        return False
    def run(self):
        while not self.run_epoch():
            pass
""",
    "app/parts.py": "from app.common import *\n" + PARTS,
    "app/common.py": HEAD,
}

PROGRESS = {
    "progress.py": HEAD
    + "from tqdm import tqdm\n"
    + PARTS
    + """
AMP = "--amp" in sys.argv

def train(model, loader, optimizer, scaler):
    step = 0
    while True:
        bar = tqdm(loader, desc="train", leave=False)
        for x, y in bar:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AMP):
                loss = loss_of(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            after_step(step, model, loss)
            if step % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}")
            step += 1
            if clock():
                return

if __name__ == "__main__":
    torch.manual_seed(0)
    $SETUP
    model = Net()
    train(
        model,
        DataLoader(Data(), $LOADER),  # FIX
        make_optimizer(model),
        torch.amp.GradScaler("cpu", enabled=False),
    )
"""
}
