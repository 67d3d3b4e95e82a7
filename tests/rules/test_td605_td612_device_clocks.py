"""TD612: what heat and the power supply take, told from a device that just works hard."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import DeviceClocks, HeldDown
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, device_time, roofline
from tdiag.rules.td612_device_clocks_held_down import FAULTS
from tdiag.sample.gpu import THROTTLE

HEAT = HeldDown(reason="thermal (software)", frac=0.8, sm_mhz=990.0)
HOT = DeviceClocks(samples=10, held_down=(HEAT,), sm_max_mhz=1980)


def with_(*held_down: HeldDown) -> DeviceClocks:
    return replace(HOT, held_down=held_down)


def told(clocks: DeviceClocks | None, **components_ms: float) -> Finding | Abstained | None:
    """Of a device, or of a CPU if there are no ``components_ms``."""
    step = budget(device=True, **components_ms) if components_ms else budget(forward=100)
    evidence = Evidence().add(step, *([clocks] if clocks else []))
    return run_rule(find("TD612"), evidence)


def test_a_hot_device_could_be_faster_by_what_its_clock_lacks() -> None:
    """Four fifths of the time half of it."""
    found = told(HOT, compute=80, launch=20)
    assert isinstance(found, Finding) and found.speedup
    assert found.speedup.low == 1
    assert found.speedup.high == pytest.approx(100 / 68, abs=1e-3)


@pytest.mark.parametrize(
    "clocks",
    [
        with_(replace(HEAT, reason="power cap", frac=1.0)),  # its own limit
        with_(replace(HEAT, frac=0.4)),  # now and then
        with_(replace(HEAT, sm_mhz=1900.0)),  # and it costs next to nothing
    ],
    ids=["power-limit", "seldom", "next-to-nothing"],
)
def test_nothing_is_said_of_devices_that_are_not_held_down(clocks: DeviceClocks) -> None:
    assert told(clocks, compute=80, launch=20) is None


def test_nothing_is_said_of_a_device_that_waits_most_of_the_step() -> None:
    assert told(HOT, compute=8, launch=92) is None


def test_the_power_limits_own_clocks_are_not_put_down_to_heat() -> None:
    found = told(with_(HEAT, replace(HEAT, reason="power cap", sm_mhz=200.0)), compute=100)
    assert isinstance(found, Finding) and "990 of 1980 MHz" in found.summary


def test_the_sampler_names_all_faults_so() -> None:
    assert set(THROTTLE.values()) == FAULTS | {"power cap"}


def test_without_a_device_there_is_nothing_to_ask() -> None:
    assert told(None) is None


def test_a_device_that_was_not_watched_is_left_open() -> None:
    found = told(None, compute=100)
    assert isinstance(found, Abstained) and "not sampled" in found.missing
    unknown = told(with_(replace(HEAT, sm_mhz=None)), compute=100)
    assert isinstance(unknown, Abstained)


def test_a_hot_device_is_never_called_healthy() -> None:
    """It computes all the time, as a healthy one does."""
    step = Evidence().add(
        budget(device=True, compute=99, launch=1),
        device_time(100, components_ns={"compute": 100 * MS}),
    )
    step.add(*roofline(best_ms=60))
    healthy = diagnose(step)
    assert "TD605" in [finding.code for finding in healthy.findings]
    codes = [finding.code for finding in diagnose(step.add(HOT)).findings]
    assert codes[0] == "TD612" and "TD605" not in codes
