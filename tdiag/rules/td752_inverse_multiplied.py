"""A matrix is inverted to be multiplied

## What it measures
Calls of `torch.linalg.inv` or `inverse` whose value is only multiplied by matrices with at most a
quarter as many columns: the calls by the user's line, what is done with the value by the source of
the script, and the shapes from the trace. Not with a device.

## Why it is slow
An inverse solves one equation for each of its own columns, and its backward multiplies two matrices
of its size. Only the columns of the other matrix are needed.

## What to do
`torch.linalg.solve(a, b)` instead of `torch.linalg.inv(a) @ b`; torch's documentation of `inv`
advises it, and says that it is numerically more stable. If one matrix is used several times,
factor it once: `torch.linalg.lu_factor` and `lu_solve`, or `cholesky` and `cholesky_solve` if it is
symmetric and positive definite.

## How the gain is computed
The time of these lines and of their backward gets 1.2 to 5 times as fast, as in the measurement of
the thresholds.

## When this advice is wrong
The results differ by rounding. For a handful of fixed matrices it may be cheapest to invert them
once, before the training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.syntax import function_at, innermost, name_of, tree_of
from tdiag.units import percent

CODE = "TD752"
NAME = "inverse-multiplied"
CLASS = "compute"
UNTRIED = "the product must be written otherwise"

_MEASURED = (
    "Measured, inv and product against solve, with backward, twelve shapes with at most a quarter"
    " as many columns, one core, torch 2.13:"
)
FASTER_LOW = Threshold(
    1.2, "times as fast", f"{_MEASURED} the least (benchmarks/rule_constants.py td752)."
)
FASTER_HIGH = Threshold(
    5.0, "times as fast", f"{_MEASURED} the most (benchmarks/rule_constants.py td752)."
)
NARROW_FRAC = Threshold(
    0.25,
    "of the inverted matrix's columns",
    "By arithmetic: factoring takes 2/3 n³ operations and each column 2 n², so a quarter of the"
    " columns takes 44 % of an inverse.",
)
_INVERTS = {"linalg_inv", "inv", "inverse"}
_SOLVES = "aten::linalg_lu_solve"  # in a trace, after the matrix was factored
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::mv", "aten::addmm", "aten::baddbmm", "aten::addmv")
_MULTIPLY = {"matmul", "mm", "bmm", "mv", "einsum", "dot"}
_TRANSPOSE = {"T", "mT", "H", "mH", "transpose", "t"}


def check(budget: Budget, phases: Phases, ops: Ops, work: Work | None) -> Found | None:
    if budget.has_device or work is None:
        return None
    part = part_of_calls(phases, ops, None, lambda x: x.elapsed_ns if _multiplied(x) else 0.0)
    if part is None:
        return None
    size, columns = max(_sizes(work), default=(0, 0))
    if not columns or columns > NARROW_FRAC * size:
        return None
    line = part.lines[0]
    whole = part.ns + part.backward_ns
    return Found(
        summary=(
            f"Matrices of {size} × {size} are inverted{where(line.at)} and only multiplied, by at"
            f" most {columns} columns: {percent(whole / budget.step_ns)} of the step with their"
            " backward."
        ),
        evidence=(
            ns("inverting, and products on the same line", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
            count("rows of the inverted matrix", size, "trace"),
            count("columns of the other one", columns, "trace"),
        ),
        fix=Fix(
            f"Solve the equations{where(line.at)} instead: torch.linalg.solve(a, b) for"
            " torch.linalg.inv(a) @ b.",
            "review",
            action="Solve instead of inverting",
            code="x = torch.linalg.solve(a, b)  # not torch.linalg.inv(a) @ b",
        ),
        gain=part.gain_times_as_fast(FASTER_LOW, FASTER_HIGH),
        at=line.at,
    )


def _multiplied(line: OpLine) -> bool:
    """Whether the line inverts, and all that is done with the value is to multiply it. Without the
    source, whether the same line multiplies."""
    if not _INVERTS & line.names.keys():
        return False
    statement = innermost(tree_of(line.at.file), (ast.stmt,), line.at.line)
    if statement is None:
        return bool(_MULTIPLY & line.names.keys())
    scope = function_at(line.at) or tree_of(line.at.file) or statement
    parents = {child: node for node in ast.walk(scope) for child in ast.iter_child_nodes(node)}
    inverses = [x for x in ast.walk(statement) if isinstance(x, ast.Call) and _inverts(x)]
    return bool(inverses) and all(_is_multiplied(x, scope, parents) for x in inverses)


def _inverts(call: ast.Call) -> bool:
    return name_of(call) in _INVERTS


def _is_multiplied(node: ast.AST, scope: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether this value, or its transpose, is an operand of a product, or is named and each use of
    the name is one."""
    above = parents.get(node)
    while isinstance(above, ast.Attribute | ast.Call) and _transposes(above):
        node, above = above, parents.get(above)
    if isinstance(above, ast.BinOp):
        return isinstance(above.op, ast.MatMult)
    if isinstance(above, ast.Call):
        return name_of(above) in _MULTIPLY and node is not above.func
    if isinstance(above, ast.Attribute):  # a.matmul(b)
        return above.attr in _MULTIPLY
    if not isinstance(above, ast.Assign) or not isinstance(above.targets[0], ast.Name):
        return False
    uses = list(_uses(above.targets[0].id, scope))
    return bool(uses) and all(_is_multiplied(x, scope, parents) for x in uses)


def _transposes(node: ast.Attribute | ast.Call) -> bool:
    return (name_of(node) if isinstance(node, ast.Call) else node.attr) in _TRANSPOSE


def _uses(name: str, scope: ast.AST) -> Iterator[ast.Name]:
    for x in ast.walk(scope):
        if isinstance(x, ast.Name) and x.id == name and isinstance(x.ctx, ast.Load):
            yield x


def _sizes(work: Work) -> Iterator[tuple[int, int]]:
    """For each product with a matrix of an inverse's size: that size, and the columns of the other
    operand."""
    sizes = {op.dims[0][-1] for op in work.ops if op.name == _SOLVES and _inverts_all(op)}
    for op in work.ops:
        if op.name not in _PRODUCTS or op.backward:
            continue
        first, second = op.dims[-2:]
        for size in sizes:
            if first[-2:] == (size, size):
                yield size, second[-1] if len(second) >= len(first) else 1
            elif second[-2:] == (size, size):
                yield size, first[-2]


def _inverts_all(op: OpWork) -> bool:
    """Whether it solves for as many right-hand sides as the matrix has rows, as an inverse does."""
    size = op.dims[0][-1]
    return any(dims[-2:] == (size, size) for dims in op.dims[1:])


def fires() -> Evidence:
    """The heads of a field of 220 cells for six wells."""
    return _field(6)


def clear() -> Evidence:
    """As many columns as rows: there solving takes as long."""
    return _field(220)


def _field(columns: int) -> Evidence:
    line = op_line(46, "forward", 2, grad_calls=2.0, elapsed_ns=8e6, at=Place("train.py", 46, "h"),
                   names={"linalg_inv": 1.0, "matmul": 1.0})  # fmt: skip
    rest = op_line(44, "forward", 6, grad_calls=6.0, elapsed_ns=2e6, at=at(44))
    square = (8, 220, 220)
    solving = OpWork(name=_SOLVES, dims=(square, (8, 220), square, square), dtype="float32",
                     count=1.0, flops=0.0, moved=1e7, host_ns=5e6, device_ns=None)  # fmt: skip
    product = OpWork(name="aten::bmm", dims=(square, (8, 220, columns)), dtype="float32", count=1.0,
                     flops=1e6, moved=1e6, host_ns=6e5, device_ns=None)  # fmt: skip
    step, clean = (f(forward=10, backward=12, optimizer=1) for f in (budget, phases))
    return Evidence().add(step, clean, ops(line, rest), Work(ops=(solving, product), calls=9.0))
