"""The code that a fix offers to paste does what the fix says."""

from __future__ import annotations

import contextlib
import linecache
import threading
from pathlib import Path
from typing import Any

import pytest

from tdiag.model.diagnosis import Fix
from tdiag.rules.catalogue import example, find
from tdiag.rules.examples import at, op_line
from tdiag.rules.vectorised import rewriting

PAIRS = """\
terms = []
for i in range(len(output)):
    for j in range(i + 1, len(output)):
        distance = (output[i] - output[j]).pow(2).sum()
        if target[i] == target[j]:
            terms.append(distance)
        else:
            terms.append((2 - distance).clamp(min=0))
"""
MARGIN = """\
rights, worsts = [], []
for i in range(len(output)):
    right = output[i, target[i]]
    worst = output[i].max()
    rights.append(right), worsts.append(worst)
"""
EACH_ALONE = """\
losses = []
for i in range(len(output)):
    one = torch.nn.functional.cross_entropy(output[i : i + 1], target[i : i + 1])
    losses.append((one.item(), one))
"""
ROWS = """\
sums = []
for i in range(len(output)):
    whole = output[i].sum()
    sums.append(whole)
"""


@pytest.fixture(scope="module", autouse=True)
def torch_imported() -> None:
    """Not when tests are collected: one rule's tests would take twice as long."""
    global torch
    import torch


@pytest.fixture
def scope() -> dict[str, Any]:
    made = torch.Generator().manual_seed(3)
    output = torch.randn(6, 4, generator=made)
    return {"torch": torch, "output": output, "target": torch.tensor([0, 1, 0, 3, 1, 0])}


def fix_of(tmp_path: Path, loop: str, *lines: int, **conversions: float) -> Fix:
    file = tmp_path / "loss.py"
    file.write_text(loop)
    linecache.checkcache(str(file))
    places = [at(line, "loss_of", str(file)) for line in lines]
    return rewriting([op_line(x.line, "loss", 64, at=x, conversions=conversions) for x in places])


def test_all_pairs_and_their_branch(tmp_path: Path, scope: dict[str, Any]) -> None:
    exec(PAIRS, scope)
    loop = torch.stack(scope["terms"])
    code = fix_of(tmp_path, PAIRS, 4, 5, bool=15.0).code.splitlines()
    assert len(code) == 4
    exec("\n".join(code[:2]), scope)
    distance = scope["difference"].pow(2).sum(dim=1)
    scope.update(if_same=distance, if_different=(2 - distance).clamp(min=0))
    exec("\n".join(code[2:]), scope)
    torch.testing.assert_close(scope["value"], loop)


def test_an_element_and_the_largest_of_each_row(tmp_path: Path, scope: dict[str, Any]) -> None:
    exec(MARGIN, scope)
    code = fix_of(tmp_path, MARGIN, 3, 4).code
    exec(code, scope)
    torch.testing.assert_close(scope["right"], torch.stack(scope["rights"]))
    torch.testing.assert_close(scope["worst"], torch.stack(scope["worsts"]))


def test_a_built_in_loss_of_each_sample(tmp_path: Path, scope: dict[str, Any]) -> None:
    exec(EACH_ALONE, scope)
    fix = fix_of(tmp_path, EACH_ALONE, 3, 4, item=6.0)
    exec(fix.code, scope)
    torch.testing.assert_close(scope["one"], torch.stack([one for _, one in scope["losses"]]))
    assert "call cross_entropy once on the batch" in fix.text


def test_a_sum_of_each_row_in_any_number_of_dimensions(
    tmp_path: Path, scope: dict[str, Any]
) -> None:
    scope["output"] = torch.randn(3, 4, 5)
    exec(ROWS, scope)
    exec(fix_of(tmp_path, ROWS, 3).code, scope)
    torch.testing.assert_close(scope["whole"], torch.stack(scope["sums"]))


PENALTY = """\
penalty = sum(p.abs().sum() for p in model.parameters())
for name, p in model.named_parameters():
    penalty = penalty + p.abs().sum()
"""


@pytest.mark.parametrize(("loop", "line"), [(PENALTY, 1), (PENALTY, 3)])
def test_a_penalty_on_the_weights_is_one_sum_over_all_of_them(
    loop: str, line: int, tmp_path: Path
) -> None:
    """Weights of different shapes cannot be broadcast."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    scope: dict[str, Any] = {"torch": torch, "model": model}
    fix = fix_of(tmp_path, loop, line)
    assert "weight_decay" in fix.text and "broadcasting" not in fix.text
    exec(loop.splitlines()[0], scope)
    expected = scope["penalty"]
    exec(fix.code, scope)
    torch.testing.assert_close(scope["penalty"], expected)


def test_a_loop_of_no_known_form_is_broadcast(tmp_path: Path) -> None:
    assert "broadcasting" in fix_of(tmp_path, "x = f(y)\n", 1).text


def code_of(rule: str) -> str:
    return example(find(rule)).fix.code


def model_of(*layers: torch.nn.Module) -> torch.nn.Sequential:
    model = torch.nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def test_one_foreach_call_updates_like_the_loop() -> None:
    model = model_of(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    before = [p.detach().clone() for p in model.parameters()]
    exec(code_of("TD710"), {"torch": torch, "model": model, "lr": 0.5})
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.5)


def test_table_and_rest_share_out_all_parameters() -> None:
    model = model_of(torch.nn.Embedding(9, 2, sparse=True), torch.nn.Linear(2, 1))
    model.users = model[0]
    scope: dict[str, Any] = {"torch": torch, "model": model}
    exec(code_of("TD611"), scope)
    groups = [p for optimizer in scope["optimizers"] for p in optimizer.param_groups[0]["params"]]
    assert len(groups) == 3 and {id(p) for p in groups} == {id(p) for p in model.parameters()}


def test_a_checkpoint_written_by_a_thread_holds_the_weights_of_its_moment(tmp_path: Path) -> None:
    model, path = model_of(torch.nn.Linear(2, 1)), tmp_path / "model.pt"
    before = model[0].weight.detach().clone()
    threads = set(threading.enumerate())
    exec(code_of("TD803"), {"torch": torch, "threading": threading, "model": model, "path": path})
    torch.nn.init.zeros_(model[0].weight)
    for thread in set(threading.enumerate()) - threads:
        thread.join()
    torch.testing.assert_close(torch.load(path)["0.weight"], before)


def test_only_the_last_micro_batch_reduces() -> None:
    reduced: list[bool] = []

    class Model:
        syncing = True

        def no_sync(self) -> Any:
            model = self

            class Off:
                def __enter__(self) -> None:
                    model.syncing = False

                def __exit__(self, *raised: object) -> None:
                    model.syncing = True

            return Off()

        def __call__(self, batch: torch.Tensor) -> torch.Tensor:
            reduced.append(self.syncing)
            return batch

    batches = [torch.ones(1, requires_grad=True) for _ in range(3)]
    scope = {"contextlib": contextlib, "model": Model(), "micro_batches": batches}
    exec(code_of("TD905"), scope | {"loss_fn": torch.sum})
    assert reduced == [False, False, True]
