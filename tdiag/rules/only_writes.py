"""What is computed only to be written to a log, by its source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Iterator
from typing import TypeAlias

from tdiag.evidence.sampled import WRITES
from tdiag.model.place import Place
from tdiag.rules.syntax import (
    function_at,
    innermost,
    name_of,
    nodes_of,
    statements_of,
    tree_of,
)

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
# Methods whose value nobody reads: ``self.log("loss", loss)`` of Lightning, ``wandb.log``.
_LOGS = ("log", "log_dict", "log_metrics", "log_metric", "log_scalar")
# Calls between a value and the log that have no other effect.
_CONVERTS = {
    "item", "tolist", "numpy", "cpu", "detach", "float", "int", "str", "round", "format", "join",
    "mean", "sum", "sqrt", "min", "max", "abs", "len", "list", "tuple", "dict", "zip", "sorted",
    "items", "values", "keys", "dumps", "encode", "stack", "array", "concatenate", "argmax",
    "argmin", "idxmax", "idxmin", "median", "std", "var", "quantile", "norm", "any", "all", "count",
    "unique", "nunique", "head", "tail", "nlargest", "nsmallest", "to_dict", "to_numpy", "describe",
}  # fmt: skip
# Of a model, an optimizer, a loss: none of them is a record.
_OF_TRAINING = {
    "step", "backward", "zero_grad", "parameters", "state_dict", "load_state_dict", "train", "eval",
}  # fmt: skip
_MAKE_CONTAINERS = {
    "dict", "list", "set", "defaultdict", "OrderedDict", "Counter", "deque", "copy", "clone",
    "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like",
    "new_zeros", "new_ones", "new_empty", "new_full", "arange", "eye",
}  # fmt: skip


def only_writes(at: Place) -> bool:
    """Whether the function around the line writes a log and has no other effect: it returns no
    value, stores nothing outside its own variables, and calls nothing else as a statement. What it
    computes is then computed to be written. False if the source is not known."""
    function = function_at(at)
    return function is not None and _only_writes(function, _text(at.file))


def only_returns(at: Place) -> bool:
    """Whether the function around the line has no effect but the value that it returns."""
    function = function_at(at)
    if function is None:
        return False
    inside, own = _body(function)
    given = [node for node in inside if not isinstance(node, ast.Return)]
    return not any(_has_effect(node, own, _text(at.file)) for node in given)


def only_changes_itself(at: Place) -> bool:
    """Whether the function around the line is a method whose effects are all on its own object,
    beside the value that it returns."""
    function = function_at(at)
    if function is None or not function.args.args or function.args.args[0].arg != "self":
        return False
    inside, own = _body(function)
    given = [node for node in inside if not isinstance(node, ast.Return) and not _of_self(node)]
    return not any(_has_effect(node, own, _text(at.file)) for node in given)


def _of_self(node: ast.AST) -> bool:
    """``self.x = 1``, ``self.rows[2] = 1`` or ``self.rows.append(1)``."""
    call = node.value if isinstance(node, ast.Expr) else None
    changed = call.func if isinstance(call, ast.Call) else node
    return isinstance(changed, ast.Attribute | ast.Subscript) and _root(changed) == "self"


def made_to_write(at: Place) -> bool:
    """Whether the value of the line's statement is only written: the statement calls what writes,
    or every use of the variable that it sets does. False if the source is not known."""
    tree = tree_of(at.file)
    statement = innermost(tree, (ast.stmt,), at.line)
    if tree is None or statement is None:
        return False
    return _is_written(statement, tree, _text(at.file), set())


def _text(file: str) -> str:
    return "".join(linecache.getlines(file))


def _body(function: _Function) -> tuple[list[ast.AST], set[str]]:
    """Its nodes, and the variables that hold containers of its own."""
    inside = [node for statement in function.body for node in ast.walk(statement)]
    return inside, set(_containers(inside))


def _only_writes(function: _Function, text: str) -> bool:
    if not WRITES.search(ast.get_source_segment(text, function) or ""):
        return False
    inside, own = _body(function)
    return not any(_has_effect(node, own, text) for node in inside)


def _is_written(statement: ast.AST, tree: ast.Module, text: str, seen: set[str]) -> bool:
    """``seen``: variables, keys, lists and functions that are being followed."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return (
            _writes(statement.value, tree, text)
            or _is_written_later(statement.value, tree, text, seen)
            or _is_tracked(statement.value, tree, text, seen)
        )
    if isinstance(statement, ast.Return):  # of a list's entry; of other values callers are asked
        kept = any(x.startswith(".") for x in seen)
        return kept and _is_written_by_callers(statement, tree, text, seen)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if key := _key(target):
        return f"[{key}]" not in seen and _is_written_by_key(key, tree, text, seen)
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    set_here = {x.id for x in names if isinstance(x, ast.Name)}
    if len(set_here) < len(names) or set_here & seen:
        return False
    scope = innermost(tree, _FUNCTIONS, statement.lineno) or tree
    uses = [x for x in statements_of(scope) if x is not statement and set_here & set(_read(x))]
    return _all_written(uses, tree, text, seen | set_here)


def _is_written_later(call: ast.Call, tree: ast.Module, text: str, seen: set[str]) -> bool:
    """Whether the call only keeps a value in a list, ``self.rows.append(x)``, and all other uses in
    the file of lists of that name write."""
    name = _filled(call)
    if not name or name in seen:
        return False
    return _all_written(list(_uses(name, tree)), tree, text, _elsewhere(seen) | {name})


def _is_tracked(call: ast.Call, tree: ast.Module, text: str, seen: set[str]) -> bool:
    """Whether the call, ``meter.update(x)``, is one of an object that the file makes of constants
    alone, ``meter = Meter(100)``, and of which all other uses in the file write. It is given
    nothing that trains."""
    name = _loaded(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    made = [value for target, value in _assigned(tree) if _stored(target) == name]
    if not name or name in seen or not made or not all(map(_of_constants, made)):
        return False
    attributes = (x for x in ast.walk(tree) if isinstance(x, ast.Attribute))
    trains = {_loaded(x.value) for x in attributes if x.attr in _OF_TRAINING}
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if trains & {name, *map(_loaded, given)}:
        return False
    statements = [x for x in ast.walk(tree) if isinstance(x, ast.stmt)]
    uses = [x for x in statements if name in map(_loaded, nodes_of(x, whole=False))]
    others = [x for x in uses if not _calls_of(name, x)]
    return _all_written(others, tree, text, _elsewhere(seen) | {name})


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment of the file, and its value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _stored(target: ast.expr) -> str:
    """``.rows`` for ``self.rows`` and ``rows``, where they are set."""
    if isinstance(target, ast.Attribute):
        return f".{target.attr}"
    return f".{target.id}" if isinstance(target, ast.Name) else ""


def _of_constants(value: ast.expr) -> bool:
    """Whether it makes an object of a class, which has a capital, of constants alone."""
    if not isinstance(value, ast.Call) or not name_of(value)[:1].isupper():
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    return all(isinstance(x, ast.Constant) for x in given)


def _calls_of(name: str, statement: ast.stmt) -> bool:
    """Whether the statement only calls a method of the object."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    method = call.func if isinstance(call, ast.Call) else None
    return isinstance(method, ast.Attribute) and _loaded(method.value) == name


def _uses(filled: str, tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of the file that read a list of this name, ``.rows``, and do not only give it
    to functions of the file that call it the same."""
    statements = (x for x in ast.walk(tree) if isinstance(x, ast.stmt))
    for x in statements:
        loads = [y for y in nodes_of(x, whole=False) if _loaded(y) == filled]
        if loads and not _fills(x) and len(loads) > _handed_on(filled[1:], x, tree):
            yield x


def _handed_on(name: str, statement: ast.stmt, tree: ast.Module) -> int:
    """How often the statement gives the variable to functions of the file that call it the same."""
    functions = [x for x in ast.walk(tree) if isinstance(x, _FUNCTIONS)]
    knowing = {
        x.name
        for x in functions
        if name in {y.arg for y in ast.walk(x.args) if isinstance(y, ast.arg)}
    }
    calls = [x for x in nodes_of(statement, whole=False) if isinstance(x, ast.Call)]
    given = [y for x in calls if name_of(x) in knowing for y in x.args]
    return sum(isinstance(y, ast.Name) and y.id == name for y in given)


def _fills(statement: ast.stmt) -> str:
    """As :func:`_filled`, of a statement."""
    called = statement.value if isinstance(statement, ast.Expr) else None
    return _filled(called) if isinstance(called, ast.Call) else ""


def _is_kept(statement: ast.stmt, tree: ast.Module) -> bool:
    """Whether it only keeps a value in a list that nothing in the file reads."""
    name = _fills(statement)
    return bool(name) and next(_uses(name, tree), None) is None


def _elsewhere(seen: set[str]) -> set[str]:
    """What is still being followed in other functions: not variables."""
    return {x for x in seen if not x.isidentifier()}


def _loaded(node: ast.AST) -> str:
    """``.rows`` for ``self.rows`` and ``rows``, where they are read."""
    if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
        return ""
    return f".{node.attr if isinstance(node, ast.Attribute) else node.id}"


def _filled(call: ast.Call) -> str:
    """``.rows`` for ``self.rows.append(x)`` and ``rows.append(x)``; "" for anything else."""
    fills = call.func
    if not isinstance(fills, ast.Attribute) or fills.attr not in ("append", "extend", "clear"):
        return ""
    return _loaded(fills.value)


def _is_written_by_callers(
    returns: ast.Return, tree: ast.Module, text: str, seen: set[str]
) -> bool:
    """Whether all calls of its function in the file are only made to be written."""
    function = innermost(tree, _FUNCTIONS, returns.lineno)
    if not isinstance(function, _FUNCTIONS) or f"{function.name}()" in seen:
        return False
    name = function.name
    uses = [x for x in ast.walk(tree) if isinstance(x, ast.stmt) and name in _own_calls(x)]
    return _all_written(uses, tree, text, _elsewhere(seen) | {f"{name}()"}, {name})


def _key(target: ast.expr) -> str:
    """``loss`` for ``row["loss"]``; "" for anything else."""
    key = target.slice if isinstance(target, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _is_written_by_key(key: str, tree: ast.Module, text: str, seen: set[str]) -> bool:
    """Whether all statements of the file that name this key, except those that set it, write."""
    naming = [x for x in ast.walk(tree) if isinstance(x, ast.stmt) and key in _texts(x)]
    uses = [x for x in naming if not (isinstance(x, ast.Assign) and _key(x.targets[0]) == key)]
    return _all_written(uses, tree, text, _elsewhere(seen) | {f"[{key}]"})


def _all_written(
    uses: list[ast.stmt],
    tree: ast.Module,
    text: str,
    seen: set[str],
    allowed: Collection[str] = (),
) -> bool:
    """Whether some of the uses write, and the others too or keep a record that nothing reads.
    ``allowed``: functions that these statements may call, besides those that convert."""
    left = [x for x in uses if not _is_kept(x, tree)]
    return bool(left) and all(
        (isinstance(x, ast.Expr) or not _own_calls(x) - _CONVERTS - set(allowed))
        and _is_written(x, tree, text, seen)
        for x in left
    )


def _own_calls(statement: ast.stmt) -> set[str]:
    """The names of the functions and methods that the statement itself calls."""
    return {name_of(x) for x in nodes_of(statement, whole=False) if isinstance(x, ast.Call)}


def _writes(call: ast.Call, tree: ast.Module, text: str) -> bool:
    """Whether the call writes a log: by its text, by a name that only loggers have, or because it
    calls a function of the same file that only writes."""
    name = name_of(call)
    if name in _LOGS or WRITES.search(ast.get_source_segment(text, call) or ""):
        return True
    called = [x for x in ast.walk(tree) if isinstance(x, _FUNCTIONS) and x.name == name]
    return bool(called) and all(_only_writes(x, text) for x in called)


def _read(statement: ast.stmt) -> Iterator[str]:
    """The variables that the statement reads itself; of a function defined there, all."""
    whole = isinstance(statement, (*_FUNCTIONS, ast.ClassDef))
    for node in nodes_of(statement, whole):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _texts(statement: ast.stmt) -> Iterator[str]:
    """The string constants that the statement itself holds."""
    for node in nodes_of(statement, whole=False):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _containers(nodes: list[ast.AST]) -> Iterator[str]:
    """The variables that hold containers which the function made."""
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _is_new(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (x.id for x in targets if isinstance(x, ast.Name))


def _is_new(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return isinstance(value, _CONTAINERS) or name in _MAKE_CONTAINERS


def _has_effect(node: ast.AST, own: set[str], text: str) -> bool:
    """Whether more than a variable or container of the function's own is changed. ``text``: the
    file's."""
    if isinstance(node, ast.Return):
        value = node.value
        return value is not None and not (isinstance(value, ast.Constant) and value.value is None)
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal | ast.Delete):
        return True
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node, ast.Attribute) or _root(node) not in own
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else None
    filled = isinstance(called, ast.Attribute) and _root(called) in own
    return not (filled or WRITES.search(ast.get_source_segment(text, node) or ""))


def _root(node: ast.expr) -> str:
    """The variable at the beginning of ``row["loss"].x``; "" if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
