"""float16 with a scaled loss: gradients that a script reads are true ones, and it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.probe.harness import watch_code

# Gradients of 1e-8 are 0 in float16.
TRAIN = """
import torch, sys
seen = []
class Net(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        seen.append(str(y.dtype)[6:])
        return y
def train(steps, size=1e-8, passes=1, norms=None):
    torch.manual_seed(0)
    model = Net(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.ones(4, 3)
            (model(x).square().sum() * size).backward()
        if norms is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-9)))
        optimizer.step()
        weights.append(model.weight.detach().clone())
    return model, weights
BODY
sys.stdout.write(str(SHOW))
"""
FLOAT16 = [("torch.autocast", "float16")]


def train(
    tmp_path: Path, body: str, show: str, changes: list[tuple[str, str]], rate: str = "1e6"
) -> tuple[Any, set[str], set[str]]:
    """What the script shows, what was said to have been applied, and what was refused."""
    tmp_path.mkdir(exist_ok=True)
    code = TRAIN.replace("LR", rate).replace("BODY", body).replace("SHOW", show)
    watched = watch_code(tmp_path, code, windows=[], trial=changes)
    assert watched.returncode == 0, watched.err
    assert not watched.of("failure"), watched.of("failure")
    states = [
        {r["what"] for r in watched.of("trial") if r["state"] == state}
        for state in ("applied", "refused")
    ]
    return eval(watched.out), *states


@pytest.mark.parametrize(
    "body",
    [
        "model, w = train(8)",
        "model, w = train(8, passes=3)",
        "model, w = train(8, norms=(norms := []))",
    ],
    ids=["plain", "accumulated", "clipped"],
)
def test_small_gradients_arrive_as_they_are(body: str, tmp_path: Path) -> None:
    """In float16 without a scaled loss they would all be 0."""
    show = "(seen[-1], [g for p in model.parameters() for g in p.grad.flatten().tolist()],"
    show += " w[-1].flatten().tolist(), globals().get('norms', []))"
    plain, applied, _ = train(tmp_path / "plain", body, show, [])
    assert plain[0] == "float32" and not applied
    changed, applied, refused = train(tmp_path / "changed", body, show, FLOAT16)
    assert changed[0] == "float16" and not refused
    assert applied == {"Net under float16 autocast, with a scaled loss"}
    for before, after in zip(plain[1:], changed[1:], strict=True):
        # Gradients of one pass are about 1e-9; the forward pass of float16 rounds them by 3 %.
        assert after == pytest.approx(before, rel=5e-3, abs=3e-11)
    assert any(plain[1])


def test_a_step_whose_gradients_overflow_is_skipped(tmp_path: Path) -> None:
    body = "model, w = train(30, size=1e6)"
    show = "(seen[-1], [bool((a == b).all()) for a, b in zip(w, w[1:])],"
    show += " bool(model.weight.isfinite().all()))"
    (dtype, same, finite), applied, _ = train(tmp_path, body, show, FLOAT16, rate="1e-12")
    assert dtype == "float16" and finite and applied
    # The first forward is in float32 still; then the factor is halved until gradients fit.
    assert same[1:10] == [True] * 9 and not any(same[-4:])


CLOSURE = """
torch.manual_seed(0)
model = Net(3, 2)
optimizer = torch.optim.LBFGS(model.parameters())
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().sum()
    loss.backward()
    return loss
for _ in range(6): optimizer.step(closure)
"""
INPUTS = """
model, w = train(1)
for _ in range(6):
    x = torch.ones(4, 3, requires_grad=True)
    model(x).square().sum().backward()
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [(CLOSURE, "closure"), (INPUTS, "a tensor that is not a parameter gets a gradient")],
    ids=["closure", "inputs"],
)
def test_where_gradients_would_stay_scaled_it_does_not_apply(
    body: str, why: str, tmp_path: Path
) -> None:
    show = "(seen[-1], [g for p in model.parameters() for g in p.grad.flatten().tolist()])"
    plain, *_ = train(tmp_path / "plain", body, show, [])
    changed, applied, refused = train(tmp_path / "changed", body, show, FLOAT16)
    assert not applied and any(why in one for one in refused), (applied, refused)
    assert changed[0] == "float32" and changed[1] == pytest.approx(plain[1], rel=5e-3)
