"""`tdiag mcp`: tdiag's commands as tools of the Model Context Protocol, for a coding agent.

Each tool runs the command of the same name in the folder where the server was started and returns
its output. Nothing runs before the client calls a tool. Paths outside the folder are refused; the
script itself may open any file, as it may without tdiag.
Protocol: https://modelcontextprotocol.io/specification, stdio transport.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdiag import __version__
from tdiag.errors import UsageError

if TYPE_CHECKING:
    from mcp.server import MCPServer

INSTALL = "Install the SDK: pip install 'tdiag[mcp]'"
# Characters of one answer, about 6,000 tokens: a long report leaves room for other context.
MOST_CHARACTERS = 24_000
# After Ctrl-C tdiag needs a few seconds to stop the script and its samplers.
GRACE_S = 30.0
INSTRUCTIONS = """\
tdiag finds out why a PyTorch training step is slow, and measures what a change gains.
1. `run` measures an unmodified script and returns a report: the bottleneck and ranked fixes.
2. `explain` says what a rule (TD201) measures and when it is wrong.
3. `try` measures what a change gains before you edit anything.
4. Edit the script, then `check` it against the git revision before the edit: the step times of both
versions are measured interleaved. Trust `try` and `check`, not a prediction.
Measure one thing at a time: other programs on the machine disturb the times."""


def mcp(
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Folder of the scripts and runs.")
    ] = Path(),
) -> None:
    """Serve tdiag to a coding agent (Model Context Protocol, stdio).

    Register the command `tdiag mcp` with the agent and start it in the project's folder.
    """
    if not root.is_dir():
        raise UsageError(f"no such folder: {root}")
    server(root).run("stdio")


def server(root: Path) -> MCPServer:
    """The server, not yet running. Raises UsageError where the SDK is missing or too old."""
    try:
        import anyio
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise UsageError(f"`tdiag mcp` cannot start: {error}", INSTALL) from error

    root = root.resolve()
    one_at_a_time = anyio.Lock()  # two measurements on one machine disturb each other
    serving = MCPServer("tdiag", version=__version__, instructions=INSTRUCTIONS)

    def inside(path: str) -> str:
        """The path relative to the folder. A leading dash is refused: it would be an option."""
        found = (root / path).resolve()
        if not found.is_relative_to(root):
            raise ToolError(f"{path} is outside {root}, the folder that this server may use")
        return f"./{found.relative_to(root)}"

    def plain(word: str) -> str:
        if word.startswith("-"):
            raise ToolError(f"{word} would be an option")
        return word

    def python(script: str) -> list[str]:
        return [sys.executable, inside(script)]

    async def tdiag(*words: str, codes: tuple[int, ...] = (0,)) -> str:
        """What the command prints. An exit code not in ``codes`` is a failure of the tool."""
        command = [sys.executable, "-m", "tdiag", *words]
        process = await anyio.open_process(
            command, cwd=root, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout
            said = b"".join([chunk async for chunk in process.stdout])
            code = await process.wait()
        except BaseException:  # the client gave up or the server ends: end the script too
            with anyio.CancelScope(shield=True):
                process.send_signal(signal.SIGINT)
                with anyio.move_on_after(GRACE_S):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
            raise
        text = shortened(said.decode(errors="replace").strip())
        if code not in codes:
            raise ToolError(f"tdiag {words[0]} ended with exit code {code}\n{text}")
        return text

    @serving.tool()
    async def run(script: str, args: list[str] | None = None, time_budget: float = 60.0) -> str:
        """Run a training script under the profilers until the evidence is complete, and report
        where its step time goes, with ranked fixes. ``script``: its path; ``args``: its own
        arguments; ``time_budget``: seconds from the first step until measuring stops."""
        watched = ["--profiling", "--quiet", f"--time-budget={time_budget}"]
        async with one_at_a_time:
            said = await tdiag("run", *watched, "--", *python(script), *(args or []))
            report = await tdiag("report", "--format=markdown")
        return report or said

    @serving.tool()
    async def report(run: str = "", as_json: bool = False) -> str:
        """The report of an earlier run. ``run``: its directory, "" for the latest. ``as_json``:
        the whole diagnosis as JSON instead of Markdown."""
        where = [inside(run)] if run else []
        return await tdiag("report", *where, f"--format={'json' if as_json else 'markdown'}")

    @serving.tool()
    async def analyze(paths: list[str]) -> str:
        """Where the device's time goes in traces that torch.profiler exported (.json, .json.gz, or
        a folder of them)."""
        return await tdiag("analyze", "--format=markdown", *map(inside, paths))

    @serving.tool()
    async def explain(rule: str) -> str:
        """What a rule measures, when it fires, what to do, when it is wrong. ``rule``: a code
        such as TD201, or words to search for."""
        return await tdiag("explain", plain(rule))

    @serving.tool()
    async def check(script: str, against: str, args: list[str] | None = None) -> str:
        """Whether the script's step is now slower or faster than at the git revision ``against``.
        Both versions run interleaved for some minutes. Returns pass, regressed or inconclusive,
        with the ratio and its interval."""
        versions = [f"--against={plain(against)}", "--format=markdown", "--quiet"]
        async with one_at_a_time:
            words = [*versions, "--", *python(script), *(args or [])]
            return await tdiag("check", *words, codes=(0, 1, 3))

    @serving.tool(name="try")
    async def try_(
        script: str, changes: list[str], args: list[str] | None = None, time_budget: float = 180.0
    ) -> str:
        """Measure what changes gain before anyone edits the script. The script runs several times,
        unchanged and changed, interleaved. ``changes``: such as loader.num_workers=4,
        torch.anomaly=off, or freeze=train.py:validate for the cost of a function.
        ``time_budget``: seconds in total. Returns JSON: for each change its speedup with a 95 %
        interval, or why there is none.
        """
        async with one_at_a_time:
            words = ["--json", "--yes", "--quiet", f"--time-budget={time_budget}"]
            words += [f"--set={change}" for change in changes]
            return await tdiag("try", *words, "--", *python(script), *(args or []))

    return serving


def shortened(text: str) -> str:
    """The beginning, which has the verdict, and the end, which has the cause of an error."""
    if len(text) <= MOST_CHARACTERS:
        return text
    begin, end = text[: 3 * MOST_CHARACTERS // 4], text[-MOST_CHARACTERS // 4 :]
    return f"{begin}\n… {len(text) - MOST_CHARACTERS:,} characters left out …\n{end}"
