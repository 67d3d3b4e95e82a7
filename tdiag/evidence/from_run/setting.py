"""What ran where: modules, optimizers, switches, threads, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tdiag import __version__
from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.events import Process, beside_of, workers_of
from tdiag.evidence.from_run.places import location
from tdiag.evidence.from_run.records import (
    CalledRecord,
    FlagsRecord,
    ModuleRecord,
    ProcessRecord,
    RoleRecord,
    TorchRecord,
)
from tdiag.evidence.from_run.roles import GRAD_ON, LOSS, MODEL, TRAINING_MODE, Roles
from tdiag.evidence.from_run.timeline import Timeline
from tdiag.evidence.kinds import Environment, Flags, Module, Modules, Threads
from tdiag.model.kind import Kind


def make_setting(lead: Process, processes: list[Process]) -> list[Kind]:
    """Flags and Threads, as far as they were recorded."""
    kinds: list[Kind] = []
    if flags := lead.last(FlagsRecord):
        kinds.append(
            Flags(
                anomaly_mode=flags.anomaly,
                deterministic=flags.deterministic,
                cudnn_benchmark=flags.cudnn_benchmark,
                user_profiler=flags.profiler,
                user_trace=flags.trace,
                autocast_dtype=flags.autocast,
                compiled=flags.compiled,
                grad_scaler=flags.scaler,
                agent_library=flags.agent[0] if flags.agent else "",
            )
        )
    if torch := lead.last(TorchRecord):
        beside = beside_of(lead, processes)
        threads = [t.intra_op for p in beside if (t := p.last(TorchRecord))]
        kinds.append(
            Threads(
                intra_op=torch.intra_op,
                inter_op=torch.inter_op,
                worker_intra_op=_worker_threads(lead, processes),
                omp_num_threads=torch.omp or "",
                processes=1 + len(beside),
                together=torch.intra_op + sum(threads),
                set_at=location(torch.threads_at),
            )
        )
    return kinds


def make_modules(lead: Process, timeline: Timeline, roles: Roles, clean: Clean) -> Modules:
    """The outermost modules, with how often training called each in a clean step."""
    losses = set((timeline.arg[roles.index[roles.role == LOSS]] >> 2).tolist())
    trains = roles.index[np.isin(roles.role, (MODEL, LOSS))]
    trains = trains[clean.mask[timeline.step[trains]]]
    numbers, counts = np.unique(timeline.arg[trains] >> 2, return_counts=True)
    per_step = dict(zip(numbers.tolist(), (counts / clean.mask.sum()).tolist(), strict=True))
    calls = lead.all(CalledRecord)[::-1]  # the first one counts
    evaluated = {c.module: c.at for c in calls if c.mode != TRAINING_MODE | GRAD_ON}
    trained = {c.module: c.at for c in calls if c.mode == TRAINING_MODE | GRAD_ON}
    return Modules(
        modules=tuple(
            Module(
                name=m.name,
                at=location(m.at),
                parameters=m.parameters,
                parameter_bytes=m.parameter_bytes,
                is_loss=m.loss or m.id in losses,
                calls_per_step=per_step.get(m.id, 0.0),
                evaluated_at=location(evaluated.get(m.id)),
                trained_at=location(trained.get(m.id)),
            )
            for m in lead.all(ModuleRecord)
        )
    )


def make_environment(run: Mapping[str, Any], lead: Process | None) -> Environment:
    """From ``run.json`` and, once it trained, the process itself."""
    process = lead.last(ProcessRecord) if lead else None
    torch = lead.last(TorchRecord) if lead else None
    devices = torch.devices if torch else []
    command = tuple(str(word) for word in run.get("command") or ())
    return Environment(
        torch=torch.version if torch else "",
        python=process.python if process else str(run.get("python") or ""),
        device=devices[0] if devices else "cpu",
        device_count=len(devices),
        tdiag=str(run.get("tdiag") or __version__),
        command=command,
        script=str(run.get("script") or (Path(command[0]).name if command else "")),
        hostname=str(run.get("hostname") or ""),
        platform=str(run.get("platform") or ""),
        rank=lead.rank if lead else 0,
        world_size=lead.world_size if lead else 1,
        exit_code=run.get("exit_code"),
    )


def _worker_threads(lead: Process, processes: list[Process]) -> int | None:
    roles = (worker.last(RoleRecord) for worker, _ in workers_of(lead, processes).values())
    return next((r.intra_op for r in roles if r is not None and r.intra_op is not None), None)
