"""The promises of docs/architecture.md, read off the source."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tdiag"

# What each package may import of tdiag, besides itself. `model` is the shared vocabulary and stands
# below everything.
MAY_IMPORT = {
    "errors": set(),
    "units": set(),
    "children": set(),
    "model": set(),
    "probe": set(),
    # What the probe and the others must agree on, `probe.wire`, is all that they may take of it.
    "sample": {"errors", "children", "probe.wire"},
    "launch": {"errors", "children", "sample", "model", "probe.wire"},
    "trace": {"errors", "children"},
    "evidence": {"errors", "children", "model", "trace", "frameworks", "probe.wire"},
    "rules": {"errors", "units", "evidence", "model", "probe.wire"},
    "frameworks": {"model"},
    "diagnose": {"frameworks", "errors", "units", "model", "evidence", "rules", "probe.wire"},
    "report": {"errors", "units", "model", "evidence", "probe.wire"},
    "duel": {"errors", "children", "launch", "probe.wire"},
    "gate": {
        "errors",
        "units",
        "launch",
        "sample",
        "model",
        "evidence",
        "diagnose",
        "duel",
        "report",
        "probe.wire",
    },
    # The catalogue of changes is the probe's: it is read by both processes.
    "trial": {
        "errors",
        "units",
        "launch",
        "model",
        "evidence",
        "duel",
        "report",
        "probe.wire",
        "probe.trial",
    },
    # It hands on what was recorded, to viewers of others.
    "view": {"errors", "children", "trace", "evidence", "report", "model", "probe.wire"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of the modules a file imports, relative ones left out."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            whole = node.module == "tdiag.probe"  # `from tdiag.probe import wire`
            found |= {f"{node.module}.{a.name}" for a in node.names} if whole else {node.module}
    return found


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_stage_imports_only_earlier_stages(package: str) -> None:
    for path in FILES:
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part != package:
            continue
        for name in imports(path):
            if not name.startswith("tdiag."):
                continue
            target = name.removeprefix("tdiag.")
            allowed = {package, *MAY_IMPORT[package]}
            assert any(target == a or target.startswith(a + ".") for a in allowed), (path, name)


def test_the_probe_needs_only_the_standard_library_and_torch() -> None:
    for path in (PACKAGE / "probe").rglob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert roots <= set(sys.stdlib_module_names) | {"torch"}, path


def test_only_the_probe_imports_torch() -> None:
    """And the script that is run by the user's Python to measure the machine."""
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if "probe" not in parts and parts != ("launch", "calibrate.py"):
            assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


def test_the_probe_is_written_for_python_3_9() -> None:
    for path in [*(PACKAGE / "probe").rglob("*.py"), PACKAGE / "launch" / "calibrate.py"]:
        ast.parse(path.read_text(), feature_version=(3, 9))


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    """No ``import X as X``, and no ``__all__`` of imported names but a package's own."""
    handed_on = []
    for path in FILES:
        tree = parsed(path)
        aliases = [a for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
        handed_on += [(path, a.name) for a in aliases if a.asname == a.name]
        if path.name != "__init__.py":
            imported = {a.asname or a.name for a in aliases}
            handed_on += [(path, name) for name in _exported(tree) if name in imported]
    assert handed_on == []


def _exported(tree: ast.Module) -> list[str]:
    """The names of ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def probe_imports() -> dict[str, set[str]]:
    """The probe's modules and what each imports of the probe: anywhere in it, for types, too."""
    probe = PACKAGE / "probe"
    files = {p.relative_to(probe).with_suffix("").as_posix(): p for p in probe.rglob("*.py")}
    files = {name.removesuffix("/__init__"): path for name, path in files.items()}
    files.pop("inject/sitecustomize")
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        folder = path.parent.relative_to(probe).parts
        found[name] = set()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
            stem = "/".join(filter(None, base))
            names = {f"{stem}/{a.name}".lstrip("/") for a in node.names}
            found[name] |= (names & files.keys()) or ({stem} & files.keys())
    return found


def test_the_core_of_the_probe_knows_no_captures() -> None:
    for name, imported in probe_imports().items():
        if not name.startswith(("capture", "assembly")):
            assert not {n for n in imported if n.startswith("capture")}, name


def test_no_two_modules_of_the_probe_import_each_other() -> None:
    left = probe_imports()
    assert {"core", "wire", "windows", "capture", "capture/trace"} <= left.keys()
    assert "core" in left["windows"] and "capture/switched" in left["capture/trace"]
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    assert not left, {name: imported & left.keys() for name, imported in left.items()}


def test_a_new_window_touches_at_most_ten_files() -> None:
    """Those that docs/architecture.md lists, which are there and name today's windows."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Adding a window")[1]
    listed = [line.split("`")[1] for line in text.splitlines() if line[:1].isdigit()]
    assert 5 < len(listed) <= 10
    for name in listed:
        path = ROOT / name if name.startswith("docs/") else PACKAGE / name.replace("foo", "ops")
        assert "ops" in path.read_text().lower(), path


def test_no_file_is_longer_than_400_lines() -> None:
    """A file holds one thing: 300 lines are usually too many for it, 400 always."""
    files = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert {str(p) for p in files if len(p.read_text().splitlines()) > 400} == set()


def test_the_readme_shows_a_report_and_the_first_command_within_25_lines() -> None:
    head = (ROOT / "README.md").read_text().splitlines()[:25]
    assert any("TD501" in line for line in head)
    assert any(line.startswith("python3 -m venv") and "tdiag run" in line for line in head)


def test_every_link_of_the_readme_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_two_modules_and_no_two_classes_have_one_name() -> None:
    """A name that is looked for is found once."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.stem != "__init__"]
    classes = [
        node.name
        for path in modules
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef)
    ]
    named = Counter([path.stem for path in modules])
    assert [name for name, times in named.items() if times > 1] == []
    assert [name for name, times in Counter(classes).items() if times > 1] == []
