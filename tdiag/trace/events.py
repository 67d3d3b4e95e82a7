"""One block of event text → typed events. The fast path of the reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, Union

import msgspec
import numpy as np

Value = int | float | str | None  # ROCm writes numbers as text, old Kineto null

EXACT_US = float(1 << 43)  # beyond this, float64 microseconds are coarser than a nanosecond
SAMPLED_TIMES = 256  # of a block, to detect this: three of four rounded times show a fraction
ABSENT = -1


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are used; the decoder skips all others without using memory."""

    external: Value = msgspec.field(name="External id", default=ABSENT)
    external_old: Value = msgspec.field(name="external id", default=ABSENT)
    correlation: Value = ABSENT
    sequence: Value = msgspec.field(name="Sequence number", default=ABSENT)
    forward_thread: Value = msgspec.field(name="Fwd thread id", default=None)
    stream: Value = None
    device: Value = None
    bytes: Value = None
    occupancy: Value = msgspec.field(name="est. achieved occupancy %", default=None)
    stack: Value = msgspec.field(name="Call stack", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    shapes_old: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    change: Value = msgspec.field(name="Bytes", default=None)
    allocated: Value = msgspec.field(name="Total Allocated", default=None)
    reserved: Value = msgspec.field(name="Total Reserved", default=None)
    memory_device: Value = msgspec.field(name="Device Id", default=None)
    memory_type: Value = msgspec.field(name="Device Type", default=None)


NO_ARGS = Args()


class Fields(msgspec.Struct, gc=False):
    """The fields of an event apart from its phase, in the order in which Kineto writes them."""

    cat: str = ""
    name: str = ""
    pid: int | float | str | None = 0
    tid: int | float | str | None = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args = NO_ARGS


class Event(Fields, gc=False):
    """An event of any phase."""

    ph: str = ""


class ExactEvent(Event, gc=False):
    """For epoch microseconds with a fraction, which float64 would round to 0.25 µs."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]


class Complete(Fields, gc=False, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"


class Instant(Fields, gc=False, tag_field="ph", tag="i"):
    ph: ClassVar[str] = "i"


# The other phases of the trace event format, mostly flows (s, t, f): nearly half of a trace. They
# are only counted, so almost nothing of them is kept.
_COUNTED = [
    msgspec.defstruct(
        "Counted",
        [("cat", str, "")],
        gc=False,
        tag_field="ph",
        tag=phase,
        namespace={"ph": phase, "name": ""},
    )
    for phase in "sftMBEICbneSTpFPNODVvRc()a"
]

_BY_PHASE = msgspec.json.Decoder(list[Union[(Complete, Instant, *_COUNTED)]])  # type: ignore[valid-type]
_ANY_PHASE = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[ExactEvent])


class Events(NamedTuple):
    """The events of one block, in order. All have ``ph``, ``cat`` and ``name``; ``spans``, the
    complete events (``ph: X``), and events named ``[memory]`` have all :class:`Fields`."""

    spans: Sequence[Any]
    others: Sequence[Any]


def events_in(block: bytes) -> Events:
    """The comma-separated events of ``block``. Raises msgspec.DecodeError or UnicodeDecodeError
    if it is not valid JSON of events, RecursionError where arguments are nested too deeply."""
    text = b"[" + block + b"]"
    try:
        events = _BY_PHASE.decode(text)
    except msgspec.ValidationError:  # a phase is missing or unknown
        found = split(_ANY_PHASE.decode(text))
    else:
        spans = [event for event in events if type(event) is Complete]
        found = Events(spans, [event for event in events if type(event) is not Complete])
    return split(_EXACT.decode(text)) if _rounded(found.spans) else found


def split(events: Iterable[Event]) -> Events:
    events = list(events)
    spans = [event for event in events if event.ph == "X"]
    return Events(spans, [event for event in events if event.ph != "X"])


def _rounded(spans: Sequence[Any]) -> bool:
    """Whether float64 cannot hold these times to the nanosecond."""
    some = spans[:: max(1, len(spans) // SAMPLED_TIMES)]
    ts = np.array([event.ts for event in some])
    return bool(some and ts.max() >= EXACT_US and (ts % 1).any())
