"""The table of errors, and the places where they are made."""

import ast
from collections.abc import Iterator
from string import Formatter

import pytest

from segue.domain.errors import ROWS
from tests.support.commands import ROOT

MODULES = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "backend/segue").rglob("*.py")]


def texts(*nodes: ast.AST) -> Iterator[str]:
    """The texts in code."""
    for node in (each for whole in nodes for each in ast.walk(whole)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def made() -> Iterator[tuple[str, set[str | None]]]:
    """The rows that errors are made of, and what is given for each."""
    for call in (node for module in MODULES for node in ast.walk(module) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "app_error":
            yield from ((name, {keyword.arg for keyword in call.keywords}) for name in texts(call.args[0]))


def test_every_error_that_is_made_has_a_row_and_every_row_is_used() -> None:
    assert {name for name, _ in made()} <= ROWS.keys() <= set(texts(*MODULES))


@pytest.mark.parametrize(("name", "given"), [each for each in made() if each[0] in ROWS])
def test_an_error_is_given_what_its_row_has_in_braces(name: str, given: set[str | None]) -> None:
    parts = Formatter().parse(ROWS[name]["title"] + ROWS[name]["detail"])
    assert {field.partition(".")[0] for _, field, _, _ in parts if field} <= given
