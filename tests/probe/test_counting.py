"""Window ``ops``: exact counts, on the user's own line, in the right phase."""

from pathlib import Path
from typing import Any

from tdiag.probe.wire import GRAD_OF_ELEMENT

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
for x in DataLoader(Points(), batch_size=16):  # TAKEN
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


# As an agent does: every call of the model waits for a value read from the one before.
ROLLOUT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(40):
    chosen = []
    for move in range(20):
        weights = model(torch.randn(1, 4))
        best = weights.argmax().item()  # READ
        chosen.append(weights[0, best])
    loss = 0
    for value in chosen:
        loss = loss - value.log()  # LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


# A criterion that is called for each pair is the loss, however often the model is called.
CRITERION = """
import torch
model, criterion = torch.nn.Linear(4, 3), torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(40):
    loss = 0
    for part in range(4):
        rows = model(torch.randn(8, 4))
        for i in range(8):
            loss = loss + criterion(rows[i], torch.zeros(3)).abs()  # PAIRS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


SINGLY = """
import torch
first = torch.nn.Linear(4, 4)
table = torch.nn.Embedding(9, 4)
layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(8))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers, self.table = first, layers, table
        self.cell = torch.nn.LSTMCell(4, 4)
    def forward(self, x):
        x = torch.stack([self.first(row) for row in x])  # ROWS
        x = self.cell(x)[0]  # CELL
        for column in torch.zeros(3, 8, dtype=torch.long):
            x = x + self.table(column)  # TABLE
        for layer in self.layers:
            x = layer(x)  # LAYERS
        return x
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(40):
    with torch.no_grad():
        for row in torch.randn(8, 4):
            first(row)  # EVALUATED
    loss = model(torch.randn(8, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


# Torch's optimizer, a module of torch and torch.distributions loop inside one call of the user's.
LIBRARY_LOOPS = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)])
judge = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)])
similar = nn.CosineSimilarity(dim=0)
class Loss(nn.Module):
    def forward(self, output):
        far = judge(output).sum()  # JUDGED
        for a, b in zip(output, output.flip(0)):
            far = far + similar(a, b)  # PAIR
        return far
loss_of = Loss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, foreach=False)
for step in range(40):
    optimizer.zero_grad()
    loss_of(model(torch.randn(16, 4))).backward()
    optimizer.step()  # STEP
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
    assert lines[line_of("TAKEN")]["constructions"] == 0  # torch's collate_fn stacks
    assert lines[line_of("LOGGED")]["conversions"] == {"item": steps}
    assert not lines[line_of("LOGGED")]["in_loop"]


def test_each_line_is_in_its_phase(tmp_path: Path) -> None:
    _, lines = counted(tmp_path)
    assert lines[line_of("BRANCH")]["phase"] == "loss"  # inside a loss module's forward
    assert lines[line_of("CONSTRUCT")]["phase"] == "data_wait"
    assert lines[line_of("MODEL")]["phase"] == "forward"
    assert lines[line_of("LOGGED")]["phase"] == "after_step"  # the loader is asked next


def test_a_closures_lines_are_in_their_phases_though_the_optimizer_runs_it(tmp_path: Path) -> None:
    _, lines = counted(tmp_path, CLOSURE)
    assert lines[line_of("LOSS", CLOSURE)]["phase"] == "loss"
    assert lines[line_of("NORM", CLOSURE)]["phase"] == "optimizer"


def test_what_comes_between_two_calls_of_the_model_is_the_forward_pass(tmp_path: Path) -> None:
    steps, lines = counted(tmp_path, ROLLOUT)
    read, loss = lines[line_of("READ", ROLLOUT)], lines[line_of("LOSS", ROLLOUT)]
    assert read["phase"] == "forward"  # after the last call of a step, too
    assert read["conversions"] == {"item": 20 * steps}
    assert (read["turns"], read["in_loop"]) == (20 * steps, False)
    assert (loss["phase"], loss["turns"], loss["in_loop"]) == ("loss", steps, True)


# A conditional random field: the loss has weights, and is a child of the model beside it.
CRF = """
import torch
class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transitions = torch.nn.Parameter(torch.zeros(3, 3))
    def forward(self, scores):
        total = scores.sum() * 0
        for row in scores:
            total = total + (row @ self.transitions).logsumexp(0)  # FIELD
        return total
class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.field = torch.nn.Linear(4, 3), Field()
    def forward(self, x):
        return self.scores(x)
    def negative_log_likelihood(self, x):
        scores = self(x)
        return self.field(scores * 2)  # BETWEEN
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(40):
    optimizer.zero_grad()
    model.negative_log_likelihood(torch.randn(8, 4)).backward()
    optimizer.step()
"""


def test_a_module_that_returns_a_number_after_another_is_the_loss(tmp_path: Path) -> None:
    """As in the clean steps, weights or not."""
    _, lines = counted(tmp_path, CRF)
    assert lines[line_of("FIELD", CRF)]["phase"] == "loss"
    assert lines[line_of("BETWEEN", CRF)]["phase"] == "loss"


def test_a_criterion_called_in_a_loop_begins_no_turn(tmp_path: Path) -> None:
    steps, lines = counted(tmp_path, CRITERION)
    pairs = lines[line_of("PAIRS", CRITERION)]
    assert (pairs["turns"], pairs["in_loop"]) == (4 * steps, True)
    assert pairs["names"]["abs"] == 32 * steps


def test_calls_with_the_same_weights_are_told_from_a_loop_over_layers(tmp_path: Path) -> None:
    steps, lines = counted(tmp_path, SINGLY)
    assert lines[line_of("CELL", SINGLY)]["grad_calls"] == steps  # it gives two tensors
    rows, layers = lines[line_of("ROWS", SINGLY)], lines[line_of("LAYERS", SINGLY)]
    assert (rows["repeated"], rows["one_row"]) == (8, True)
    assert (layers["repeated"], layers["one_row"]) == (1, False)
    table = lines[line_of("TABLE", SINGLY)]
    assert (table["repeated"], table["one_row"]) == (3, False)  # eight indices each
    evaluated = lines[line_of("EVALUATED", SINGLY)]
    assert evaluated["repeated"] == 0


LEFT_BEHIND = """
import torch
w = torch.zeros(16, 1, requires_grad=True)
x = torch.randn(64, 16)
for _ in range(60):
    (x @ w - 1).pow(2).mean().backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
print(torch._C._len_torch_function_stack())
"""


def test_no_function_mode_is_left_behind_where_steps_end_with_backward(tmp_path: Path) -> None:
    """It would slow down every torch call from then on, in clean steps, too."""
    run = watch_code(tmp_path, LEFT_BEHIND, windows=["baseline", "ops"])
    assert run.of("ops") and run.out == "0\n"


def test_a_librarys_loop_is_not_the_users(tmp_path: Path) -> None:
    """The calls of ``optimizer.step()`` and of a module of torch are counted on the user's line,
    but the line itself made one call; a criterion called in a loop is called each time."""
    steps, lines = counted(tmp_path, LIBRARY_LOOPS)
    step = lines[line_of("STEP", LIBRARY_LOOPS)]
    assert step["calls"] >= 24 * 8 * steps and step["conversions"]["item"] == 24 * steps
    assert not step["in_loop"] and max(step["names"].values()) == steps
    assert step["constructions"] == 0
    judged = lines[line_of("JUDGED", LIBRARY_LOOPS)]
    assert (judged["names"]["linear"], judged["in_loop"]) == (steps, False)
    assert judged["calls"] == 13 * steps
    pair = lines[line_of("PAIR", LIBRARY_LOOPS)]
    assert pair["in_loop"] and pair["names"]["cosine_similarity"] == 16 * steps


TRAINER = """
import sys, torch
sys.path.insert(0, "no user's own")
from trainer import fit

class Names:
    def see(self, gradient):
        self.norm = float(gradient.norm())  # NORM

    def loss(self, model):
        return model(torch.randn(4, 4)).mean()

model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)])
fit(model, torch.optim.Adam(model.parameters()), Names())  # FIT
"""
FITS = """
def fit(model, optimizer, user):
    for step in range(60):
        optimizer.zero_grad()
        user.loss(model).backward()
        for p in model.parameters():
            user.see(p.grad.clamp_(-1, 1))
        optimizer.step()
"""


def test_a_trainer_that_calls_the_user_between_its_own_calls_does_not_loop(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "trainer.py").write_text(FITS)
    steps, lines = counted(tmp_path, TRAINER.replace("no user's own", str(library)))
    fit = lines[line_of("FIT", TRAINER)]
    assert fit["calls"] >= 24 * 8 * steps and fit["conversions"]["item"] == 24 * steps
    assert not fit["in_loop"]
    norm = lines[line_of("NORM", TRAINER)]
    assert norm["in_loop"] and norm["conversions"]["float"] == 24 * steps


SINGLE_GRADIENTS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # CLIP
    optimizer.step()
    for k in range(9):
        slopes = torch.autograd.grad(model(torch.randn(1, 4)).sum(), list(model.parameters()))
        norms = [s.pow(2) for s in slopes]  # NORM
"""


def test_calls_after_a_gradient_are_an_update_only_if_one_comes(tmp_path: Path) -> None:
    """As in the clean steps, or their time is sought in a phase that does not hold it."""
    steps, lines = counted(tmp_path, SINGLE_GRADIENTS)
    norm = lines[line_of("NORM", SINGLE_GRADIENTS)]
    assert (norm["phase"], norm["names"]["pow"]) == ("forward", 18 * steps)
    assert lines[line_of("CLIP", SINGLE_GRADIENTS)]["phase"] == "optimizer"


DERIVATIVES = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    x = torch.randn(5, 4, requires_grad=True)
    out = model(x)
    slopes = [torch.autograd.grad(out[i, 0], x, create_graph=True)[0] for i in range(5)]  # PICKED
    slopes += [torch.autograd.grad([o], x, create_graph=True)[0] for o in out]  # UNBOUND
    slopes += [torch.autograd.grad(out[:1].view(()), x, create_graph=True)[0]]  # RESHAPED
    (whole,) = torch.autograd.grad(out.sum().view(1), x, create_graph=True)  # SUM
    (torch.stack(slopes).sum() + whole.sum()).backward()
    optimizer.step()
"""


def test_the_derivative_of_an_element_is_told_from_that_of_a_sum(tmp_path: Path) -> None:
    """The gradient of a sum holds those of all samples."""
    steps, lines = counted(tmp_path, DERIVATIVES)
    picked, unbound, reshaped, whole = (
        lines[line_of(x, DERIVATIVES)]["names"] for x in ("PICKED", "UNBOUND", "RESHAPED", "SUM")
    )
    assert reshaped[GRAD_OF_ELEMENT] == steps
    assert picked[GRAD_OF_ELEMENT] == unbound[GRAD_OF_ELEMENT] == 5 * steps
    assert (whole["grad"], GRAD_OF_ELEMENT in whole) == (steps, False)


FROM_TENSORS = """
import numpy, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = [torch.randn(4) for _ in range(8)]
for step in range(40):
    optimizer.zero_grad()
    batch = torch.stack(parts)  # STACKED
    batch = torch.as_tensor(batch)  # AS_IS
    batch = torch.asarray(obj=batch)  # AS_IT_IS
    scale = torch.as_tensor([1.0, 2.0, 3.0, 4.0])  # LIST
    shift = torch.as_tensor(numpy.ones(4, "float32"))  # ARRAY
    model(batch * scale + shift).mean().backward()
    optimizer.step()
"""


def test_a_tensor_made_of_tensors_is_no_data_of_pythons(tmp_path: Path) -> None:
    steps, lines = counted(tmp_path, FROM_TENSORS)
    made = {mark: lines[line_of(mark, FROM_TENSORS)]["constructions"] / steps
            for mark in ("STACKED", "AS_IS", "AS_IT_IS", "LIST", "ARRAY")}  # fmt: skip
    assert made == {"STACKED": 0, "AS_IS": 0, "AS_IT_IS": 0, "LIST": 1, "ARRAY": 1}
