"""The setting of the run: modules, optimizers, schedulers, switches, threads, environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tdiag import __version__
from tdiag.evidence.device import Device
from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.counted_records import (
    BackwardsRecord,
    CallsRecord,
    GraphPart,
    OpsRecord,
)
from tdiag.evidence.from_run.event_files import Process, beside_of, workers_of
from tdiag.evidence.from_run.model import longest
from tdiag.evidence.from_run.records import (
    CalledRecord,
    FlagsRecord,
    InspectionRecord,
    ModuleRecord,
    OptimizerRecord,
    ProcessRecord,
    RoleRecord,
    SaverRecord,
    SchedulerRecord,
    SettingsRecord,
    StartedRecord,
    TorchRecord,
    UnusedGradients,
    WindowRecord,
    location,
)
from tdiag.evidence.from_run.roles import LOSS, MODEL, Roles
from tdiag.evidence.from_run.slices import Slices
from tdiag.evidence.machine import DebugVariables, Environment, Threads
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.training import (
    PROFILERS,
    DroppedAt,
    DroppedGradients,
    Flags,
    Gradients,
    GraphShares,
    Module,
    Modules,
    Optimizer,
    Optimizers,
    ProcessStarts,
    RepeatedHooks,
    Saver,
    Savers,
    Scheduler,
    Schedulers,
    Setting,
    Settings,
    UnusedBackward,
)
from tdiag.model.kind import Kind
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import (
    BY_CPROFILE,
    CALLS,
    GRAD_ON,
    MODULE_SHIFT,
    NO_OPTIMIZER,
    SWITCHED,
    TRAINING_MODE,
)


def _by_cprofile(lead: Process) -> bool:
    """Whether every window that counts Python's calls gave way to the script's own cProfile."""
    why = [window.why for window in lead.all(WindowRecord) if window.name == CALLS and window.why]
    return BY_CPROFILE in why and not lead.all(CallsRecord)


def make_setting(lead: Process, processes: list[Process]) -> list[Kind]:
    """Flags, Threads, Settings and RepeatedHooks, if they were recorded."""
    settings = _settings(lead)
    kinds: list[Kind] = [settings] if settings.settings else []
    if (look := lead.last(InspectionRecord)) and look.hooks:
        hooks = ((location(at), n) for at, n in look.hooks)
        kinds.append(RepeatedHooks(times=tuple((at, n) for at, n in hooks if at)))
    if flags := lead.last(FlagsRecord):
        kinds.append(
            Flags(
                # A `with` around forward and backward has switched it off again when the step ends.
                anomaly_mode=flags.anomaly or settings.in_most_steps("anomaly", True),
                deterministic=flags.deterministic,
                cudnn_benchmark=flags.cudnn_benchmark,
                user_profiler=flags.profiler or any(map(settings.in_most_steps, PROFILERS)),
                # Frameworks switch it on and off within each step.
                user_trace=flags.trace or ("cProfile" if _by_cprofile(lead) else ""),
                autocast_dtype=flags.autocast,
                compiled=flags.compiled,
                grad_scaler=flags.scaler,
                agent_library=flags.agent[0] if flags.agent else "",
            )
        )
    if torch := lead.last(TorchRecord):
        if torch.debug is not None:
            kinds.append(DebugVariables(values=torch.debug))
        beside = beside_of(lead, processes)
        threads = [p.head.intra_op for p in beside if p.head.intra_op is not None]
        set_at = settings.last("num_threads", torch.intra_op)
        kinds.append(
            Threads(
                intra_op=torch.intra_op,
                inter_op=torch.inter_op,
                worker_intra_op=_worker_threads(lead, processes),
                omp_num_threads=torch.omp or "",
                processes=1 + len(beside),
                together=torch.intra_op + sum(threads),
                set_at=set_at.at if set_at else None,
                pools=torch.pools or {},
            )
        )
    return kinds


def _settings(process: Process) -> Settings:
    record = process.last(SettingsRecord) or SettingsRecord()
    return Settings(
        settings=tuple(
            Setting(name=name, value=value, at=at, per_step=times / max(1, record.steps))
            for name, value, place, times in record.rows
            if (at := location(place)) is not None
        )
    )


def make_modules(lead: Process, timeline: Slices, roles: Roles, clean: Clean) -> Modules:
    """The outermost modules, with the calls of each by training per clean step."""
    losses = set((timeline.arg[roles.index[roles.role == LOSS]] >> MODULE_SHIFT).tolist())
    trains = roles.index[np.isin(roles.role, (MODEL, LOSS))]
    trains = trains[clean.mask[timeline.step[trains]]]
    numbers, counts = np.unique(timeline.arg[trains] >> MODULE_SHIFT, return_counts=True)
    per_step = dict(zip(numbers.tolist(), (counts / clean.mask.sum()).tolist(), strict=True))
    calls = lead.all(CalledRecord)[::-1]  # the first one counts
    evaluated = {c.module: c.at for c in calls if c.mode == SWITCHED}
    evaluated |= {
        c.module: c.at for c in calls if c.mode not in (SWITCHED, TRAINING_MODE | GRAD_ON)
    }
    trained = {c.module: c.at for c in calls if c.mode == TRAINING_MODE | GRAD_ON}
    look = lead.last(InspectionRecord)
    unused = {row.module: row for row in look.unused_gradients} if look else {}
    none = UnusedGradients(module=-1)
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
                unused_gradients=unused.get(m.id, none).numbers,
                unused_with_state=unused.get(m.id, none).with_state,
                unused_within=unused.get(m.id, none).within,
                frozen_by_name=look.frozen_by_name.get(m.id, "") if look else "",
            )
            for m in lead.all(ModuleRecord)
        )
    )


def make_device(lead: Process) -> Device | None:
    """The device; None if the process computed on the CPU: it has no device, or holds nothing on
    it."""
    torch = lead.last(TorchRecord)
    if torch is None:
        return None
    held = [w.allocated for w in lead.all(WindowRecord) if w.allocated is not None]
    if held and not any(held):
        return None
    if torch.device is not None:
        name = torch.device.name or torch.device.kind
        return Device(kind=torch.device.kind, name=name, memory_bytes=torch.device.memory)
    return Device(kind="cuda", name=torch.devices[0]) if torch.devices else None


def make_device_facts(process: Process) -> list[Kind]:
    """Device, and DeviceMemory if torch's allocator was read."""
    device = make_device(process)
    if device is None:
        return []
    windows = process.all(WindowRecord)
    peak = max((w.peak for w in windows if w.peak is not None), default=0)
    reserved = max((w.reserved for w in windows if w.reserved is not None), default=0)
    if not peak:
        return [device]
    memory = DeviceMemory(
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        capacity_bytes=device.memory_bytes,
    )
    return [device, memory]


def make_environment(run: Mapping[str, Any], lead: Process | None) -> Environment:
    """From ``run.json`` and, once it trained, from the process itself."""
    process = lead.last(ProcessRecord) if lead else None
    torch = lead.last(TorchRecord) if lead else None
    device = make_device(lead) if lead else None
    command = tuple(str(word) for word in run.get("command") or ())
    return Environment(
        torch=torch.version if torch else "",
        python=process.python if process else str(run.get("python") or ""),
        device=device.name if device else "cpu",
        device_count=max(1, len(torch.devices)) if device and torch else 0,
        tdiag=str(run.get("tdiag") or __version__),
        command=command,
        script=str(run.get("script") or (Path(command[0]).name if command else "")),
        hostname=str(run.get("hostname") or ""),
        platform=str(run.get("platform") or ""),
        rank=lead.rank if lead else 0,
        world_size=lead.world_size if lead else 1,
        framework=torch.framework if torch else None,
        exit_code=run.get("exit_code"),
    )


def _worker_threads(lead: Process, processes: list[Process]) -> int | None:
    roles = (worker.last(RoleRecord) for worker, _ in workers_of(lead, processes).values())
    return next((r.intra_op for r in roles if r is not None and r.intra_op is not None), None)


def make_optim(lead: Process) -> list[Kind]:
    """Optimizers, what saves and what starts processes; Schedulers and Gradients if the training
    was inspected."""
    looks = lead.all(InspectionRecord)
    described = {o.id: o for o in lead.all(OptimizerRecord)}.values()
    kinds: list[Kind] = [Optimizers(optimizers=tuple(_optimizer(o, looks) for o in described))]
    saved = lead.all(SaverRecord)
    kinds.append(Savers(savers=tuple(Saver(name=s.name, at=location(s.at)) for s in saved)))
    starts = ((location(s.at), s.t) for s in lead.all(StartedRecord))
    kinds.append(ProcessStarts(starts=tuple((at, t) for at, t in starts if at)))
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
    backwards = lead.last(BackwardsRecord)
    if backwards or len(described) < 2:  # one optimizer drops no gradient of another
        kinds.append(DroppedGradients(lines=tuple(_dropped(backwards)) if backwards else ()))
    if backwards and any(x.parts for x in backwards.lines):
        parts = [part for line in backwards.lines for part in line.parts]
        kinds.append(UnusedBackward(shares=_shares(parts, {NO_OPTIMIZER})))
    return kinds


def _dropped(record: BackwardsRecord) -> Iterator[DroppedAt]:
    for line in record.lines:
        gone = [x for x in line.written if x.gone > MAJORITY_FRAC * x.calls]
        kept = [x for x in line.written if x not in gone]
        if gone and line.parts:
            most = max(gone, key=lambda x: x.values)
            nearer = max((x.depth for x in kept), default=0)
            yield DroppedAt(
                at=location(line.at),
                values=sum(x.values for x in gone),
                kept=sum(x.values for x in kept),
                beyond=all(x.depth > nearer for x in gone),
                shares=_shares(line.parts, {line.written.index(x) for x in gone}),
                module=most.module,
                optimizer_at=location(most.made_at),
            )


def _shares(parts: list[GraphPart], numbers: set[int]) -> GraphShares:
    """What is for these of the line's optimizers alone."""
    mine = [x for x in parts if set(x.optimizers) <= numbers]
    found = {}
    for name in ("nodes", "products", "numbers"):
        every = sum(getattr(x, name) for x in parts)
        found[name] = sum(getattr(x, name) for x in mine) / every if every else 0.0
    return GraphShares(**found)


def _optimizer(record: OptimizerRecord, looks: list[InspectionRecord]) -> Optimizer:
    rates = [rates for look in looks if (rates := look.rates.get(record.id))]
    first = [r[0] for r in rates]
    return Optimizer(
        name=record.name,
        created_at=location(record.at),
        tensors=record.tensors,
        config=_scalars(record.config),
        groups=record.groups,
        settings=record.settings,
        lr_changed=any(r != rates[0] for r in rates) if len(rates) > 1 else None,
        rates=tuple(rate for rate in first if rate is not None),
        state_bytes=next((look.states.get(record.id) for look in reversed(looks)), None),
    )


def _schedulers(lead: Process, looks: list[InspectionRecord]) -> Schedulers:
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
