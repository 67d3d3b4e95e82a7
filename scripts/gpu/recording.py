"""Packs runs of the planted cases, for the tests: what was recorded on a device, and what was true.

``<code>.tar.xz`` holds a run directory and its script; ``labels.json`` for each code the step of
the fixed twin, the class (null where it may vary) and the planted line. ``healthy`` has no fault.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu.cases import HEALTHY_CASE, PLANTED_CASE
from gpu.planted import PLANTED
from gpu.running import line_of

NEEDED = re.compile(
    r"/(events|tensorboard|control)(/|$)|\.py$|/(run|config)\.json$|/system\.jsonl$"
)


def pack(results: Iterable[dict[str, Any]], out: Path, target: Path) -> None:
    """``out``: where the cases ran; ``target``: a folder, which may hold records already."""
    target.mkdir(parents=True, exist_ok=True)
    known = target / "labels.json"
    labels = json.loads(known.read_text()) if known.exists() else {}
    measured = {result["name"]: result["measured"] for result in results}
    for case in PLANTED:
        name = PLANTED_CASE.format(case.code)
        if "fixed_ns" in measured.get(name, {}):
            folder = out / name.replace(" ", "-")
            labels[case.code] = {
                "fixed_ns": round(measured[name]["fixed_ns"]),
                "cls": case.cls,
                "line": line_of(folder / "slow.py", case.line) if case.line else None,
            }
            _pack(folder, "slow", target / f"{case.code}.tar.xz")
    if HEALTHY_CASE in measured:
        labels["healthy"] = {"cls": "compute"}
        _pack(out / HEALTHY_CASE.replace(" ", "-"), "train", target / "healthy.tar.xz")
    known.write_text(json.dumps(labels, indent=1, sort_keys=True) + "\n")


def _pack(folder: Path, script: str, target: Path) -> None:
    """The script and its run directory, which is named ``run`` in the archive."""
    run_dir = folder / f"run-{script}"
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(folder / f"{script}.py", f"{script}.py", filter=_anonymous)
        for path in sorted(run_dir.rglob("*")):
            if path.is_file() and NEEDED.search(str(path)):
                archive.add(path, Path("run") / path.relative_to(run_dir), filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same bytes whoever packs them, and whenever."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
