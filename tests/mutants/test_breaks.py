"""Every break can still be made, and names tests that are there: `make mutants` itself is not part of the suite."""

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import accumulate

from tests.mutants.run import ROOT, Break, read_breaks

BREAKS = read_breaks()


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else ""


@cache
def beginnings(path: str) -> list[int]:
    """Where each statement of a module begins, with its decorators, and where the module ends."""
    lines = [0, *accumulate(len(line) + 1 for line in text(path).split("\n"))]
    statements = ast.parse(text(path)).body
    firsts = [min((each, *getattr(each, "decorator_list", ())), key=lambda node: node.lineno) for each in statements]
    return [*(lines[first.lineno - 1] for first in firsts), len(text(path))]


def around(broken: Break) -> str:
    """The statements of a module that the break is in: to parse all of it for each break takes seconds."""
    source, places = text(broken.file), beginnings(broken.file)
    begin = source.index(broken.old)
    first = max(bisect_right(places, begin) - 1, 0)
    return source[places[first] : places[bisect_left(places, begin + len(broken.old))]]


def faults(broken: Break) -> Iterator[str]:
    try:
        if broken.apply(text(broken.file)) == text(broken.file):
            yield "it changes nothing"
        if broken.file.endswith(".py"):
            ast.parse(broken.apply(around(broken)))
    except SyntaxError as error:
        yield f"it is no Python any more: {error}"
    except ValueError as error:
        yield str(error)
    for test in broken.tests:
        path, _, name = test.partition("::")
        # A state machine of Hypothesis is a test class by assignment.
        if not (ROOT / path).exists() or (
            name and not any(made in text(path) for made in (f"def {name}(", f"\n{name} = "))
        ):
            yield f"there is no {test}"


def test_each_break_has_its_place_in_the_source_and_its_tests() -> None:
    assert {each.name: found for each in BREAKS if (found := list(faults(each)))} == {}


def test_no_two_breaks_have_one_name() -> None:
    assert len({each.name for each in BREAKS}) == len(BREAKS)
