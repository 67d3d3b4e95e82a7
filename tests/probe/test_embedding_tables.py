"""What the probe sees of embedding tables: rows looked up, and whether anything else uses them."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.training import EmbeddingTables

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
users, words = nn.Embedding(5000, 8), nn.Embedding(300, 8)
bag = nn.EmbeddingBag(4000, 8, sparse=True)
model = nn.ModuleDict({"users": users, "words": words, "bag": bag})
dense = [*users.parameters(), *words.parameters()]
optimizers = [torch.optim.Adam(dense), torch.optim.SparseAdam(list(bag.parameters()))]
for step in range(100_000):
    hidden = users(torch.randint(70, (32,))) + bag(torch.randint(4000, (32, 3)))
    hidden = hidden + words(torch.randint(300, (32,)))
    loss = nn.functional.cross_entropy(hidden @ words.weight.t(), torch.randint(300, (32,)))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def test_the_probe_tells_the_tables_of_a_training(tmp_path: Path) -> None:
    run = watch_code(tmp_path, SCRIPT, windows=["baseline", "ops"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(EmbeddingTables)
    assert found is not None
    tables = {table.rows: table for table in found.tables}
    assert {rows: t.looked_up for rows, t in tables.items()} == {5000: 32, 4000: 96, 300: 32}
    assert tables[5000].distinct < 32, "32 of 70 rows: some come up twice"
    assert {rows for rows, table in tables.items() if table.sparse} == {4000}
    assert {rows for rows, table in tables.items() if table.elsewhere} == {300}, "updates are not"
    assert {rows: t.highest is not None and t.highest < 70 for rows, t in tables.items()} == {
        5000: True, 4000: False, 300: False
    }  # fmt: skip
    assert tables[5000].bytes == 5000 * 8 * 4
    assert tables[5000].at is not None and tables[5000].at.line == 10
