"""The machine on which a check ran, or a baseline was written."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec

from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import TorchRecord
from tdiag.sample.limits import cores_allowed


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """``processor``: the model's name; ``cores``: number that the script may use; ``device``: "cpu"
    or the devices' name."""

    processor: str
    cores: float
    device: str
    torch: str
    python: str

    def same_hardware(self, other: Hardware) -> bool:
        """Another version of torch is a change to judge, not another machine."""
        mine = (self.processor, self.cores, self.device)
        return mine == (other.processor, other.cores, other.device)

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.processor}, {self.cores:g} cores{device}"


def this_machine(lead: Process | None) -> Hardware:
    """The machine as the script's own process saw it."""
    torch = lead.last(TorchRecord) if lead else None
    return Hardware(
        processor=_processor(),
        cores=round(cores_allowed(), 2),
        device=", ".join(sorted(set(torch.devices))) if torch and torch.devices else "cpu",
        torch=torch.version if torch else "",
        python=platform.python_version(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
