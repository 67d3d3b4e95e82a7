"""Padding that the model computes."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import PaddedLookups
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, host_op, host_ops, loaders, op_line, ops

RULE = find("TD613")


def judged(*kinds: Any, packed: bool = False, **changes: Any) -> Finding | None:
    """The rule's own example with these changes to its lookup."""
    evidence = RULE.fires()
    padded = evidence.get(PaddedLookups)
    assert padded is not None
    mine = PaddedLookups(
        lookups=tuple(replace(x, **changes) for x in padded.lookups), packed=packed
    )
    found = run_rule(RULE, evidence.add(mine, *kinds))
    assert found is None or isinstance(found, Finding)
    return found


def test_silent_where_padding_is_skipped_or_pools_would_leave_as_much() -> None:
    assert judged() is not None
    assert judged(packed=True) is None
    assert judged(tokens=15_000) is None
    assert judged(tokens=14_000) is not None


def test_a_fixed_length_is_a_fix_of_its_own() -> None:
    fixed, sorted_ = judged(longest=8_000), judged()
    assert fixed is not None and sorted_ is not None
    assert fixed.fix.text.startswith("Pad each batch to its own longest sequence")
    assert sorted_.fix.text.startswith("Put sequences of similar length into one batch")
    assert fixed.fix.safety == "safe" and sorted_.fix.safety == "review"


def test_the_place_is_the_users_collate_function_then_the_loader_then_the_lookup() -> None:
    own, made = judged(loaders(collate_at=at(9, "collate"))), judged()
    assert own is not None and own.location is not None and own.location.line == 9
    assert made is not None and made.location is not None and made.location.line == 41
    evidence = RULE.fires()
    evidence.facts = {k: v for k, v in evidence.facts.items() if k.__name__ != "Loaders"}
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 18


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("    n = max(map(len, texts))\n    ids = torch.zeros(len(texts), n)\n", 3),
        ("    texts.sort(key=len)\n    return pad_sequence(texts)\n", 4),
        ("    return self.tokenizer(\n        texts, padding=True\n    )\n", 3),
        ("    return stacked(texts)\n", 2),
    ],
)
def test_the_place_within_a_collate_function_is_where_the_length_is_chosen(
    body: str, line: int, tmp_path: Path
) -> None:
    script = tmp_path / "data.py"
    script.write_text(f"import torch\ndef collate(texts):\n{body}")
    found = judged(loaders(collate_at=at(2, "collate", str(script))))
    assert found is not None and found.location is not None and found.location.line == line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("    return ids + [0] * (self.longest - len(ids))\n", 9),
        ("    ids.extend([0] * (self.longest - len(ids)))\n    return ids\n", 9),
        ("    ids = self.tokenizer(ids, padding=wanted)\n    return ids\n", 9),
        ("    kept = [0] * 3\n    return self.padded[i]\n", 5),
        ("    row = np.zeros(self.longest)\n    return row\n", 5),
    ],
)
def test_the_place_within_a_data_set_is_where_it_pads(body: str, line: int, tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text(
        "import numpy as np\nclass Notes:\n  def __init__(self, texts):\n    self.texts = texts\n"
        "    self.padded = tokenizer(texts, padding='max_length')\n"
        "  def __getitem__(self, i):\n    i = max(i, 0)\n    ids = self.texts[i]\n" + body
    )
    found = judged(loaders(dataset_at=at(6, "__getitem__", str(script))))
    assert found is not None and found.location is not None and found.location.line == line
    assert found.location.function == ("__init__" if line == 5 else "__getitem__")


def test_a_tokenizer_that_pads_elsewhere_is_the_place_if_it_is_the_only_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "def encode(rows):\n    return tokenizer(rows['text'], padding='max_length')\n"
        "loader = DataLoader(rows, collate_fn=DataCollatorWithPadding(tokenizer, padding=True))\n"
    )
    made = loaders(created_at=at(3, "<module>", str(script)))
    found = judged(made)
    assert found is not None and found.location is not None
    assert (found.location.line, found.location.function) == (2, "encode")
    script.write_text(script.read_text() + "probe = tokenizer('word', padding='max_length')\n")
    linecache.checkcache(str(script))
    found = judged(made)
    assert found is not None and found.location is not None and found.location.line == 3


def test_attention_falls_with_the_square_and_dispatch_not_at_all() -> None:
    plain = judged()
    attends = judged(host_ops(host_op("aten::_scaled_dot_product_attention_math", 4, 50 * MS),
                              host_op("aten::addmm", 9, 50 * MS)))  # fmt: skip
    calls = ops(op_line(20, "forward", 1000, grad_calls=1000.0))
    issued = judged(calls, Dispatch(op_ns=2_000, grad_op_ns=86_000))
    assert plain is not None and attends is not None and issued is not None
    p = 1 - 7_680 / 16_384
    assert plain.at_best_ns == pytest.approx(p * 172 * MS, rel=0.02)
    assert attends.at_best_ns == pytest.approx((p + 1 - (1 - p) ** 2) / 2 * 172 * MS, rel=0.02)
    assert issued.at_best_ns == pytest.approx(p * 86 * MS, rel=0.02)


def test_on_a_device_the_kernels_count() -> None:
    found = judged(budget(device=True, compute=80, launch=20, sync=5))
    assert found is not None and found.components == ("compute",)
