"""A part of a tool's result, by JMESPath and page. Pure.

Paths come from clients and from the model: a path that would multiply the result is refused before it is evaluated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jmespath
import orjson
from jmespath import functions
from jmespath.exceptions import JMESPathError

from segue.domain.errors import AppError
from segue.tools.normalize import clean

MAX_GROWTH = 50
MAX_PAGE_CHARS = 10_000_000
_SIDE_BY_SIDE = frozenset({"multi_select_list", "multi_select_dict", "function_expression"})


class InvalidPath(AppError):
    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            "invalid_path", status=422, title="Not a path into this result", detail=f"The path {path[:200]!r} {what}"
        )


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Totals and offsets count characters of text or items of a list; None if the result has no pages."""

    result: Any
    result_total: int | None
    next_offset: int | None


class _BoundedFunctions(functions.Functions):
    """`join` with a long glue, or `to_string` of many copies, would write out more than any memory holds."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_PAGE_CHARS

    @functions.signature({"types": ["string"]}, {"types": ["array-string"]})
    def _func_join(self, glue: str, parts: list[str]) -> str:
        self._spend(len(glue) * len(parts) + sum(map(len, parts)))
        return glue.join(parts)

    @functions.signature({"types": []})
    def _func_to_string(self, value: Any) -> str:
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        self._spend(len(text))
        return text

    def _spend(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise ValueError("more text than an answer may have")


def page_of(value: Any, *, path: str | None, offset: int, limit: int) -> ResultPage:
    """Returns the part of a value at a JMESPath, from `offset`, at most `limit` characters or items of it.

    Raises InvalidPath if the path is not JMESPath, does not fit the value, or would multiply it.
    """
    found = at_path(value, path) if path else value
    pageable, end = isinstance(found, str | list), offset + limit
    part = found[offset:end] if pageable else found
    if path:
        part = clean(part, max_chars=MAX_PAGE_CHARS)
    if not pageable:
        return ResultPage(part, None, None)
    return ResultPage(part, len(found), end if end < len(found) else None)


def at_path(value: Any, path: str) -> Any:
    """Returns what a value has at a JMESPath. Raises InvalidPath."""
    if isinstance(value, str):
        raise InvalidPath(path, "does not apply: the result is text. Leave the path out and use offset and limit.")
    try:
        expression = jmespath.compile(path)
        if _growth(expression.parsed) > MAX_GROWTH:
            raise InvalidPath(path, "asks for too many copies of the result at once.")
        return expression.search(value, jmespath.Options(custom_functions=_BoundedFunctions()))
    except (JMESPathError, ValueError, TypeError, AttributeError, RecursionError) as error:  # jmespath lets all through
        raise InvalidPath(path, "is not JMESPath, or does not fit the result. An example: emails[0].id") from error


def _growth(node: Mapping[str, Any]) -> int:
    """Returns how many copies of its input an expression may give: four for `[@,@]|[@,@]`."""
    parts = [_growth(child) for child in node["children"] if isinstance(child, dict)]
    return max(sum(parts), 1) if node["type"] in _SIDE_BY_SIDE else math.prod(parts)
