"""Where there is nothing to change, no change says that it changed something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.probe.trial.changes import names
from tests.probe.harness import watch_code

PLAIN = """
import torch
weight = torch.ones(2, requires_grad=True)
for step in range(20):
    loss = (weight * 2).sum()
    loss.backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad = None
"""
TRAINED = """
import torch
from torch.utils.data import DataLoader, IterableDataset
class Data(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(40, 2).unbind())
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
model = Net(2, 1)
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, {form}=True)
for batch in DataLoader(Data(), batch_size=2):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch).sum()
    loss.backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    model(batch)
"""
# Why not, in the report; "" where the change's own word for it is.
NOTHING_THERE = dict.fromkeys(
    [
        "ceiling.checkpoint", "ceiling.communication", "ceiling.copies", "ceiling.data",
        "ceiling.evaluation", "ceiling.logging", "ceiling.loss", "ceiling.optimizer",
        "ceiling.reads", "copies.non_blocking", "ddp.no_sync", "evaluation.no_grad",
        "evaluation.inference_mode", "freeze=script.py:validate", "loader.cache",
        "loader.num_workers=2", "loader.whole_batches", "loader.worker_threads=1",
        "loader.in_order=off", "copies.once", "model.channels_last", "model.float32",
        "model.unused_gradients=off", "model.dropped_gradients=off", "model.slices_at_once",
        "optimizer.clip_foreach",
        "process.debugging=off",
        "torch.checkpoint=off", "torch.compile_dynamic", "torch.empty_cache=off",
        "torch.synchronize=off",
        "optimizer.foreach", "optimizer.fused", "optimizer.zero_grad=set_to_none",
        "process.allocator=jemalloc", "torch.anomaly=off", "torch.autocast=bfloat16",
        "torch.compile=script.py:loss_of", "torch.deterministic=off", "torch.profiler=off",
        "torch.validate_args=off",
        "ddp.broadcast_buffers=off", "ddp.bucket_cap_mb=2", "ddp.find_unused_parameters=off",
        "ddp.static_graph", "ddp.gradient_as_bucket_view",
    ],
    "",
)  # fmt: skip
THERE_ALREADY = {
    "evaluation.inference_mode": "",
    "copies.once": "",
    "loader.cache": "",
    "loader.in_order=off": "has no workers",
    "loader.num_workers=0": "has num_workers=0 already",
    "loader.persistent_workers": "has no workers",
    "loader.pin_memory": "no device to copy to",
    "loader.prefetch_factor=2": "has no workers",
    "loader.whole_batches": "",
    "loader.worker_threads=1": "",
    "model.channels_last": "no two-dimensional convolution",
    "model.float32": "no parameter of float64",
    "model.unused_gradients=off": "",
    "model.dropped_gradients=off": "",
    "model.slices_at_once": "",
    "optimizer.clip_foreach": "",
    "process.expandable_segments": "no device with such an allocator",
    "optimizer.zero_grad=set_to_none": "",
    "torch.autocast=bfloat16": "under autocast already",
    "torch.compile": "compiled already",
    "torch.cudnn_benchmark": "no device with cuDNN",
    "torch.num_threads=1": "has 1 threads already",
}
# Of the whole process, whatever the script does: only the measured time says that it won nothing.
ALWAYS = {
    "ceiling.gc", "process.library_threads", "python.gc_freeze", "torch.float32_matmul_precision",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (PLAIN, NOTHING_THERE),
        (TRAINED.format(form="foreach"), {**THERE_ALREADY, "optimizer.foreach": "already"}),
        (TRAINED.format(form="fused"), {"optimizer.fused": "already"}),
    ],
    ids=["nothing there", "there already", "fused"],
)
def test_a_healthy_script_is_left_as_it_is(
    code: str, changes: dict[str, str], tmp_path: Path
) -> None:
    """All changes in one process: none of them has anything to do."""
    asked = [(name, value) for name, _, value in (text.partition("=") for text in changes)]
    watched = watch_code(tmp_path, code, windows=[], trial=asked)
    assert watched.returncode == 0, watched.err
    said = watched.of("trial")
    assert not watched.of("failure")
    assert not [r for r in said if r["state"] in ("applied", "answered")]
    for text, why in changes.items():
        name = text.partition("=")[0]
        told = [r["what"] for r in said if r["change"] == name and r["state"] == "refused"]
        assert any(why in one for one in told) if why else not told, (name, told)


def test_no_change_is_without_a_healthy_script() -> None:
    here = {text.partition("=")[0] for text in (*NOTHING_THERE, *THERE_ALREADY)}
    assert here | ALWAYS == set(names())
