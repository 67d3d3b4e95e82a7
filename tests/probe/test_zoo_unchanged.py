"""The first promise: a watched program prints, computes and ends exactly as it does alone.

Each script of the zoo runs plainly and under the probe with every profiler of the first pass;
stdout (with digests of final weights, losses and random state), stderr and exit code are
compared bit for bit. What the probe takes for a step is compared with the zoo's table.
"""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.zoo.running import STEPS, run_plainly, run_warm
from tests.zoo.table import BY_NAME, SCRIPTS, ZOO, Entry

from .harness import Watched, environment, read

Both = tuple[tuple[int, str, str], Watched]

# By default one of each way to start, to feed and to end is started as users start it; all others
# run in a Python that has imported torch already, which takes 0.3 s and not 5.
STARTED = {"functions", "package", "workers_fork", "own_site", "dies_crash", "no_torch"}
# These start processes of their own, or take longer than the rest together: with ``-m training``.
ELSEWHERE = {entry.name for entry in ZOO if entry.slow}


def started(entry: Entry) -> list[pytest.MarkDecorator]:
    """Started as users start it, what runs by default in the other way waits for a release; so
    does what needs a C++ compiler, which may take minutes."""
    if entry.name in STARTED:
        return []
    return [pytest.mark.training if entry.slow and not entry.needs else pytest.mark.slow]


def param(entry: Entry, *marks: pytest.MarkDecorator) -> Any:
    missing = pytest.mark.skipif(bool(entry.missing()), reason=f"needs {entry.missing()}")
    return pytest.param(entry, id=entry.name, marks=[*marks, missing])


def timeless(text: str) -> str:
    """Without what differs between any two runs: log times and process ids, progress rates."""
    text = re.sub(r"(\w+):\d{4}-\d\d-\d\d [\d:]+ \d+:\d+", r"\1", text)
    lines = re.split(r"[\r\n]+", text)
    return "\n".join(line for line in lines if "it/s" not in line and "s/it" not in line)


def run_started(entry: Entry, folder: Path) -> Both:
    """(code, stdout, stderr) of the plain run; the watched run, started as users start it. At the
    same time, for speed."""
    base = entry.environment()
    run_dir = folder / "run"
    with subprocess.Popen(
        entry.command(STEPS), cwd=SCRIPTS, env=environment(run_dir, base), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as watched:  # fmt: skip
        plain = run_plainly(entry, STEPS)
        out, err = watched.communicate(timeout=200)
    if "Signal 6 (SIGABRT)" in plain.stderr:  # torch's, when a gloo thread outlives Python
        plain = run_plainly(entry, STEPS)
    return (plain.returncode, plain.stdout, plain.stderr), Watched(
        watched.returncode, out, err, run_dir, read(run_dir)
    )


def run_both_warm(entry: Entry, folder: Path) -> Both:
    """The same, both in a Python that has imported torch already."""
    run_dir = folder / "run"
    plain = run_warm(entry, STEPS)
    watched = warm.run(entry.target(STEPS), SCRIPTS, environment(run_dir, entry.environment()))
    return (plain.returncode, plain.stdout, plain.stderr), Watched(
        watched.returncode, watched.stdout, watched.stderr, run_dir, read(run_dir)
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Entry, bool], Both]:
    """The two runs of a script, made once; whether they are started as users start them."""

    @cache
    def run(entry: Entry, as_users: bool) -> Both:
        way = run_started if as_users else run_both_warm
        return way(entry, tmp_path_factory.mktemp(entry.name))

    return run


@pytest.mark.parametrize("entry", [param(entry, *started(entry)) for entry in ZOO])
def test_a_watched_script_does_what_it_does_alone(
    entry: Entry, both: Callable[[Entry, bool], Both]
) -> None:
    is_unchanged(entry, *both(entry, True))


@pytest.mark.parametrize(
    "entry", [param(entry) for entry in ZOO if entry.name not in STARTED | ELSEWHERE]
)
def test_watched_from_a_later_moment_on_it_does_the_same(
    entry: Entry, both: Callable[[Entry, bool], Both]
) -> None:
    is_unchanged(entry, *both(entry, False))


def is_unchanged(entry: Entry, plain: tuple[int, str, str], watched: Watched) -> None:
    code, out, err = plain
    assert watched.returncode == code == entry.returncode
    assert watched.out == out
    assert timeless(watched.err) == timeless(err)
    assert watched.of("failure") == []
    assert not (watched.run_dir / "probe-error.txt").exists()
    training = watched.training()
    assert len(training) == (entry.processes if entry.boundary else 0)
    if not training:
        return
    sources = [r["source"] for r in training[0] if r["kind"] == "boundary"]
    assert sources[-1] == entry.boundary
    expected = entry.steps(STEPS)
    if entry.name == "grad_scaler":
        expected = STEPS  # an iteration whose update was skipped is a step all the same
    if entry.boundary == "batch":
        assert expected - 20 <= len(watched.steps()) < expected  # counted from the 17th batch on
    else:
        assert len(watched.steps()) == expected - 1  # the first boundary only opens the count


@pytest.mark.parametrize("name", ["functions", "workers_fork", "gan", "lbfgs", "hand_adam"])
def test_the_quick_pass_reaches_every_profiler(
    name: str, both: Callable[[Entry, bool], Both]
) -> None:
    _, watched = both(BY_NAME[name], name in STARTED)
    assert set(watched.windows()) >= {"baseline1", "trace1", "calls1", "ops1"}
