"""`tdiag check --baseline FILE`: against what was measured before, here or elsewhere.

The machine of then is gone, even where it is this one: it drifts by a tenth from hour to hour. So
the script takes turns with programs of fixed work, then and now, and its step is expressed in
theirs, in the mixture that followed it best over the baseline's groups. On other hardware the three
kinds of work differ by different factors, and the mixture may be another: the interval is widened
to hold all three. A device is not gauged by work of the host: its steps are compared as they are on
the same hardware, else not at all.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tdiag
from tdiag.duel.estimate import Estimate, Looks, Ratios, unpaired
from tdiag.duel.group import Pace, Taken, take_turns
from tdiag.duel.side import Program
from tdiag.errors import UsageError
from tdiag.gate import baseline as files
from tdiag.gate import yardstick
from tdiag.gate.against import (
    Options,
    counted_groups,
    interpreter,
    looks,
    side,
    teller,
    typical_ns,
    uncounted,
)
from tdiag.gate.baseline import Entry
from tdiag.gate.counters import Counter, Line, counters
from tdiag.gate.counting import Counted, count
from tdiag.gate.judge import Case, Measured, Side, findings_of, judge
from tdiag.gate.machine import Machine, this_machine
from tdiag.gate.outcome import Outcome
from tdiag.launch.target import Target

THRESHOLD = 0.05
# A baseline is read many times: its share of the error is to be the smaller. In the mixture that
# its groups tell, checks of 15 against 20 spread by 0.7 %, against 10 by 1.0 %; in equal parts of
# the three kinds by 1.3 and 1.5 % (45 groups of a 10 ms step, quiet machine, drawn 150 times).
UPDATE_GROUPS = 20
TENTHS = 10  # weights of a mixture go in steps of a tenth; ours

Mixture = Mapping[str, float]  # kind of work → weight, 1 in all
Gauges = Mapping[str, Sequence[Sequence[float]]]  # kind of work → group → turns, ns


@dataclass(frozen=True)
class Times:
    """Of each group of fresh processes the turns: typical and mean step, and the yardsticks' mean
    piece of work. Its median would not show a core shared with others: a piece is over before the
    scheduler takes the core away, a step is not."""

    typical: Sequence[Sequence[float]]
    mean: Sequence[Sequence[float]]
    gauges: Gauges


def update(target: Target, path: Path, options: Options) -> str:
    """Measure and write the script's entry, all others kept. Returns what was done, in words."""
    entries = files.read(path)  # a file that cannot be read is told before the long run
    program = _program(target, options)
    options.told("counting what a step does")
    counted = count([program], options.folder)[0]
    told, groups = teller(replace(options, looks=Looks((UPDATE_GROUPS,)))), []
    for number in range(1, UPDATE_GROUPS + 1):
        groups.append(_group(program, options, number))
        told(number, None)
    mine = side(counted, Path.cwd(), [group[0] for group in groups])
    times = _times(groups)
    entry = Entry(
        command=_command(target),
        machine=this_machine(counted.lead),
        step_ns=[statistics.median(turns) for turns in times.typical],
        mean_step_ns=[statistics.fmean(turns) for turns in times.mean],
        yardstick_ns={k: [statistics.median(t) for t in g] for k, g in times.gauges.items()},
        components_ns=dict(mine.components_ns),
        counters={name: files.stored(c) for name, c in mine.counters.items()},
        rules=sorted(mine.rules),
        start_ns=list(mine.start_ns),
        peak_bytes=list(mine.peak_bytes),
        tdiag=tdiag.__version__,
    )
    files.write(path, {**entries, entry.command: entry})
    return f"{entry.command} written to {path}"


def check_stored(target: Target, path: Path, options: Options) -> Outcome:
    """Whether the script has become slower than its entry in the file says, or does more."""
    entry = files.read(path).get(_command(target))
    if entry is None:
        raise UsageError(f"{path} has no baseline of `{_command(target)}`",
                         "write it: the same command with --update")  # fmt: skip
    program = _program(target, options)
    options.told("counting what a step does")
    counted = count([program], options.folder)[0]
    here = this_machine(counted.lead)
    why_not = _incomparable(entry.machine, here)
    step: Measured | None = None
    groups: list[list[Taken]] = []
    counts = counters(counted.run_dir, counted.evidence, Path.cwd())
    options = replace(options, looks=looks(_counters(entry), counts, options))
    told = teller(options)
    while not why_not:
        groups.append(_group(program, options, len(groups) + 1))
        if not options.looks.due(len(groups)):
            told(len(groups), None)
            continue
        step = _measured(entry, here, groups)
        told(len(groups), step.ratios.typical)
        settled = step.ratios.answer(options.threshold) != "unclear"
        if settled or options.looks.last(len(groups)):
            break
    return judge(_case(path, entry, here, options, counted, groups, step, why_not))


def _case(
    path: Path, entry: Entry, here: Machine, options: Options, counted: Counted,
    groups: Sequence[Sequence[Taken]], step: Measured | None, why_not: str,
) -> Case:  # fmt: skip
    notes = uncounted([counted])
    if not entry.machine.same_hardware(here):
        notes.append(f"the baseline is of another machine: {entry.machine}; this one: {here}")
    if entry.machine.torch != here.torch:
        notes.append(f"the baseline is of torch {entry.machine.torch}, this is {here.torch}")
    root = Path.cwd()
    return Case(
        command=entry.command,
        against=str(path),
        threshold=options.threshold,
        tolerance=options.tolerance,
        before=Side(
            root, _counters(entry), entry.components_ns, frozenset(entry.rules), entry.start_ns,
            entry.peak_bytes,
        ),
        now=side(counted, root, [group[0] for group in groups]),
        step=step,
        why_no_step=why_not,
        now_findings=findings_of(counted.diagnosis),
        notes=notes,
        machine=str(here),
    )  # fmt: skip


def _incomparable(then: Machine, here: Machine) -> str:
    """Why step times cannot be compared, "" if they can."""
    if then.same_hardware(here) or then.device == here.device == "cpu":
        return ""
    return f"the baseline was measured on {then}, and a device cannot be calibrated"


def _measured(entry: Entry, here: Machine, groups: Sequence[Sequence[Taken]]) -> Measured:
    now = _times(groups)
    then = Times(
        [[ns] for ns in entry.step_ns],
        [[ns] for ns in entry.mean_step_ns],
        {kind: [[ns] for ns in values] for kind, values in entry.yardstick_ns.items()},
    )
    same = entry.machine.same_hardware(here)
    how = f"{counted_groups(groups)}, taking turns with work of fixed size, as the baseline did"
    if here.device != "cpu":
        mixtures: list[Mixture] = [{}]
        how = f"{counted_groups(groups)}, compared with the baseline's as they are"
    elif same:
        mixtures = [_mixture(then)]
    else:
        mixtures = [{kind: 1.0} for kind in yardstick.KINDS]
        how += "; calibrated to another machine, which widens the interval"
    ratios = [
        Ratios(
            unpaired(
                _gauged(then.typical, then.gauges, mixture),
                _gauged(now.typical, now.gauges, mixture),
            ),
            unpaired(
                _means(_gauged(then.mean, then.gauges, mixture)),
                _means(_gauged(now.mean, now.gauges, mixture)),
            ),
        )
        for mixture in mixtures
    ]
    return Measured(
        Ratios(_union([r.typical for r in ratios]), _union([r.mean for r in ratios])),
        before_ns=statistics.median(entry.step_ns),
        now_ns=typical_ns([group[0] for group in groups]),
        turns=sum(map(len, now.typical)),
        how=how,
    )


def _mixture(then: Times) -> Mixture:
    """The weights, in tenths, under which the baseline's groups differ least. They add up to one:
    a machine that does everything more slowly changes nothing."""
    shares = [
        (a / TENTHS, b / TENTHS, (TENTHS - a - b) / TENTHS)
        for a in range(TENTHS + 1)
        for b in range(TENTHS + 1 - a)
    ]
    mixtures = [dict(zip(yardstick.KINDS, share, strict=True)) for share in shares]
    return min(mixtures, key=lambda mixture: _spread(then, mixture))


def _spread(then: Times, mixture: Mixture) -> float:
    gauged = _gauged(then.typical, then.gauges, mixture)
    return statistics.pvariance([math.log(statistics.median(turns)) for turns in gauged])


def _gauged(
    steps: Sequence[Sequence[float]], gauges: Gauges, mixture: Mixture
) -> list[list[float]]:
    """Each turn's step in units of this mixture of work, of the same turn."""
    return [
        [
            ns / math.prod(gauges[kind][g][t] ** weight for kind, weight in mixture.items())
            for t, ns in enumerate(turns)
        ]
        for g, turns in enumerate(steps)
    ]


def _means(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[statistics.fmean(turns)] for turns in groups]


def _union(estimates: Sequence[Estimate]) -> Estimate:
    """What holds whichever of the estimates is right."""
    if len(estimates) == 1:
        return estimates[0]
    return Estimate(
        ratio=statistics.geometric_mean([e.ratio for e in estimates]),
        low=min(e.low for e in estimates),
        high=max(e.high for e in estimates),
        p_slower=max(e.p_slower for e in estimates),
        groups=estimates[0].groups,
    )


def _group(program: Program, options: Options, number: int) -> list[Taken]:
    """The script's turns, then the yardsticks'."""
    one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    gauges = [
        Program(kind, (sys.executable, str(Path(yardstick.__file__)), kind), Path.cwd(), one_core,
                own_protocol=True)
        for kind in yardstick.KINDS
    ]  # fmt: skip
    folder = options.folder / f"group-{number}"
    return take_turns([program, *gauges], folder, options.pace or Pace())


def _times(groups: Sequence[Sequence[Taken]]) -> Times:
    return Times(
        [group[0].typical_ns for group in groups],
        [group[0].mean_ns for group in groups],
        {kind: [group[i].mean_ns for group in groups] for i, kind in enumerate(yardstick.KINDS, 1)},
    )


def _counters(entry: Entry) -> dict[str, Counter]:
    return {
        name: Counter(
            name, c.unit, c.low, c.high, {key: Line(key, n) for key, n in c.lines.items()}
        )
        for name, c in entry.counters.items()
    }


def _program(target: Target, options: Options) -> Program:
    return Program("now", target.command(interpreter(target, options.python)), Path.cwd())


def _command(target: Target) -> str:
    """The words that name an entry: of the script, without the interpreter."""
    return " ".join(target.command("python")[target.kind != "launcher" :])
