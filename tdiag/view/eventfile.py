"""A TensorBoard event file: ordinary scalars and texts, written without torch or TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Scalar(NamedTuple):
    """``step``: TensorBoard's x axis; ``unix_s``: its wall time."""

    step: int
    unix_s: float
    value: float


def write(
    folder: Path, curves: Mapping[str, Iterable[Scalar]], texts: Mapping[str, str], unix_s: float
) -> None:
    """One event file in ``folder``, by tag. ``texts`` are Markdown; ``unix_s`` is their time.
    Raises OSError if it cannot be written."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{int(unix_s):010d}.tdiag"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=unix_s, file_version="brain.Event:2").SerializeToString())
        for tag, text in texts.items():
            shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
            tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=[text.encode()])
            value = Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(tag, ""))
            event = Event(wall_time=unix_s, step=0, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())
        for tag, points in curves.items():
            for step, at, number in points:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=number)])
                writer.write(Event(wall_time=at, step=step, summary=summary).SerializeToString())
