"""tdiag's messages while the program runs: on stderr, without disturbing the program's output.

The program writes to the same terminal directly (a pty would change what it sees and reorder stdout
and stderr), so a bar redrawn in place is impossible: it would collide with tqdm's. A plain line is
no option either: the cursor may be after ``Epoch 3: `` or in a progress bar. So each message is
*inserted as a whole line above the program's current line*, in one write (the kernel does not mix
single writes to a terminal):

    IND, up    scroll, if need be, so that there is a row below     (column kept)
    save       remember where the program's cursor is
    CR, IL     push the current row, with its bar or unfinished text, one row down
    text       shorter than a row, so it never wraps
    restore, down   the program's cursor, same column, in the row that moved

A bar then redraws itself at its new place. These are VT102 sequences, which every terminal since
then supports; with TERM=dumb, or if stderr is not a terminal, plain lines are written instead.
"""

from __future__ import annotations

import io
import os
import shutil

from rich.console import Console
from rich.text import Text

from tdiag.launch.progress import Progress, Reported
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import LONG_STEP_NS, WARMUP, WINDOWS

STDERR = 2
IND, UP, DOWN, SAVE, RESTORE, INSERT_LINE = "\x1bD", "\x1b[A", "\x1b[B", "\x1b7", "\x1b8", "\x1b[L"
# In a long window, repeat the line after this time: a sign of life that does not fill a log.
REPEAT_EVERY_S = 10.0


LONGER_FRAC = Threshold(
    0.05,
    "of the step",
    "By arithmetic: a mean of 20 steps that vary by ±10 % is known to ±2 %, and the difference"
    " of two to ±3 %; beyond that a window made steps longer.",
)


def step_time(ns: int) -> str:
    """A step time with three significant digits: ``5.31 ms``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


def pace(lead: Reported) -> str:
    """How fast the script continues. On a device a trace may leave its profiler attached, so
    nothing is claimed that was not measured."""
    if lead.on_device and lead.residue is None:
        return ""
    if lead.residue is not None and lead.residue > LONGER_FRAC:
        return f", {lead.residue:.0%} slower than before the trace"
    return " at full speed"


class Display:
    """Prints one line whenever the message has changed; nothing if ``quiet``.

    ``budget_s``: how long steps are watched at most, in seconds.
    """

    def __init__(
        self, *, quiet: bool, profiling: bool, budget_s: float = 60.0, descriptor: int = STDERR
    ) -> None:
        self.quiet = quiet
        self.budget_s = budget_s
        self.warned = False  # has said that steps take long
        self.profiling = profiling
        self.descriptor = descriptor
        self.terminal = os.isatty(descriptor)
        self.insert = self.terminal and os.environ.get("TERM", "dumb") != "dumb"
        self.shown = ""
        self.shown_at = 0.0

    def update(self, progress: Progress, now_s: float) -> None:
        """Show how far the run is, if that has changed or ``REPEAT_EVERY_S`` have passed."""
        self._warn(progress.lead())
        state, detail = self._state(progress)
        lasting = bool(detail) and now_s - self.shown_at >= REPEAT_EVERY_S
        if state and (state != self.shown or lasting):
            self.shown, self.shown_at = state, now_s
            self.say(state, detail)

    def say(self, message: str, detail: str = "") -> None:
        """Print one message of tdiag's."""
        if not self.quiet:
            self._write(self._line(message, detail))

    def end(self) -> None:
        """Begin a fresh line if the program left the cursor in one, as shells do (zsh's PROMPT_SP):
        a row's width of blanks wraps only if the row already has text."""
        if self.insert:
            self._write(" " * self._columns() + "\r\x1b[K", whole=False)

    def _warn(self, lead: Reported | None) -> None:
        """Say how long it will take if steps are too long to keep the time budget to the second."""
        if lead is None or self.warned or lead.first_step_ns < LONG_STEP_NS:
            return
        self.warned = True
        self.say(
            f"a step takes {step_time(lead.first_step_ns)}: watching ends with the step nearest to"
            f" {self.budget_s:g} s from now (--time-budget)"
        )

    def _state(self, progress: Progress) -> tuple[str, str]:
        lead = progress.lead()
        if lead is None:
            return (
                ("waiting for the first training step", "") if progress.torch_seen() else ("", "")
            )
        if lead.finish == "complete":
            stops = self.profiling and not lead.absent
            end = "stopping the script" if stops else f"the script goes on{pace(lead)}"
            return f"evidence complete, {end}", ""
        if lead.finish:
            return "", ""
        if not lead.window:
            return (WINDOWS[WARMUP].doing, self._detail(lead)) if not lead.window_pass else ("", "")
        again = ", longer" if lead.window_pass > 1 else ""
        doing = WINDOWS[lead.window].doing if lead.window in WINDOWS else lead.window
        return doing + again, self._detail(lead)

    def _detail(self, lead: Reported) -> str:
        steps = f"{lead.steps} step" + ("s" if lead.steps != 1 else "")
        return steps + (f", {step_time(lead.clean_step_ns)} each" if lead.clean_step_ns else "")

    def _line(self, message: str, detail: str) -> str:
        text = Text.assemble(("tdiag", "bold cyan"), ("  "), message)
        if detail:
            text.append(f"  ({detail})", style="dim")
        file = io.StringIO()
        console = Console(file=file, width=self._columns(), force_terminal=self.insert,
                          no_color=None if self.insert else True, highlight=False)  # fmt: skip
        text.truncate(self._columns() - 1, overflow="ellipsis")
        console.print(text, end="", soft_wrap=True)
        return file.getvalue()

    def _columns(self) -> int:
        try:
            return max(20, os.get_terminal_size(self.descriptor).columns)
        except OSError:
            return max(20, shutil.get_terminal_size((200, 24)).columns)

    def _write(self, text: str, whole: bool = True) -> None:
        if whole and self.insert:
            text = f"{IND}{UP}{SAVE}\r{INSERT_LINE}{text}{RESTORE}{DOWN}"
        elif whole:
            text += "\n"
        try:
            os.write(self.descriptor, text.encode(errors="replace"))
        except OSError:
            self.quiet = True  # the reader has gone (a closed pipe); the run goes on
