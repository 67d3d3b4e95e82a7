"""Ranks that `torch.multiprocessing.spawn` started: no WORLD_SIZE in their environment."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.from_run.event_files import read_events

from .harness import watch_code

CODE = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def said(destroy=dist.destroy_process_group):
    destroy()
    print("left the group\\n", end="", flush=True)  # one write

def train(rank, world, store):
    dist.destroy_process_group = said
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = torch.nn.Linear(4, 1)
    # By hand: an optimizer and DistributedDataParallel import what takes longer than torch itself.
    while True:
        model.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        dist.all_reduce(model.weight.grad)
        model.weight.data -= 0.01 * model.weight.grad

if __name__ == "__main__":
    import os
    mp.spawn(train, args=(2, os.path.abspath("store")), nprocs=2)
    print("after the ranks")
"""


def test_they_trace_and_stop_together(tmp_path: Path) -> None:
    watched = watch_code(
        tmp_path, CODE, profiling=True, windows=["baseline", "trace"], time_budget_s=20.0,
        short=True,
    )  # fmt: skip
    # A rank that exits within its group aborts now and then, with torch alone, too.
    left = 2 * "left the group\n"
    assert (watched.returncode, watched.out) == (0, f"{left}after the ranks\n"), watched.err
    assert watched.err == ""
    ranks = {p.rank: p for p in read_events(watched.run_dir) if p.steps}
    assert sorted(ranks) == [0, 1]
    assert all(process.world_size == 2 for process in ranks.values())
    # Both count the same steps and end after the same one.
    assert ranks[0].steps.number[-1] == ranks[1].steps.number[-1]
    assert set(ranks[1].steps.window.tolist()) <= {"warmup", "follow", "done"}
    assert len(watched.of("trace")) >= 2 and len(watched.of("stop")) == 2
