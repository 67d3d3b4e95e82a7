"""As Lightning does it: the module describes the step, a Trainer runs it through hooks.

The optimizer step gets a closure that runs ``training_step`` and ``backward``.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model()
        self.logged: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch, batch_index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_index: int) -> None:
        x, y = batch
        self.logged.append(nn.functional.cross_entropy(self(x), y).item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def on_train_batch_end(self, loss: Tensor) -> None:
        self.logged.append(loss.item())


class Trainer:
    def __init__(self, max_steps: int) -> None:
        self.max_steps, self.global_step = max_steps, 0

    def fit(self, module: Module, train: DataLoader, validation: DataLoader) -> None:
        self.optimizer = module.configure_optimizers()
        while self.global_step < self.max_steps:
            self.train_epoch(module, train)
            module.eval()
            with torch.no_grad():
                for index, batch in enumerate(validation):
                    module.validation_step(batch, index)
            module.train()

    def train_epoch(self, module: Module, loader: DataLoader) -> None:
        for index, batch in enumerate(loader):

            def closure(batch=batch, index=index) -> Tensor:
                loss = module.training_step(batch, index)
                self.optimizer.zero_grad()
                loss.backward()
                return loss

            module.on_train_batch_end(self.optimizer.step(closure))
            self.global_step += 1
            if self.global_step == self.max_steps:
                return


if __name__ == "__main__":
    args = parser().parse_args()
    seed_all()
    x, y = blobs(96)
    module = Module()
    Trainer(args.steps).fit(
        module,
        DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True),
        DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16),
    )
    report(module.parameters(), module.logged)
