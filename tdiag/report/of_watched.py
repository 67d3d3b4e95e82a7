"""The part of a report about a process watched from outside, instead of its step."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.model.watched import Activity, Fetching, Watched
from tdiag.report.document import Cell, Column, Facts, Line, Section, Table
from tdiag.report.words import component
from tdiag.units import percent, plural, quantity

NEXT = "for step times, findings and gains: `tdiag run SCRIPT --profiling`."


def sections(watched: Watched) -> Iterator[Section]:
    """What the training thread did; the fetching processes; the device."""
    aside = f"{plural(watched.samples, 'sample')} in {watched.seconds:.0f} s"
    if not watched.activities:
        return
    rows = tuple(_row(activity) for activity in watched.activities)
    columns = (
        Column("activity", "end"),
        Column("share"),
        Column("±", hint="twice the standard error"),
        Column("most samples at", "start"),
        Column("there"),
    )
    table = Table(title="", columns=columns, rows=rows, what="activity", first=12,
                  note="Shares of the training thread's time.")  # fmt: skip
    yield Section(id="watched", title="Where the time goes", aside=aside, blocks=(table,))
    if lines := list(_beside(watched)):
        title = "Data loading and the device" if watched.device else "Data loading"
        yield Section(id="beside", title=title, blocks=(Facts(tuple(lines)),))
    if watched.ranks:
        yield Section(id="watched-ranks", title="Ranks", aside="shares of the time",
                      blocks=(_ranks(watched),))  # fmt: skip


def _row(activity: Activity) -> tuple[Cell, ...]:
    at = Cell("", place=activity.at) if activity.at else Cell("")
    return (
        Cell(component(activity.name).label),
        _share(activity.frac),
        _share(2 * activity.error_frac),
        at,
        _share(activity.at_frac) if activity.at else Cell(""),
    )


def _share(frac: float) -> Cell:
    return Cell(percent(frac), frac)


def _beside(watched: Watched) -> Iterator[Line]:
    if (fetching := watched.fetching) is not None and fetching.fetch_frac:
        yield from _fetching(fetching)
    if watched.device:
        used = watched.device_used_frac
        yield Line("not known" if used is None else f"in use {percent(used)} of the time", "device")


def _fetching(fetching: Fetching) -> Iterator[Line]:
    who = plural(fetching.workers, "worker") if fetching.workers else "the training process"
    name = "workers" if fetching.workers else "fetching"
    yield Line(f"{who}: in a fetch {percent(fetching.fetch_frac)} of the time", name)
    parts = f"on a core {percent(fetching.cpu_frac)} of the time"
    parts += f", waiting for one {percent(fetching.queued_frac)}"
    parts += f", seen waiting for a disk in {percent(fetching.disk_frac)} of the samples"
    yield Line(parts, "main thread" if fetching.workers < 2 else "main threads")
    if (read := fetching.read_bytes_per_s) is not None:
        yield Line(" ".join(quantity(read, "bytes")) + " per second", "storage reads")


def _ranks(watched: Watched) -> Table:
    """Each rank's shares side by side."""
    largest: dict[str, float] = {}
    for rank in watched.ranks:
        for activity in rank.activities:
            largest[activity.name] = max(largest.get(activity.name, 0.0), activity.frac)
    names = sorted(largest, key=lambda name: -largest[name])[:6]
    rows = []
    for rank in watched.ranks:
        held = {activity.name: activity.frac for activity in rank.activities}
        rows.append((
            Cell("?" if rank.rank is None else str(rank.rank), rank.rank),
            Cell(f"{'◄ ' if rank.pid == watched.pid else ''}{rank.pid}", rank.pid),
            Cell("?") if rank.cpu_frac is None else _share(rank.cpu_frac),
            *(_share(held.get(name, 0.0)) for name in names),
        ))  # fmt: skip
    titles = ("rank", "process", "on a core", *(component(name).label for name in names))
    return Table(
        title="", columns=tuple(Column(title) for title in titles), rows=tuple(rows), first=64,
        what="rank",
        note="◄ the verdict is for this rank: it spends least time in backward and communication,"
        " where ranks wait for each other",
    )  # fmt: skip
