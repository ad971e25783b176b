"""Plans as the offline model makes them: it splits a request at every "then" and fills arguments from results. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from segue.offline.replies import OfferedTool, arguments_for, call_to, offered_tool, results_in, tool_for
from segue.offline.vocabulary import VERBS, concepts, reply_language, sentence, split_steps

_NAME = re.compile(r"^(.*?)\s*<")


def draft_plan(system: str, message: str) -> str:
    """Returns a plan as JSON: a step for each part of the request; no steps unless tools can carry out all parts."""
    tools = list(_tools_in(system))
    steps: list[dict[str, Any]] = []
    about: frozenset[str] = frozenset()
    for part in split_steps(message):
        about |= concepts(part) - VERBS
        tool = tool_for(part, [], tools) or _with_nouns(part, about, tools)
        if tool is None:
            return '{"steps": []}'
        args = arguments_for(tool, part, [], tools)
        steps.append({"id": len(steps) + 1, "description": part, "tool": tool.name, "args": args})
    return orjson.dumps({"steps": steps if len(steps) > 1 else []}).decode()


def fill_call(messages: Sequence[BaseMessage], tool: OfferedTool) -> AIMessage:
    """Returns a call with arguments from the newest results; a text it has to write only acknowledges receipt."""
    messages_of_user = [message.text for message in messages if isinstance(message, HumanMessage)]
    newest_first = results_in(messages)[::-1]
    read = next((result.value for result in newest_first if isinstance(result.value, dict)), {})
    args: dict[str, str] = arguments_for(tool, messages_of_user[-1], newest_first, [tool])
    listed = next((names for result in newest_first if (names := result.names_for(tool))), [])
    written = {tool.opens: listed[0]} if tool.opens and listed else {}
    if read.get("from"):
        sender = _NAME.match(str(read["from"]))
        name = sender.group(1) if sender else str(read["from"])
        written |= {
            "to": str(read["from"]),
            "subject": f"Re: {str(read.get('subject', '')).removeprefix('Re: ')}",
            "body": sentence(reply_language(messages_of_user), "receipt", name=name),
        }
    wanted = {argument: written[argument] for argument in tool.required if argument in written}
    return call_to(tool, {**wanted, **args})


def _with_nouns(part: str, about: frozenset[str], tools: Sequence[OfferedTool]) -> OfferedTool | None:
    # "Read the newest" does not say of what: an earlier part did.
    wanted = concepts(part) | about
    fitting = [tool for tool in tools if concepts(part) & tool.words and about & tool.words]
    return max(fitting, key=lambda tool: len(wanted & tool.words), default=None)


def _tools_in(system: str) -> Iterator[OfferedTool]:
    """Yields the tools that a planner's prompt lists, one JSON object a line."""
    for line in system.splitlines():
        if line.startswith('{"name":'):
            listed = orjson.loads(line)
            yield offered_tool({"name": listed["name"], "parameters": listed["args"]})
