"""Tools as a prompt offers them, and results as it shows them: what each is about, by its words. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from segue.agent.untrusted import unfenced
from segue.offline.vocabulary import NOUNS, VERBS, concepts, names_only_a_place, stems
from segue.tools.identifiers import identifiers

URL = re.compile(r"https?://[^\s\"'<>）」»]+")
FILE = re.compile(r"(?<![\w@])[\w./~-]{0,100}\w\.[A-Za-z]\w{0,4}(?!\w)")
QUERY_ARGUMENTS = ("query", "q", "search", "keywords", "text")
URL_ARGUMENTS = ("url", "uri", "link")
NAMING_ENDINGS = ("id", "key", "sku", "code", "number", "path", "file", "filename", "file_name", "slug")
KEPT_WORDS = 4096  # of so many names and descriptions of tools: to find them takes milliseconds
_COUNTED = re.compile(r"(?:^|— )(?:\d+ of )?(\d+) \w")  # as `tools/summaries.py` says it
WEB_SEARCH = "web_search"
LOOKS = frozenset({"search", "read"})  # the verbs that change nothing


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the prompt offers it. `named` and `described` are the concepts and words of its name and description.

    `query` names the argument that says what to search for, if it has one.
    """

    name: str
    named: frozenset[str]
    described: frozenset[str]
    required: tuple[str, ...]
    query: str | None
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    about: str = ""

    @property
    def opens(self) -> str | None:
        """The name of its one required argument, if that is an id, a path or an address."""
        only = self.required[0] if len(self.required) == 1 else ""
        return only if only.casefold().endswith(NAMING_ENDINGS) or only in URL_ARGUMENTS else None

    @property
    def verbs(self) -> frozenset[str]:
        """What it does, by its name, or else by its description."""
        return (self.named & VERBS) or (self.described & VERBS)

    @property
    def only_looks(self) -> bool:
        return self.verbs <= LOOKS

    @property
    def short_name(self) -> str:
        return self.name.removeprefix("mcp_")

    def does(self, verbs: frozenset[str]) -> bool:
        """Whether it can do one of these things; if nothing is named, whether it only looks."""
        if not verbs:
            return self.only_looks
        return not self.verbs or bool(verbs & self.verbs) or (self.only_looks and not verbs.isdisjoint(LOOKS))


@dataclass(frozen=True, slots=True)
class ShownResult:
    """A result in the prompt: the tool's own answer in the turn it was made, a reference in later turns."""

    tool: str
    args: Mapping[str, Any]
    value: Any

    @property
    def query(self) -> str:
        return next((str(self.args[name]) for name in QUERY_ARGUMENTS if self.args.get(name)), "")

    @property
    def nouns(self) -> frozenset[str]:
        return name_words(self.tool) - VERBS

    @property
    def total(self) -> int:
        """How many things it says were found, also if it shows fewer; 0 if it does not say."""
        match self.value:
            case {"tool_call_id": _, "summary": str(summary)}:
                counted = _COUNTED.search(summary)
                return int(counted.group(1)) if counted else 0
            case {"total": int(total)}:
                return total
            case dict() as value:
                return max((len(item) for item in value.values() if isinstance(item, list)), default=0)
            case _:
                return len(self.value) if isinstance(self.value, list) else 0

    def names_for(self, tool: OfferedTool) -> list[str]:
        """Returns the ids or addresses in it that a tool could open, in order."""
        reference = isinstance(self.value, dict) and "tool_call_id" in self.value and "identifiers" in self.value
        found = self.value["identifiers"] if reference else identifiers(self.value)
        return [text for text in found if (URL.match(text) is not None) == (tool.opens in URL_ARGUMENTS)]


def offered_tool(function: Mapping[str, Any]) -> OfferedTool:
    schema, name = function["parameters"], function["name"]
    about = str(function.get("description") or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    properties = schema.get("properties", {})
    query = next((name for name in QUERY_ARGUMENTS if name in properties), None)
    named = name_words(name)
    described = described_words(about) - named
    return OfferedTool(name, named, described, tuple(schema.get("required", ())), query, properties, about)


@lru_cache(maxsize=KEPT_WORDS)
def name_words(tool_name: str) -> frozenset[str]:
    """Returns the concepts and words that a tool's name is made of: `mcp_listOrders` gives search and order."""
    spoken = re.sub("(?<=[a-z])(?=[A-Z])", " ", re.sub("[_.:/-]", " ", tool_name.removeprefix("mcp_")))
    return (concepts(spoken) & (VERBS | NOUNS)) | stems(spoken)


@lru_cache(maxsize=KEPT_WORDS)
def described_words(text: str) -> frozenset[str]:
    return (concepts(text) & (VERBS | NOUNS)) | stems(text)


def follow_up(
    result: ShownResult, tools: Sequence[OfferedTool], verbs: frozenset[str] = frozenset({"read"})
) -> OfferedTool | None:
    """Returns the tool that does this with the things a result lists: it shares a noun and needs only a name."""
    fitting = [
        tool
        for tool in tools
        if tool.opens and tool.name != result.tool and result.nouns & tool.named and tool.does(verbs)
    ]
    return min(fitting, key=lambda tool: (not verbs & tool.named, tool.name), default=None)


def called_by_name(message: str, tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """Returns the tool whose name is in the message, with or without its prefix."""
    lowered = message.lower()
    spoken = [
        tool
        for tool in tools
        for name in {tool.name, tool.short_name}
        if name.lower() in lowered
        and (not name.isalpha() or "use" in concepts(message))
        and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message, re.IGNORECASE | re.ASCII)
    ]
    return max(spoken, key=lambda tool: len(tool.name), default=None)


def tool_for(
    message: str, newest_first: Sequence[ShownResult], tools: Sequence[OfferedTool], *, web: bool = False
) -> OfferedTool | None:
    """Returns the tool that shares most words with the message and does what it asks for, or follows the last result.

    The web is searched only if the message says so, or if `web` is wanted and nothing else fits.
    """
    if (named := called_by_name(message, tools)) is not None:
        return named
    if URL.search(message):
        return next((tool for tool in tools if tool.opens in URL_ARGUMENTS), None)
    spoken = concepts(message)
    verbs = (spoken & VERBS) | ({"send"} if "reply" in spoken else set())
    wanted = (spoken & NOUNS) | stems(message) | ({"file"} if FILE.search(message) else set())
    verbs |= {"read"} if names_only_a_place(message) else set()
    doing = [tool for tool in tools if tool.does(verbs)]
    able = [tool for tool in doing if _may_be_meant(tool, spoken)]
    fitting = [tool for tool in able if wanted & tool.named or (wanted & tool.described and verbs & tool.verbs)]
    if not fitting and FILE.search(message):
        return None
    others = bool(spoken & NOUNS and verbs - {"search"})  # it is about things that no tool is for
    if not fitting and verbs - {"search"} and not others:
        fitting = [tool for result in newest_first if (tool := follow_up(result, doing, verbs))][:1]
    if not fitting and not others:
        alone = [tool for tool in able if verbs & tool.verbs]
        # What opens one thing among many opens what was listed, or nothing.
        fitting = alone if len(alone) == 1 and not (alone[0].opens and newest_first) else []
    if not fitting and web:
        fitting = [tool for tool in tools if tool.name == WEB_SEARCH]
    first = next((found for word in message.split() if (found := concepts(word) & VERBS)), frozenset())
    return max(fitting, key=lambda tool: _fit(tool, wanted, verbs, first), default=None)


def _may_be_meant(tool: OfferedTool, spoken: frozenset[str]) -> bool:
    """The web has to be named to be searched, and a page to be opened without its address."""
    if tool.name == WEB_SEARCH:
        return "web" in spoken
    return tool.opens not in URL_ARGUMENTS or "page" in spoken


def _fit(
    tool: OfferedTool, wanted: frozenset[str], verbs: frozenset[str], first: frozenset[str]
) -> tuple[int, bool, bool, int]:
    shared = 3 * len(wanted & tool.named) + 2 * len(verbs & tool.verbs) + len(wanted & tool.described)
    return shared, bool(first & tool.verbs), tool.query is not None, -len(tool.named - wanted - verbs)


def results_in(messages: Sequence[BaseMessage]) -> list[ShownResult]:
    """Returns the results in a conversation, oldest first."""
    calls = {call["id"]: call for reply in messages if isinstance(reply, AIMessage) for call in reply.tool_calls}
    return [
        ShownResult(call["name"], call["args"], _parsed(unfenced(str(message.content))))
        for message in messages
        if isinstance(message, ToolMessage) and (call := calls.get(message.tool_call_id))
    ]


def _parsed(content: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
