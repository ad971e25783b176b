"""The table of errors, and the places where they are made."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from string import Formatter

from segue.domain.errors import ROWS
from tests.support.commands import ROOT

OF_ERRORS = re.compile(rf'\bapp_error\(|"({"|".join(ROWS)})"')


@cache
def nodes() -> tuple[ast.AST, ...]:
    """Those of the modules that make an error or have the name of a row: all others need not be parsed."""
    written = (path.read_text("utf-8") for path in (ROOT / "backend/segue").rglob("*.py"))
    return tuple(node for text in written if OF_ERRORS.search(text) for node in ast.walk(ast.parse(text)))


def texts(among: Iterable[ast.AST]) -> Iterator[str]:
    for node in among:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def made() -> Iterator[tuple[str, set[str | None]]]:
    """The rows that errors are made of, and what is given for each."""
    for call in nodes():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "app_error":
            given = {keyword.arg for keyword in call.keywords}
            yield from ((name, given) for name in texts(ast.walk(call.args[0])))


def test_every_error_that_is_made_has_a_row_and_every_row_is_used() -> None:
    assert {name for name, _ in made()} <= ROWS.keys() <= set(texts(nodes()))


def test_an_error_is_given_what_its_row_has_in_braces() -> None:
    lacking = []
    for name, given in made():
        row = ROWS[name]
        parts = Formatter().parse(row["title"] + row["detail"])
        if missing := {field.partition(".")[0] for _, field, _, _ in parts if field} - given:
            lacking.append((name, missing))
    assert lacking == []
