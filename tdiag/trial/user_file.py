"""The user's file as libcst reads it: what its names are bound to, where its calls are, and the
same file with some nodes replaced. Everything else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, cast

import libcst as cst
import libcst.matchers as m
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    Scope,
    ScopeProvider,
)


class Refused(Exception):
    """Why a place cannot be edited safely, in words."""


class Step(NamedTuple):
    """``edit`` makes the new node from the old one; ``before``, ``after``: a statement's code."""

    node: cst.CSTNode
    where: Literal["at", "before", "after"]
    edit: Callable[[cst.CSTNode], cst.CSTNode] | str


class UserSource:
    """One file, unchanged. Raises Refused if libcst cannot write it back byte for byte."""

    def __init__(self, data: bytes) -> None:
        try:
            module = cst.parse_module(data)
        except (cst.ParserSyntaxError, SyntaxError, UnicodeError, LookupError):
            raise Refused("cannot be parsed") from None
        if module.bytes != data:
            raise Refused("cannot be written back byte for byte")
        self.wrapper = MetadataWrapper(module)
        self.module = self.wrapper.module
        self.spans = self.wrapper.resolve(PositionProvider)
        self.names = self.wrapper.resolve(QualifiedNameProvider)
        self.parents = self.wrapper.resolve(ParentNodeProvider)
        self.scopes = self.wrapper.resolve(ScopeProvider)

    @cached_property
    def calls(self) -> list[cst.Call]:
        return cast("list[cst.Call]", list(m.findall(self.module, m.Call())))

    def bound_to(self, node: cst.CSTNode) -> set[str]:
        """Dotted names that this expression may mean, by the file's imports."""
        found = self.names.get(node, set())
        found = found() if callable(found) else found
        return {n.name if n.source is QualifiedNameSource.IMPORT else "" for n in found}

    def has_torch(self) -> bool:
        """Whether ``torch`` means torch at the top of the file."""
        scope = cast(Scope, self.scopes[self.module])
        return {n.name for n in scope.get_qualified_names_for("torch")} == {"torch"}

    def edited(self, steps: Iterable[Step]) -> bytes:
        maker = _Maker(self.module, list(steps))
        return self.module.visit(maker).bytes


class _Maker(cst.CSTTransformer):
    def __init__(self, module: cst.Module, steps: list[Step]) -> None:
        super().__init__()
        self.steps: dict[cst.CSTNode, list[Step]] = {}
        for step in steps:
            self.steps.setdefault(step.node, []).append(step)
        self.config = module.config_for_parsing

    def on_leave(self, original: cst.CSTNodeT, updated: cst.CSTNodeT) -> cst.CSTNodeT:
        around: dict[str, list[cst.CSTNode]] = {"before": [], "after": []}
        made: cst.CSTNode = updated
        for _, where, edit in self.steps.get(original, ()):
            if isinstance(edit, str):
                around[where].append(cst.parse_statement(edit, self.config))
            else:
                made = edit(made)
        if around["before"] or around["after"]:
            return cst.FlattenSentinel([*around["before"], made, *around["after"]])  # type: ignore[return-value]
        return cast("cst.CSTNodeT", made)


@dataclass(frozen=True)
class Callee:
    """``what``: its name in messages. ``pattern``: the dotted name by the file's imports;
    ``method``: a method of an unknown object; ``name``: a variable."""

    what: str
    pattern: str = ""
    method: str = ""
    name: str = ""

    def is_called(self, source: UserSource, call: cst.Call) -> bool:
        if self.method:
            return m.matches(call.func, m.Attribute(attr=m.Name(self.method)))
        if not self.pattern:
            return m.matches(call.func, m.Name(self.name))
        names = source.bound_to(call.func)
        return bool(names) and all(re.fullmatch(self.pattern, name) for name in names)

    def at(self, source: UserSource, line: int) -> cst.Call:
        """The call. Raises Refused unless exactly one call there matches."""
        found = [
            call
            for call in source.calls
            # A call's line is that of its first word; a method call's line is that of the method's
            # name.
            if source.spans[call].start.line <= line <= source.spans[call.func].end.line
            and self.is_called(source, call)
        ]
        if not found:
            raise Refused(f"no call of {self.what} itself is written there")
        if len(found) > 1:
            raise Refused(f"{self.what} is called several times there")
        return found[0]
