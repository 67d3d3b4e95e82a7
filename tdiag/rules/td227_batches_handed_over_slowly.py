"""Taking batches from the workers takes long

## What it measures
Samples of the training thread that take a batch of many tensors or Python objects from a worker's
queue: `Queue.get` in the DataLoader, without waiting for the worker. Of these, samples that rebuild
tensors.

## Why it is slow
A tensor from a worker comes in shared memory of its own. The training process opens a connection to
the worker and asks for it, tensor by tensor: joining 160 tensors a batch saved 118 of 157 ms a
step, 0.7 ms each (torch 2.13, two cores). Python objects are pickled by the worker and built again
in the training process, where the garbage collector then runs more often. The training process does
this itself, so more workers do not help.

## What to do
Let `collate_fn` join what a batch holds in the worker: one tensor for each field (`torch.cat`,
`torch.stack`, `pad_sequence`), with the lengths in a tensor of their own. Leave out what the
training does not read. NumPy arrays are sent as bytes, without a connection for each.

## How the gain is computed
The share of the samples as time of the step, without what four tensors of as many bytes cost. High
end: all of it goes. Low end: what one tensor call instead of Python's work on a batch saved in
measurements, and no more than the workers' own fetches, which are then the limit, allow.

## When this advice is wrong
With few workers, joining adds to their work. Batches of a few large tensors cost little to hand
over: then the rule is silent.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, frac, known_to, sampling_range, where
from tdiag.rules.examples import budget, loaders, phases, stacks
from tdiag.rules.feed import HANDOVER_HIGH_NS, HANDOVER_NS_PER_BYTE, batches_per_step
from tdiag.rules.fetch_lines import collate_place, top_fetch_lines
from tdiag.rules.loop_lines import check_samples
from tdiag.rules.thresholds import REPLACED_LOW_FRAC
from tdiag.units import percent

CODE = "TD227"
NAME = "batches-handed-over-slowly"
CLASS = "input"
UNTRIED = "needs another collate function"

FEW_TENSORS = Threshold(
    4,
    "tensors in a batch",
    "Heuristic: inputs, lengths or indices, a mask and targets, which cannot be joined further.",
)
_QUEUE, _LOADER = "multiprocessing/queues.py", "utils/data/dataloader.py"
_OBJECTS = " Leave out what the training does not read, and send numbers instead of objects."
_TENSORS = "torch/multiprocessing/reductions.py"


def check(
    budget: Budget, loaders: Loaders, stacks: Stacks, trees: CallTrees, phases: Phases | None
) -> Found | None:
    loader = loaders.train()
    if loader is None or not loader.num_workers:
        return None
    check_samples(stacks)
    taking, rebuilding = _shares(trees.training)
    batches = batches_per_step(phases, loader)
    sent = (loader.batch_bytes or 0.0) * HANDOVER_NS_PER_BYTE
    plain = batches * (FEW_TENSORS * HANDOVER_HIGH_NS + sent) / budget.step_ns
    least, most = (max(0.0, x - plain) for x in known_to(taking, stacks.samples))
    if least < NOTICEABLE_FRAC:
        return None
    fetch = (loader.load_ns or 0.0) + (loader.collate_ns or 0.0)
    limit = batches * fetch / loader.num_workers
    of_tensors = rebuilding > MAJORITY_FRAC * taking
    what = "many tensors, each in shared memory of its own" if of_tensors else "many Python objects"
    # What makes objects takes the workers long as well.
    makes = [] if of_tensors else top_fetch_lines(loader, stacks)
    at = makes[0].at if makes else collate_place(loader)
    return Found(
        summary=(
            f"Taking batches from the workers takes {percent(taking)} of the training thread's"
            f" time: they hold {what}."
        ),
        evidence=(
            frac("samples that take a batch from a worker", taking, "sample"),
            frac("of all samples: rebuild its tensors", rebuilding, "sample"),
            count("samples of the training thread", stacks.samples, "sample"),
            count("num_workers", loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"Join what a batch holds in the worker{where(at)}: one tensor for each field, with the"
            f" lengths in a tensor of their own.{'' if of_tensors else _OBJECTS}",
            "review",
            action="Let the workers send a few tensors for each batch",
            code=(
                "def collate(samples):  # runs in the worker\n"
                "    xs, ys = zip(*samples)\n"
                "    lengths = torch.tensor([len(x) for x in xs])\n"
                "    return torch.cat(xs), lengths, torch.stack(ys)"
            ),
        ),
        gain=Gain(
            max(0.0, min(least * REPLACED_LOW_FRAC * budget.step_ns, budget.step_ns - limit)),
            most * budget.step_ns,
            "high end: only what a batch of four tensors costs remains; low end: a little more,"
            " or the workers' fetches are the limit."
            f" {sampling_range(stacks.samples, least + plain, most + plain)}.",
            (*DATA_WAIT, "gc"),
            fetches=True,
        ),
        at=at,
    )


def _shares(frames: tuple[CallFrame, ...]) -> tuple[float, float]:
    """Of the training thread's samples: those that take a batch from a worker's queue without
    waiting for it, and those of them that rebuild tensors."""
    taking: set[int] = set()  # inside of the queue's get()
    shares, rebuilding = 0.0, 0.0
    for number, frame in enumerate(frames):
        name = frame.name.rpartition(".")[2]
        above = frames[frame.parent] if frame.parent >= 0 else None
        if frame.parent in taking:
            if "poll" in name:  # not ready yet
                shares -= frame.frac
            elif frame.file.endswith(_TENSORS):
                rebuilding += frame.frac
        elif (
            name == "get" and frame.file.endswith(_QUEUE) and above and above.file.endswith(_LOADER)
        ):
            taking.add(number)
            shares += frame.frac
    return shares, rebuilding


def fires() -> Evidence:
    """Forty molecules a batch, four tensors each: ``collate_fn=list``."""
    return _fed(taking=0.55, rebuilding=0.53)


def clear() -> Evidence:
    """Two tensors a batch."""
    return _fed(taking=0.02, rebuilding=0.01)


def _fed(taking: float, rebuilding: float) -> Evidence:
    def frame(name: str, file: str, parent: int, share: float) -> CallFrame:
        return CallFrame(name=name, file=file, line=0, parent=parent, frac=share, user=False)

    frames = (
        frame("_try_get_data", f"/env/torch/{_LOADER}", -1, taking + 0.05),
        frame("Queue.get", f"/usr/lib/{_QUEUE}", 0, taking + 0.05),
        frame("_ConnectionBase.poll", "/usr/lib/multiprocessing/connection.py", 1, 0.05),
        frame("rebuild_storage_fd", f"/env/{_TENSORS}", 1, rebuilding),
    )
    waiting = budget(data_wait=60, forward=20, backward=20)
    clean = phases(data_wait=60, forward=20, backward=20)
    return Evidence().add(
        waiting, clean, stacks(), CallTrees(training=frames, workers=()),
        loaders(num_workers=1, load_ns=3e6, collate_ns=1e5),
    )  # fmt: skip
