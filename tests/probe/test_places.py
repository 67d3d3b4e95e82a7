"""The function that a line is written in."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tdiag.probe.places import place_of


def here() -> list[Any]:
    return place_of(sys._getframe(1))


def first(places: Iterable[list[Any]]) -> list[Any]:
    return next(iter(places))


def test_a_comprehension_is_in_the_function_around_it() -> None:
    """Until Python 3.12 it runs as a function of its own."""
    places = [here()] + [here() for _ in range(2)] + list({n: here() for n in range(2)}.values())
    places += [place for _ in range(2) for place in [here() for _ in range(2)]]
    assert {function for _, _, function in places} == {
        "test_a_comprehension_is_in_the_function_around_it"
    }
    assert len({line for _, line, _ in places}) == 2


def test_so_is_a_generator_that_another_function_reads() -> None:
    _, line, function = first(here() for _ in range(2))
    assert function == "test_so_is_a_generator_that_another_function_reads"
    assert line == sys._getframe().f_lineno - 2


def test_a_generator_whose_function_has_returned_keeps_its_name() -> None:
    def made() -> Iterator[list[Any]]:
        return (here() for _ in range(2))

    assert first(made())[2] == "<genexpr>"
