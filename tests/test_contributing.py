"""The first rule of CONTRIBUTING.md, added as its text says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HALF_WRITTEN = shutil.ignore_patterns("*.pyc.*")
SECTION = TEXT.split("## Your first rule")[1].split("\n## A report format")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, flags=re.S | re.M)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a rule touches is copied, compiled as it is; all else of the package is a link."""
    package = tmp_path / "tdiag"
    package.mkdir()
    for part in (ROOT / "tdiag").iterdir():
        if part.name == "rules":
            shutil.copytree(part, package / part.name, ignore=HALF_WRITTEN)
        else:
            (package / part.name).symlink_to(part)
    for folder in ("docs", "scripts", "tests/rules", "tests/trace"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=HALF_WRITTEN)
    for file in ("pyproject.toml", "tests/__init__.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def run(line: str, folder: Path) -> str:
    """A line of the text, with this Python's programs."""
    here = Path(sys.executable).parent
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        line.replace(".venv/bin/", f"{here}/"), shell=True, cwd=folder, env=environ, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for part in ("tdiag/rules", "docs", "tests")
        for path in (folder / part).rglob("*")
        if path.suffix in {".py", ".md", ".json"}
    }


def test_a_rule_is_added_as_the_text_says_and_touches_four_files(checkout: Path) -> None:
    (source,) = blocks("python")
    (name,) = re.findall(r"^Create `(tdiag/rules/(?:td\d+)_\w+\.py)`", SECTION, flags=re.M)
    code = name.split("/")[-1][:5].upper()
    before = files(checkout)
    assert name not in before, "its code is taken: give the example another one"
    (checkout / name).write_text(source, encoding="utf-8")
    (commands,) = blocks("sh")
    *_, last = (run(line, checkout) for line in commands.splitlines())
    passed = re.search(r"(\d+) passed", last)
    assert passed is not None and int(passed[1]) >= 12, last
    after = files(checkout)
    changed = {path for path, text in after.items() if before.get(path) != text}
    assert changed == {
        name, f"tests/rules/snapshots/{code}.json", f"docs/rules/{code}.md", "docs/rules/README.md",
    }  # fmt: skip
    assert all(path.rsplit("/", 1)[-1] in SECTION for path in changed)
    lint = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), name]
    assert subprocess.run(lint, cwd=checkout, check=False).returncode == 0
