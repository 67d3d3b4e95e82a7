"""How training was set up and how it behaved, beyond its time: looked at between windows."""

from __future__ import annotations

from tdiag.evidence.base import Kind, Location


class Scheduler(Kind, frozen=True, kw_only=True):
    """One ``torch.optim.lr_scheduler`` object. ``steps``: how often it had stepped when last
    looked at (its ``last_epoch``); None if it was gone by then or does not count."""

    name: str
    created_at: Location | None
    steps: int | None


class Schedulers(Kind, frozen=True, kw_only=True):
    """Torch's schedulers that were made. One of another library, or rates set by hand, show in
    ``Optimizer.lr_changed`` alone."""

    schedulers: tuple[Scheduler, ...]


class Gradients(Kind, frozen=True, kw_only=True):
    """Total L2 norm of the leading optimizer's gradients in a handful of steps, as the step used
    them, after any clipping. ``not_finite``: how many of the steps looked at had inf or NaN
    instead; ``norms`` holds the others, first to last. ``clipped``: ``clip_grad_norm_`` or
    ``clip_grad_value_`` was called, None where calls were not counted."""

    norms: tuple[float, ...]
    not_finite: int
    clipped: bool | None = None


class Startup(Kind, frozen=True, kw_only=True):
    """From the start of the program to the end of its first step, ns, once.

    ``parts_ns``, in order of time, absent where nothing of it was seen: ``imports`` (before
    torch's), ``import torch``, ``set-up`` (datasets, model; until the first batch is asked for),
    ``workers`` (made by the first iterator), ``first batch``, ``first step`` (from its batch to its
    end). ``run_ns``: the whole program's time, None where tdiag ended it.
    """

    parts_ns: dict[str, int]
    run_ns: int | None

    @property
    def total_ns(self) -> int:
        return sum(self.parts_ns.values())
