"""A data set that would fit on the device is sent batch by batch

## What it measures
The bytes of all samples, in the types of the batches, compared with the device memory that is free
at torch's peak; the device's idle time in waits for batches and in their copies.

## Why it is slow
In every epoch the host loads, collates and copies the same samples again, while the device waits.

## What to do
Put the whole data set on the device once, as one tensor per field, and index it there: a batch then
takes one kernel per field.

## How the gain is computed
From the waits for batches, and the time of copies that no compute overlaps. High end: both are
gone. Low end: three quarters of the waits and of the batches' share of the copies, by bytes.

## When this advice is wrong
Reported only if the fetches draw no random numbers and torch's own collate function stacks the
samples: random augmentation would have to run on the device, and samples of different sizes do not
stack into one tensor. A data set that will grow may soon not fit. In a job with several devices
each device holds all of it.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Startup
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, held, ns, where
from tdiag.rules.device_waits import exposed
from tdiag.rules.examples import GB, MB, budget, copy, device_holds, device_time, loaders
from tdiag.rules.feed import batches_per_step, one_epoch
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import per_step, plural, size

CODE = "TD306"
NAME = "data-set-fits-on-device"
CLASS = "h2d"
UNTRIED = "the loop must index tensors on the device; `ceiling.data` bounds the gain"

MOVED_LOW_FRAC = Threshold(
    0.75,
    "of the waits and of the batches' copies",
    "Heuristic: indexing the tensor on the device takes a quarter of them.",
)


def check(
    budget: Budget,
    loaders: Loaders,
    device: DeviceTime,
    memory: DeviceMemory | None,
    transfers: Transfers | None,
    phases: Phases | None,
    history: StepHistory | None,
    startup: Startup | None,
) -> Found | None:
    loader = loaders.train()
    samples = loader and (loader.samples or loader.batch_size)
    if loader is None or not samples or not loader.dataset_len or not loader.batch_bytes:
        return None
    if not budget.has_device or loader.streams or loader.collate_at is not None:
        return None
    if one_epoch(history, startup):
        return None
    starting = phases.iterator_start_ns if phases else 0.0
    waiting = max(0.0, held(budget, *DATA_WAIT) - starting)
    sent = [x for x in transfers.copies if x.direction == "h2d"] if transfers else []
    copying = min(held(budget, "h2d"), exposed(sent, budget, device))
    if waiting + copying < NOTICEABLE_FRAC * budget.step_ns:
        return None
    used, total = device_memory(memory)
    whole = loader.batch_bytes / samples * loader.dataset_len
    if used + whole > USABLE_MEMORY_FRAC * total:
        return None
    if loader.random is None:
        raise Abstain("random numbers drawn in fetches were not recorded")
    if loader.random:
        return None
    every = sum(x.bytes or 0.0 for x in sent)
    batches = loader.batch_bytes * batches_per_step(phases, loader)
    own = min(1.0, batches / every) if every else 0.0
    return Found(
        summary=(
            f"All {plural(loader.dataset_len, 'sample')} of {loader.dataset_class} together take"
            f" {size(whole)}, and {size(total - used)} of the device's memory is free. Yet the"
            f" device waits {per_step(waiting + copying, budget.step_ns)} for batches and their"
            " copies."
        ),
        evidence=(
            bytes_("the data set, in the types of its batches", whole, "fetch"),
            bytes_(PEAK, used, "probe"),
            bytes_("device memory", total, "probe"),
            count("samples of the dataset", loader.dataset_len, "probe"),
            ns("device idle, waiting for batches", waiting, "budget"),
            ns("copies not overlapped by compute", copying, "trace"),
            bytes_("batches, per step", batches, "fetch"),
        ),
        fix=_fix(loader, whole),
        gain=Gain(
            (waiting + copying * own) * MOVED_LOW_FRAC,
            waiting + copying,
            "high end: no waits for batches and no copies are left; low end: three quarters of the"
            " waits and of the batches' copies are gone.",
            (*DATA_WAIT, "h2d"),
        ),
        at=loader.created_at,
    )


def _fix(loader: Loader, whole: float) -> Fix:
    batch = loader.batch_size or "batch_size"
    order = f"order[: len(order) // {batch} * {batch}]" if loader.drop_last else "order"
    return Fix(
        f"Move the whole data set ({size(whole)}) to the device before the first epoch, and index"
        f" it there instead of iterating the DataLoader{where(loader.created_at)}.",
        "review",
        action="Keep the data set on the device",
        code=(
            "import torch\n\n"
            "every = [dataset[k] for k in range(len(dataset))]  # of tuples\n"
            "fields = [x.to(device) for x in torch.utils.data.default_collate(every)]\n"
            "for epoch in range(epochs):\n"
            "    order = torch.randperm(len(dataset), device=device)\n"
            f"    for index in {order}.split({batch}):\n"
            "        batch = [field[index] for field in fields]"
        ),
    )


def fires() -> Evidence:
    """Sixty thousand small pictures, 47 MB in all."""
    return _training(dataset_len=60_000)


def clear() -> Evidence:
    """The same pictures, a hundred million of them."""
    return _training(dataset_len=100_000_000)


def _training(dataset_len: int) -> Evidence:
    fed = loaders(
        dataset_class="TensorDataset", dataset_at=None, dataset_len=dataset_len, random=False,
        batch_size=256, samples=256.0, batch_bytes=0.2 * MB,
    )  # fmt: skip
    step = budget(device=True, data_wait_cpu=4, h2d=1, compute=5)
    sent = Transfers(copies=(copy(bytes=0.2 * MB, exposed_ns=1e6),))
    return Evidence().add(step, fed, device_time(10), device_holds(2 * GB), sent)
