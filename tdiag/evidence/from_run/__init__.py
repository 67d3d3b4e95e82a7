"""From a run directory (docs/run-directory.md) to typed facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tdiag.errors import RunError
from tdiag.evidence.from_run.balanced import balanced
from tdiag.evidence.from_run.capture import say_capture
from tdiag.evidence.from_run.clean import (
    make_step_history,
    make_steps,
    perturbation,
    queued_frac,
    why_none,
)
from tdiag.evidence.from_run.counted import make_counted, make_syscalls
from tdiag.evidence.from_run.dynamo_records import make_compiles
from tdiag.evidence.from_run.event_files import Process, lead_of
from tdiag.evidence.from_run.growth import make_slowing_down
from tdiag.evidence.from_run.loader_fetches import make_loaders, make_worker_memory
from tdiag.evidence.from_run.machine_samples import (
    SYSTEM,
    make_history,
    make_system,
    read_storage,
)
from tdiag.evidence.from_run.machines import Job, host_of, read_job
from tdiag.evidence.from_run.model import make_inputs, make_model
from tdiag.evidence.from_run.outside_shares import add_watched
from tdiag.evidence.from_run.pinpoint import pinpoint
from tdiag.evidence.from_run.ranks_of_run import make_collectives, rank_to_judge
from tdiag.evidence.from_run.records import TorchRecord, TraceRecord
from tdiag.evidence.from_run.roof import add_roof
from tdiag.evidence.from_run.setting import (
    make_device_facts,
    make_environment,
    make_modules,
    make_optim,
    make_setting,
)
from tdiag.evidence.from_run.stack_samples import (
    find_samples,
    make_call_trees,
    make_late_stacks,
    make_stacks,
)
from tdiag.evidence.from_run.startup import make_startup
from tdiag.evidence.from_run.timed import clean_step, timed
from tdiag.evidence.from_run.traced import Span, add_trace, phase_spans
from tdiag.evidence.machine import SystemHistory
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.notes import Note
from tdiag.probe.wire import BY_CLOSURE, BY_MICRO_BATCH, CONFIG, NODES, RUN, SAMPLE

SCHEMA = 1
DIVIDED = {
    BY_CLOSURE: "optimizer.step() takes long and calls its closure often: a step here is one call"
    " of the closure",
    BY_MICRO_BATCH: "optimizer.step() comes after many backward passes that take long together: a"
    " step here is one backward pass",
}

__all__ = ["load_run", "read_run"]


def read_run(run_dir: Path) -> dict[str, Any]:
    """``run.json``. Raises RunError if this is not a run directory, or one of a newer tdiag."""
    run = _read_json(run_dir / RUN, required=True)
    if run.get("schema", SCHEMA) > SCHEMA:
        raise RunError(
            f"{run_dir} was written by a newer tdiag (run schema {run['schema']})",
            "upgrade tdiag, or read it with the version that wrote it",
        )
    return run


def load_run(run_dir: Path) -> Evidence:
    """All evidence of a run; ``missing`` has the reason for each kind that is absent.

    The lead process is judged: the training process of the lowest rank, with the most steps; for
    ranks on a CPU, the one that the others wait for. Raises RunError if this is not a run
    directory, or one of a newer tdiag.
    """
    read_run(run_dir)
    job = read_job(run_dir)
    run_dir, processes = job.home, job.processes
    run = read_run(run_dir)
    config = _read_json(run_dir / CONFIG)
    lead = lead_of(processes)
    evidence = Evidence(notes=_notes(job))
    evidence.add(make_environment(run, lead))
    torch = lead.last(TorchRecord) if lead else None
    allowed = torch.cpus_allowed if torch else None
    if history := make_history(run_dir / SYSTEM, allowed):
        evidence.add(history)
    else:
        evidence.missing[SystemHistory] = "the machine was sampled less than twice"
    if attached := run.get("attached"):
        add_watched(evidence, run_dir, run, attached)
        return evidence
    if lead is None:
        evidence.missing[Steps] = why_none(None, processes)
    else:
        judged, traced, spans = _add_steps(evidence, job, lead, allowed)
        evidence.add(
            *make_device_facts(judged),
            *make_setting(lead, processes + job.beside),
            *make_optim(lead),
            *make_counted(lead, evidence.get(Phases)),
            *make_model(lead),
        )
        for found in (make_inputs(lead), make_compiles(lead)):
            if found is not None:
                evidence.add(found)
        if storage := read_storage(run_dir):
            evidence.add(storage)
        if startup := make_startup(run_dir, lead, processes, run, config):
            evidence.add(startup)
        if syscalls := make_syscalls(run_dir, lead):
            evidence.add(syscalls)
        if samples := find_samples(run_dir, lead, judged, processes):
            slowed = evidence.perturbation.get(SAMPLE, 0.0)
            samples = balanced(samples, evidence.get(Phases))
            evidence.add(make_stacks(samples, slowed), make_call_trees(samples))
        elif judged.pid != lead.pid:
            evidence.missing[Stacks] = f"stacks were not sampled in rank {judged.rank}"
        if late := make_late_stacks(run_dir, lead, judged, processes):
            evidence.add(late)
        add_trace(evidence, run_dir, traced, processes, spans)
        pinpoint(evidence)
        add_roof(evidence, judged.away.part if judged.away else run_dir)
    if run.get("exit_code") and evidence.get(Steps) is None and evidence.notes:
        evidence.missing[Steps] = evidence.notes.pop(0).text  # the program's failure is the reason
    say_capture(evidence, lead, config)
    if broken := sum(process.broken_lines for process in processes):
        lines = f"{broken} line{'s' * (broken > 1)}"
        evidence.note("events-unread", f"{lines} of the event file could not be read", "warning")
    return evidence


def _add_steps(
    evidence: Evidence,
    job: Job,
    lead: Process,
    allowed: int | None,
) -> tuple[Process, Process, list[Span]]:
    """Add all evidence per clean step. Returns the process that is judged, the process whose trace
    is read (the lead if the judged one has none), and the phases of its traced steps.

    ``allowed``: cores that the training process may run on, None = unknown.
    """
    everyone = job.processes + job.elsewhere
    mine = timed(lead)
    if mine is None:
        evidence.missing[Steps] = why_none(lead)
        evidence.add(make_step_history(lead, None, {}))
        return lead, lead, []
    judged = rank_to_judge(evidence, job.home, mine, everyone)
    clean, process = judged.clean, judged.process
    if note := DIVIDED.get(judged.boundary):
        evidence.note("step-boundary", note)
    if clean.note:
        evidence.note("clean-steps", clean.note, "warning")
    evidence.add(
        make_steps(process, clean, judged.boundary),
        make_step_history(process, clean, judged.roles.loaders),
        judged.phases,
        make_modules(process, judged.timeline, judged.roles, clean),
        make_loaders(process, everyone, judged.roles.loaders, clean),
        clean_step(judged.timeline, judged.slices, clean),
    )
    if slowing := make_slowing_down(judged):
        evidence.add(slowing)
    if memory := make_worker_memory(job.home / SYSTEM, process, judged.roles.loaders):
        evidence.add(memory)
    if collectives := make_collectives(process, judged.timeline, clean):
        evidence.add(collectives)
    queued = queued_frac(process, clean)
    about = process.last(TorchRecord)
    uuid = about.device.uuid if about and about.device else None
    at, shift = process.sampled_in(job.home)
    spans = [(begin - shift, end - shift) for begin, end in clean.spans]
    beside = [part / SYSTEM for part in job.members if part != at and host_of(part) == host_of(at)]
    evidence.add(*make_system(at / SYSTEM, spans, allowed, queued, uuid, beside, process.pid))
    evidence.perturbation.update(perturbation(lead, mine.clean))
    traced = judged if process.last(TraceRecord) else mine
    return (
        process,
        traced.process,
        phase_spans(traced.process.steps, traced.timeline, traced.slices),
    )


def _notes(job: Job) -> list[Note]:
    """How the program ended, for each machine if there are several; and what was left out."""
    notes = []
    for part in job.members:
        who = f"{host_of(part)}: " if len(job.members) > 1 else ""
        texts = _read_json(part / RUN).get("notes") or ()
        notes += [Note("program", f"{who}{text}") for text in texts]
    for part in job.foreign:
        why = "its ranks are not further ranks of this job, or it has no clock"
        notes.append(Note("machine-left-out", f"{NODES}/{part.name} is left out: {why}", "warning"))
    return notes


def _read_json(path: Path, required: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        if required:
            raise RunError(f"{path.parent} is not a run directory: run.json: {error}",
                           "name a directory that `tdiag run` made") from None  # fmt: skip
        return {}
    return value if isinstance(value, dict) else {}
