"""Padding of features in a batch, told by zeros at the end of its sequences."""

from __future__ import annotations

import pytest
import torch

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import BatchField, Loaders, PaddedField
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.probe.fetches import describe_fields
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, loaders


def batch(*lengths: int, width: int = 40, last: bool = False) -> torch.Tensor:
    """Sequences of these lengths, of 8 features each; ``last``: time is the last dimension."""
    padded = torch.zeros(len(lengths), width, 8)
    for row, length in zip(padded, lengths, strict=True):
        row[:length] = torch.rand(length, 8) + 0.1
    return padded.transpose(1, 2).contiguous() if last else padded


def objects(*spans: tuple[int, int], depth: bool = False) -> torch.Tensor:
    """Pictures of 40 rows with an object in these rows: a mask, or its depth."""
    pictures = torch.zeros(len(spans), 40, 8)
    for picture, (first, last) in zip(pictures, spans, strict=True):
        picture[first:last] = torch.rand(last - first, 8) + 0.1 if depth else 1.0
    return pictures


@pytest.mark.parametrize(
    ("tensor", "padded"),
    [
        (batch(10, 20, 30), [3, 40, 30, 60]),
        (batch(10, 20, 30, last=True), [3, 40, 30, 60]),
        (batch(10, 20, 40), [3, 40, 40, 70]),
        (batch(20, 20, 20), None),  # all end there: content
        (batch(40, 40), None),
        (torch.zeros(3, 40, 8), None),
        (batch(10, 20).long(), None),
        (torch.rand(3, 3, 32, 32), None),  # pictures
        (objects((0, 12), (0, 30)), None),  # masks, wherever their objects begin
        (objects((10, 24), (15, 30), depth=True), None),
        (objects((0, 12), (0, 30), depth=True), [2, 40, 30, 42]),
    ],
)
def test_sequences_of_features_that_end_in_zeros(
    tensor: torch.Tensor, padded: list[int] | None
) -> None:
    (field,) = describe_fields(tensor)
    assert field["padded"] == padded


def test_padded_features_are_padding_that_the_model_computes() -> None:
    field = BatchField(
        name="0", dtype="float32", bytes=1e6, minimum=0.0, maximum=1.0, integral=False,
        of_255=False,
        padded=PaddedField(sequences=96, positions=96 * 400, longest=96 * 200, used=96 * 120),
    )  # fmt: skip
    evidence = Evidence().add(budget(forward=40, loss=1, backward=55, optimizer=4))
    assert isinstance(run_rule(find("TD613"), evidence), Abstained)
    found = run_rule(find("TD613"), evidence.add(with_field(field)))
    assert isinstance(found, Finding)
    assert "70% of the positions that the model computes are padding" in found.summary
    assert "Pad each batch to its own longest sequence" in found.fix.text


def with_field(field: BatchField) -> Loaders:
    return loaders(fields=(field,))
