"""Bad standard streams of tdiag's: never a traceback, never another exit code of the script."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.launch.harness import TDIAG, script, tdiag


def shell(words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = f"{shlex.join(TDIAG)} {words}"
    return subprocess.run(["sh", "-c", line], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("bad", ["2>/dev/full", "2>&-", ">&-", "<&-", "<&- >&- 2>&-",
                                 "--json >/dev/full", "--json >&-"])  # fmt: skip
def test_bad_streams_change_no_exit_code(bad: str, tmp_path: Path) -> None:
    """The script sees three open streams, none of them a file of tdiag's."""
    name = script(tmp_path, """
        import os, sys
        seen = [os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)]
        open('seen', 'w').write('\\n'.join(seen))
        sys.exit(3)
        """)  # fmt: skip
    done = shell(f"run -q {name} {bad}", tmp_path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    seen = (tmp_path / "seen").read_text().splitlines()
    assert len(seen) == 3 and not any(str(tmp_path) in file for file in seen)


@pytest.mark.parametrize("words", ["report", "report --json", "rules", "explain TD201", "--help"])
@pytest.mark.parametrize("bad", [">/dev/full", ">&-"])
def test_what_cannot_be_written_is_one_line_and_exit_code_two(
    words: str, bad: str, tmp_path: Path
) -> None:
    (tmp_path / ".tdiag/runs/one").mkdir(parents=True)
    (tmp_path / ".tdiag/runs/one/run.json").write_text('{"schema": 1}')
    done = shell(f"{words} {bad}", tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("tdiag: cannot write the report: ")


def test_the_version_is_printed(tmp_path: Path) -> None:
    from tdiag import __version__

    done = tdiag("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"tdiag {__version__}\n")
