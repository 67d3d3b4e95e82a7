"""`tdiag try`: what does a change win?"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdiag.cli.check import _terminated
from tdiag.cli.options import Output
from tdiag.cli.run import MISSES, TARGET, RunCommand

if TYPE_CHECKING:
    from tdiag.launch.target import Target
    from tdiag.trial.candidate import Candidate


class TryCommand(RunCommand):
    """Without a script: the last run's."""

    usual = "tdiag try"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from tdiag.launch.target import Target

        own = {name: not getattr(option, "is_flag", False)
               for option in self.get_params(ctx) for name in option.opts}  # fmt: skip
        if "--list" in args or not _names_a_script(args, own):
            ctx.meta[TARGET], ctx.meta[MISSES] = Target("script", ""), []
            return super(RunCommand, self).parse_args(ctx, args)
        return super().parse_args(ctx, args)


def _names_a_script(words: list[str], own: dict[str, bool]) -> bool:
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if word in ("--", "-m") or not word.startswith("-"):
            return True
        if own.get(name) and not equals:
            next(rest, None)
    return False


def try_(
    context: typer.Context,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE",
                     help="A change to try, may be repeated; A=1+B=2 tries both together."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="NAME=V,V,…", help="Try one change with several values."),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="FILE.py:FUNCTION",
                     help="What does this function cost? It answers with what it returned before."),
    ] = None,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="What does each part of the step cost, by leaving it out?"),
    ] = False,
    time_budget: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="For all trials; each takes three pairs of"
                     " processes at least."),
    ] = 180.0,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before the script runs several times.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all changes, and exit.")] = False,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python interpreter of the script's environment."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    output: Output = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress lines.")] = False,
) -> None:  # fmt: skip
    """Measure what a change wins, without editing a file.

    The unmodified script runs twice at once, interleaved: as it is, and with the change switched
    on from outside.

    tdiag try train.py --set loader.num_workers=4 --set torch.num_threads=2

    tdiag try train.py --freeze train.py:validate

    tdiag try train.py --ceilings

    tdiag try: the fixes that the last run's findings propose

    Exit code: 0 measured (a change without effect is a result), 2 wrong usage or the script failed.
    """
    from tdiag.cli.conclude import open_output, shown
    from tdiag.cli.streams import say, write
    from tdiag.launch import rundir
    from tdiag.trial.document import document
    from tdiag.trial.measure import Options, check_usable, try_all

    if list_:
        _list()
        return
    target: Target = context.meta[TARGET]
    candidates = _candidates(set_ or [], sweep or [], freeze or [], ceilings)
    command, cwd, label, proposed = _program(target, python, bool(candidates))
    candidates = candidates or proposed
    check_usable(candidates)
    for word, meant in context.meta[MISSES]:
        say(f"tdiag: {word} is handed to the script; did you mean {meant}?")
    say(f"tdiag: runs {label} several times, with its side effects (TDIAG_TRIAL=1 in its"
        " environment)")  # fmt: skip
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm("go on?", default=True, abort=True, err=True)
    signal.signal(signal.SIGTERM, _terminated)
    with open_output(output) as file:
        outcome = try_all(
            candidates,
            Options(
                command=command, cwd=cwd, time_budget_s=time_budget,
                folder=rundir.create_check(label, rundir.TRIALS),
                progress=(lambda line: None) if quiet else (lambda line: say(f"tdiag: {line}")),
            ),
        )  # fmt: skip
        stream = file or sys.stdout
        if file is not None:
            file.truncate(0)
        write(stream, shown("json" if json else "terminal", document(outcome), stream))


def _candidates(
    set_: list[str], sweep: list[str], freeze: list[str], ceilings: bool
) -> list[Candidate]:
    from tdiag.trial import candidate

    found = [candidate.parse(text) for text in set_]
    for text in sweep:
        found += candidate.sweep(text)
    found += [candidate.freeze(spec) for spec in freeze]
    return found + (candidate.ceilings() if ceilings else [])


def _program(
    target: Target, python: str | None, given: bool
) -> tuple[list[str], Path, str, list[Candidate]]:
    """Command, folder and name of the script, and what the last run's findings propose where
    nothing else is to be tried."""
    from tdiag.errors import UsageError
    from tdiag.gate.against import interpreter

    if target.name and not given:
        raise UsageError("name a change to try, or diagnose the script first",
                         f"tdiag run {target.name} --profiling, then tdiag try")  # fmt: skip
    if target.name:
        return target.command(interpreter(target, python)), Path.cwd(), target.label(), []
    return _last_run(given)


def _last_run(given: bool) -> tuple[list[str], Path, str, list[Candidate]]:
    import json

    from tdiag.cli.conclude import conclude
    from tdiag.errors import UsageError
    from tdiag.launch.rundir import find
    from tdiag.probe.wire import RUN
    from tdiag.trial.candidate import parse

    run_dir = find(None)
    record = json.loads((run_dir / RUN).read_text())
    found = [] if given else [f.fix.intervention for f in conclude(run_dir).findings]
    proposed = [parse(text) for text in dict.fromkeys(filter(None, found))]
    if not given and not proposed:
        raise UsageError(
            "no finding of the last run proposes a change that can be switched on",
            "tdiag try --ceilings measures what each part of its step costs",
        )
    label = Path(str(record.get("script") or record["command"][0])).stem
    return [str(word) for word in record["command"]], Path(record["cwd"]), label, proposed


def _list() -> None:
    from tdiag.probe.trial.changes import load, names

    for change in map(load, names()):
        takes = f"={change.takes}" if change.takes else ""
        print(
            f"{change.name}{takes}\n    {change.does} ({change.safety})\n    not: {change.cannot}"
        )
