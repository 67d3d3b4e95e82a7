"""Bad input gets one clear message and the right exit code, before anything is started."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tdiag.errors import LaunchError, TdiagError, UsageError
from tdiag.launch import preflight
from tdiag.launch.preflight import check
from tdiag.launch.target import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(target: Target, python: str | None = None) -> TdiagError:
    with pytest.raises(TdiagError) as caught:
        check(target, python)
    return caught.value


def script(source: str | bytes, name: str = "train.py") -> Target:
    Path(name).write_bytes(source if isinstance(source, bytes) else source.encode())
    return Target("script", name)


def test_a_good_script_passes_and_tells_its_torch() -> None:
    checked = check(script("import torch\n"), None)
    assert checked.python == sys.executable
    assert checked.torch_version and checked.torch_version.startswith("2.")


def test_no_such_script() -> None:
    error = refused(Target("script", "nowhere.py"))
    assert (error.message, error.exit_code) == ("no such script: nowhere.py", 2)


def test_a_syntax_error_shows_its_place() -> None:
    error = refused(script("x = 1\nfor y in x\n    pass\n"))
    assert error.message == "train.py:2: expected ':'\n    for y in x"
    assert error.exit_code == 2


def test_the_scripts_own_python_judges_its_syntax() -> None:
    """The encoding cookie, a byte-order mark and warnings of the compiler are no errors."""
    check(script("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1")), None)
    check(script(b"\xef\xbb\xbfx = 1\n"), None)
    check(script("assert (1, 'always')\nx = '\\d'\n"), None)


@pytest.mark.parametrize(
    ("name", "content"),
    [("train.sh", b"#!/bin/sh\necho\n"), ("train", b"\x7fELF\0\0"), ("data.bin", b"\0" * 9)],
)
def test_not_python(name: str, content: bytes) -> None:
    error = refused(script(content, name))
    assert error.message == f"{name} is not a Python script"
    assert f"tdiag run -- {name}" in error.hint


def test_a_notebook_says_how_to_convert_it() -> None:
    assert "nbconvert" in refused(script("{}", "a.ipynb")).hint


def test_a_directory_needs_a_main() -> None:
    Path("pkg").mkdir()
    assert "is a directory" in refused(Target("script", "pkg")).message
    Path("pkg/__main__.py").write_text("pass\n")
    check(Target("script", "pkg"), None)
    Path("pkg/__main__.py").write_text("pass pass\n")
    assert "__main__.py:1" in refused(Target("script", "pkg")).message


def test_a_zip_application_is_python() -> None:
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.writestr("__main__.py", "pass\n")
    check(Target("script", "app.pyz"), None)


def test_a_module_is_found_without_importing_its_package() -> None:
    Path("pkg").mkdir()
    Path("pkg/__init__.py").write_text("raise RuntimeError('imported')\n")
    Path("pkg/train.py").write_text("pass\n")
    check(Target("module", "pkg.train"), None)
    error = refused(Target("module", "pkg.other"))
    assert "no module pkg.other" in error.message and error.exit_code == 2
    Path("pkg/train.py").write_text("pass pass\n")
    assert "train.py:1: invalid syntax" in refused(Target("module", "pkg.train")).message


def fake_python(name: str, text: str) -> str:
    path = Path(name).absolute()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_torch_in_that_environment() -> None:
    """-I -S hides site-packages: a real Python that has no torch."""
    bare = fake_python("barepython", f'exec {sys.executable} -I -S "$@"')
    error = refused(script("pass\n"), bare)
    assert error.message == f"no torch in the environment of {bare}"
    assert "--python" in error.hint and error.exit_code == 2


@pytest.mark.parametrize("text", ["exit 0", "echo '[1]'", "echo oops >&2; exit 3"])
def test_what_is_no_python_is_told_from_one(text: str) -> None:
    error = refused(script("pass\n"), fake_python("notpython", text))
    assert "does not answer as a Python interpreter" in error.message
    assert isinstance(error, UsageError)


def test_python_not_there_or_not_executable() -> None:
    Path("plain").write_text("")
    assert refused(script("pass\n"), "./nowhere").exit_code == 127
    assert refused(script("pass\n"), "./plain").exit_code == 126


def test_a_check_that_takes_too_long_does_not_stop_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "ASK_TIMEOUT_S", 0.05)
    slow = fake_python("slowpython", "exec sleep 5")
    assert check(script("pass\n"), slow) == preflight.Checked(slow)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("no-such-launcher", 127, "command not found"),
        ("./train.py", 126, "is not executable"),
        ("./pkg", 126, "is a directory"),
    ],
)
def test_launchers_fail_as_in_a_shell(name: str, code: int, words: str) -> None:
    script("pass\n")
    Path("pkg").mkdir()
    error = refused(Target("launcher", name))
    assert isinstance(error, LaunchError)
    assert error.exit_code == code and words in error.message


@pytest.mark.parametrize(
    "line",
    ["python -I t.py", "python3.11 -uE t.py", "/usr/bin/env python -W ignore -S t.py",
     "python -Xdev -IB -c pass"],
)  # fmt: skip
def test_a_python_that_shuts_the_probe_out_is_refused(line: str) -> None:
    name, *args = line.split()
    fake_python("python", "exit 0")
    fake_python("python3.11", "exit 0")
    target = Target("launcher", name if name.startswith("/") else f"./{name}", tuple(args))
    assert "prevents the probe from loading" in refused(target).message


@pytest.mark.parametrize(
    "line",
    ["python t.py -I", "python -m t -S", "python -u -W E t.py", "python -X I t.py", "python -c S"],
)
def test_words_that_only_look_like_it_pass(line: str) -> None:
    name, *args = line.split()
    fake_python(name, "exit 0")
    assert check(Target("launcher", f"./{name}", tuple(args)), None) == preflight.Checked()
