"""What the probe sees of padding: only what a mask or the table's ``padding_idx`` tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.feeding import PaddedLookup, PaddedLookups

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
words = nn.Embedding(300, 8, padding_idx={index})
kinds = nn.Embedding(2, 8)
cell = nn.GRU(8, 8, batch_first=True)
model = nn.ModuleDict(dict(words=words, kinds=kinds, cell=cell))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lengths = torch.tensor([2, 6, 4, 8])
inside = torch.arange(10) < lengths[:, None]
tokens = torch.where(inside, torch.randint(10, 300, (4, 10)), {pad})  # none is the padding's
for step in range(100_000):
    hidden = words(tokens) + kinds((torch.arange(10) > 6).long().expand(4, 10))
    {use}
    optimizer.zero_grad()
    hidden.sum().backward()
    optimizer.step()
"""
HIDDEN = "hidden = hidden * 1.0"
MASKED = "hidden = hidden.masked_fill(({mask})[..., None], 0.0)"


def padding(folder: Path, **parts: object) -> PaddedLookups:
    script = SCRIPT.format(**{"index": None, "pad": 0, "use": HIDDEN, **parts})
    folder.mkdir(exist_ok=True)
    run = watch_code(folder, script, windows=["baseline", "ops"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(PaddedLookups)
    assert found is not None
    return found


def only(found: PaddedLookups) -> PaddedLookup:
    (one,) = found.lookups
    assert one.at is not None and one.at.line == 14
    assert one.positions == one.sequences * 10
    assert one.longest == one.sequences * 8
    return one


def test_padding_idx_tells_padding_of_its_own_table_alone(tmp_path: Path) -> None:
    one = only(padding(tmp_path, index=0))
    assert (one.by, one.tokens) == ("padding_idx", one.sequences * 5)


@pytest.mark.parametrize("mask", ["tokens.eq(7)", "~inside", "tokens == 7"])
def test_a_mask_of_the_same_shape_tells_it_whichever_way_it_is_said(
    tmp_path: Path, mask: str
) -> None:
    one = only(padding(tmp_path, pad=7, use=MASKED.format(mask=mask)))
    assert one.by == "mask"
    assert one.tokens == pytest.approx(one.sequences * 5, abs=one.sequences)  # a real 7 at an end


def test_the_mask_knows_better_where_sequences_end_with_the_padding_token(tmp_path: Path) -> None:
    one = only(padding(tmp_path, index=7, pad=7, use=MASKED.format(mask="~inside")))
    assert (one.by, one.tokens) == ("mask", one.sequences * 5)


def test_a_token_that_repeats_at_the_end_of_rows_is_not_padding(tmp_path: Path) -> None:
    assert padding(tmp_path / "plain").lookups == ()
    causal = MASKED.format(mask="torch.ones(4, 10).triu().bool()")
    assert padding(tmp_path / "causal", use=causal).lookups == ()


def test_sequences_that_are_packed_leave_their_padding_out(tmp_path: Path) -> None:
    pack = "hidden = cell(pack_padded_sequence(hidden, lengths, True, False))[0].data"
    assert padding(tmp_path, index=0, use=pack).packed
