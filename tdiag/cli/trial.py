"""`tdiag try`: what does a change gain?"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdiag.cli.check import terminated
from tdiag.cli.options import Output
from tdiag.cli.run import MISSES, TARGET, RunCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdiag.launch.target import Target
    from tdiag.model.trials import Trials
    from tdiag.trial.candidate import Candidate
    from tdiag.trial.measure import TrialOptions


class TryCommand(RunCommand):
    """Without a script it uses the last run's."""

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
                     help="A change to try; can be repeated. A=1+B=2 tries both together."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="NAME=V,V,…", help="Try one change with several values."),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="FILE.py:FUNCTION",
                     help="Measure what this function costs: return its earlier result instead."),
    ] = None,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure each part of the step and each large function by"
                     " leaving it out."),
    ] = False,
    diff: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A patch to try in a copy of the files."),
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what won as a patch of your files, if the"
                     " patched script is faster."),
    ] = None,
    time_budget: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="Time limit for all trials; each takes at least"
                     " three pairs of processes."),
    ] = 180.0,
    copy: Annotated[
        bool,
        typer.Option("--copy", help="Run the trials in a copy of the files, which is deleted"
                     " afterwards with everything the script wrote there."),
    ] = False,
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
    """Measure what a change gains, without editing a file.

    The unmodified script runs as two interleaved processes: one unchanged, one with the change
    switched on from outside.

    tdiag try train.py --set loader.num_workers=4 --set torch.num_threads=2

    tdiag try train.py --freeze train.py:validate

    tdiag try train.py --ceilings

    tdiag try train.py --diff candidate.patch

    tdiag try --patch fix.patch: write what won as a patch of your files, measured as patched

    tdiag try train.py: diagnose, then try the fixes that the findings propose

    tdiag try: try the fixes that the last run's findings propose

    Exit code: 0 measured (a change without effect is a result), 2 wrong usage or the script failed.
    """
    from msgspec import structs

    from tdiag.cli.conclude import conclude, open_output, shown
    from tdiag.cli.streams import say, write
    from tdiag.cli.tried import SAID, functions, keep, options, tried
    from tdiag.errors import UsageError
    from tdiag.gate.against import interpreter
    from tdiag.launch.rundir import find
    from tdiag.report.of_trials import document
    from tdiag.trial.candidate import ceilings as ceilings_of_all
    from tdiag.trial.measure import check_usable

    if list_:
        _list()
        return
    target: Target = context.meta[TARGET]
    asked = _candidates(set_ or [], sweep or [], freeze or [])
    parts = ceilings_of_all() if ceilings else []
    check_usable(asked)
    if diff and not target.name:
        raise UsageError("--diff needs the script", f"tdiag try train.py --diff {diff}")
    if patch:
        _check_patch(patch, [*asked, *parts], diff)
    run_dir = None if target.name else find(None)
    found = interpreter(target, python) if target.name else ""
    signal.signal(signal.SIGTERM, terminated)
    with ExitStack() as stack:
        if diff:
            asked.append(stack.enter_context(patched_script(diff, target, found, whole=copy)))
        for word, meant in context.meta[MISSES]:
            say(f"tdiag: {word} is passed to the script; did you mean {meant}?")
        say(f"tdiag: running {target.label() if target.name else 'the last run'} {SAID}")
        if not yes and sys.stdin is not None and sys.stdin.isatty():
            typer.confirm("continue?", default=True, abort=True, err=True)

        def progress(line: str) -> None:
            if not quiet:
                say(f"tdiag: {line}")

        file = stack.enter_context(open_output(output))
        if asked or parts:
            given = (
                options(run_dir, time_budget, progress)
                if run_dir
                else _options(target, found, time_budget, progress)
            )
            notes: tuple[str, ...] = ()
            if ceilings:
                largest, notes = functions(run_dir or _diagnosed(target, python, quiet))
                parts = [*largest, *parts]
            trials = tried([*asked, *parts], given, copy=copy, patch=patch)
            trials = structs.replace(trials, notes=(*trials.notes, *notes))
        else:
            run_dir = run_dir or _diagnosed(target, python, quiet)
            trials = _proposed(run_dir, time_budget, progress, copy=copy, patch=patch)
        stream = file or sys.stdout
        if file is not None:
            file.truncate(0)
        write(stream, shown("json" if json else "terminal", document(trials), stream))
        if not (asked or parts) and run_dir:
            keep(run_dir, trials)
            conclude(run_dir)
            progress("`tdiag report` shows these results with the diagnosis")


@contextmanager
def patched_script(
    patch: Path, target: Target, python: str, *, whole: bool = False
) -> Iterator[Candidate]:
    """The script with the patch applied, as long as the context is open."""
    from tdiag.errors import UsageError
    from tdiag.gate.copied import patched
    from tdiag.trial.candidate import Candidate, Patched

    with patched(patch, target, whole=whole) as copy:
        cwd = copy.moved(Path.cwd())
        if cwd is None or not cwd.is_dir():
            raise UsageError(f"{patch.name} removes the folder {Path.cwd().name}")
        command = copy.target(target).command(python)
        yield Candidate((), Patched(patch.name, command, cwd, copy.variables(), str(copy.root),
                                    copy.changed))  # fmt: skip


@contextmanager
def patched_program(patch: Path, own: TrialOptions, *, whole: bool = False) -> Iterator[Candidate]:
    """The same for a program whose command is known."""
    from tdiag.errors import UsageError
    from tdiag.gate.copied import patched
    from tdiag.trial.candidate import Candidate, Patched

    with patched(patch, None, here=own.cwd, whole=whole) as copy:
        cwd = copy.moved(own.cwd)
        if cwd is None or not cwd.is_dir():
            raise UsageError(f"{patch.name} removes the folder {own.cwd.name}")
        words = [own.command[0], *map(copy.word, own.command[1:])]
        yield Candidate((), Patched(patch.name, words, cwd, copy.variables(), str(copy.root),
                                    copy.changed))  # fmt: skip


@contextmanager
def in_copy(given: TrialOptions) -> Iterator[TrialOptions]:
    """The same program in a copy of its files."""
    from tdiag.gate.copied import copied

    with copied(given.cwd) as copy:
        python, *words = given.command
        command = [python, *map(copy.word, words)]
        yield replace(given, command=command, cwd=copy.moved(given.cwd) or given.cwd,
                      original=copy.original, there=copy.word)  # fmt: skip


def _check_patch(patch: Path, asked: Sequence[Candidate], diff: Path | None) -> None:
    from tdiag.cli.patch import check_free
    from tdiag.errors import UsageError

    if diff:
        raise UsageError("--patch turns named changes into a patch; --diff already is one",
                         "leave out one of them")  # fmt: skip
    if asked and all(candidate.ceiling for candidate in asked):
        raise UsageError("--patch needs a change that can be kept; a ceiling cannot",
                         "tdiag try --list names them")  # fmt: skip
    check_free(patch)


def _candidates(set_: list[str], sweep: list[str], freeze: list[str]) -> list[Candidate]:
    from tdiag.trial import candidate

    found = [candidate.parse(text) for text in set_]
    for text in sweep:
        found += candidate.sweep(text)
    return found + [candidate.freeze(spec) for spec in freeze]


def _options(
    target: Target, python: str, time_budget_s: float, progress: Callable[[str], None]
) -> TrialOptions:
    from tdiag.launch import rundir
    from tdiag.trial.measure import TrialOptions

    return TrialOptions(
        command=target.command(python), cwd=Path.cwd(), time_budget_s=time_budget_s,
        folder=rundir.create_check(target.label(), rundir.TRIALS), progress=progress,
    )  # fmt: skip


def _diagnosed(target: Target, python: str | None, quiet: bool) -> Path:
    """A profiled run of the script, whose output goes to stderr. Raises UsageError where the script
    fails."""
    from tdiag.errors import UsageError
    from tdiag.launch.session import RunOptions, launch

    ended = launch(target, RunOptions(profiling=True, python=python, quiet=quiet,
                                   stdout_to_stderr=True))  # fmt: skip
    signal.signal(signal.SIGTERM, terminated)  # again, because the run set its own handler
    if ended.code:
        raise UsageError(f"the script itself failed (exit code {ended.code}): nothing was tried",
                         f"the run is kept: tdiag report {ended.run_dir}")  # fmt: skip
    return ended.run_dir


def _proposed(
    run_dir: Path, time_budget_s: float, progress: Callable[[str], None], *, copy: bool,
    patch: Path | None,
) -> Trials:  # fmt: skip
    """Measure what the run's findings and verdict propose."""
    from msgspec import structs

    from tdiag.cli.conclude import conclude, documented, shown
    from tdiag.cli.tried import options, proposals, tried
    from tdiag.errors import UsageError

    diagnosis = conclude(run_dir)
    progress(shown("line", documented(diagnosis), sys.stderr).strip())
    candidates, notes = proposals(run_dir, diagnosis)
    if not candidates:
        raise UsageError(
            "no finding of the last run proposes a change that can be switched on",
            "tdiag try --ceilings measures what each part of its step costs",
        )
    given = options(run_dir, time_budget_s, progress)
    trials = tried(candidates, given, copy=copy, patch=patch)
    return structs.replace(trials, notes=(*trials.notes, *notes))


def _list() -> None:
    from tdiag.probe.trial.changes import load, names

    for change in map(load, names()):
        takes = f"={change.takes}" if change.takes else ""
        print(
            f"{change.name}{takes}\n    {change.does} ({change.safety})\n"
            f"    limits: {change.limits}"
        )
