"""A Python that has imported what is expensive already, and starts programs as copies of itself.

``import torch`` and the ``torch._dynamo`` that a first optimizer imports take 3 to 4 s of CPU time,
many times what a test's few dozen steps take; ``tdiag run`` imports, compiles templates and packs
Plotly for a second. Here that is paid once for each process of pytest: a program runs in a fork,
with its own arguments, folder, environment and streams, under the ``sitecustomize`` that its
PYTHONPATH holds, and ends as any program does. Whatever depends on how a program *starts* (tests of
imports, of signals, of the promise that nothing is changed) is started the ordinary way instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

TRAINING = ("torch", "torch._dynamo")
# `tdiag run`, and what the other commands import when they are called.
TDIAG = (
    "tdiag.cli", "tdiag.launch.session", "tdiag.launch.attaching", "tdiag.trial.measure",
    "tdiag.trial.winning_patch", "tdiag.gate.stored", "tdiag.gate.offline",
    "tdiag.gate.history_document", "tdiag.diagnose.trace_differences",
    "tdiag.evidence.from_trace.executors", "tdiag.evidence.from_trace.ranks_of_traces",
    "tdiag.view.perfetto", "tdiag.view.server", "tdiag.view.speedscope", "tdiag.view.tensorboard",
    "rich.progress",
)  # fmt: skip


class Server:
    """The preloaded Python. It runs one program at a time, or several that belong together."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", __file__, *modules], env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.kill)

    def run(
        self, words: list[str], cwd: Path, environs: list[dict[str, str]], stdin: str,
        timeout_s: float,
    ) -> list[subprocess.CompletedProcess[str]]:  # fmt: skip
        """One program for each environment, all at the same time."""
        assert self.process.stdin and self.process.stdout
        with contextlib.ExitStack() as stack:
            requests, files = [], []
            for environ in environs:
                three = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
                three[0].write(stdin)
                three[0].flush()
                streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in three]
                request = {"words": words, "cwd": str(cwd), "environ": environ, "streams": streams}
                requests.append(request)
                files.append(three)
            print(json.dumps(requests), file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], timeout_s)[0]:
                self.kill()
                said = [
                    Path(streams[2]).read_text() for streams in (r["streams"] for r in requests)
                ]
                raise subprocess.TimeoutExpired(words, timeout_s, stderr="\n".join(said))
            codes = json.loads(self.process.stdout.readline())
            for file in (file for three in files for file in three):
                file.seek(0)
            said = [[file.read() for file in three[1:]] for three in files]
        return [
            subprocess.CompletedProcess(words, code, *texts)
            for code, texts in zip(codes, said, strict=True)
        ]

    def kill(self) -> None:
        started.cache_clear()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@functools.cache
def started(modules: tuple[str, ...]) -> Server:
    """The server of this process of pytest, made when it is first needed."""
    return Server(modules)


def run(
    words: list[str], cwd: Path, environ: dict[str, str], *,
    modules: tuple[str, ...] = TRAINING, stdin: str = "", timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """As ``subprocess.run([python, *words])`` with these modules imported before; ``words`` begin
    with a script, or with ``-m`` and a module."""
    return started(modules).run(words, cwd, [environ], stdin, timeout_s)[0]


def run_ranks(
    words: list[str], cwd: Path, environ: dict[str, str], timeout_s: float = 120.0, count: int = 2
) -> list[subprocess.CompletedProcess[str]]:
    """As torchrun starts ranks on one machine: the same program several times at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}  # fmt: skip
    ranks = [environ | job | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(count)]
    return started(TRAINING).run(words, cwd, ranks, "", timeout_s)


def serve(modules: list[str]) -> dict:
    """Answer requests with exit codes until there are no more; returns in a child, with its."""
    import gc
    import importlib

    for name in modules:
        importlib.import_module(name)
    if "tdiag.cli" in sys.modules:
        make_a_report()
    gc.freeze()  # a collection in a child need not look at what it shares
    for line in sys.stdin:
        children = []
        for request in json.loads(line):
            children.append(os.fork())
            if not children[-1]:
                return request
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    os._exit(0)


def make_a_report() -> None:
    """All that a first report imports, compiles and packs; nothing is written."""
    import typer.main

    from tdiag import cli
    from tdiag.cli import conclude, html_page, run  # noqa: F401 - as `tdiag run` needs them
    from tdiag.diagnose import diagnose
    from tdiag.evidence import from_run  # noqa: F401
    from tdiag.evidence.store import Evidence
    from tdiag.report import FORMATS, render
    from tdiag.report.html.library import plotly
    from tdiag.report.of_diagnosis import document

    typer.main.get_command(cli.app)
    nothing = document(diagnose(Evidence()))
    for name in FORMATS:
        render(name, nothing)
    plotly()


# A program's globals live until it has ended. Freed before, a gloo process group with work in
# flight waits for a thread of its own, which waits for the GIL (torch 2.13).
kept: list[dict[str, Any]] = []


def become(
    ending: list[int], words: list[str], cwd: str, environ: dict[str, str], streams: list[str]
) -> NoReturn:
    """Be the program that was asked for."""
    import multiprocessing.process
    import runpy

    os.chdir(cwd)
    # Read at import, as the folder to which a spawned child's script is relative.
    multiprocessing.process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environ)
    for descriptor, path in enumerate(streams):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if descriptor else os.O_RDONLY), descriptor)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w")  # noqa: SIM115 - with the buffer that it has in a pipe
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.path[:0] = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        import sitecustomize  # noqa: F401
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, cwd)
            kept.append(runpy.run_module(words[1], run_name="__main__", alter_sys=True))
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).absolute().parent))
            kept.append(runpy.run_path(words[0], run_name="__main__"))
        sys.exit()
    except SystemExit as ended:
        code = ended.code
        ending.append(code if isinstance(code, int) else int(code is not None))
        raise
    except Exception:
        ending.append(1)
        raise


def end_without_teardown() -> list[int]:
    """Once the interpreter has printed a traceback, joined threads and called what the program
    registered, freeing thousands of modules is left out: it would copy all their memory. The exit
    code is put into the list; without one nothing is left out."""
    codes: list[int] = []

    def end() -> None:  # registered before all others, called after them
        if codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0] & 0xFF)

    atexit.register(end)
    return codes


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    ending = end_without_teardown()
    become(ending, **serve(sys.argv[1:]))
