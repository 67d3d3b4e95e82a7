"""Why a call of fused attention may get no fused kernel, as the probe sees its arguments."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.torch_ops import HostOps, Ops
from tdiag.probe.capture.flow import ONLY_FOUR

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attend
x = nn.Parameter(torch.randn(2, 4, 8, 16))
bias = nn.Parameter(torch.zeros(8, 8))
layer = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
optimizer = torch.optim.SGD([x, bias, *layer.parameters()], lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    loss = attend(x, x, x).sum()
    loss = loss + attend(x, x, x, dropout_p=0.1).sum()
    loss = loss + attend(x, x, x, attn_mask=bias).sum()
    loss = loss + attend(x[0], x[0], x[0]).sum()
    loss = loss + attend(x, x, x[..., :8]).sum()
    loss = loss + layer(x[0], x[0], x[0], need_weights=False)[0].sum()
    loss = loss + layer(x[0], x[0], x[0])[0].sum()
    loss.backward()
    optimizer.step()
"""
WHY = {
    11: (),
    12: ("dropout",),
    13: ("mask with gradient",),
    14: ("dimensions",) if ONLY_FOUR else (),
    15: ("sizes",),
    16: ("dropout",),
    17: ("weights",),
}


def test_each_reason_is_seen_at_its_line_and_is_one_for_torch(tmp_path: Path) -> None:
    windows = ["baseline", "trace", "ops"]
    run = watch_code(tmp_path, SCRIPT, windows=windows, profiling=True, steps=80)
    assert run.returncode == 0 and run.of("failure") == []
    evidence = run.evidence()
    ops, host_ops = evidence.get(Ops), evidence.get(HostOps)
    assert ops is not None and host_ops is not None
    seen = {call.at.line: call.unfused for call in ops.fused_attention if call.at}
    assert seen == WHY
    counts = {op.name: op.count for op in host_ops.ops}
    slow = sum(1 for why in WHY.values() if why and why != ("weights",))
    assert counts["aten::_scaled_dot_product_attention_math"] == slow
