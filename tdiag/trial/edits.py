"""How each change is made in the user's source: a table of edits, made with libcst.

An edit changes one node. It finds the node by the recorded line and by what its names are bound to,
and refuses if that is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import libcst as cst
import libcst.matchers as m
from libcst.metadata import Assignment, Scope

from tdiag.model.trials import Applied
from tdiag.probe.trial.loader_arguments import WITHOUT_WORKERS
from tdiag.probe.trial.optimizers import FORMS
from tdiag.trial.user_file import Callee, Refused, Step, UserSource

LOADER = Callee("DataLoader", r"torch\.utils\.data\.(dataloader\.)?DataLoader")
DDP = Callee(
    "DistributedDataParallel", r"torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel"
)
OPTIMIZER = Callee("an optimizer of torch.optim", r"torch\.optim\.(?!lr_)(\w+\.)?[A-Z]\w+")
ZERO_GRAD = Callee("zero_grad", method="zero_grad")
THREADS = Callee("torch.set_num_threads", r"torch\.set_num_threads")
VALIDATE = Callee(
    "torch.distributions.Distribution.set_default_validate_args",
    r"torch\.distributions\.(distribution\.)?Distribution\.set_default_validate_args",
)
PRECISION = Callee("torch.set_float32_matmul_precision", r"torch\.set_float32_matmul_precision")
DETERMINISTIC = Callee("torch.use_deterministic_algorithms", r"torch\.use_deterministic_algorithms")
MOVES = Callee("a call of .to()", method="to")
ANOMALY = Callee(
    "set_detect_anomaly",
    r"torch\.(autograd\.(anomaly_mode\.)?set_detect_anomaly|set_anomaly_enabled)",
)
DETECT = Callee("detect_anomaly", r"torch\.autograd\.(anomaly_mode\.)?detect_anomaly")
BENCHMARK = "torch.backends.cudnn.benchmark"
# In torch 2.1 to 2.13, every optimizer's fifth positional argument still differs by optimizer.
MOST_POSITIONAL = 5
# DataLoader's arguments by position; arguments not listed here are keyword-only.
AT = {"num_workers": 5, "pin_memory": 7, "timeout": 9, "multiprocessing_context": 11}
DDP_AT = {"broadcast_buffers": 4, "bucket_cap_mb": 7, "find_unused_parameters": 8,
          "gradient_as_bucket_view": 10, "static_graph": 11}  # fmt: skip

Edit = Callable[[UserSource, Applied, str], list[Step]]


def _literal(node: cst.BaseExpression) -> bool:
    constant = isinstance(node, cst.Name) and node.value in ("True", "False", "None")
    return constant or isinstance(node, cst.Integer | cst.Float | cst.SimpleString)


def _code(node: cst.CSTNode) -> str:
    return cst.Module(body=[]).code_for_node(node)


def with_argument(
    call: cst.Call, name: str, code: str, position: int | None, *, add: bool = True
) -> cst.Call:
    """The call with this argument's value, which is added where it has none. Raises Refused where
    that is not known, or the value is no literal."""
    if any(arg.star == "*" for arg in call.args):
        raise Refused("its arguments come from a sequence (*)")
    for i, arg in enumerate(call.args):
        keyword = arg.keyword.value if arg.keyword else ""
        if keyword == name or (not keyword and not arg.star and i == position):
            if not _literal(arg.value):
                raise Refused(f"{name} is `{_code(arg.value)}` there: change it where that is set")
            value = cst.parse_expression(code)
            if isinstance(arg.value, cst.SimpleString) and isinstance(value, cst.SimpleString):
                quote = arg.value.quote
                value = value.with_changes(value=f"{quote}{value.raw_value}{quote}")
            changed = arg.with_changes(value=value)
            return call.with_changes(args=[*call.args[:i], changed, *call.args[i + 1 :]])
    if not add:
        return call
    if any(arg.star for arg in call.args):
        raise Refused("some of its arguments come from a dictionary (**)")
    return _appended(call, name, code)


def _appended(call: cst.Call, name: str, code: str) -> cst.Call:
    """With the argument as the last one: on its own line if the last two have their own."""
    new = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(code),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        raise Refused("its only argument is a generator without parentheses")
    trailing = isinstance(last.comma, cst.Comma)
    closing = last.comma.whitespace_after if trailing else last.whitespace_after_arg  # type: ignore[union-attr]
    before = call.args[-2].comma.whitespace_after if len(call.args) > 1 else (  # type: ignore[union-attr]
        call.whitespace_before_args)  # fmt: skip
    between: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    if isinstance(before, cst.ParenthesizedWhitespace):
        between = _newline(before)
        if isinstance(
            closing, cst.ParenthesizedWhitespace
        ):  # keeps the comment after the last argument
            between = closing.with_changes(indent=before.indent, last_line=before.last_line)
            closing = _newline(closing)
    comma = cst.Comma(whitespace_after=between)
    if trailing:
        new = new.with_changes(comma=cst.Comma(whitespace_after=closing))
        last = last.with_changes(comma=comma)
    else:
        new = new.with_changes(whitespace_after_arg=closing)
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*call.args[:-1], last, new])


def _newline(like: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    """A line end with the same indentation, without comments."""
    plain = cst.TrailingWhitespace(newline=like.first_line.newline)
    return like.with_changes(first_line=plain, empty_lines=[])


def _argument(
    callee: Callee, name: str, code: str = "{}", position: int | None = None,
    also: Callable[[cst.Call, str], cst.Call] = lambda call, text: call,
) -> Edit:  # fmt: skip
    """``code``: of the value, from the change's own. ``also``: other arguments that must follow."""

    def change(text: str, call: cst.CSTNode) -> cst.Call:
        done = with_argument(cast(cst.Call, call), name, code.format(text), position)
        return also(done, text)

    def edit(source: UserSource, spot: Applied, text: str) -> list[Step]:
        assert spot.at
        call = callee.at(source, spot.at.line)
        change(text, call)  # raises Refused if impossible
        return [Step(call, "at", partial(change, text))]

    return edit


def _without_workers(call: cst.Call, text: str) -> cst.Call:
    """torch refuses some arguments without workers."""
    for name, value in WITHOUT_WORKERS.items() if text == "0" else ():
        call = with_argument(call, name, repr(value), AT.get(name), add=False)
    return call


def _one_form(call: cst.Call, name: str) -> cst.Call:
    """Set only one of an optimizer's forms."""
    if sum(1 for arg in call.args if not arg.keyword) > MOST_POSITIONAL:
        raise Refused("the meaning of its positional arguments is unknown")
    other = next(form for form in FORMS if form != name)
    return with_argument(call, other, "None", None, add=False)


def _form(name: str) -> Edit:
    return _argument(OPTIMIZER, name, "True", also=lambda call, text: _one_form(call, name))


def _anomaly(source: UserSource, spot: Applied, text: str) -> list[Step]:
    """``detect_anomaly()`` has no argument for it, but ``set_detect_anomaly()`` has."""
    assert spot.at
    try:
        call = DETECT.at(source, spot.at.line)
    except Refused:
        return _argument(ANOMALY, "mode", "False", 0)(source, spot, text)
    if call.args or not isinstance(call.func, cst.Attribute):
        raise Refused("detect_anomaly() has no argument that switches it off")
    func = call.func.with_changes(attr=cst.Name("set_detect_anomaly"))
    off = call.with_changes(func=func, args=[cst.Arg(cst.Name("False"))])
    return [Step(call, "at", lambda old: off)]


# A statement more ------------------------------------------------------------------------------


def _setting(callee: Callee, name: str, code: str) -> Edit:
    """A torch function that sets something: its call if the script has one, else a new one."""

    def edit(source: UserSource, spot: Applied, text: str) -> list[Step]:
        assert spot.at
        if spot.at.line:
            return _argument(callee, name, code, 0)(source, spot, text)
        return [_after_imports(source, f"{callee.what}({code})", text)]

    return edit


def _benchmark(source: UserSource, spot: Applied, text: str) -> list[Step]:
    assigned = [
        node
        for node in cast("list[cst.Assign]", list(m.findall(source.module, m.Assign())))
        if any(source.bound_to(t.target) == {BENCHMARK} for t in node.targets)
    ]
    if not assigned:
        return [_after_imports(source, f"{BENCHMARK} = True", text)]
    if len(assigned) > 1 or not _literal(assigned[0].value):
        raise Refused(f"{BENCHMARK} is already set there, but not once to a plain value")
    return [Step(assigned[0], "at", lambda old: old.with_changes(value=cst.Name("True")))]


def _after_imports(source: UserSource, code: str, text: str) -> Step:
    """Below the block of imports that contains `import torch`."""
    top = source.module.body
    first = next((i for i, statement in enumerate(top) if _imports_torch(statement)), None)
    if first is None or not source.has_torch():
        raise Refused("it has no plain `import torch` at its top")
    last = first
    while last + 1 < len(top) and _is_import(top[last + 1]):
        last += 1
    return Step(top[last], "after", code.format(text))


def _is_import(statement: cst.CSTNode) -> bool:
    line = isinstance(statement, cst.SimpleStatementLine)
    return line and all(isinstance(x, cst.Import | cst.ImportFrom) for x in statement.body)  # type: ignore[attr-defined]


def _imports_torch(statement: cst.CSTNode) -> bool:
    return _is_import(statement) and any(
        isinstance(part, cst.Import)
        and any(a.evaluated_name.split(".")[0] == "torch" and not a.asname for a in part.names)
        for part in statement.body  # type: ignore[attr-defined]
    )


def _on_model(code: str) -> Edit:
    """A statement before the one that calls the model, if the model is assigned above: it runs as
    often as the model is made."""

    def edit(source: UserSource, spot: Applied, text: str) -> list[Step]:
        assert spot.at
        name = spot.variable
        call = Callee(f"`{name}`" if name else "the model", name=name).at(source, spot.at.line)
        block: cst.CSTNode | None = None
        scope = cast(Scope, source.scopes[call])
        lines = []
        for made in scope[name]:
            line = _plain_assignment(source, made) if made.scope is scope else None
            if line is None or (block is not None and source.parents[line] is not block):
                raise Refused(f"`{name}` is not made by a plain assignment in the same block")
            block = source.parents[line]
            lines.append(line)
        if "torch" in code and not source.has_torch():
            raise Refused("it has no plain `import torch` at its top")
        here: cst.CSTNode = call
        while here in source.parents and source.parents[here] is not block:
            here = source.parents[here]
        body = list(getattr(block, "body", ()))
        if here not in body or body.index(here) <= max(map(body.index, lines)):
            raise Refused(f"`{name}` is not made in front of this line")
        return [Step(here, "before", code.format(name))]

    return edit


def _plain_assignment(source: UserSource, made: object) -> cst.CSTNode | None:
    """The line of the assignment, if it is its own statement and assigns one name."""
    if not isinstance(made, Assignment):
        return None
    target = source.parents.get(made.node)
    statement = source.parents.get(target) if isinstance(target, cst.AssignTarget) else None
    line = source.parents.get(statement) if isinstance(statement, cst.Assign) else None
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return line if alone else None


# Only training does this: a function that contains it needs gradients.
_TRAINS = m.Call(func=m.Attribute(attr=m.OneOf(*(
    m.Name(name) for name in ("backward", "step", "zero_grad", "grad", "requires_grad_",
                              "enable_grad", "set_grad_enabled")
))))  # fmt: skip


def _evaluation(code: str) -> Edit:
    """A decorator, if the function itself switches the model to evaluation."""

    def edit(source: UserSource, spot: Applied, text: str) -> list[Step]:
        assert spot.at
        line = spot.at.line
        around = [
            f
            for f in cast("list[cst.FunctionDef]", list(m.findall(source.module, m.FunctionDef())))
            if source.spans[f].start.line <= line <= source.spans[f].end.line
        ]
        # The innermost function begins last.
        function = max(around, key=lambda f: source.spans[f].start.line, default=None)
        if function is None or function.name.value != spot.at.function:
            raise Refused("it is not in its own function")
        evaluates = m.Call(func=m.Attribute(attr=m.Name("eval")), args=[])
        if m.findall(function, _TRAINS) or not m.findall(function, evaluates):
            raise Refused(f"{function.name.value}() may be more than an evaluation: it calls no"
                          " .eval(), or it trains")  # fmt: skip
        if function.asynchronous or m.findall(function, m.Yield()):
            raise Refused(f"{function.name.value}() is a generator or a coroutine")
        if not source.has_torch():
            raise Refused("it has no plain `import torch` at its top")
        decorator = cst.Decorator(cst.parse_expression(code))

        def decorated(old: cst.CSTNode) -> cst.CSTNode:
            return old.with_changes(decorators=[*cast(cst.FunctionDef, old).decorators, decorator])

        return [Step(function, "at", decorated)]

    return edit


EDITS: dict[str, Edit] = {
    "ddp.bucket_cap_mb": _argument(DDP, "bucket_cap_mb", "{}", DDP_AT["bucket_cap_mb"]),
    "ddp.broadcast_buffers": _argument(DDP, "broadcast_buffers", "False",
                                       DDP_AT["broadcast_buffers"]),
    "ddp.find_unused_parameters": _argument(DDP, "find_unused_parameters", "False",
                                            DDP_AT["find_unused_parameters"]),
    "ddp.gradient_as_bucket_view": _argument(DDP, "gradient_as_bucket_view", "True",
                                             DDP_AT["gradient_as_bucket_view"]),
    "ddp.static_graph": _argument(DDP, "static_graph", "True", DDP_AT["static_graph"]),
    "copies.non_blocking": _argument(MOVES, "non_blocking", "True"),
    "evaluation.inference_mode": _evaluation("torch.inference_mode()"),
    "evaluation.no_grad": _evaluation("torch.no_grad()"),
    "loader.in_order": _argument(LOADER, "in_order", "False"),
    "loader.num_workers": _argument(LOADER, "num_workers", "{}", AT["num_workers"],
                                    _without_workers),
    "loader.persistent_workers": _argument(LOADER, "persistent_workers", "True"),
    "loader.pin_memory": _argument(LOADER, "pin_memory", "True", AT["pin_memory"]),
    "loader.prefetch_factor": _argument(LOADER, "prefetch_factor"),
    "model.channels_last": _on_model("{}.to(memory_format=torch.channels_last)"),
    "optimizer.foreach": _form("foreach"),
    "optimizer.fused": _form("fused"),
    "optimizer.zero_grad": _argument(ZERO_GRAD, "set_to_none", "True", 0),
    "torch.anomaly": _anomaly,
    "torch.compile": _on_model("{}.compile()"),
    "torch.cudnn_benchmark": _benchmark,
    "torch.deterministic": _argument(DETERMINISTIC, "mode", "False", 0),
    "torch.float32_matmul_precision": _setting(PRECISION, "precision", '"{}"'),
    "torch.num_threads": _setting(THREADS, "int", "{}"),
    "torch.validate_args": _setting(VALIDATE, "value", "False"),
}  # fmt: skip
