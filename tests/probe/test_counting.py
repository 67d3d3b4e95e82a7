"""Window ``ops``: exact counts, on the user's own line, in the right phase."""

from pathlib import Path
from typing import Any

from .harness import watch_code

CODE = """
import torch
from torch.utils.data import DataLoader, Dataset

class Points(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        return torch.tensor([float(i % 7)] * 4)  # CONSTRUCT

class Loss(torch.nn.Module):
    def forward(self, output):
        total = 0
        for row in output:
            if row.sum() > 0:  # BRANCH
                total = total + row.sum()
            else:
                total = total - row.sum()
        return total

model, loss = torch.nn.Linear(4, 3), Loss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x in DataLoader(Points(), batch_size=16):
    value = loss(model(x))  # MODEL
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    value.item()  # LOGGED
"""


CLOSURE = """
import torch
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
def loss_of(output):
    return sum(row.sum() for row in output)  # LOSS
for step in range(40):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(8, 4)))  # MODEL
        loss.backward()
        torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # NORM
        return loss
    optimizer.step(closure)
"""


def line_of(mark: str, code: str = CODE) -> int:
    return next(n for n, text in enumerate(code.splitlines(), 1) if f"# {mark}" in text)


def counted(tmp_path: Path, code: str = CODE) -> tuple[int, dict[int, dict[str, Any]]]:
    run = watch_code(tmp_path, code, windows=["baseline", "ops"])
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    ops = run.of("ops")[-1]
    return ops["steps"], {line["at"][1]: line for line in ops["lines"] if line["at"]}


def test_counts_are_exact_and_lie_on_the_users_lines(tmp_path: Path) -> None:
    steps, lines = counted(tmp_path)
    assert lines[line_of("BRANCH")]["conversions"] == {"bool": 16 * steps}
    assert lines[line_of("BRANCH")]["calls"] == 3 * 16 * steps  # sum, >, bool
    assert lines[line_of("BRANCH")]["in_loop"]
    assert lines[line_of("BRANCH")]["names"] == dict.fromkeys(("sum", "gt", "__bool__"), 16 * steps)
    assert lines[line_of("CONSTRUCT")]["constructions"] == 16 * steps
    assert lines[line_of("LOGGED")]["conversions"] == {"item": steps}
    assert not lines[line_of("LOGGED")]["in_loop"]


def test_each_line_is_in_its_phase(tmp_path: Path) -> None:
    _, lines = counted(tmp_path)
    assert lines[line_of("BRANCH")]["phase"] == "loss"  # inside a loss module's forward
    assert lines[line_of("CONSTRUCT")]["phase"] == "data_wait"
    assert lines[line_of("MODEL")]["phase"] == "forward"


def test_a_closures_lines_are_in_their_phases_though_the_optimizer_runs_it(tmp_path: Path) -> None:
    _, lines = counted(tmp_path, CLOSURE)
    assert lines[line_of("LOSS", CLOSURE)]["phase"] == "loss"
    assert lines[line_of("NORM", CLOSURE)]["phase"] == "optimizer"
