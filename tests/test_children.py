"""Programs of this package, started from wherever the user is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tdiag import __version__
from tdiag.children import program


def test_a_package_of_this_name_in_the_current_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "tdiag").mkdir()
    (tmp_path / "tdiag" / "__init__.py").write_text("raise SystemExit('somebody else')\n")
    done = subprocess.run(
        [*program("tdiag"), "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout
