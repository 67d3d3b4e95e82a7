"""What reached the model, from the looks at its first calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tdiag.evidence.data import Inputs, InputTensor
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.places import location
from tdiag.evidence.from_run.records import InputRecord, ModuleRecord


def make_inputs(lead: Process) -> Inputs | None:
    """None where no outermost module was looked at."""
    modules = {m.id: m for m in lead.all(ModuleRecord)}
    seen: dict[tuple[int, str], list[InputRecord]] = defaultdict(list)
    for record in lead.all(InputRecord):
        seen[record.module, record.name].append(record)
    if not any(m.parameters for m in modules.values()):
        return None
    return Inputs(
        tensors=tuple(
            _tensor(modules[number], looks)
            for (number, _), looks in seen.items()
            if number in modules
        )
    )


def _tensor(module: ModuleRecord, looks: list[InputRecord]) -> InputTensor:
    last = looks[-1]
    same = [x for x in looks if len(x.mean) == len(last.mean)]
    mean = _mean([x.mean for x in same])
    # Var X = E[X²] − (E X)², over the batches.
    squares = _mean([[s * s + m * m for s, m in zip(x.std, x.mean, strict=True)] for x in same])
    return InputTensor(
        name=last.name,
        module=module.name,
        module_at=location(module.at),
        dtype=last.dtype,
        shape=tuple(last.shape),
        channel_mean=mean,
        channel_std=tuple(
            max(0.0, square - m * m) ** 0.5 for square, m in zip(squares, mean, strict=True)
        ),
        minimum=min(x.min for x in looks),
        maximum=max(x.max for x in looks),
        first=last.first,
        binary=all(x.binary for x in looks),
    )


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
