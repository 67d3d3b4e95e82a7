"""tdiag's lines never garble the program's own output, whatever it was in the middle of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tdiag.launch.display import REPEAT_EVERY_S, Display, step_time
from tdiag.launch.progress import Progress, Reported
from tdiag.probe.wire import EventsFile

from .harness import Terminal, script

# A program that says things through tdiag's display in the middle of its own output.
SAYS = """
import sys, tqdm
sys.path[:0] = {path!r}
from tdiag.launch.display import Display
display = Display(quiet={quiet}, profiling=False)
def say(text):
    display.say(text, "12 steps")
"""
PROGRAMS = {
    "unfinished line": """
        print('Epoch 1: ', end='', flush=True); say('one')
        print('loss 3', flush=True); say('two')
        print('end', flush=True)
        """,
    "bottom of the screen": """
        for n in range(40):
            print(f'row {n}', end='', flush=True); say(f'said {n}')
            print(' done', flush=True)
        """,
    "progress bar": """
        for n in tqdm.tqdm(range(5), ncols=60, bar_format='{l_bar}{bar}|{n}', mininterval=0):
            say(f'said {n}')
        print('end', flush=True)
        """,
    "nested bars": """
        form = dict(ncols=60, bar_format='{desc}{bar}|{n}', mininterval=0)
        for a in tqdm.tqdm(range(2), desc='outer', **form):
            for b in tqdm.tqdm(range(3), desc='inner', leave=False, position=1, **form):
                say(f'said {a} {b}')
        print('end', flush=True)
        """,
    "redrawn line": """
        for n in range(30):
            print(f'\\rstep {n} of 30', end='', flush=True); say(f'said {n}')
        print(flush=True)
        """,
    "long message": "print('ab', end='', flush=True); say('x' * 300); print('cd', flush=True)",
}


def screen(folder: Path, source: str, *, quiet: bool, rows: int) -> list[str]:
    head = SAYS.format(path=sys.path, quiet=quiet)
    script(folder, head)
    with (folder / "train.py").open("a") as file:
        file.write("if True:\n" + source if source.startswith("\n") else source)
    terminal = Terminal([sys.executable, "train.py"], folder, rows=rows)
    assert terminal.end() == 0, terminal.text
    return terminal.lines()


@pytest.mark.parametrize("rows", [6, 24])
@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_screen_is_the_programs_with_whole_lines_of_ours_between(
    source: str, rows: int, tmp_path: Path
) -> None:
    plain = screen(tmp_path, source, quiet=True, rows=rows)
    ours = screen(tmp_path, source, quiet=False, rows=rows)
    said = [line for line in ours if line.startswith("tdiag  ")]
    assert [line for line in ours if line not in said] == plain
    assert len(said) == len(set(said)) > 0
    assert all(line.endswith(("(12 steps)", "…")) for line in said)


def test_a_fresh_line_is_begun_only_where_one_is_needed(tmp_path: Path) -> None:
    source = "\n    {}; display.end(); print('report', flush=True)"
    torn = screen(tmp_path, source.format("print('x', end='', flush=True)"), quiet=False, rows=9)
    whole = screen(tmp_path, source.format("print('x', flush=True)"), quiet=False, rows=9)
    assert torn == whole == ["x", "report"]


def spoken(progress: Progress, *, profiling: bool = True, times: tuple[float, ...] = (1.0,)) -> str:
    """What a display that is no terminal says."""
    read, write = os.pipe()
    display = Display(quiet=False, profiling=profiling, descriptor=write)
    for now in times:
        display.update(progress, now)
    os.close(write)
    with os.fdopen(read) as file:
        return file.read()


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    made = Progress(tmp_path)
    made.processes["1.jsonl"] = Reported(EventsFile(str(tmp_path)))
    return made


def test_it_says_window_steps_and_step_time(progress: Progress) -> None:
    process = progress.processes["1.jsonl"]
    assert spoken(progress) == ""
    process.torch = "2.13.0"
    assert spoken(progress) == "tdiag  waiting for the first training step\n"
    process.steps = 1
    assert spoken(progress) == "tdiag  warming up  (1 step)\n"
    process.window, process.window_pass, process.clean_step_ns = "trace", 2, 5_310_000
    assert (
        spoken(progress) == "tdiag  tracing with torch.profiler, longer  (1 step, 5.31 ms each)\n"
    )
    process.finish = "complete"
    assert spoken(progress) == "tdiag  evidence complete, stopping the script\n"
    assert "goes on at full speed" in spoken(progress, profiling=False)


def test_full_speed_is_not_claimed_of_a_device_where_it_was_not_measured(
    progress: Progress,
) -> None:
    process = progress.processes["1.jsonl"]
    process.steps, process.finish, process.on_device = 9, "complete", True
    assert spoken(progress, profiling=False).endswith("evidence complete, the script goes on\n")
    process.residue = 0.012
    assert spoken(progress, profiling=False).endswith("goes on at full speed\n")
    process.residue = 0.148
    end = "the script goes on, each step 15% longer than before the trace\n"
    assert spoken(progress, profiling=False).endswith(end)


def test_a_line_comes_at_a_change_and_now_and_then_while_a_window_lasts(progress: Progress) -> None:
    progress.processes["1.jsonl"].steps = 3
    long = REPEAT_EVERY_S + 1
    assert spoken(progress, times=(1.0, 1.5, 2.0, 1 + long, 1.5 + long)).count("\n") == 2


def test_nobody_listening_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    display = Display(quiet=False, profiling=False, descriptor=write)
    display.say("into the void")
    assert display.quiet
    os.close(write)


def test_step_times_have_three_digits() -> None:
    shown = [step_time(n) for n in (950, 5_312, 123_456_000, 12_345_000_000)]
    assert shown == ["950 ns", "5.31 µs", "123 ms", "12.3 s"]
