"""One rule, one file. See ``docs/architecture.md`` and :mod:`tdiag.rules.base`."""

from __future__ import annotations


def explain(code_or_name: str) -> str:
    """The documentation of one rule, Markdown; :class:`tdiag.errors.UsageError` if unknown."""
    from tdiag.rules.catalogue import explain as explain_rule  # the catalogue imports this package

    return explain_rule(code_or_name)
