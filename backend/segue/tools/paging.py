"""A part of a tool's result, by JMESPath and page. Paths come from clients and from the model, results from tools, and
can take any time and memory together: all but small and plain ones are evaluated in a child process.
"""

import math
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import jmespath
import orjson
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

from segue.domain.errors import AppError
from segue.language.utterance import is_unspaced, stem_of, with_plain_letters
from segue.tools.child_process import LARGE, TooMuch, has_many, in_child_process
from segue.tools.normalize import BinaryPart, clean, described, value_in
from segue.tools.summaries import text_in

MAX_PAGE_CHARS: Final = 10_000_000
MAX_PAGE_BYTES: Final = 40_000_000
SMALL_CHARS: Final = 50_000
MAX_TEXT_ARGUMENT_BYTES: Final = 1_000_000
MAX_STEPS: Final = 20_000
DEADLINE_S: Final = 5
MOST_PASSAGES: Final = 5
PASSAGE_CHARS: Final = 800
_PLAIN: Final = frozenset(  # nodes of an expression that give no more than they are given, in one step each
    {"field", "flatten", "identity", "index", "index_expression", "pipe", "projection", "slice", "subexpression"}
    | {"value_projection", "and_expression", "comparator", "literal", "not_expression", "or_expression"}
)
_AROUND: Final = " .,;:?!\"'“”„«»()…。，、；：？！؟،"
_PAGE: Final = re.compile(r"\[page \d+\]")  # as the text of a PDF has them
_ASK_LESS: Final = "Ask for a part of it: one item, or one field."


class InvalidPath(AppError):
    def __init__(self, path: str, what: str) -> None:
        self._given = path, what
        detail = f"The path {path[:200]!r} {what}"
        super().__init__("invalid_path", status=422, title="Not a path into this result", detail=detail)

    def __reduce__(self) -> tuple[type["InvalidPath"], tuple[str, str]]:
        return InvalidPath, self._given  # as a child process hands it over


@dataclass(frozen=True, slots=True)
class PageSpec:
    """Offset and limit count characters of text or items of a list."""

    path: str | None = None
    offset: int = 0
    limit: int = MAX_PAGE_CHARS
    max_bytes: int = MAX_PAGE_BYTES  # of its JSON, if it is to fit an answer to the model
    max_chars: int | None = None  # if it is no text, and is to fit an answer to the model
    with_parts: bool = False  # else images and files are described

    def fits(self, written: bytes) -> bool:
        if len(written) > self.max_bytes:
            return False
        return self.max_chars is None or written[:1] == b'"' or len(written.decode()) <= self.max_chars


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Totals and offsets count characters of text or items of a list; None if the result has no pages."""

    json: bytes
    result_total: int | None
    next_offset: int | None

    @property
    def result(self) -> Any:
        return orjson.loads(self.json)


class TooManySteps(Exception):
    """More than an evaluation may take beside others."""


class _Interpreter(TreeInterpreter):
    def __init__(self, max_steps: float) -> None:
        super().__init__()
        self._left = max_steps

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooManySteps
        return super().visit(node, *args, **kwargs)


async def page_of(content: str, spec: PageSpec, *, is_json: bool, deadline_s: float = DEADLINE_S) -> ResultPage:
    """Returns a page, over `wanted.max_bytes` if it is one item. Without a path, an object that is little more than a
    text is paged as it. Raises InvalidPath if the path is no JMESPath, does not fit, or takes too much time or memory.
    """
    path = spec.path
    if not is_json and path:
        raise InvalidPath(path, "does not apply: the result is text. Leave the path out and use offset and limit.")
    if len(content) <= SMALL_CHARS and not is_json:
        return _page_of_text(content, spec)
    if len(content) <= SMALL_CHARS and (not path or _is_plain(path)) and not has_many(content):
        with suppress(TooManySteps):
            return page_here(content, spec, MAX_STEPS)
    work = partial(page_here, max_steps=math.inf) if is_json else _page_of_text
    try:
        return await in_child_process(work, content, spec, deadline_s=deadline_s)
    except TooMuch as error:
        raise InvalidPath(path or "", f"{error} on this result. {_ASK_LESS}") from error


async def passages_in(content: str, query: str, *, is_json: bool) -> list[dict[str, Any]] | None:
    """Returns passages (`offset`, `text`, and the `page` if the text has numbered ones) of a result that is a text: the
    MOST_PASSAGES with most letters of the words in the query, best first. None if it is no text. Raises InvalidPath.
    """
    try:
        return await in_child_process(_passages_here, content, query, is_json, deadline_s=DEADLINE_S)
    except TooMuch as error:
        raise InvalidPath("", f"{error} on this result.") from error


def _passages_here(content: str, query: str, is_json: bool) -> list[dict[str, Any]] | None:  # noqa: FBT001 (for a child)
    text = text_in(described(value_in(content, is_json=is_json))[0])
    if text is None:
        return None
    written, asked = with_plain_letters(text), re.findall(r"\[page \d+\]|\S+", with_plain_letters(query))
    words = {form for word in asked for form in (word.strip(_AROUND), stem_of(word.strip(_AROUND)))}
    # Scripts without spaces are searched by pairs of letters.
    parts = (map("".join, pairwise(f"{word} ")) if is_unspaced(word[0]) else [word] for word in words if word)
    sought = sorted({part.strip() for each in parts for part in each}, key=len, reverse=True)
    found = defaultdict[int, dict[str, int]](dict)
    for match in re.finditer("|".join(map(re.escape, sought)), written, re.IGNORECASE) if sought else ():
        found[match.start() // PASSAGE_CHARS].setdefault(match[0].lower(), match.start())
    passages: list[dict[str, Any]] = []
    for at in sorted(found, key=lambda at: (-sum(map(len, found[at])), at))[:MOST_PASSAGES]:
        start = max(min(found[at].values()) - PASSAGE_CHARS // 4, 0)
        [*_, page] = [None, *_PAGE.findall(text, 0, max(begin + len(word) for word, begin in found[at].items()))]
        passage = {"offset": start, "text": text[start : start + PASSAGE_CHARS]}
        passages.append(passage | {"page": page} if page else passage)
    return passages


async def at_path(content: str, path: str, *, is_json: bool) -> Any:
    """Returns a result's value at a JMESPath, the whole result without one: None if there is none, as in a text. Raises
    InvalidPath as `page_of` does, and for more than an argument may be.
    """
    if path and not is_json:
        return None
    written = (await page_of(content, PageSpec(path, with_parts=True), is_json=True)).json if path else content.encode()
    most = LARGE if is_json and written[:1] != b'"' else MAX_TEXT_ARGUMENT_BYTES
    if len(written) > most:
        raise InvalidPath(path, f"gives over {most // 1000} kB, more than an argument may be. {_ASK_LESS}")
    return value_in(written.decode(), is_json=is_json)


async def part_at(content: str, number: int, *, is_json: bool) -> tuple[BinaryPart | None, int]:
    """Returns the image or file of this number, None if there is none, and how many there are. Raises InvalidPath."""
    if len(content) <= SMALL_CHARS and not (is_json and has_many(content)):
        return _part_here(content, number, is_json)
    try:
        return await in_child_process(_part_here, content, number, is_json, deadline_s=DEADLINE_S)
    except TooMuch as error:
        raise InvalidPath("", f"{error} on this result.") from error


def _part_here(content: str, number: int, is_json: bool) -> tuple[BinaryPart | None, int]:  # noqa: FBT001 (for a child)
    _, parts = described(value_in(content, is_json=is_json))
    return parts[number] if number < len(parts) else None, len(parts)


def _is_plain(path: str) -> bool:
    nodes, kinds = [_parsed(path)], set()
    while nodes:
        node = nodes.pop()
        kinds.add(node["type"])
        nodes += [child for child in node["children"] if isinstance(child, dict)]
    return kinds <= _PLAIN


def check_path(path: str) -> None:
    """Raises ValueError for a path that is not JMESPath."""
    try:
        _parsed(path)
    except InvalidPath:
        raise ValueError(f"{path[:200]!r} is not JMESPath") from None


def _parsed(path: str) -> Any:
    try:
        return jmespath.compile(path).parsed
    except (JMESPathError, ValueError, RecursionError) as error:
        raise _no_path(path) from error


def page_here(content: str, spec: PageSpec, max_steps: float) -> ResultPage:
    value = value_in(content, is_json=True)
    if not spec.with_parts:
        value, _ = described(value)
    if spec.path:
        try:
            value = _Interpreter(max_steps).visit(_parsed(spec.path), value)
        except (JMESPathError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _no_path(spec.path) from error  # jmespath lets all through
    elif (text := text_in(value)) is not None:
        value = text
    page = _page(value, spec)
    if len(page.json) > MAX_PAGE_BYTES:
        raise InvalidPath(spec.path or "", f"gives over {MAX_PAGE_BYTES // 1_000_000} MB. {_ASK_LESS}")
    return page


def _page_of_text(content: str, spec: PageSpec) -> ResultPage:
    return _page(described(content)[0], spec)


def _page(value: Any, spec: PageSpec) -> ResultPage:
    offset, limit = spec.offset, spec.limit
    if isinstance(value, dict) and spec.max_chars is not None and not spec.fits(written := _written(value)):
        value = written.decode()  # an answer to the model goes on with it as text
    if not isinstance(value, str | list):
        return ResultPage(_written(value), None, None)
    while not spec.fits(written := _written(part := value[offset : offset + limit])) and len(part) > 1:
        limit = len(part) // 2
    end = offset + limit
    return ResultPage(written, len(value), end if end < len(value) else None)


def _written(value: Any) -> bytes:
    return orjson.dumps(clean(value, max_chars=MAX_PAGE_CHARS))


def _no_path(path: str) -> InvalidPath:
    return InvalidPath(path, "is not JMESPath, or does not fit the result. An example: emails[0].id")
