"""Whatever a file holds: evidence whose budget adds up, or one clear RunError."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from tdiag.errors import RunError
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace import device_evidence
from tdiag.trace import read_trace
from tests.trace.making import call, copy, kernel, launched, note, op, step

FIELDS = (
    "ts",
    "dur",
    "correlation",
    "pid",
    "tid",
    "cat",
    "name",
    "stream",
    "device",
    "External id",
)
VALUES = ("null", "-1", '"x"', "1e30", "NaN", "[]", "{}", "true", "9" * 30, "-5.5", "Infinity")


def sound(count: int = 30) -> str:
    events = []
    for i in range(count):
        at = 100.25 * i
        events += [
            step(i, at, 100), note("enumerate(DataLoader)#X.__next__", at, 20),
            op("aten::mm", at + 20, 9, **{"External id": i}),
            *launched("gemm", at + 21, at + 30, 20, i + 1),
            call("cudaStreamSynchronize", at + 40, 15),
            copy("Memcpy DtoH (Device -> Pageable)", at + 52, 3),
            kernel("ncclDevKernel_AllReduce", at + 70, 10, stream=9),
        ]  # fmt: skip
    return json.dumps({"deviceProperties": [{"id": 0, "name": "A"}], "traceEvents": events})


def damaged(seed: int) -> bytes:
    chance = random.Random(seed)
    text = sound()
    at = chance.randrange(len(text))
    match seed % 6:
        case 0:
            text = text[:at]
        case 1:
            text = text[:at] + text[at + chance.randrange(2000) :]
        case 2:
            text = text[:at] + chance.choice('"\\{}[],:\x00é') + text[at:]
        case 3:
            field = re.compile(rf'"{chance.choice(FIELDS)}": [^,}}]+')
            value = chance.choice(VALUES)
            text = field.sub(
                lambda m: m[0].split(":")[0] + ": " + value if chance.random() < 0.3 else m[0], text
            )
        case 4:
            characters = list(text)
            for _ in range(30):
                characters[chance.randrange(len(characters))] = chr(chance.randrange(32, 127))
            text = "".join(characters)
        case _:
            packed = gzip.compress(text.encode())
            return packed[: chance.randrange(1, len(packed))]
    return text.encode()


@pytest.mark.parametrize("seed", range(90))
def test_any_damage_is_survived(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(damaged(seed))
    try:
        trace = read_trace(path)
    except RunError as error:
        assert "trace.json" in error.message
        return
    device = device_evidence(trace).get(DeviceTime)
    if device is not None:
        assert sum(device.components_ns.values()) == pytest.approx(device.step_ns)
