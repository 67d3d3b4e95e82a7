"""The first promise: a watched program prints, computes and ends exactly as it does alone.

Each script of the zoo runs plainly and under the probe with every profiler of the first pass;
stdout (with digests of final weights, losses and random state), stderr and exit code are
compared bit for bit. What the probe takes for a step is compared with the zoo's table.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.zoo.table import BY_NAME, SCRIPTS, ZOO, Entry

from .harness import Watched, environment, read

STEPS = 40


# By default one of each way to start, to feed and to end is started as users start it. The others
# follow with ``-m training``, and here in a Python that has imported torch already.
STARTED = {"functions", "package", "workers_fork", "own_site", "dies_crash", "no_torch"}
# These start processes of their own, or take longer than the rest together.
ELSEWHERE = {entry.name for entry in ZOO if entry.slow}


SLOWER = pytest.mark.slow  # a C++ compiler may take minutes


def params(marked: set[str], left_out: frozenset[str] | set[str] = frozenset()) -> list:
    """The zoo without ``left_out``; what is ``marked`` needs ``-m training``."""
    return [
        pytest.param(
            entry,
            id=entry.name,
            marks=[
                *(
                    [SLOWER if entry.needs else pytest.mark.training]
                    if entry.name in marked
                    else []
                ),
                pytest.mark.skipif(bool(entry.missing()), reason=f"needs {entry.missing()}"),
            ],
        )
        for entry in ZOO
        if entry.name not in left_out
    ]


def timeless(text: str) -> str:
    """Without what differs between any two runs: log times and process ids, progress rates."""
    text = re.sub(r"(\w+):\d{4}-\d\d-\d\d [\d:]+ \d+:\d+", r"\1", text)
    lines = re.split(r"[\r\n]+", text)
    return "\n".join(line for line in lines if "it/s" not in line and "s/it" not in line)


def run_both(entry: Entry, folder: Path) -> tuple[tuple[int, str, str], Watched]:
    """(code, stdout, stderr) of the plain run; the watched run. At the same time, for speed."""
    base = entry.environment()
    watched_environ = environment(folder / "run", base)
    with (
        subprocess.Popen(
            entry.command(STEPS), cwd=SCRIPTS, env=base, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as plain,
        subprocess.Popen(
            entry.command(STEPS), cwd=SCRIPTS, env=watched_environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as watched,
    ):  # fmt: skip
        out, err = plain.communicate(timeout=200)
        out2, err2 = watched.communicate(timeout=200)
    run_dir = folder / "run"
    return (plain.returncode, out, err), Watched(
        watched.returncode, out2, err2, run_dir, read(run_dir)
    )


def run_warm(entry: Entry, folder: Path) -> tuple[tuple[int, str, str], Watched]:
    """The same, both in a Python that has imported torch already."""
    base, run_dir = entry.environment(), folder / "run"
    words = entry.target(STEPS)
    plain = warm.run(words, SCRIPTS, base)
    watched = warm.run(words, SCRIPTS, environment(run_dir, base))
    return (plain.returncode, plain.stdout, plain.stderr), Watched(
        watched.returncode, watched.stdout, watched.stderr, run_dir, read(run_dir)
    )


@pytest.mark.parametrize("entry", params({entry.name for entry in ZOO} - STARTED))
def test_a_watched_script_does_what_it_does_alone(entry: Entry, tmp_path: Path) -> None:
    is_unchanged(entry, *run_both(entry, tmp_path))


@pytest.mark.parametrize("entry", params(set(), left_out=STARTED | ELSEWHERE))
def test_watched_from_a_later_moment_on_it_does_the_same(entry: Entry, tmp_path: Path) -> None:
    is_unchanged(entry, *run_warm(entry, tmp_path))


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
def test_the_quick_pass_reaches_every_profiler(name: str, tmp_path: Path) -> None:
    _, watched = run_warm(BY_NAME[name], tmp_path)
    assert set(watched.windows()) >= {"baseline1", "trace1", "calls1", "ops1"}
