"""Signals, exit codes and the terminal are what plain Python gives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.harness import TDIAG, Terminal, latest, script, tdiag, wait_for

ENDINGS = {
    "nothing": "pass",
    "exit 3": "import sys; sys.exit(3)",
    "exit message": "import sys; sys.exit('told')",
    "exception": "raise ValueError('boom')",
    "os._exit": "import os; os._exit(5)",
    "SIGTERM": "import os; os.kill(os.getpid(), 15)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("source", ENDINGS.values(), ids=ENDINGS.keys())
def test_exit_code_and_streams_are_plain_pythons(source: str, tmp_path: Path) -> None:
    name = script(tmp_path, f"import sys\nprint('out')\nprint('err', file=sys.stderr)\n{source}\n")
    plain = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)
    ours = tdiag("run", name, "--quiet", cwd=tmp_path)
    shell_code = plain.returncode if plain.returncode >= 0 else 128 - plain.returncode
    assert ours.returncode == shell_code
    assert ours.stdout == plain.stdout
    assert ours.stderr.startswith(plain.stderr)
    assert json.loads((latest(tmp_path) / "run.json").read_text())["exit_code"] == shell_code


WAITING = """
import os, signal, sys, time
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGINT):
    signal.signal(s, lambda n, f: (print('got', signal.Signals(n).name, flush=True), os._exit(40)))
os.write(1, b'ready\\n')  # a signal may come at once, and no handler may print inside a print
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[list[Terminal]]:
    """Terminals that a test opens; their processes do not outlive it."""
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.kill()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGQUIT", "SIGINT"])
def test_a_signal_sent_to_tdiag_alone_reaches_the_script(name: str, tmp_path: Path) -> None:
    script(tmp_path, WAITING)
    process = subprocess.Popen([*TDIAG, "run", "train.py", "-q"], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    assert process.stdout.read() == f"got {name}\n"
    assert process.wait() == 40
    process.stdout.close()


def test_the_script_gets_the_signal_mask_and_handlers_that_plain_python_gives(
    tmp_path: Path,
) -> None:
    name = script(tmp_path, """
        import signal
        print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        print([signal.getsignal(n) == signal.SIG_DFL for n in (15, 17, 1, 10)])
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        """)  # fmt: skip
    plain = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)
    assert tdiag("run", name, cwd=tmp_path).stdout == plain.stdout


INTERRUPTIBLE = """
import time
try:
    print('ready', flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    print('script saw it', flush=True)
    raise
finally:
    print('finally ran', flush=True)
"""


def test_ctrl_c_once_interrupts_the_script_once_and_then_reports(
    tmp_path: Path, terminal: list[Terminal]
) -> None:
    script(tmp_path, INTERRUPTIBLE)
    terminal.append(Terminal([*TDIAG, "run", "train.py"], tmp_path))
    terminal[0].read("ready")
    terminal[0].interrupt()
    assert terminal[0].end() == 130
    text = terminal[0].text
    assert text.count("script saw it") == text.count("finally ran") == 1
    assert "interrupted before the first training step" in text
    assert (latest(tmp_path) / "control" / "finish").exists()
    assert json.loads((latest(tmp_path) / "run.json").read_text())["signal"] == signal.SIGINT


def test_ctrl_c_twice_gives_up_the_report(tmp_path: Path, terminal: list[Terminal]) -> None:
    script(tmp_path, """
        import time
        for n in range(2):
            try:
                print(f'ready {n}', flush=True)
                while True:
                    time.sleep(0.05)
            except KeyboardInterrupt:
                print('once', flush=True)
        print('gone', flush=True)
        """)  # fmt: skip
    terminal.append(Terminal([*TDIAG, "run", "train.py"], tmp_path))
    for n in range(2):
        terminal[0].read(f"ready {n}")
        wait_for(lambda: n == 0 or (latest(tmp_path) / "control" / "finish").exists())  # noqa: B023
        terminal[0].interrupt()
    assert terminal[0].end() == 0
    text = terminal[0].text
    assert text.count("once") == 2 and "gone" in text
    assert "interrupted twice: no report" in text


def test_a_third_ctrl_c_kills_a_script_that_will_not_stop(
    tmp_path: Path, terminal: list[Terminal]
) -> None:
    script(tmp_path, """
        import os, signal, time
        signal.signal(signal.SIGINT, lambda *_: os.write(1, b'ignored\\n'))
        os.write(1, b'ready\\n')
        while True:
            time.sleep(0.05)
        """)  # fmt: skip
    terminal.append(Terminal([*TDIAG, "run", "train.py"], tmp_path))
    terminal[0].read("ready")
    presses = 0
    while terminal[0].process.poll() is None:  # presses that come together count as one
        terminal[0].interrupt()
        presses += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            terminal[0].process.wait(1)
    assert presses >= 3
    assert terminal[0].end() == 128 + signal.SIGKILL


def test_the_script_sees_the_terminal_and_reads_from_it(
    tmp_path: Path, terminal: list[Terminal]
) -> None:
    script(tmp_path, """
        import os, sys
        print([os.isatty(n) for n in range(3)], os.getpgrp() == os.tcgetpgrp(0), flush=True)
        print('hello', input('name? '))
        """)  # fmt: skip
    terminal.append(Terminal([*TDIAG, "run", "train.py"], tmp_path))
    terminal[0].read("name? ")
    terminal[0].type("Ada\n")
    assert terminal[0].end() == 0
    text = terminal[0].text
    assert "[True, True, True] True" in text and "hello Ada" in text


def test_standard_input_reaches_the_script(tmp_path: Path) -> None:
    name = script(tmp_path, "import sys; print(sys.stdin.read()[::-1])")
    assert tdiag("run", name, cwd=tmp_path, stdin="abc").stdout == "cba\n"


def test_environment_and_directory_are_the_users(tmp_path: Path) -> None:
    name = script(tmp_path, """
        import json, os, sys
        print(json.dumps([dict(os.environ), os.getcwd(), sys.argv, sys.path]))
        """)  # fmt: skip
    words = [name, "a b", "--x=1"]
    # Given explicitly, since readline (in pytest) adds to the C environment behind os.environ.
    plain = subprocess.run([sys.executable, *words], cwd=tmp_path, env=dict(os.environ),
                           capture_output=True, text=True)  # fmt: skip
    ours = tdiag("run", *words, cwd=tmp_path)
    (env, *rest), (our_env, *our_rest) = json.loads(plain.stdout), json.loads(ours.stdout)
    assert our_rest == rest
    assert our_env.pop("TDIAG_RUN") == str(latest(tmp_path))
    first, _, after = our_env.pop("PYTHONPATH").partition(os.pathsep)
    assert first.endswith("tdiag/probe/inject") and after == env.pop("PYTHONPATH", "")
    assert our_env == env
