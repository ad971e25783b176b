"""The table of the service's own tools, beside the code that has the same numbers and words."""

from typing import get_args

from segue.domain.session import MAX_CONTENT_CHARS, MemoryKind
from segue.mcp.status import MAX_URI_CHARS
from segue.tools.builtin import EVERY, defined
from segue.tools.builtin.builtin_tools import MAX_ANSWER
from segue.tools.builtin.web_search import MAX_URL_CHARS


def argument(tool: str, name: str) -> dict[str, object]:
    found: dict[str, object] = defined(tool).input_schema["properties"][name]
    return found


def test_the_bounds_and_choices_of_arguments_are_those_of_the_code() -> None:
    assert argument("remember", "content")["maxLength"] == MAX_CONTENT_CHARS
    assert argument("remember", "kind")["enum"] == list(get_args(MemoryKind))
    assert argument("promise", "every")["enum"] == list(EVERY)
    assert argument("get_tool_result", "limit")["maximum"] == MAX_ANSWER
    assert argument("web_fetch", "url")["maxLength"] == MAX_URL_CHARS
    assert argument("mcp_read_resource", "uri")["maxLength"] == MAX_URI_CHARS
