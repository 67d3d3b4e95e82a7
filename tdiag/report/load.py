"""Reads ``diagnosis.json`` back, with a clear message if it cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tdiag.errors import RunError
from tdiag.model.diagnosis import SCHEMA_VERSION, Diagnosis
from tdiag.model.trials import Trials

TRIALS = "trials.json"


class _SchemaVersion(msgspec.Struct):
    schema_version: int


def load_diagnosis(path: Path) -> Diagnosis:
    """The diagnosis at ``path``: the file itself, or a run directory that holds one.

    Reads files of every earlier schema version. Raises :class:`RunError` (exit code 2) if there is
    none, if it is broken, or if a newer tdiag wrote it.
    """
    file = path / "diagnosis.json" if path.is_dir() else path
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise RunError(f"no diagnosis at {file}", "run `tdiag run SCRIPT` first") from None
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror}") from error
    try:
        version = msgspec.json.decode(raw, type=_SchemaVersion).schema_version
    except msgspec.MsgspecError as error:
        hint = "the file is cut off or is not tdiag's: run `tdiag run` again"
        raise RunError(f"{file} is not a diagnosis: {error}", hint) from error
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{file} has schema version {version}; this tdiag reads up to {SCHEMA_VERSION}",
            "a newer tdiag wrote it: pip install --upgrade tdiag",
        )
    try:
        found = msgspec.json.decode(raw)
        return msgspec.convert(_from_version_1(found) if version == 1 else found, Diagnosis)
    except (msgspec.MsgspecError, AttributeError) as error:
        hint = "it was changed or only partly written: run `tdiag run` again"
        raise RunError(f"{file} is a broken diagnosis: {error}", hint) from error


def load_trials(run_dir: Path) -> Trials | None:
    """The trials of this run's script; None without any. Raises :class:`RunError` if the file is
    broken."""
    file = run_dir / TRIALS
    try:
        return msgspec.json.decode(file.read_bytes(), type=Trials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"cannot read {file}: {error}", "remove it, or run `tdiag try` again") from (
            error
        )


def _from_version_1(found: dict[str, Any]) -> dict[str, Any]:
    """In version 1 captures and notes were texts: ``failed: why``, and only a note's sentence."""
    captures = {name: _capture(text) for name, text in found.get("capture", {}).items()}
    notes = [_note(text) for text in found.get("notes", ())]
    return {**found, "schema_version": SCHEMA_VERSION, "capture": captures, "notes": notes}


def _capture(text: str) -> dict[str, str]:
    state, _, why = text.partition(": ")
    return {"state": {"captured in part": "partial"}.get(state, state), "why": why}


def _note(text: str) -> dict[str, str]:
    if text.startswith("other programs kept"):
        return {"code": "crowded-machine", "text": text, "severity": "warning"}
    return {"code": "note", "text": text}
