"""Environments that an agent steps: of an imported library, or written by hand."""

from __future__ import annotations

import ast
from functools import lru_cache

from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Flags
from tdiag.model.place import Spot
from tdiag.model.threshold import Threshold
from tdiag.rules.syntax import innermost, name_of, statements_of, tree_of
from tdiag.rules.thresholds import MIN_SAMPLES

# Gymnasium's interface, which environments written by hand follow, too.
STEP, RESET = "step", "reset"
FEWEST_VALUES = Threshold(
    3, "values", "By definition: an environment's step returns an observation, a reward and more."
)


def stepping(
    flags: Flags | None, stacks: Stacks | None, trees: CallTrees | None, ops: Ops | None
) -> list[StackLine]:
    """The lines that step an environment, most samples first: they call the imported library of
    environments, or belong to an environment of the script. Lines that call torch there do not
    count: such an environment may already be many."""
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return []
    library, own = flags.agent_library if flags else "", _own(trees)
    own -= {line.at.spot for line in ops.lines} if ops else set()
    return [
        line
        for line in stacks.training
        if (library and line.library == library) or line.at.spot in own
    ]


def observations_kept(trees: CallTrees | None) -> bool:
    """Whether the script steps an environment of its own, and all sampled lines that do so are in
    functions that keep the observations: an evaluation needs the rewards alone."""
    frames = trees.training if trees else ()
    callers = [frames[frame.parent] for frame in frames if frame.parent >= 0 and _steps(frame)]
    spots = {(caller.file, caller.line) for caller in callers if not _steps(caller)}
    return bool(spots) and all(_keeps(*spot) for spot in spots)


@lru_cache(maxsize=256)
def _keeps(file: str, line: int) -> bool:
    """Whether the first value of the step at the line, or the variable that takes it over, is put
    into an array or passed to a method whose result is not used (``append``, ``push``)."""
    tree = tree_of(file)
    scope = innermost(tree, (ast.FunctionDef, ast.AsyncFunctionDef), line) or tree
    statements = list(statements_of(scope)) if scope else []
    observed: set[str] = set()
    for statement in (x for x in statements if isinstance(x, ast.Assign)):
        target = statement.targets[0]
        if isinstance(target, ast.Tuple) and _around(statement, line):
            observed.add(_variable(target.elts[0]))
        elif _variable(statement.value) in observed and not isinstance(target, ast.Subscript):
            observed.add(_variable(target))
    return any(_puts_away(statement, observed) for statement in statements)


def _puts_away(statement: ast.stmt, observed: set[str]) -> bool:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        given: list[ast.expr] = [statement.value]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        method = isinstance(call.func, ast.Attribute)
        given = [*call.args, *(x.value for x in call.keywords)] if method else []
    else:
        return False
    return any(_variable(node) in observed for value in given for node in ast.walk(value))


def _variable(node: ast.AST) -> str:
    """``obs`` of ``obs[k]``, ``self.obs``; "" of anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _around(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or 0)


def _own(trees: CallTrees | None) -> set[Spot]:
    """Lines of environments of the script, and of what they call."""
    frames = trees.training if trees else ()
    inside: list[bool] = []
    for frame in frames:
        inside.append((frame.parent >= 0 and inside[frame.parent]) or _steps(frame))
    return {
        (frame.file, frame.line)
        for frame, within in zip(frames, inside, strict=True)
        if within and frame.user
    }


def _steps(frame: CallFrame) -> bool:
    named = frame.user and frame.name.rpartition(".")[2] == STEP
    return named and _is_environment(frame.file, frame.line)


@lru_cache(maxsize=256)
def _is_environment(file: str, line: int) -> bool:
    """Whether the class around the line has ``reset`` and ``step``, which returns an observation, a
    reward and more, or what another ``step`` returned."""
    around = innermost(tree_of(file), (ast.ClassDef,), line)
    methods = {x.name: x for x in getattr(around, "body", ()) if isinstance(x, ast.FunctionDef)}
    if not {STEP, RESET} <= methods.keys():
        return False
    values = [x.value for x in ast.walk(methods[STEP]) if isinstance(x, ast.Return)]
    return any(
        (isinstance(value, ast.Tuple) and len(value.elts) >= FEWEST_VALUES)
        or (isinstance(value, ast.Call) and name_of(value) == STEP)
        for value in values
    )
