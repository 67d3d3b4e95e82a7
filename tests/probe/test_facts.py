"""What the probe writes of the process: its two clocks, paired at one moment."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tdiag.probe import facts
from tdiag.probe.core import Probe

HELD_UP_S = 0.02


def test_clocks_are_paired_by_the_try_that_was_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes the core away between two readings, once in a while for milliseconds:
    all lanes of `tdiag view` lay off by that."""
    read, wait = time.time_ns, iter([HELD_UP_S, HELD_UP_S, 0.0, HELD_UP_S, HELD_UP_S])
    written: dict[str, Any] = {}

    def held_up() -> int:
        time.sleep(next(wait, 0.0))
        return read()

    recorder = SimpleNamespace(write=lambda kind, **fields: written.update(fields))
    probe = SimpleNamespace(recorder=recorder, started_ns=0, import_ns=0)
    apart = read() - time.perf_counter_ns()
    monkeypatch.setattr(time, "time_ns", held_up)
    facts.write_process(cast(Probe, probe))
    assert abs(written["unix_ns"] - written["t"] - apart) < HELD_UP_S * 1e9 / 4


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        (
            "[/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3. GLHF!",
            True,
        ),
        (
            "[/p/gloo/transport/tcp/pair.cc:537] Read error [::1]:2: Connection reset by peer.",
            True,
        ),
        ("[/p/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", True),
        (
            "[enforce fail at /p/gloo/transport/tcp/pair.cc:446] op.length <= op.nbytes. 40 vs 20",
            False,
        ),
        ("[Errno 104] Connection reset by peer", False),  # a server of the user's
    ],
)
def test_the_loss_of_another_rank_is_told_from_a_failure_of_its_own(
    message: str, lost: bool
) -> None:
    assert (facts.LOST.search(message) is not None) is lost
