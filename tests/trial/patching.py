"""Patches of a file with this code, and what `git apply` makes of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tdiag.model.place import Place
from tdiag.model.trials import Applied, Patch, Tried
from tdiag.trial.winning_patch import write

HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"
FAR_NS = 1 << 62  # after every file's last change


def patch_of(folder: Path, code: str | bytes, change: str, line: int, **more: Any) -> Patch:
    """Of ``train.py`` with this code, where the change had its effect at this line."""
    file = folder / more.pop("name", "train.py")
    file.write_bytes(code.encode() if isinstance(code, str) else code)
    name = change.partition("=")[0]
    at = Place(str(file), line, more.pop("function", "<module>"))
    won = Tried(change=change, ceiling=False, safety="", answer="faster",
                applied=(Applied(name, at, **more),))  # fmt: skip
    return write(won, folder, FAR_NS)


def applied(folder: Path, patch: Patch) -> bytes:
    """The file after `git apply`, which checks every byte of what it replaces."""
    diff = folder / "fix.patch"
    diff.write_bytes(patch.diff.encode("utf-8", "surrogateescape"))
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(["git", "apply", diff.name], cwd=folder, capture_output=True, text=True,
                          env=alone, check=False)  # fmt: skip
    assert not done.returncode, done.stderr + patch.diff
    return Path(patch.edits[0].file).read_bytes()


def after(folder: Path, code: str, change: str, line: int, **more: Any) -> str:
    patch = patch_of(folder, code, change, line, **more)
    assert not patch.by_hand and patch.made == (change,), patch
    changed = applied(folder, patch).decode()
    compile(changed, "train.py", "exec")
    return changed


def refused(folder: Path, code: str | bytes, change: str, line: int, **more: Any) -> str:
    patch = patch_of(folder, code, change, line, **more)
    assert patch.diff == "" and not patch.made and patch.why, patch
    (why,) = patch.by_hand
    return why


WORKERS = "loader.num_workers=4"
