"""`tdiag mcp`, used as a client does: in memory, and once over the pipes of a process."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tdiag.cli import mcp as served
from tests.launch.harness import NO_ROOF

if TYPE_CHECKING:  # it takes a second to import, which only these tests pay
    from mcp import Client

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="mcp is not installed"
)

# By hand: an optimizer imports what takes longer than torch itself.
LOOP = """\
import time, torch
model = torch.nn.Linear(4, 1)
rate = 0.1
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(4)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    model.zero_grad()
    model(batch).mean().backward()
    with torch.no_grad():
        model.weight -= rate * model.weight.grad
"""


def asked(root: Path, question: Callable[[Client], Awaitable[Any]]) -> Any:
    import anyio
    from mcp import Client

    async def main() -> Any:
        async with Client(served.server(root)) as client:
            return await question(client)

    return anyio.run(main)


def call(root: Path, tool: str, **arguments: Any) -> tuple[str, bool]:
    """The text, and whether it is an error."""
    result = asked(root, lambda client: client.call_tool(tool, arguments))
    return result.content[0].text, bool(result.is_error)


def test_each_tool_says_what_it_does_and_takes(tmp_path: Path) -> None:
    listed = asked(tmp_path, lambda client: client.list_tools())
    tools = {tool.name: tool for tool in listed.tools}
    assert set(tools) == {"run", "report", "analyze", "explain", "check", "try"}
    assert all(len(tool.description or "") > 60 for tool in tools.values())
    assert tools["run"].input_schema["required"] == ["script"]


def test_a_rule_is_explained(tmp_path: Path) -> None:
    text, failed = call(tmp_path, "explain", rule="TD201")
    assert "num_workers" in text
    assert not failed


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run", {"script": "../train.py"}),
        ("run", {"script": "/etc/passwd"}),
        ("run", {"script": "link/train.py"}),
        ("report", {"run": ".."}),
        ("analyze", {"paths": ["trace.json", "/tmp"]}),
        ("check", {"script": "../train.py", "against": "HEAD"}),
        ("try", {"script": "../train.py", "changes": ["torch.compile"]}),
    ],
)
def test_paths_outside_the_folder_are_refused(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    (root / "link").symlink_to(tmp_path)
    text, failed = call(root, tool, **arguments)
    assert failed
    assert "outside" in text
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("explain", {"rule": "--help"}), ("check", {"script": "a.py", "against": "--update"})],
)
def test_a_word_is_never_an_option(tmp_path: Path, tool: str, arguments: dict[str, str]) -> None:
    text, failed = call(tmp_path, tool, **arguments)
    assert failed
    assert "would be an option" in text


def test_a_failing_script_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no data here')")
    text, failed = call(tmp_path, "run", script="train.py")
    assert failed
    assert "no data here" in text


def test_a_call_that_the_client_gives_up_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    pid = tmp_path / "pid"
    import anyio
    from mcp import Client

    async def main() -> None:
        async with Client(served.server(tmp_path)) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "run", {"script": "train.py"})
            while not (pid.exists() and pid.read_text()):
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    anyio.run(main)
    assert not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.training
def test_a_script_is_run_and_its_report_comes_back_over_pipes(tmp_path: Path) -> None:
    import anyio
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    (tmp_path / "train.py").write_text(LOOP)
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "tdiag", "mcp", "--root", str(tmp_path)],
        env={"PYTHONPATH": str(NO_ROOF)},
    )  # fmt: skip

    async def main() -> tuple[str, str]:
        async with Client(stdio_client(parameters)) as client:
            ran = await client.call_tool("run", {"script": "train.py", "time_budget": 8})
            report = await client.call_tool("report", {"as_json": True})
            return ran.content[0].text, report.content[0].text

    ran, report = anyio.run(main)
    assert "I/O-bound" in ran or "data" in ran
    assert "train.py:7" in ran
    assert '"schema_version"' in report
    shutil.rmtree(tmp_path / ".tdiag")


def test_a_long_answer_keeps_its_beginning_and_its_end() -> None:
    text = served.shortened("begin" + "x" * 100_000 + "end")
    assert len(text) < served.MOST_CHARACTERS + 100
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "left out" in text
