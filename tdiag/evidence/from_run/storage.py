"""Reads what the trial of the storage wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tdiag.evidence.storage import Storage


def read_storage(run_dir: Path) -> Storage | None:
    """None where the storage was not tried, or its file is damaged."""
    try:
        return msgspec.json.decode((run_dir / "storage.json").read_bytes(), type=Storage)
    except (OSError, msgspec.DecodeError):
        return None
