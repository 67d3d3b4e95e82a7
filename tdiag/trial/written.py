"""Which files programs wrote below a folder, so that the user knows what they leave behind."""

from __future__ import annotations

import os
from pathlib import Path

MOST_ENTRIES = 100_000  # entries to inspect, about a second; a folder with more contains data
MOST_NAMED = 5
# tdiag's own files, git's, and files that Python writes by itself.
_SKIPPED = {".tdiag", ".git", "__pycache__"}


def written(folder: Path, since_unix_ns: int) -> str:
    """A sentence that names them; "" for none. It goes by each file's modification time, so it may
    include another program's files."""
    found: list[str] = []
    entries = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and not Path(where, name, "pyvenv.cfg").exists()
        )
        entries += len(files) + len(folders)
        if entries > MOST_ENTRIES:
            return f"too many files below {folder} to find those written during the trials"
        for name in sorted(files):
            path = Path(where, name)
            try:
                changed = path.lstat().st_ctime_ns
            except OSError:  # deleted in the meantime
                continue
            if changed >= since_unix_ns:
                found.append(str(path.relative_to(folder)))
    if not found:
        return ""
    more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
    return f"files written below {folder} during the trials: {', '.join(found[:MOST_NAMED])}{more}"
