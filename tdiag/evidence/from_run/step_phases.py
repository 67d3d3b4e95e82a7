"""From a timeline to phases: every nanosecond in exactly one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tdiag.evidence.from_run.batch_facts import BatchFacts
from tdiag.evidence.from_run.records import ModuleRecord
from tdiag.evidence.from_run.roles import (
    BATCH,
    EVAL_BATCH,
    EVAL_MODEL,
    GRADIENT,
    LOSS,
    MODEL,
    START,
    UPDATE,
    Mask,
    Roles,
)
from tdiag.evidence.from_run.slices import (
    BACKWARD,
    COMM,
    FORWARD,
    GC,
    NEXT,
    NOBODY,
    OPTIMIZER,
    SAVE,
    Ints,
    Slices,
)
from tdiag.evidence.steps import Phases
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import (
    BY_BACKWARD,
    BY_BATCH,
    BY_CLOSURE,
    BY_MICRO_BATCH,
    BY_OPTIMIZER,
    GRAD_ON,
    MODULE_SHIFT,
    OF_GRAD,
)

PHASES = (
    "data_wait", "prepare", "forward", "loss", "backward", "optimizer", "evaluation",
    "checkpoint", "comm", "gc", "after_step", "unattributed",
)  # fmt: skip
_NUMBER = {name: number for number, name in enumerate(PHASES)}

_OF_ROLE = {
    BATCH: "data_wait",
    MODEL: "forward",
    LOSS: "loss",
    GRADIENT: "backward",
    UPDATE: "optimizer",
    EVAL_BATCH: "evaluation",
    EVAL_MODEL: "evaluation",
}


_ENDS_STEP = {
    BY_OPTIMIZER: UPDATE, BY_BACKWARD: GRADIENT, BY_BATCH: BATCH, BY_CLOSURE: GRADIENT,
    BY_MICRO_BATCH: GRADIENT,
}  # fmt: skip


def between(before: int, after: int, boundary: str, has_models: bool, has_loader: bool) -> str:
    """The phase of the time between two regions, from their purposes (docs/phases.md)."""
    if after in (EVAL_BATCH, EVAL_MODEL):
        return "optimizer" if before == GRADIENT and boundary == BY_BACKWARD else "evaluation"
    if before == EVAL_MODEL:
        return "evaluation"
    if before == GRADIENT and boundary == BY_CLOSURE and after not in (GRADIENT, BATCH):
        return "optimizer"  # it called the closure and will call it again
    if before == GRADIENT and boundary == BY_BACKWARD and not (after == GRADIENT and has_models):
        # Steps without torch.optim: the update is written by hand. Without a loader nothing shows
        # where it ends and making the next batch begins.
        return "optimizer" if has_loader else "unattributed"
    if after == GRADIENT:
        computed = before in (MODEL, LOSS) or (before == GRADIENT and has_models)
        return "loss" if computed else "forward"
    if after == UPDATE:
        return "optimizer" if before in (GRADIENT, UPDATE) else "unattributed"
    if after == BATCH:
        return "after_step"
    if after == LOSS:
        return "loss" if before in (MODEL, LOSS) else "prepare"
    if after == MODEL:
        return "forward" if before in (MODEL, LOSS) else "prepare"
    return "after_step" if before != START else "unattributed"  # nothing follows


def phase_of_slices(timeline: Slices, roles: Roles, boundary: str) -> Ints:
    """Each slice's index into PHASES."""
    phase_of_region = np.full(len(timeline.kind) + 1, _NUMBER["unattributed"])
    phase_of_region[:-1][timeline.kind == SAVE] = _NUMBER["checkpoint"]
    phase_of_region[:-1][timeline.kind == COMM] = _NUMBER["comm"]
    phase_of_region[:-1][timeline.kind == GC] = _NUMBER["gc"]
    # Work inside other work (a loader read by a dataset) has no role of its own.
    for kind, name in ((NEXT, "data_wait"), (FORWARD, "forward"), (BACKWARD, "backward"),
                       (OPTIMIZER, "optimizer")):  # fmt: skip
        phase_of_region[:-1][timeline.kind == kind] = _NUMBER[name]
    for role, name in _OF_ROLE.items():
        phase_of_region[roles.index[roles.role == role]] = _NUMBER[name]
    phases = phase_of_region[timeline.owner]
    gaps = _Gaps(timeline, roles, boundary)
    open_gap = timeline.owner == NOBODY
    phases[open_gap] = gaps.outside(open_gap)
    gaps.fill_closures(phases)
    return phases


def as_stacks_show(timeline: Slices, phases: Ints) -> Ints:
    """``phases``, except that a slice is in the phase of the call that a stack shows then, whatever
    its role: a loader's ``__next__`` in an evaluation, ``torch.autograd.grad`` in a loss. Stacks do
    not show when the garbage collector runs, or a thread waits for other ranks."""
    owner = timeline.owner.copy()
    within = owner != NOBODY
    within[within] = np.isin(timeline.kind[owner[within]], (GC, COMM))
    owner[within] = timeline.parent[owner[within]]
    kind = np.append(timeline.kind, NOBODY)[owner]
    result = phases.copy()
    for shown, name in ((NEXT, "data_wait"), (BACKWARD, "backward"), (SAVE, "checkpoint")):
        result[kind == shown] = _NUMBER[name]
    return result


class _Gaps:
    """Time in which no region is open, or only an optimizer's region with a closure."""

    def __init__(self, timeline: Slices, roles: Roles, boundary: str) -> None:
        self.timeline, self.roles, self.boundary = timeline, roles, boundary
        present = set(np.unique(roles.role).tolist())
        facts = (boundary, bool(present & {MODEL, LOSS}), BATCH in present)
        kinds = range(EVAL_MODEL + 1)
        # Before the first step, another step ended.
        self.started_by = _ENDS_STEP.get(boundary, START)
        self.table = np.array([[_NUMBER[between(a, b, *facts)] for b in kinds] for a in kinds])
        self.parent = self._working_parent()
        # A closure runs inside the optimizer's pair, so the training step is within that pair.
        self.holders = np.unique(self.parent[self.parent != NOBODY])

    def _working_parent(self) -> Ints:
        """For each region that matters, the optimizer region around it, −1 = none."""
        parent = self.timeline.parent[self.roles.index].copy()
        for _ in range(8):  # through a checkpoint or collection that the closure ran in
            inner = (parent != NOBODY) & (self.timeline.kind[parent] != OPTIMIZER)
            if not inner.any():
                break
            parent[inner] = self.timeline.parent[parent[inner]]
        return parent

    def outside(self, which: Mask) -> Ints:
        """Phases of these slices, in which no region is open."""
        top = self.parent == NOBODY
        index, role = self.roles.index[top], self.roles.role[top]
        position = np.searchsorted(index, self.timeline.following[which])
        roles_before = np.concatenate([[self.started_by], role])
        as_next = np.where(np.isin(index, self.holders), MODEL, role)
        roles_after = np.concatenate([as_next, [START]])
        phases: Ints = self.table[roles_before[position], roles_after[position]]
        over = np.append(_starts_over(self.timeline.arg[index], role), False)[position]
        phases[over & (roles_before[position] == EVAL_MODEL)] = _NUMBER["after_step"]
        if self.boundary == BY_OPTIMIZER:  # torch.autograd.grad within a loss: no step ends
            of_grad = (role == GRADIENT) & (self.timeline.arg[index] == OF_GRAD)
            inside = np.append(False, of_grad)[position]
            phases[inside & (roles_after[position] == MODEL)] = _NUMBER["forward"]
            phases[inside & (roles_after[position] == LOSS)] = _NUMBER["loss"]
        if not (role == BATCH).any():
            acted = np.append(False, _acts(self.timeline.arg[index], role))[position]
            phases[acted & (roles_after[position] == MODEL)] = _NUMBER["prepare"]
        return phases

    def fill_closures(self, phases: Ints) -> None:
        """Phases of the time directly inside an optimizer's pair, before a region inside it."""
        timeline, roles = self.timeline, self.roles
        inside = np.flatnonzero(np.isin(timeline.owner, self.holders))
        if not len(inside):
            return
        owner = timeline.owner[inside]
        position = np.searchsorted(roles.index, timeline.following[inside])
        after = np.append(roles.role, START)[position]
        nested = np.append(self.parent, NOBODY)[position] == owner
        before = np.concatenate([[START], roles.role])[position]
        started = np.concatenate([[NOBODY], self.parent])[position] == owner
        line_search = started & (before == GRADIENT) & (after == MODEL)
        chosen = nested & ~line_search
        phases[inside[chosen]] = self.table[before[chosen], after[chosen]]


def _starts_over(arg: Ints, role: Ints) -> Mask:
    """For each region, whether it is the first training call of a model, or the batch for it:
    another trial or fold begins."""
    calls = np.flatnonzero(role == MODEL)
    _, first = np.unique(arg[calls] >> MODULE_SHIFT, return_index=True)
    begins = np.append(np.isin(np.arange(len(calls)), first), False)
    following = np.searchsorted(calls, np.arange(len(role)))
    over: Mask = np.isin(role, (BATCH, MODEL)) & begins[following]
    return over


def _acts(arg: Ints, role: Ints) -> Mask:
    """For each region, whether it is a call of a model without gradients, and none with gradients
    came since the last backward or update: an agent acts, and its environment and the memory that
    its batch is drawn from come before the next call."""
    order = np.arange(len(role))
    recording = arg & GRAD_ON > 0
    learns = np.where(((role == MODEL) & recording) | (role == LOSS), order, -1)
    updated = np.where(np.isin(role, (GRADIENT, UPDATE)), order, -1)
    yet = np.maximum.accumulate(learns) > np.maximum.accumulate(updated)
    acts: Mask = (role == MODEL) & ~recording & ~yet
    return acts


def phases_per_step(timeline: Slices, phases: Ints, values: Ints) -> Ints:
    """Steps × PHASES: the exact sum of ``values`` (one per slice) in each."""
    table = np.zeros((timeline.steps, len(PHASES)), np.int64)
    np.add.at(table, (timeline.in_step, phases), values)
    return table


def make_phases(
    timeline: Slices,
    roles: Roles,
    phases: Ints,
    clean: Mask,
    modules: Mapping[int, ModuleRecord],
) -> Phases:
    """The Phases of the clean steps; ``clean`` has one entry per step."""
    steps = max(1, int(clean.sum()))
    per_step = phases_per_step(timeline, phases, timeline.ns)[clean]
    wall = per_step.sum(axis=0)
    cpu = _on_core(timeline, phases, clean)
    counts = _entries(timeline, roles, phases, clean)
    seen = [name for name, ns in zip(PHASES, wall.tolist(), strict=True) if ns]
    batches = BatchFacts(timeline, roles, clean)
    models = [number for number, module in modules.items() if module.parameters]
    bare = [number for number, module in modules.items() if not module.parameters]
    losses = [number for number, module in modules.items() if module.loss]
    saved = timeline.wall[(timeline.kind == SAVE) & clean[timeline.step]]
    return Phases(
        wall_ns={name: int(wall[_NUMBER[name]]) / steps for name in seen},
        cpu_ns={name: cpu[name] / steps for name in seen if name in cpu},
        counts={name: counts[name] / steps for name in seen},
        covariance_ns2=_covariance(per_step[:, [_NUMBER[name] for name in seen]], seen),
        eval_grad_frac=batches.eval_grad_frac(),
        eval_batches_per_step=batches.evaluated(bare) / steps,
        checkpoint_ns_each=float(saved.sum()) / counts["checkpoint"] if len(saved) else None,
        waits_ns=tuple(batches.waits()),
        batches={loader: given / steps for loader, given in batches.given().items()},
        iterator_start_ns=batches.starting_ns() / steps,
        eval_train_mode_frac=batches.train_mode_frac(EVAL_MODEL, models),
        train_eval_mode_frac=batches.eval_mode_frac(models),
        eval_evident=batches.eval_evident(losses, bare),
        gc_in_wait_ns=_collected_while_waiting(timeline, clean) / steps,
        grad_calls=batches.grad_calls() / steps,
        update_ns=_updating(timeline, roles, phases, clean) / steps,
        acts=_acting(timeline, roles, phases, clean),
        rolls_out=_acting(timeline, roles, phases, clean, again=True),
        learners_acts=_learners_acts(timeline, roles, clean) / steps,
    )


def _covariance(per_step: Ints, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """``per_step``: steps × names, ns. Sample covariance, ns²; empty with fewer than two steps."""
    if len(per_step) < 2 or not names:
        return {}
    table = np.atleast_2d(np.cov(per_step, rowvar=False)).tolist()
    return {a: dict(zip(names, row, strict=True)) for a, row in zip(names, table, strict=True)}


def _updating(timeline: Slices, roles: Roles, phases: Ints, clean: Mask) -> int:
    """Time inside ``optimizer.step`` without a closure's work: ns in all clean steps."""
    inside = np.isin(timeline.owner, roles.index[roles.role == UPDATE])
    inside &= (phases == _NUMBER["optimizer"]) & clean[timeline.in_step]
    return int(timeline.ns[inside].sum())


def _acting(timeline: Slices, roles: Roles, phases: Ints, clean: Mask, again: bool = False) -> bool:
    """Whether most of the time before the forward follows another call of a model. ``again``:
    whether it lies between two calls of an agent that acts."""
    prepared = (phases == _NUMBER["prepare"]) & clean[timeline.in_step]
    position = np.searchsorted(roles.index, timeline.following)
    acted = prepared & (np.append(START, roles.role)[position] == MODEL)
    if again:
        acts = _acts(timeline.arg[roles.index], roles.role)
        acted &= np.append(False, acts)[position] & np.append(acts, False)[position]
    spent = int(timeline.ns[prepared].sum())
    return spent > 0 and int(timeline.ns[acted].sum()) > MAJORITY_FRAC * spent


def _learners_acts(timeline: Slices, roles: Roles, clean: Mask) -> int:
    """How often models act that are also trained, in all clean steps."""
    arg, role = timeline.arg[roles.index], roles.role
    trained = np.unique(arg[(role == MODEL) & (arg & GRAD_ON > 0)] >> MODULE_SHIFT)
    acting = _acts(arg, role) & np.isin(arg >> MODULE_SHIFT, trained)
    return int((acting & clean[timeline.step[roles.index]]).sum())


def _collected_while_waiting(timeline: Slices, clean: Mask) -> int:
    """Garbage collections during data waits, which visit objects that the fetches allocate: ns in
    all clean steps."""
    collections = (timeline.kind == GC) & (timeline.parent != NOBODY) & clean[timeline.step]
    waiting = timeline.kind[timeline.parent[collections]] == NEXT
    return int(timeline.wall[collections][waiting].sum())


def _on_core(timeline: Slices, phases: Ints, clean: Mask) -> dict[str, float]:
    """On-CPU time by phase, for phases with a CPU clock for at least half of the wall time; the
    rest of such a phase (a collection inside a data wait) is assumed to be alike."""
    measured = (timeline.cpu_ns >= 0) & clean[timeline.in_step]
    inside = clean[timeline.in_step]
    size = len(PHASES)
    wall = np.bincount(phases[inside], timeline.ns[inside], size)
    known = np.bincount(phases[measured], timeline.ns[measured], size)
    cpu = np.bincount(phases[measured], timeline.cpu_ns[measured], size)
    enough = (known > 0) & (known >= MAJORITY_FRAC * wall)
    return {PHASES[i]: float(cpu[i] * wall[i] / known[i]) for i in np.flatnonzero(enough)}


def _entries(timeline: Slices, roles: Roles, phases: Ints, clean: Mask) -> dict[str, int]:
    """How often each phase was entered: pairs of marks, or stretches if there are no pairs."""
    in_clean = clean[timeline.in_step] & (timeline.ns > 0)
    sequence = phases[in_clean]
    entered = sequence[np.diff(sequence, prepend=-1) != 0]
    counts = dict(zip(PHASES, np.bincount(entered, minlength=len(PHASES)).tolist(), strict=True))
    of_clean = clean[timeline.step[roles.index]]
    for role in (BATCH, MODEL, GRADIENT, UPDATE):
        counts[_OF_ROLE[role]] = int((of_clean & (roles.role == role)).sum())
    for kind, name in ((COMM, "comm"), (GC, "gc")):
        counts[name] = int((clean[timeline.step] & (timeline.kind == kind)).sum())
    # Weights and optimizer, saved one after the other, are one checkpoint.
    saved = clean[timeline.step] & (timeline.kind == SAVE)
    counts["checkpoint"] = len(np.unique(timeline.step[saved]))
    return counts
