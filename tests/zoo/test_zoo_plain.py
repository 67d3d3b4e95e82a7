"""The zoo under plain Python: each script repeats bit for bit and does what the table says.

The second run counts optimizer steps, ``backward`` calls and batches with hooks of its own
(``counting/sitecustomize.py``), so that what tdiag is later compared with is itself checked.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests import warm

from .running import STEPS, run_warm
from .table import BY_NAME, SCRIPTS, ZOO, Entry

COUNTING = Path(__file__).parent / "counting"


def params(entries: tuple[Entry, ...]) -> list:
    return [
        pytest.param(
            entry,
            id=entry.name,
            marks=[
                # It checks the zoo and its table, not tdiag: before a release.
                *([pytest.mark.slow] if entry.slow else []),
                pytest.mark.skipif(bool(entry.missing()), reason=f"needs {entry.missing()}"),
            ],
        )
        for entry in entries
    ]


def counting_environment(entry: Entry, folder: Path) -> dict[str, str]:
    environ = entry.environment()
    own = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = f"{own}:{COUNTING}" if own else str(COUNTING)
    return {**environ, "ZOO_COUNTS": str(folder)}


def counted(folder: Path) -> list[Counter[str]]:
    """Events by name of each process that trained; of several optimizers the leading one's."""
    found = []
    for file in folder.iterdir():
        events = file.read_text().splitlines()
        leader = next((e for e in events if e.startswith("optimizer")), "")
        found.append(Counter("optimizer" if e == leader else e for e in events))
    return found


@pytest.mark.parametrize("entry", params(ZOO))
def test_repeats_bit_for_bit_and_counts_as_the_table_says(entry: Entry, tmp_path: Path) -> None:
    first = run_warm(entry, STEPS)
    second = warm.run(entry.target(STEPS), SCRIPTS, counting_environment(entry, tmp_path))
    assert first.returncode == entry.returncode, first.stderr
    assert second.returncode == entry.returncode, second.stderr
    assert first.stdout == second.stdout
    results = [line for line in first.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(results) == int(entry.result)
    if entry.pythonpath:
        return  # the user's own sitecustomize takes the counting one's place
    processes = counted(tmp_path)
    assert len(processes) == (entry.processes if entry.boundary else 0)
    for events in processes:
        assert events[entry.boundary] == entry.steps(STEPS)
        assert events["backward"] == entry.backward(STEPS)
        assert (events["batch"] > 0) == entry.loader
        assert ("optimizer" in events) == (entry.boundary == "optimizer")


def test_different_weights_or_losses_give_different_results() -> None:
    entry = BY_NAME["hand_indexed"]
    digests = [run_warm(entry, steps).stdout.split()[-2:] for steps in (3, 4)]
    (weights, losses), (other_weights, other_losses) = digests
    assert weights != other_weights
    assert losses != other_losses
