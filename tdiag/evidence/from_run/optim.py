"""Optimizers, schedulers and gradients, as the probe's looks between the windows saw them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.model import longest
from tdiag.evidence.from_run.places import location
from tdiag.evidence.from_run.records import (
    LookRecord,
    OpsRecord,
    OptimizerRecord,
    SchedulerRecord,
)
from tdiag.evidence.kinds import Optimizer, Optimizers
from tdiag.evidence.training import Gradients, Scheduler, Schedulers
from tdiag.model.kind import Kind


def make_optim(lead: Process) -> list[Kind]:
    """Optimizers; Schedulers and Gradients if the training was looked at."""
    looks = lead.all(LookRecord)
    described = {o.id: o for o in lead.all(OptimizerRecord)}.values()
    kinds: list[Kind] = [Optimizers(optimizers=tuple(_optimizer(o, looks) for o in described))]
    if looks:
        kinds.append(_schedulers(lead, looks))
        seen = [look.gradient for look in looks if look.gradient is not None]
        if seen:
            norms = tuple(norm for norm in seen if not isinstance(norm, str))
            ops = longest(lead.all(OpsRecord))
            kinds.append(
                Gradients(
                    norms=norms,
                    not_finite=len(seen) - len(norms),
                    clipped=None if ops is None else bool(ops.clips),
                )
            )
    return kinds


def _optimizer(record: OptimizerRecord, looks: list[LookRecord]) -> Optimizer:
    rates = [rates for look in looks if (rates := look.rates.get(record.id))]
    first = [r[0] for r in rates]
    return Optimizer(
        name=record.name,
        created_at=location(record.at),
        tensors=record.tensors,
        config=_scalars(record.config),
        lr_changed=any(r != rates[0] for r in rates) if len(rates) > 1 else None,
        rates=tuple(rate for rate in first if rate is not None),
    )


def _schedulers(lead: Process, looks: list[LookRecord]) -> Schedulers:
    def steps(number: int) -> int | None:
        seen = [look.scheduled[number] for look in looks if number < len(look.scheduled)]
        return next((n for n in reversed(seen) if n is not None), None)

    return Schedulers(
        schedulers=tuple(
            Scheduler(name=s.name, created_at=location(s.at), steps=steps(s.id))
            for s in lead.all(SchedulerRecord)
        )
    )


def _scalars(config: Mapping[str, Any]) -> dict[str, float | int | bool | str | None]:
    return {
        key: value if isinstance(value, (float, int, str, type(None))) else str(value)
        for key, value in config.items()
    }
