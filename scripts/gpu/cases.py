"""What is asserted on a device, most telling first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

from gpu.planted import PLANTED, TRIED, Planted, training
from gpu.programs import DIGEST, EVENTS, FILLS, PRODUCTS, TRUTH, WAYS
from gpu.running import ROOT, Bench, Wrong, expect, line_of, number

sys.path.append(str(ROOT))
from tests.zoo.table import SCRIPTS, ZOO, Entry

# A program differs from itself by 1.4 % (NOISE_FLOOR_FRAC of tdiag.rules.base); other clocks and
# a shared machine allow some more.
SAME_FRAC = 0.05
# A prediction holds if the measured gain lies in its range, widened by as much at both ends.
WIDER_FRAC = 0.10
PLANTED_CASE, HEALTHY_CASE = "3 planted {}", "3 healthy"
SECONDS = 150
TRY_BUDGET, CHECK_BUDGET = "60", "60"  # s
# Of the truth alone, by launches: some seconds.
STEPS = {1: 10_000, 60: 1_500, 1000: 150}
MEASURED_S = "1"  # how long a planted training runs for its own step time
RANKS = 2
ZOO_STEPS = 40
# Lines that Kineto and torchrun write with their own time or process number in front.
NO_VERDICT = "No verdict:"
TIMESTAMPED = ("USDT:", "torch/distributed/run.py")

Turn = Literal["own", "whole", "shared"]


@dataclass(frozen=True)
class Case:
    """``run`` raises where an assertion fails. ``seconds``: after that it is ended and counts as
    failed. ``turn``: "own" if its programs take turns with others that measure time, "whole" if it
    has the device for itself as long as it runs, "shared" if it measures no time: then it runs
    beside others like it."""

    name: str
    run: Callable[[Bench], None]
    needs_device: bool = True
    seconds: int = SECONDS
    turn: Turn = "own"


def close(found: float, true: float, frac: float, what: str) -> None:
    expect(abs(found / true - 1) <= frac, f"{what}: {found:.4g}, but truly {true:.4g}")


def truth(launches: int, reads: str, bench: Bench) -> None:
    """The clean step is what the program takes alone. ``residue``: how much longer steps take while
    the trace's profiler stays attached, for which tdiag measures all clean ones before."""
    script = bench.script(TRUTH)
    alone = bench.python(str(script), str(launches), reads, str(STEPS[launches]))
    expect(alone.returncode == 0, alone.stderr[-500:])
    true = number(alone.stdout, "LAST_NS")
    bench.measured["alone_ns"] = true
    found = bench.diagnosis(script, str(launches), reads, str(10**9))
    bench.measured |= {"mean_ns": found["step"]["mean_ns"], "residue": bench.residue()}
    close(found["step"]["mean_ns"], true, SAME_FRAC, "step.mean_ns")


def hooks(bench: Bench) -> None:
    """Watching without a profiler costs little: the program with it and without, interleaved."""
    script = bench.script(TRUTH)
    arguments = ["60", "none", "1000"]
    alone, watched = [], []
    for _ in range(3):
        alone.append(number(bench.python(str(script), *arguments).stdout, "LAST_NS"))
        done = bench.tdiag("run", "--quiet", str(script), "--", *arguments)
        watched.append(number(done.stdout, "LAST_NS"))
    bench.measured |= {"alone_ns": min(alone), "watched_ns": min(watched)}
    close(min(watched), min(alone), SAME_FRAC, "a watched step")


def planted(case: Planted, bench: Bench) -> None:
    """The fault is found with class, line and a gain that its fix has."""
    slow = bench.script(training(**case.fault), "slow.py")
    fixed = bench.script(training(**case.fix), "fixed.py")
    times = {s: number(bench.python(str(s), MEASURED_S).stdout, "STEP_NS") for s in (slow, fixed)}
    gained = times[slow] / times[fixed]
    bench.measured |= {"slow_ns": times[slow], "fixed_ns": times[fixed], "gained": gained}
    found = bench.diagnosis(slow)
    codes = [f["code"] for f in found["findings"]]
    expect(case.code in codes, f"not found; {found['verdict']['class']}, {codes}")
    finding = next(f for f in found["findings"] if f["code"] == case.code)
    speedup = finding["speedup"]
    if speedup:
        low, high = speedup["low"] * (1 - WIDER_FRAC), speedup["high"] * (1 + WIDER_FRAC)
        bench.measured["predicted"] = f"{speedup['low']:.2f}-{speedup['high']:.2f}"
        expect(low <= gained <= high, f"gained {gained:.2f}, predicted {low:.2f} to {high:.2f}")
    if case.cls:
        expect(found["verdict"]["class"] == case.cls, f"class {found['verdict']['class']}")
    if case.line:
        at = (finding["location"] or {}).get("line")
        line = line_of(slow, case.line)
        expect(at == line, f"line {at}, planted in {line}")


def twin(case: Planted, bench: Bench) -> None:
    """Nothing is said of a training that has the fix."""
    found = bench.diagnosis(bench.script(training(**case.fix), "fixed.py"))
    codes = [f["code"] for f in found["findings"]]
    bench.measured |= {"class": found["verdict"]["class"], "findings": " ".join(codes)}
    expect(case.code not in codes, f"{case.code} said of the fix")


def healthy(bench: Bench) -> None:
    """Compute without advice; healthy where its arithmetic comes near the data sheet's."""
    found = bench.diagnosis(bench.script(training()))
    verdict, roofline = found["verdict"], found["roofline"]
    pushed = [f["code"] for f in found["findings"] if not f["advisory"]]
    expect(verdict["class"] == "compute" and not pushed, f"{verdict['summary']} {pushed}")
    expect(roofline, f"the rates of {found['environment']['device']} are in no data sheet here")
    bench.measured |= {"efficiency": roofline["efficiency"], "bound": roofline["bound"]}
    expect(verdict["healthy"], verdict["summary"])


def sample(name: str, cls: str, bench: Bench) -> None:
    """A sample script has its class, and its twin another step."""
    samples = ROOT / "sample_scripts"
    slow, fixed = (bench.diagnosis(samples / f"{name}{end}.py") for end in ("", "_fixed"))
    bench.measured |= {"slow_ns": slow["step"]["mean_ns"], "fixed_ns": fixed["step"]["mean_ns"]}
    expect(slow["verdict"]["class"] == cls, f"{slow['verdict']['class']}, not {cls}")
    expect(fixed["step"]["mean_ns"] < slow["step"]["mean_ns"], "the fixed twin is not faster")


def _noise(watched: str, alone: str) -> list[str]:
    """Lines that the program does not write alone; what Kineto and torchrun date, and tdiag's own
    last word, are left out."""
    lines = [x for x in watched.splitlines() if x and not any(y in x for y in TIMESTAMPED)]
    return [x for x in lines if x not in alone and not x.startswith(NO_VERDICT)]


def unchanged(name: str, bench: Bench) -> None:
    """The program prints, fails and computes as it does alone."""
    if "nccl" in name and (devices := _devices()) < RANKS:
        bench.measured["devices"] = devices  # NCCL takes one a rank
        return
    source = WAYS[name] + DIGEST
    script = bench.script(source)
    start = (
        ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)] if "ranks" in name else []
    )
    alone = bench.python(*start, str(script))
    expect(alone.returncode == 0, f"alone: {alone.stderr[-500:]}")
    words = ["--", sys.executable, *start, str(script)] if start else [str(script)]
    watched = bench.tdiag("run", "--quiet", "-o", "report.txt", *words)
    expect(watched.returncode == alone.returncode, f"exit {watched.returncode}: {watched.stderr}")
    expect(sorted(watched.stdout.split()) == sorted(alone.stdout.split()), "stdout differs")
    noise = _noise(watched.stderr, alone.stderr)
    expect(not noise, f"stderr: {noise[:3]}")
    expect((bench.folder / "report.txt").stat().st_size > 0, "no report")


def zoo_twin(entry: Entry, bench: Bench) -> None:
    """A program of the zoo with its tensors on the device prints and computes as it does alone."""
    bench.workplace, bench.environment = SCRIPTS, {**entry.environment(), "ZOO_DEVICE": "cuda"}
    words = entry.target(ZOO_STEPS)
    alone, again = bench.python(*words), bench.python(*words)
    if alone.returncode != entry.returncode:
        bench.measured["not on a device"] = (alone.stderr.strip().splitlines() or [""])[-1][:80]
        return
    if alone.stdout != again.stdout:
        bench.measured["alone"] = "differs from run to run"
        return
    report = ["-o", str(bench.folder / "report.txt"), "--out", str(bench.folder / "run")]
    watched = bench.tdiag("run", "--quiet", *report, "--", sys.executable, *words)
    expect(watched.returncode == alone.returncode, f"exit {watched.returncode}: {watched.stderr}")
    expect(watched.stdout == alone.stdout, f"stdout differs: {watched.stdout[-300:]}")
    noise = _noise(watched.stderr, alone.stderr)
    expect(not noise, f"stderr: {noise[:3]}")


def _devices() -> int:
    import torch

    return torch.cuda.device_count()


def kernel_sums(bench: Bench) -> None:
    """The device's time in the budget is that of CUDA events around the same calls, and the trace
    counts the products that the step makes: one forward, one backward."""
    found = bench.diagnosis(bench.script(EVENTS))
    printed = (bench.folder / "stdout.txt").read_text()
    events = median(float(x.split()[1]) for x in printed.splitlines() if x.startswith("STEP_NS"))
    compute = next(p["ns"] for p in found["budget"] if p["component"] == "compute")
    products = [x for x in found["roofline"]["lines"] if x["name"] == "aten::mm"]
    counted = sum(x["count"] for x in products)
    bench.measured |= {"events_ns": events, "compute_ns": compute, "products": counted}
    close(compute, events, SAME_FRAC, "compute")
    close(counted, PRODUCTS, SAME_FRAC, "matrix products per step")


def _commit(bench: Bench) -> None:
    """What is in the folder, in a repository of its own."""
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t",
                                                  "commit", "-qm", "first"]):  # fmt: skip
        subprocess.run(["git", *words], cwd=bench.folder, check=True)


def check(change: str, code: int, bench: Bench) -> None:
    """``tdiag check`` of a revision against one that differs by ``change``."""
    source = training(after="for _ in range(20): batch @ model.layers[0].weight")
    script = bench.script(source)
    _commit(bench)
    script.write_text(source.replace("range(20)", change))
    done = bench.tdiag(
        "check", str(script), "--against", "HEAD", "--time-budget", CHECK_BUDGET, "-q", "--json"
    )
    expect(done.stdout, f"exit {done.returncode}: {done.stderr[-600:]}")
    found = json.loads(done.stdout)
    bench.measured |= {"verdict": found["verdict"], "step": json.dumps(found["step"])}
    expect(done.returncode == code, f"exit {done.returncode}: {found['reasons']}")


def both_too_large(bench: Bench) -> None:
    """Two programs of which each fills most of the device: measured one after the other."""
    script = bench.script(training(setup=FILLS))
    _commit(bench)
    done = bench.tdiag(
        "check", str(script), "--against", "HEAD", "--time-budget", CHECK_BUDGET, "-q"
    )
    expect(done.returncode in (0, 2), f"exit {done.returncode}: {done.stdout[-600:]}{done.stderr}")
    text = " ".join((done.stdout + done.stderr).split())
    expect("no room for both" in text, f"not said that one ran after the other: {text[-600:]}")


def tried(change: str, fault: dict[str, str], fix: dict[str, str], bench: Bench) -> None:
    """What `tdiag try` measures of a change is what the change wins when made by hand."""
    slow = bench.script(training(**fault), "slow.py")
    fixed = bench.script(training(**fix), "fixed.py")
    times = {s: number(bench.python(str(s), MEASURED_S).stdout, "STEP_NS") for s in (slow, fixed)}
    by_hand = times[slow] / times[fixed]
    done = bench.tdiag(
        "try", str(slow), "--set", change, "--yes", "--json", "--time-budget", TRY_BUDGET
    )
    expect(done.returncode == 0, f"exit {done.returncode}: {done.stderr[-600:]}")
    (one,) = json.loads(done.stdout)["tried"]
    bench.measured |= {"by hand": by_hand, "tried": one["speedup"], "answer": one["answer"]}
    close(one["speedup"], by_hand, WIDER_FRAC, "speedup")


def simulated(bench: Bench) -> None:
    """The device rules on GPU runs that are made of CPU runs."""
    tests = str(ROOT / "tests" / "simulated")
    done = bench.python("-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    expect(done.returncode == 0, done.stdout[-1500:])


def marked_gpu(bench: Bench) -> None:
    done = bench.python("-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests" / "gpu"))
    expect(done.returncode == 0, done.stdout[-1500:])


def without_device(bench: Bench) -> None:
    """What a run says where there is no device: h2d's sample names what it lacks."""
    import torch

    if torch.cuda.is_available():
        return
    script = ROOT / "sample_scripts" / "h2d.py"
    done = bench.tdiag("run", "--quiet", str(script), "--", "--steps", "4", "--side", "64")
    expect("needs a CUDA device" in done.stdout, done.stdout[-300:])


def _cases() -> Iterator[Case]:
    for launches in (60, 1, 1000):
        for reads in ("item", "none"):
            yield Case(f"1 truth {launches} {reads}", partial(truth, launches, reads))
    yield Case("2 hooks", hooks)
    yield Case("3 sample h2d", partial(sample, "h2d", "h2d"), turn="whole")
    for one in PLANTED:
        yield Case(PLANTED_CASE.format(one.code), partial(planted, one))
    yield Case(HEALTHY_CASE, healthy)
    for one in PLANTED:
        yield Case(f"3 twin of {one.code}", partial(twin, one))
    for name in ("python_loss", "overhead", "compute", "cpu_decode", "io_reads"):
        cls = {"cpu_decode": "cpu", "io_reads": "io"}.get(name, name)
        yield Case(f"3 sample {name}", partial(sample, name, cls), seconds=240, turn="whole")
    for name in WAYS:
        number_of = "8" if "ranks" in name else "4" if name == "plain" else "5"
        yield Case(f"{number_of} unchanged {name}", partial(unchanged, name), turn="shared")
    yield Case("6 kernel sums", kernel_sums, turn="whole")
    yield Case("7 check A/A", partial(check, "range(20)", 0), seconds=300, turn="whole")
    yield Case("7 check slower", partial(check, "range(24)", 1), seconds=300, turn="whole")
    yield Case("7 check of two that do not fit", both_too_large, seconds=300, turn="whole")
    for change, fault, fix in TRIED:
        yield Case(f"9 try {change}", partial(tried, change, fault, fix), seconds=300, turn="whole")
    for entry in ZOO:
        if not (entry.slow or entry.needs or entry.launcher):
            yield Case(f"zoo {entry.name}", partial(zoo_twin, entry), turn="shared")
    yield Case("tests marked gpu", marked_gpu, seconds=400, turn="whole")
    yield Case("simulated", simulated, needs_device=False, seconds=400, turn="shared")
    yield Case("without a device", without_device, needs_device=False, turn="shared")


CASES = tuple(sorted(_cases(), key=lambda case: (not case.needs_device, case.name[:1])))

__all__ = ["CASES", "HEALTHY_CASE", "PLANTED_CASE", "Bench", "Case", "Wrong"]
