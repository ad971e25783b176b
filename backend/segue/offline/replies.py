"""Answers of the offline model: it picks a tool by its words, takes ids from earlier results, and offers a next step.

Pure and deterministic. Words and sentences are `vocabulary.py`'s, plans `planning.py`'s.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall

from segue.agent.untrusted import unfenced
from segue.memory.fact_cues import may_state_facts
from segue.offline.facts import facts_in
from segue.offline.vocabulary import (
    VERBS,
    concepts,
    found_sentence,
    ordinal,
    reply_language,
    sentence,
    strip_words,
    words_of,
)
from segue.plans.acknowledgement import classify
from segue.tools.summaries import identifiers

_ID = re.compile(r"\b[a-z]{2,12}[-_](?:[0-9a-f]{6,}|(?=[a-z]*\d)[0-9a-z]{4,40})\b", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s\"'<>）」»]+")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_QUOTED = re.compile(r"[\"“”«「『]([^\"“”«»「」『』]+)[\"“”»」』]")
_QUESTION = re.compile("[?？؟]")
MAX_SHOWN_ITEMS = 10
MAX_SHOWN_CHARS = 1500
QUERY_ARGUMENTS = ("query", "q", "search")
URL_ARGUMENTS = ("url", "uri", "link")
TEXT_KEYS = ("body", "text", "content")
# It needs none of these: results and facts are in its prompt, and facts are extracted after the turn.
UNUSED_TOOLS = frozenset({"get_tool_result", "remember", "search_memory"})


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the prompt offers it. `query` names the argument that says what to search for, if it has one."""

    name: str
    words: frozenset[str]
    required: tuple[str, ...]
    query: str | None

    @property
    def opens(self) -> str | None:
        """The name of its one required argument, if that is an id or an address."""
        only = self.required[0] if len(self.required) == 1 else ""
        return only if only.endswith("id") or only in URL_ARGUMENTS else None


@dataclass(frozen=True, slots=True)
class ShownResult:
    """A result in the prompt: the tool's own answer in the turn it was made, a reference in later turns."""

    tool: str
    args: Mapping[str, Any]
    value: Any

    @property
    def query(self) -> str:
        return next((str(self.args[name]) for name in QUERY_ARGUMENTS if self.args.get(name)), "")

    def names_for(self, tool: OfferedTool) -> list[str]:
        """Returns the ids or addresses in it that a tool could open, in order."""
        reference = isinstance(self.value, dict) and "tool_call_id" in self.value and "identifiers" in self.value
        found = self.value["identifiers"] if reference else identifiers(self.value)
        return [text for text in found if (_URL.match(text) is not None) == (tool.opens in URL_ARGUMENTS)]


def answer(messages: Sequence[BaseMessage], tools: Sequence[OfferedTool]) -> AIMessage:
    """Returns the reply to a conversation: a call, or a text that presents fresh results."""
    requests = [str(message.content) for message in messages if isinstance(message, HumanMessage)]
    language = reply_language(requests)
    tools = [tool for tool in tools if tool.name not in UNUSED_TOOLS]
    results = results_in(messages)
    fresh = next((at for at, message in enumerate(reversed(messages)) if not isinstance(message, ToolMessage)), 0)
    if fresh:
        return _reply(language, "\n\n".join(_present(result, tools, language) for result in results[-fresh:]))
    message, newest_first = requests[-1] if requests else "", results[::-1]
    verdict = classify(message).verdict
    if verdict == "reject":
        return _reply(language, sentence(language, "declined"))
    if verdict == "confirm" and (call := _accepted(messages, message, newest_first, tools)):
        return call
    facts = facts_in(messages[0].text)
    return _act(message, newest_first, tools, language, facts=facts, accepting=verdict == "confirm")


def _accepted(
    messages: Sequence[BaseMessage], message: str, newest_first: Sequence[ShownResult], tools: Sequence[OfferedTool]
) -> AIMessage | None:
    """Returns the call that the last answer offered; None if the yes names something else to do."""
    offer = next((str(reply.content) for reply in reversed(messages) if isinstance(reply, AIMessage)), "")
    for result in newest_first:
        tool = _follow_up(result, tools)
        names = result.names_for(tool) if tool else []
        if tool and tool.opens and names and names[0] in offer and concepts(message) & VERBS <= tool.words:
            return call_to(tool, {tool.opens: names[0]})
    return None


def _act(
    message: str,
    newest_first: Sequence[ShownResult],
    tools: Sequence[OfferedTool],
    language: str,
    *,
    facts: Sequence[str],
    accepting: bool,
) -> AIMessage:
    comma = sentence(language, "comma")
    tool = tool_for(message, newest_first, tools)
    if tool is None:
        key = "nothing_waiting" if accepting else _aside(message, facts)
        listed, known = comma.join(sorted(tool.name for tool in tools)), "\n".join(f"- {fact}" for fact in facts)
        return _reply(language, sentence(language, key, tools=listed, facts=known))
    args = arguments_for(tool, message, newest_first, tools)
    missing = [argument for argument in tool.required if argument not in args]
    if missing:
        return _reply(language, sentence(language, "missing", tool=tool.name, arguments=comma.join(missing)))
    return call_to(tool, args)


def _aside(message: str, facts: Sequence[str]) -> str:
    """Returns the key of the sentence for a message that no tool fits."""
    if _QUESTION.search(message):
        return "known" if facts else "unanswered"
    return "noted" if may_state_facts(message) else "idle"


def tool_for(message: str, newest_first: Sequence[ShownResult], tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """Returns the tool that shares most words with the message. A verb alone counts if only one tool has it."""
    wanted = concepts(message)
    wanted |= {"send"} if "reply" in wanted else set()
    if _URL.search(message):
        return next((tool for tool in tools if tool.opens in URL_ARGUMENTS), None)
    fitting = [tool for tool in tools if (wanted - VERBS) & tool.words]
    if not fitting and "read" in wanted:
        fitting = [tool for result in newest_first if (tool := _follow_up(result, tools))][:1]
    if not fitting:
        alone = [tool for tool in tools if wanted & VERBS & tool.words]
        fitting = alone if len(alone) == 1 else []
    best = max(
        fitting,
        key=lambda tool: (len(wanted & tool.words), tool.query is not None, -len(tool.words - wanted)),
        default=None,
    )
    if best and best.opens and best.opens not in arguments_for(best, message, newest_first, tools):
        return next((tool for tool in fitting if tool.query and query_of(message, tool)), best)
    return best


def arguments_for(
    tool: OfferedTool, message: str, newest_first: Sequence[ShownResult], tools: Sequence[OfferedTool]
) -> dict[str, str]:
    """Returns the arguments that the message and earlier results give; free text only if it is in quotes."""
    quoted = iter(text for text in _QUOTED.findall(message) if not _ADDRESS.fullmatch(text))
    found: dict[str, str | None] = {}
    for argument in (*tool.required, *((tool.query,) if tool.query else ())):
        if argument in QUERY_ARGUMENTS:
            found[argument] = query_of(message, tool)
        elif argument == tool.opens:
            found[argument] = _named(tool, message, newest_first, tools)
        elif argument in ("to", "recipient", "address"):
            address = _ADDRESS.search(message)
            found[argument] = address.group() if address else _correspondent(message, newest_first)
        else:
            found[argument] = next(quoted, None)
    return {argument: value for argument, value in found.items() if value}


def _named(
    tool: OfferedTool, message: str, newest_first: Sequence[ShownResult], tools: Sequence[OfferedTool]
) -> str | None:
    """Returns what to open: named in the message, or by its place in the newest list about the same."""
    named = (_URL if tool.opens in URL_ARGUMENTS else _ID).search(message)
    if named:
        return named.group()
    listing = next((result for result in newest_first if _follow_up(result, tools) == tool), None)
    about = set(words_of(query_of(message, tool)))
    if listing is None or not about <= set(words_of(listing.query)):
        return None
    names, place = listing.names_for(tool), ordinal(message)
    return names[place] if place < len(names) else None


def _follow_up(result: ShownResult, tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """Returns the tool that opens the things a result lists: it shares a noun and needs only a name."""
    nouns = _tool_words(result.tool) - VERBS
    fitting = [tool for tool in tools if tool.opens and tool.name != result.tool and nouns & tool.words]
    return min(fitting, key=lambda tool: ("read" not in tool.words, tool.name), default=None)


def _correspondent(message: str, newest_first: Sequence[ShownResult]) -> str | None:
    """Returns whom a reply goes to: the first address in the newest result that has one."""
    texts = (orjson.dumps(result.value).decode() for result in newest_first if "reply" in concepts(message))
    return next((found.group() for text in texts if (found := _ADDRESS.search(text))), None)


def query_of(message: str, tool: OfferedTool) -> str:
    """Returns what a request quotes, or what is left of it without the tool's own words and small ones."""
    quoted = _QUOTED.search(message)
    return quoted.group(1).strip() if quoted else strip_words(message, VERBS | tool.words)


def _present(result: ShownResult, tools: Sequence[OfferedTool], language: str) -> str:
    """Returns what a fresh result says, and an offer if there is a next step."""
    value = result.value
    if isinstance(value, dict) and value.get("status") == "failed" and "error" in value:
        return sentence(language, "failed", error=value["error"])
    items = _items(value)
    if items is None:
        return _text_of(value, language)
    total = value["total"] if isinstance(value, dict) and type(value.get("total")) is int else 0
    noun = "email" if "email" in _tool_words(result.tool) else "thing"
    lines = [found_sentence(language, noun=noun, number=max(total, len(items)), query=result.query)]
    lines += [f"{place}. {_item_line(item, language)}" for place, item in enumerate(items[:MAX_SHOWN_ITEMS], start=1)]
    lines += ["…"] if max(total, len(items)) > MAX_SHOWN_ITEMS else []
    tool = _follow_up(result, tools)
    names = result.names_for(tool) if tool else []
    return "\n".join([*lines, *([sentence(language, f"offer_{noun}", name=names[0])] if names else [])])


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, list):
        return value
    lists = [item for item in value.values() if isinstance(item, list)] if isinstance(value, dict) else []
    return lists[0] if len(lists) == 1 else None


def _item_line(item: Any, language: str) -> str:
    if not isinstance(item, dict):
        return str(item)[:200]
    title = next((str(item[key]) for key in ("subject", "title", "name") if item.get(key)), "")
    sender, date = str(item.get("from") or "").partition(" <")[0], str(item.get("date") or "")[:10]
    name = next((str(item[key]) for key in ("id", *URL_ARGUMENTS) if item.get(key)), "")
    shown = [part for part in (title, sentence(language, "comma").join(filter(None, (sender, date)))) if part]
    return (" — ".join(shown) + (f" ({name})" if name else "")).strip()[:300] or orjson.dumps(item).decode()[:200]


def _text_of(value: Any, language: str) -> str:
    if not isinstance(value, dict):
        return _cut(str(value))
    if {"local", "timezone"} <= value.keys():
        date, _, time = str(value["local"]).partition("T")
        return sentence(language, "time", date=date, time=time[:5], zone=value["timezone"])
    heading = [str(value[key]) for key in ("subject", "title", "from") if value.get(key)]
    heading += [str(value["date"])[:16].replace("T", " ")] if value.get("date") else []
    body = next((str(value[key]) for key in TEXT_KEYS if value.get(key)), None)
    if body is None:
        return _cut("\n".join(f"{key}: {item}" for key, item in value.items()))
    return "\n\n".join(filter(None, (" — ".join(heading), _cut(body))))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS].rstrip() + "…"


def results_in(messages: Sequence[BaseMessage]) -> list[ShownResult]:
    """Returns the results in a conversation, oldest first."""
    calls = {call["id"]: call for reply in messages if isinstance(reply, AIMessage) for call in reply.tool_calls}
    return [
        ShownResult(call["name"], call["args"], _parsed(unfenced(str(message.content))))
        for message in messages
        if isinstance(message, ToolMessage) and (call := calls.get(message.tool_call_id))
    ]


def offered_tool(function: Mapping[str, Any]) -> OfferedTool:
    """Returns a tool from its function schema."""
    schema, name = function["parameters"], function["name"]
    query = next((name for name in QUERY_ARGUMENTS if name in schema.get("properties", {})), None)
    return OfferedTool(name, _tool_words(name), tuple(schema.get("required", ())), query)


@lru_cache(maxsize=512)
def _tool_words(tool_name: str) -> frozenset[str]:
    spoken = re.sub("[_-]", " ", tool_name)
    return concepts(spoken) | {word for word in words_of(spoken) if len(word) > 3}  # noqa: PLR2004


def _parsed(content: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content


def call_to(tool: OfferedTool, args: Mapping[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[LangChainCall(name=tool.name, args=dict(args), id="offline", type="tool_call")])


def _reply(language: str, text: str) -> AIMessage:
    return AIMessage(f"{text}\n\n{sentence(language, 'offline')}")
