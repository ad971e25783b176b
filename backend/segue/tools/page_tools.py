"""The tools of the client's own page, which only it can run. A call waits as a step of a plan (mode `page`) and ends
with the page's result, which is data. Their health is not counted: a client names them as it likes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from segue.domain.errors import app_error
from segue.domain.ids import TOOL_NAME
from segue.domain.session import READ_ATTACHMENT
from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolSpec
from segue.domain.user_request import PAGE
from segue.tools.normalize import clean, clean_text

MAX_TOOLS: Final = 40
MAX_BYTES: Final = 64_000  # of their definitions
MAX_RESULT_BYTES: Final = 200_000  # of what a call gave
MAX_PAGE_CHARS: Final = 8000  # of what the page says of itself
OF_THE_ENGINE: Final = frozenset({READ_ATTACHMENT, "find_tools", "web_search"})  # also while there is no such tool

OfferedTools = Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]  # listed, or by name
_ANYTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_SCHEMAS: Final = ("parameters", "inputSchema")  # as AG-UI and as the AI SDK call it


def given_tools(offered: OfferedTools | None, taken: Collection[str]) -> str | None:
    """Returns a page's tools, listed or by name, as `TurnOptions.page_tools`. Raises AppError `client_tools`."""
    if isinstance(offered, Mapping):
        offered = [{**each, "name": name} for name, each in offered.items()]
    if not offered:
        return None
    if len(offered) > MAX_TOOLS or len(orjson.dumps(offered)) > MAX_BYTES:
        raise app_error("too_many_page_tools", at_most=MAX_TOOLS, kb=MAX_BYTES // 1000)
    listed: list[dict[str, Any]] = []
    for definition in offered:
        name, description = definition.get("name"), definition.get("description") or ""
        schema = next((definition[key] for key in _SCHEMAS if definition.get(key)), _ANYTHING)
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise app_error("page_tool_name")
        if not isinstance(description, str) or not isinstance(schema, Mapping) or schema.get("type") != "object":
            raise app_error("page_tool_definition", name=name)
        listed.append(clean({"name": name, "description": description, "parameters": schema}))
    names = [each["name"] for each in listed]
    if ours := [name for name in names if name in taken or name in OF_THE_ENGINE or names.count(name) > 1]:
        raise app_error("page_tools_taken", names=", ".join(ours))
    return orjson.dumps(listed).decode()


def page_tools(stored: str) -> dict[str, Tool]:
    """Returns the tools of `TurnOptions.page_tools`, by name."""
    return {each["name"]: _tool(each["name"], each["description"], each["parameters"]) for each in orjson.loads(stored)}


def answered_tool(name: str) -> Tool:
    """Returns a tool that gives the page's result. It takes any arguments: the page has run with them."""
    return _tool(name, "", _ANYTHING, idempotent=True)


def _tool(name: str, description: str, schema: Mapping[str, Any], *, idempotent: bool = False) -> Tool:
    spec = ToolSpec(name, description, schema, source=PAGE, effect="write", idempotent=idempotent)
    return Tool(spec, _what_the_page_gave)


async def _what_the_page_gave(_: dict[str, Any], context: ToolContext) -> object:
    answer = (context.answers[-1].content if context.answers else None) or {"error": "Only the page can run this."}
    if "error" in answer:
        raise ToolFailed(str(answer["error"]))
    return answer["output"]


def result_of_page(output: object, error: object = None) -> dict[str, Any]:
    """Returns a page's result of a call as a decision's `answer` has it. One that is too large is not taken."""
    if error:
        return {"error": clean_text(str(error))[:MAX_PAGE_CHARS]}
    if (size := len(orjson.dumps(output))) > MAX_RESULT_BYTES:
        return {"error": f"The page's result has {size} bytes and was not taken: at most {MAX_RESULT_BYTES} are."}
    return {"output": clean(output)}


def about_page(context: Sequence[Mapping[str, Any]], state: object = None) -> str | None:
    """Returns a page's context as `TurnOptions.page`: the descriptions and values in its `context`, and its `state` but
    for the plan, which is the service's own. Cut at MAX_PAGE_CHARS.
    """
    kept = {key: value for key, value in state.items() if key != "plan"} if isinstance(state, Mapping) else state
    entries = [*context, *([{"description": "state", "value": kept}] if kept else [])]
    values = [(each.get("description", ""), each.get("value", "")) for each in entries]
    lines = (f"{about}: {of if isinstance(of, str) else orjson.dumps(of).decode()}" for about, of in values)
    text: str = clean_text("\n".join(lines)[: MAX_PAGE_CHARS + 1])
    return (text if len(text) <= MAX_PAGE_CHARS else f"{text[:MAX_PAGE_CHARS]} …") or None
