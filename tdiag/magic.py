"""``%%tdiag``: runs the cell below it, watches it from inside its kernel, and diagnoses it."""

from __future__ import annotations

import ast
import html
import linecache
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from tdiag.errors import TdiagError

if TYPE_CHECKING:
    from tdiag.launch.cell import CellSource, WatchedCell


@magics_class
class Magic(Magics):
    """``%%tdiag``."""

    @magic_arguments()
    @argument(
        "--profiling", action="store_true", help="End the cell once the evidence is complete."
    )
    @argument("--steps", type=int, help="Stop watching after this many steps.")
    @argument(
        "--time-budget", type=float, default=60.0, metavar="SECONDS",
        help="Stop watching after this many seconds from the first step.",
    )  # fmt: skip
    @argument("--page", action="store_true", help="Show the whole page below the verdict.")
    @cell_magic
    def tdiag(self, line: str, cell: str) -> None:
        """Run the cell unchanged, and show below it where the time of its training steps goes.

        Exceptions of the cell are raised as usual. An interrupted cell is diagnosed as far as it
        ran.
        """
        from tdiag.launch.cell import WatchedCell
        from tdiag.launch.session import RunOptions

        given = parse_argstring(self.tdiag, line)
        name, parts = self._compiled(cell)
        options = RunOptions(profiling=given.profiling, steps=given.steps,
                             time_budget_s=given.time_budget)  # fmt: skip
        try:
            watched = WatchedCell(f"In[{self._number()}]", options)
        except TdiagError as error:
            raise UsageError(f"tdiag: {error.message}: {error.hint}".rstrip(": ")) from None
        ended: BaseException | None = None
        watched.begin()
        try:
            for part in parts:
                exec(part, self.shell.user_ns)
        except BaseException as error:
            ended = error
            trace = error.__traceback__
            error.__traceback__ = trace and trace.tb_next  # without this function
        if watched.end(ended, self._sources(name)):
            ended = None
        self._show(watched, page=given.page)
        if ended is not None:
            __tracebackhide__ = True
            raise ended

    def _number(self) -> int:
        """The cell's number: IPython 9 counts up before it runs a cell, older versions after."""
        return int(self.shell.displayhook.prompt_count)

    def _compiled(self, cell: str) -> tuple[str, list[Any]]:
        """The name of the cell's code, and the parts to execute. A last expression is shown, as
        usual."""
        shell = self.shell
        blank = len(cell) - len(cell.lstrip("\n"))  # the transformation drops these
        text = "\n" * (blank + 1) + shell.transform_cell(cell)  # the magic is line 1
        # Its own name, because the cell may have run before without the magic.
        name = shell.compile.cache(text, self._number(), raw_code=f"# %%tdiag\n{cell}")
        body = shell.transform_ast(shell.compile.ast_parse(text, filename=name)).body
        shown = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
        quiet = shell.display_formatter is None or cell.rstrip().endswith(";")
        parts = [shell.compile(ast.Module(body, type_ignores=[]), name, "exec")]
        if shown and quiet:
            parts.append(shell.compile(ast.Module(shown, type_ignores=[]), name, "exec"))
        elif shown:
            parts.append(shell.compile(ast.Interactive(shown), name, "single"))
        return name, parts

    def _sources(self, mine: str) -> Iterator[CellSource]:
        """Every cell that has run. ``mine``: the name of the code that was watched."""
        from tdiag.launch.cell import CellSource

        this = f"In[{self._number()}]"
        for name, entry in list(linecache.cache.items()):
            label = self.shell.compile.format_code_name(name)
            if label is not None and len(entry) > 2:
                magic = label[1] == this and name != mine
                yield CellSource(name, "" if magic else label[1], "".join(entry[2]))

    def _show(self, watched: WatchedCell, *, page: bool) -> None:
        from tdiag.cli.conclude import conclude
        from tdiag.cli.html_page import page_text, write_page
        from tdiag.evidence.from_run import load_run
        from tdiag.notebook import shown

        try:
            evidence = load_run(watched.run_dir)
            diagnosis = conclude(watched.run_dir, evidence)
            path = write_page(watched.run_dir, diagnosis, evidence)
            display(shown(diagnosis))
            if page:
                text = html.escape(page_text(diagnosis, evidence, watched.run_dir))
                style = "width: 100%; height: 80vh; border: 0"
                frame = f'<iframe style="{style}" srcdoc="{text}"></iframe>'
                display({"text/html": frame}, raw=True)
        except TdiagError as error:
            print(f"tdiag: {error.message}", error.hint, sep="\n", file=sys.stderr)
            return
        seen = [name for name, said in diagnosis.capture.items() if said.state == "captured"]
        if seen:
            print(f"tdiag: captured {', '.join(seen)}", file=sys.stderr)
        print(f"tdiag: report page: {os.path.relpath(path, Path.cwd())}", file=sys.stderr)
