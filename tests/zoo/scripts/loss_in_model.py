"""As Hugging Face models do it: ``model(**batch)`` returns an output object with the loss."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from zoo_common import blobs, parser, report, seed_all


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class ModelForClassification(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.GELU())
        self.classifier = nn.Linear(32, 4)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.classifier(self.encoder(inputs))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(loss, logits)


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def main() -> None:
    args = parser().parse_args()
    seed_all()
    rows = [{"inputs": x, "labels": y} for x, y in zip(*blobs(), strict=True)]
    loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)
    model = ModelForClassification()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    losses: list[float] = []
    while len(losses) < args.steps:
        for batch in loader:
            output = model(**batch)
            output.loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(output.loss.item())
            if len(losses) == args.steps:
                break
    report(model.parameters(), losses)


if __name__ == "__main__":
    main()
