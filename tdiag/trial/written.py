"""Which files programs wrote below a folder: what they leave behind is the user's to know."""

from __future__ import annotations

import os
from pathlib import Path

MOST_ENTRIES = 100_000  # looked at: about a second; a folder with more is one of data
MOST_NAMED = 5
# tdiag's own, git's, and what Python writes by itself.
_SKIPPED = {".tdiag", ".git", "__pycache__"}


def written(folder: Path, since_unix_ns: int) -> str:
    """A sentence that names them; "" for none. By the time of a file's last change, so another
    program's files are among them."""
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
            return f"too many files below {folder} to tell which of them were written meanwhile"
        for name in sorted(files):
            path = Path(where, name)
            try:
                changed = path.lstat().st_ctime_ns
            except OSError:  # gone by now
                continue
            if changed >= since_unix_ns:
                found.append(str(path.relative_to(folder)))
    if not found:
        return ""
    more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
    return f"files written below {folder} meanwhile: {', '.join(found[:MOST_NAMED])}{more}"
