"""Scripts built as the two common frameworks do it, and a GAN: templates like ``styles``."""

from __future__ import annotations

from .styles import HEAD, PARTS

LIGHTNING = {
    "lit.py": HEAD
    + PARTS
    + """
class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return loss_of(self.net(x), y)

    def configure_optimizers(self):
        return make_optimizer(self)

    def on_train_batch_end(self, loss, batch_idx):
        after_step(batch_idx, self.net, loss)

class Fit:
    def __init__(self, module, loader):
        self.module, self.loader = module, loader
        self.optimizer = module.configure_optimizers()

    def run(self):
        index = 0
        while True:
            for batch in self.loader:
                def closure():
                    loss = self.module.training_step(batch, index)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.last = loss.detach()
                    return loss
                self.optimizer.step(closure)
                self.module.on_train_batch_end(self.last, index)
                index += 1
                if clock():
                    return

torch.manual_seed(0)
$SETUP
Fit(LitModel(), DataLoader(Data(), $LOADER)).run()  # FIX
"""
}

HUGGING_FACE = {
    "finetune.py": HEAD
    + PARTS
    + """
class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Net()

    def forward(self, inputs, labels=None):
        logits = self.backbone(inputs)
        loss = None if labels is None else loss_of(logits, labels)
        return {"loss": loss, "logits": logits}

class AsDict(Dataset):
    def __init__(self, inner):
        self.inner = inner
    def __len__(self):
        return len(self.inner)
    def __getitem__(self, i):
        x, y = self.inner[i]
        return {"inputs": x, "labels": y}

class Trainer:
    def __init__(self, model, train_dataset):
        self.model, self.optimizer = model, make_optimizer(model)
        self.dataloader = DataLoader(train_dataset, $LOADER)  # FIX
        self.state_step = 0
    def train(self):
        self.model.train()
        while True:
            for inputs in self.dataloader:
                loss = self.model(**inputs)["loss"]
                loss.backward()
                self.optimizer.step()
                self.model.zero_grad()
                after_step(self.state_step, self.model.backbone, loss)
                self.state_step += 1
                if clock():
                    return

torch.manual_seed(0)
$SETUP
Trainer(WithLoss(), AsDict(Data())).train()
"""
}

GAN = {
    "adversarial.py": HEAD
    + PARTS
    + """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 256))
    def forward(self, noise):
        return self.body(noise)

torch.manual_seed(0)
$SETUP
critic, generator = Net(), Generator()
critic_optimizer = make_optimizer(critic)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
loader = DataLoader(Data(), $LOADER)  # FIX
step = 0
while True:
    for real, y in loader:
        fake = generator(torch.randn(len(real), 32))
        critic_loss = loss_of(critic(real), y) + critic(fake.detach()).square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        generator_loss = -critic(fake).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        after_step(step, critic, critic_loss)
        step += 1
        if clock():
            sys.exit()
"""
}
