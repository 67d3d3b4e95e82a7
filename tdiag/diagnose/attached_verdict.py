"""The verdict on a process watched from outside: from samples, without steps.

The same classes and bounds as for a step, as shares of the training thread's time.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import msgspec

from tdiag.diagnose.costs import undisturbed
from tdiag.diagnose.verdict import BLOCKED, GUESS_CONFIDENCE, WORDS
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Verdict
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.model.watched import Activity, Fetching, Watched
from tdiag.rules.base import where
from tdiag.rules.thresholds import HIGH_FRAC, MIN_SAMPLES
from tdiag.units import percent, plural

_COMPUTING = ("forward", "backward", "optimizer")
_TRAINING = ("data_wait", *_COMPUTING)
_STARTING = ("imports", "compiling")
# Activity → class of its waste. Data wait is divided by what fetches.
_WASTE = {
    "loader start": "loader",
    "evaluation": "eval",
    "checkpoint": "checkpoint",
    "comm": "comm",
    "logging": "logging",
}
_FOR_MORE = "`tdiag run` counts and times the calls of torch"
_AMBIGUOUS = (
    f"samples cannot show whether that is work or the cost of many small calls: {_FOR_MORE}"
)


class _Cause(NamedTuple):
    """A cause of data wait. ``odds``: how sure the class is, 0..1."""

    cls: str
    words: str
    odds: float


def of_watched(evidence: Evidence, watched: Watched) -> Verdict:
    """The waste with the largest share of the training thread's time; ``unknown`` if samples cannot
    decide. For several ranks, that of the rank the others wait for."""
    verdict = _judged(evidence, watched)
    if not (late := _late(watched)):
        return verdict
    return msgspec.structs.replace(verdict, summary=f"{late} There, {verdict.summary}")


def _late(watched: Watched) -> str:
    """A sentence that the other ranks wait for the judged one; "" if they do not."""
    meeting = {
        rank.pid: sum(a.frac for a in rank.activities if a.name in ("backward", "comm"))
        for rank in watched.ranks
    }
    others = [share for pid, share in meeting.items() if pid != watched.pid]
    if not others or (wait := median(others)) - meeting[watched.pid] < HIGH_FRAC:
        return ""
    judged = next(rank for rank in watched.ranks if rank.pid == watched.pid)
    name = f"process {judged.pid}" if judged.rank is None else f"rank {judged.rank}"
    return (
        f"The other ranks wait for {name}: {percent(wait)} of their time is backward and"
        f" communication, {percent(meeting[watched.pid])} of this rank's."
    )


def _judged(evidence: Evidence, watched: Watched) -> Verdict:
    """On a device, no cost exceeds the device's idle time, and computing is done by the device."""
    if not watched.samples:
        return _unknown(evidence.why_missing(Stacks))
    if why := _too_little(watched):
        return _unknown(why)
    if watched.device and watched.device_used_frac is None:
        return _unknown(
            "the process computes on a device whose use is not known (NVML), and the device may"
            f" work while the training thread waits; most samples: {_most(watched)}"
        )
    idle = 1.0 - (watched.device_used_frac or 0.0) if watched.device else 1.0
    wastes = {a.name: min(a.frac, idle) for a in watched.activities if a.name in _WASTE}
    if waits := watched.frac("data_wait"):
        wastes["data_wait"] = min(waits, idle)
    compute = 1.0 - idle if watched.device else watched.frac(*_COMPUTING)
    unexplained = max(0.0, (idle if watched.device else 1.0 - compute) - sum(wastes.values()))
    largest = max(wastes, key=lambda name: wastes[name], default="")
    cost = wastes.get(largest, 0.0)
    least = HIGH_FRAC if compute >= MAJORITY_FRAC else NOTICEABLE_FRAC
    if max(cost, unexplained) < least:
        return _compute(watched, compute, evidence)
    if unexplained > cost:
        return _unknown(_unexplained(watched, unexplained))
    return _waste(watched, largest, wastes, compute, evidence)


def _too_little(watched: Watched) -> str:
    """Why there can be no verdict; "" if there is enough."""
    if watched.samples < MIN_SAMPLES:
        return (
            f"only {plural(watched.samples, 'sample')} of the training thread were taken;"
            f" {MIN_SAMPLES:.0f} are needed: watch it longer (--time-budget)"
        )
    if (starting := watched.frac(*_STARTING)) >= MAJORITY_FRAC:
        return f"the process is starting: {percent(starting)} of its samples import or compile"
    if watched.frac(*_TRAINING) < NOTICEABLE_FRAC and not watched.frac("evaluation"):
        return f"no training was seen in {watched.seconds:.0f} s: {_most(watched)}"
    return ""


def _most(watched: Watched) -> str:
    """The largest activity and its main line."""
    first = watched.activities[0]
    return f"{percent(first.frac)} {first.name.replace('_', ' ')}{_line(first.at, first.at_frac)}"


def _line(at: Place | None, frac: float) -> str:
    """``, most at train.py:12 in load, 80%``."""
    if at is None or not (place := where(at)):
        return ""
    return f", most{place}{f' in {at.function}' if at.function else ''}, {percent(frac)}"


def _waste(
    watched: Watched, name: str, wastes: dict[str, float], compute: float, evidence: Evidence
) -> Verdict:
    cost = wastes[name]
    activity = watched.most(name)
    rivals = {other: share for other, share in wastes.items() if other != name}
    rivals["compute"] = compute if cost < HIGH_FRAC else 0.0
    closest = max(rivals, key=lambda other: rivals[other])
    confidence = cost / (cost + rivals[closest]) * _certain(activity, evidence)
    if name == "data_wait":
        cause = _cause(watched.fetching, cost)
        cls, confidence = cause.cls, confidence * cause.odds
        summary = f"{percent(cost)} of the training thread's time is {cause.words}"
        summary += _fetchers(watched.fetching)
    else:
        cls = _WASTE[name]
        summary = f"{percent(cost)} of the training thread's time is {WORDS[cls]}"
        summary += _line(activity.at, activity.at_frac) if activity else ""
    if watched.device or name == "evaluation":  # recognised only by a function's name
        confidence = min(confidence, GUESS_CONFIDENCE)
    shown = closest if rivals[closest] >= NOTICEABLE_FRAC else None
    runner_up = {"data_wait": "input", "compute": "compute", **_WASTE}[shown] if shown else None
    return Verdict(
        cls=cls,
        share=round(cost, 6),
        confidence=round(min(1.0, confidence), 2),
        runner_up=runner_up,
        summary=summary,
    )


def _certain(activity: Activity | None, evidence: Evidence) -> float:
    """How well the share represents other moments, 0..1: reduced by twice its relative error, as
    for a step, and to the share of a core that other programs left."""
    if activity is None or not activity.frac:
        return 0.0
    return undisturbed(evidence) / (1 + 2 * activity.error_frac / activity.frac)


def _cause(fetching: Fetching | None, waits: float) -> _Cause:
    """What data wait waits for: what the main threads of the fetching processes did, by the
    kernel's counters.

    A worker that is not in a fetch waits for one, so all its time on a core belongs to fetches. A
    training process that fetches also computes: there only bounds are known.
    """
    undecided = _Cause("input", WORDS["input"], 1.0)
    if fetching is None or not fetching.fetch_frac:
        return undecided
    if fetching.workers and fetching.fetch_frac < MAJORITY_FRAC:
        return undecided  # they also wait, or hand over batches
    blocked = max(0.0, 1.0 - fetching.cpu_frac - fetching.queued_frac)
    if not (known := fetching.cpu_frac + blocked):
        return undecided
    # Waiting for a core depends on the machine, so it is left out and thus split in proportion, as
    # in a run.
    on, blocked = fetching.cpu_frac / known, blocked / known
    rest = 1.0 - fetching.fetch_frac
    fetch = fetching.fetch_frac
    if fetching.workers:
        least_on, most_on = min(on, fetch), min(on, fetch)
        least_blocked = most_blocked = max(0.0, blocked - rest)
    else:
        least_on, most_on = max(0.0, on - rest), min(on, fetch)
        least_blocked, most_blocked = max(0.0, blocked - rest), min(blocked, fetch)
    if least_blocked > most_on:
        read = fetching.read_bytes_per_s
        words = WORDS["io"] if read is None or read > 0 or fetching.disk_frac else BLOCKED
        return _Cause("io", words, least_blocked / (least_blocked + most_on))
    if least_on > most_blocked:
        return _Cause("cpu", WORDS["cpu"], least_on / (least_on + most_blocked))
    return undecided


def _fetchers(fetching: Fetching | None) -> str:
    """Who fetches, for how much of the time, and at which line."""
    if fetching is None or not fetching.fetch_frac:
        return ""
    line = _line(fetching.at, fetching.at_frac)
    if not fetching.workers:
        return f"; the training process itself fetches{line}"
    busy = f"fetch in {percent(fetching.fetch_frac)} of their time"
    if fetching.workers == 1:
        busy = busy.replace("fetch ", "fetches ").replace("their", "its")
    return f"; {plural(fetching.workers, 'worker')} {busy}{line}"


def _compute(watched: Watched, compute: float, evidence: Evidence) -> Verdict:
    """Forward, backward and optimizer may be work or the cost of many calls; samples cannot show
    which. Only large operations use threads other than the training thread."""
    if watched.device:
        said = f"the device is in use in {percent(compute)} of the time"
        return _computing(said, compute, undisturbed(evidence), watched)
    said = f"{percent(compute)} of the training thread's time is forward, backward and optimizer"
    if watched.own_lines_frac >= HIGH_FRAC:
        lines = f"{percent(watched.own_lines_frac)} are lines of your own in forward"
        return _unknown(f"{said}; {lines}{_of(watched, 'forward')}: {_FOR_MORE}")
    if (watched.other_threads_cores or 0.0) < MAJORITY_FRAC:
        return _unknown(f"{said}; {_AMBIGUOUS}")
    return _computing(said, compute, undisturbed(evidence), watched)


def _computing(said: str, share: float, certain: float, watched: Watched) -> Verdict:
    return Verdict(
        cls="compute",
        share=round(share, 6),
        confidence=round(min(GUESS_CONFIDENCE, certain), 2),
        runner_up=None,
        summary=f"{said}; most samples: {_most(watched)}",
    )


def _of(watched: Watched, name: str) -> str:
    activity = watched.most(name)
    return _line(activity.at, activity.at_frac) if activity else ""


def _unexplained(watched: Watched, share: float) -> str:
    if watched.device:
        return (
            f"the device idles in {percent(1 - (watched.device_used_frac or 0.0))} of the time, and"
            f" in {percent(share)} the training thread waits for nothing; most samples:"
            f" {_most(watched)}. {_FOR_MORE}"
        )
    return (
        f"{percent(share)} of the training thread's time belongs to no phase that samples"
        f" show{_of(watched, 'other')}: {_FOR_MORE}"
    )


def _unknown(summary: str) -> Verdict:
    return Verdict(cls="unknown", share=0.0, confidence=0.0, runner_up=None, summary=summary)
