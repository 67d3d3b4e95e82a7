"""Many ranks, made from the records of a real run: is the straggler found, and what does it cost?

Usage: ``python benchmarks/ranks.py RUN [--ranks 8,64,1024] [--jobs 10] [--seed 0]``

``RUN``: the directory of a `tdiag run` of a balanced job of two ranks on a CPU (the job of
``tests/e2e/test_stragglers.py``, kind ``balanced``). Its second rank is copied to as many ranks as
asked for, and every copy is perturbed: it reaches the collective of each step earlier or later by
2 % of the step (standard deviation), and by up to ``BIAS_FRAC`` of the step at all steps. Half of
the jobs have a planted straggler: one rank, drawn at random, whose every step takes 10 to 60 % of
the step longer, in its loader or in its forward, half of the time because its batches hold
proportionally more samples. The others' collectives last longer by as much.

The ranks are spread over run directories of 8, as on machines with 8 devices. At its end each of
these machines' `tdiag run` distils its own ranks; then somebody reads the run. Both are measured,
and the reading without a digest, which must say the same, up to 1,024 ranks. Found: the report
names that rank, that part of the step, and more data where that is the reason. Invented: a rank is
named in a job without a straggler. Wall time and peak memory are those of a process that reads the
folder and makes the diagnosis, traces apart.

Usage of the children: ``python benchmarks/ranks.py --merge FOLDER``, ``--distil FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP_END, NEXT_END, FORWARD_END, COMM_BEGIN, COMM_END = 12, 1, 3, 14, 15
NOISE_FRAC = 0.02
# The report names a rank from 5 % of the step on; ranks that differ by less are balanced.
BIAS_FRAC = 0.015
LONGER_FRAC = (0.1, 0.6)
RANKS_OF_A_MACHINE = 8
MOST_READ_WHOLE = 1024
CAUSES = {"data_wait": NEXT_END, "forward": FORWARD_END}

Record = dict[str, Any]


@dataclass(frozen=True)
class Planted:
    rank: int
    cause: str
    longer_ns: int
    more_data: bool


class Source:
    """The records of the run's two ranks; ``step_ns``: the median step."""

    def __init__(self, run: Path) -> None:
        self.run = run
        files = [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted((run / "events").iterdir())
        ]
        self.ranks = {
            next(r["rank"] for r in reversed(records) if r["kind"] == "role"): [
                r for r in records if r["kind"] != "trace"
            ]
            for records in files
            if any(r["kind"] == "role" for r in records)
        }
        lengths = [
            (r["t"] - r["s"]) // r["n"]
            for r in self.ranks[0]
            if r["kind"] == "steps" and r["w"] == "baseline"
        ]
        self.step_ns = sorted(lengths)[len(lengths) // 2]


def perturbed(
    records: list[Record], rank: int, world: int, planted: Planted | None, step_ns: int,
    chance: random.Random,
) -> list[Record]:  # fmt: skip
    """The records of one rank of ``world``."""
    longer = planted.longer_ns if planted else 0
    mine = planted is not None and planted.rank == rank
    bias = chance.uniform(-BIAS_FRAC, BIAS_FRAC) * step_ns
    first = next(r["i"] for r in records if r["kind"] == "steps")
    ends = [r["t"] for r in records if r["kind"] == "steps"]
    counts = [r["i"] + r["n"] - first for r in records if r["kind"] == "steps"]
    found = []
    for record in records:
        made = dict(record)
        if made["kind"] in ("process", "role") and "rank" in made:
            made |= {"rank": rank, "world_size": world}
        if made["kind"] == "steps":
            since = made["i"] - first
            made["s"] += since * longer
            made["t"] += (since + made["n"]) * longer
            after = CAUSES[planted.cause] if planted and mine else COMM_END
            made["m"] = marks(made["m"], since, longer, after, bias, step_ns, chance)
        elif "t" in made and isinstance(made["t"], int) and made["kind"] != "process":
            place = bisect_right(ends, made["t"])
            made["t"] += (counts[place - 1] if place else 0) * longer
        if made["kind"] == "fetch" and mine and planted and planted.more_data:
            factor = 1 + 2 * longer / step_ns
            made |= {k: round(made[k] * factor) for k in ("samples", "bytes") if made.get(k)}
        found.append(made)
    return found


def marks(
    flat: list[int], since: int, longer: int, after: int, bias: float, step_ns: int,
    chance: random.Random,
) -> list[int]:  # fmt: skip
    """The marks of some steps in a row, of which ``since`` lie before: each is ``longer``, from
    its first mark ``after`` on."""
    made, later, before = [], False, 0
    for code, t, argument in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        later = later or code == after
        moved = t + (since + later) * longer
        if code == COMM_BEGIN:  # it comes to the collective earlier or later
            moved += round(bias + chance.gauss(0, NOISE_FRAC * step_ns))
        moved = max(moved, before)
        made += [code, moved, argument]
        if code == COMM_END and made[-5] > moved:
            made[-5] = moved
        before = 0 if code == COMM_BEGIN else moved
        if code == STEP_END:
            since, later = since + 1, False
    return made


def write(folder: Path, source: Source, world: int, planted: Planted | None, seed: int) -> int:
    """A run directory of ``world`` ranks, one part for each machine. Returns the bytes of its
    events."""
    chance, written = random.Random(seed), 0
    for rank in range(world):
        records = perturbed(
            source.ranks[min(rank, 1)], rank, world, planted, source.step_ns, chance
        )
        machine = rank // RANKS_OF_A_MACHINE
        part = folder / "nodes" / f"node-{machine}" if machine else folder
        (part / "events").mkdir(parents=True, exist_ok=True)
        about = json.loads((source.run / "run.json").read_text())
        (part / "run.json").write_text(json.dumps(about | {"hostname": f"node-{machine}"}))
        text = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
        written += (part / "events" / f"{1000 + rank}.jsonl").write_text(text)
    return written


def distil(folder: Path) -> Record:
    """What each machine does at the end of its run. The costs of the machine that took longest."""
    from tdiag.evidence.from_run.distil import read_part
    from tdiag.probe.wire import DIGEST, parts

    seconds, written, largest = [], 0, 0
    for part in parts(folder):
        began = time.process_time()
        of_rank = [p.distilled for p in read_part(Path(part)) if p.distilled]
        seconds.append(time.process_time() - began)
        size = (Path(part) / DIGEST).stat().st_size
        written, largest = written + size, max(largest, size // len(of_rank))
    return {"cpu_s": max(seconds), "digest": written, "largest": largest}


def merge(folder: Path) -> Record:
    """In this process: the folder's diagnosis, and what it cost."""
    from tdiag.diagnose import diagnose
    from tdiag.evidence.from_run import load_run

    unused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    found = diagnose(load_run(folder))
    return {
        "s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - unused) / 1024,
        "ranks": len(found.ranks),
        "late": [r.rank for r in found.ranks if r.late],
        "summary": next((f.summary for f in found.findings if f.code == "TD902"), ""),
    }


def judged(result: Record, planted: Planted | None) -> str:
    """``found``, ``clear``, or what is wrong."""
    if planted is None:
        return "clear" if not result["late"] and not result["summary"] else "invented"
    words = "waiting for data" if planted.cause == "data_wait" else "in forward"
    expected = "Its batches have more data" if planted.more_data else words
    if result["late"] != [planted.rank]:
        return "missed"
    return "found" if expected in result["summary"] else "other cause"


def job(source: Source, world: int, number: int, seed: int) -> Record:
    chance = random.Random(seed * 1_000_003 + world * 1009 + number)
    planted = None
    if number % 2:
        planted = Planted(
            rank=chance.randrange(world),
            cause=chance.choice(sorted(CAUSES)),
            longer_ns=round(chance.uniform(*LONGER_FRAC) * source.step_ns),
            more_data=chance.random() < 0.5,
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        written = write(folder, source, world, planted, chance.randrange(2**32))
        whole = child("--merge", folder) if world <= MOST_READ_WHOLE else None
        for digest in folder.rglob("digest.msgpack"):
            digest.unlink()
        machine = child("--distil", folder)
        result = child("--merge", folder)
    costs = {"s", "cpu_s", "mb"}
    assert whole is None or {k: v for k, v in result.items() if k not in costs} == {
        k: v for k, v in whole.items() if k not in costs
    }, "with the digest as without"
    assert result["ranks"] == world, result
    about = {"planted": planted, "written": written, "whole": whole, "machine": machine}
    return {**result, "judged": judged(result, planted), **about}


def child(what: str, folder: Path) -> Record:
    done = subprocess.run(
        [sys.executable, __file__, what, str(folder)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    result: Record = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--merge", type=Path)
    parser.add_argument("--distil", type=Path)
    parser.add_argument("--ranks", default="8,64,1024")
    parser.add_argument("--jobs", type=int, default=10, help="of each size, half with a straggler")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.merge:
        print(json.dumps(merge(args.merge)))
        return
    if args.distil:
        print(json.dumps(distil(args.distil)))
        return
    source = Source(args.run)
    print(f"step {source.step_ns / 1e6:.1f} ms, load average {os.getloadavg()[0]:.1f}")
    for world in map(int, args.ranks.split(",")):
        results = [job(source, world, number, args.seed) for number in range(args.jobs)]
        counts = {r["judged"]: 0 for r in results}
        for result in results:
            counts[result["judged"]] += 1
            if result["judged"] not in ("found", "clear"):
                print(f"  {result['judged']}: {result['planted']}: {result['summary']}")
        print(f"{world:6} ranks  {counts}")
        readings = {
            "merged": results,
            "without digests": [r["whole"] for r in results if r["whole"]],
        }
        for name, of in readings.items():
            if not of:
                continue
            seconds, cpu = (sorted(r[k] for r in of)[len(of) // 2] for k in ("s", "cpu_s"))
            print(
                f"  {name}: {seconds:.2f} s, {cpu:.2f} s on a core"
                f" ({cpu / world * 1e3:.2f} ms a rank), {max(r['mb'] for r in of):.0f} MB"
            )
        machines = [r["machine"] for r in results]
        print(
            f"  before that on each machine: {max(m['cpu_s'] for m in machines):.2f} s on a core;"
            f" a rank's digest: {machines[0]['digest'] / world / 1e3:.1f} kB (the largest"
            f" {max(m['largest'] for m in machines) / 1e3:.1f} kB) of"
            f" {results[0]['written'] / world / 1e3:.1f} kB of events",
            flush=True,
        )


if __name__ == "__main__":
    main()
