"""The built-in model for when no provider is configured: deterministic, small, and it says so.

It picks tools by their words, fills ids from earlier results and asks before it goes on. It stands where a provider's
model would, behind LangChain's interface; its vocabulary and its sentences are `offline.toml`.
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from backend.plans.acknowledgement import classify
from backend.tools.payload import make_payload
from backend.tools.summaries import identifiers, summarise

_VOCABULARY: dict[str, Any] = tomllib.loads(files("backend.agent").joinpath("offline.toml").read_text("utf-8"))
_CONCEPTS: Mapping[str, list[str]] = _VOCABULARY["concepts"]
_FILLER = frozenset(_VOCABULARY["filler"]["words"])
_SAY: Mapping[str, Mapping[str, Any]] = _VOCABULARY["say"]
_ID = re.compile(r"\b[a-z]{2,12}[-_][0-9a-f]{4,}\b", re.IGNORECASE)
_URL = re.compile(r"https?://\S+")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HAN = re.compile("[\u4e00-\u9fff]")
_ARABIC = re.compile("[\u0600-\u06ff]")
MAX_SHOWN_ITEMS = 5
MAX_SHOWN_CHARS = 1500
QUERY_ARGUMENTS = ("query", "q", "search")
TEXT_KEYS = ("body", "text", "content", "local")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """`required` names the arguments it cannot do without; for a search that is what to search for."""

    name: str
    words: frozenset[str]
    required: tuple[str, ...]

    @property
    def id_argument(self) -> str | None:
        """Its one required argument, where that is an id."""
        only = self.required[0] if len(self.required) == 1 else ""
        return only if only.endswith("id") else None


@dataclass(frozen=True, slots=True)
class Result:
    """A result as the model sees it: the tool's own answer in the turn it was made, a reference afterwards."""

    tool: str
    value: Any

    @property
    def is_reference(self) -> bool:
        return isinstance(self.value, dict) and "tool_call_id" in self.value and "identifiers" in self.value

    @property
    def ids(self) -> list[str]:
        found = (
            self.value["identifiers"] if self.is_reference else identifiers(make_payload(self.value, max_bytes=10**6))
        )
        return [text for text in found if not _URL.match(text)]


class OfflineModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (LangChain's signature)
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 (the same)
        **kwargs: Any,
    ) -> ChatResult:
        reply = answer(messages, [_offered(tool) for tool in kwargs.get("tools", [])])
        reply.response_metadata["finish_reason"] = "tool_calls" if reply.tool_calls else "stop"
        return ChatResult(generations=[ChatGeneration(message=reply)])


def answer(messages: Sequence[BaseMessage], tools: Sequence[OfferedTool]) -> AIMessage:
    said = [str(message.content) for message in messages if isinstance(message, HumanMessage)]
    language = language_of(said)
    fresh = list(_fresh_results(messages))
    if fresh:
        return _say(language, "\n\n".join(_present(result, tools, language) for result in fresh))
    earlier = list(_results(messages))[::-1]
    message = said[-1] if said else ""
    match classify(message).verdict:
        case "confirm":
            return _carry_on(earlier, tools, language)
        case "reject":
            return _say(language, _SAY[language]["declined"])
        case _:
            return _act(message, earlier, tools, language)


def _carry_on(earlier: Sequence[Result], tools: Sequence[OfferedTool], language: str) -> AIMessage:
    """A yes: open the first thing the newest result found."""
    for result in earlier:
        follow_up = _follow_up(result, tools)
        if follow_up is not None and follow_up.id_argument and result.ids:
            return _call(follow_up, {follow_up.id_argument: result.ids[0]})
    return _say(language, _SAY[language]["nothing_waiting"])


def _act(message: str, earlier: Sequence[Result], tools: Sequence[OfferedTool], language: str) -> AIMessage:
    tool = _best_tool(message, tools)
    if tool is None:
        names = ", ".join(sorted(tool.name for tool in tools))
        return _say(language, _SAY[language]["idle"].format(tools=names))
    filled = {argument: _fill(argument, message, earlier) for argument in tool.required}
    missing = [argument for argument, value in filled.items() if not value]
    if missing:
        return _say(language, _SAY[language]["missing"].format(tool=tool.name, arguments=", ".join(missing)))
    return _call(tool, filled)


def _best_tool(message: str, tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that shares most concepts with the message; one shared concept is enough only if it is no mere verb."""
    wanted = concepts(message)
    scored = [(len(wanted & tool.words), -len(tool.words - wanted), tool) for tool in tools]
    score, _, best = max(scored, key=lambda entry: entry[:2], default=(0, 0, None))
    alone = best is not None and score == 1 and not (wanted & best.words) - {"search", "read", "send"}
    return None if score == 0 or alone else best


def _follow_up(result: Result, tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that opens one of the things a result lists: it shares a noun with it and needs just an id."""
    nouns = _words_of(result.tool) - {"search", "read", "send"}
    fitting = [tool for tool in tools if tool.id_argument and tool.name != result.tool and nouns & tool.words]
    return min(fitting, key=lambda tool: ("read" not in tool.words, tool.name), default=None)


def _fill(argument: str, message: str, earlier: Sequence[Result]) -> str | None:
    if argument.endswith("id"):
        named = _ID.search(message)
        known = next((result.ids for result in earlier if result.ids), [])
        return named.group() if named else known[min(_ordinal(message), len(known) - 1)] if known else None
    if argument in ("url", "uri", "link"):
        found = _URL.search(message)
        return found.group() if found else None
    if argument in ("to", "recipient", "address"):
        found = _ADDRESS.search(message)
        return found.group() if found else _sender(earlier)
    return query_of(message) or None


def query_of(message: str) -> str:
    """What is left of a request without its verbs, nouns of tools and small words."""
    known = {word for words in _CONCEPTS.values() for word in words}
    text = message
    for word in sorted((word for word in known | _FILLER if _HAN.search(word)), key=len, reverse=True):
        text = text.replace(word, " ")
    plain = {_plain(word) for word in known | _FILLER}
    return " ".join(word for word in re.findall(r"[\w@.+-]+", text) if _plain(word) not in plain).strip(".")


def concepts(text: str) -> frozenset[str]:
    words = {_plain(word) for word in re.findall(r"\w+", text)}
    return frozenset(
        concept
        for concept, spoken in _CONCEPTS.items()
        if any(word in text if _HAN.search(word) else _plain(word) in words for word in spoken)
    )


def language_of(said: Sequence[str]) -> str:
    """Of the newest message that shows one; English where none does."""
    for text in reversed(said):
        if _HAN.search(text):
            return "zh"
        if _ARABIC.search(text):
            return "ar"
        words = {_plain(word) for word in re.findall(r"\w+", text)}
        scores = {language: len(words & set(_SAY[language]["words"])) for language in ("en", "it")}
        if any(scores.values()):
            return max(scores, key=lambda language: scores[language])
    return "en"


def _present(result: Result, tools: Sequence[OfferedTool], language: str) -> str:
    """What a fresh result says, and an offer where there is a next step."""
    say, value = _SAY[language], result.value
    if isinstance(value, dict) and value.get("status") == "failed":
        return str(say["failed"].format(error=value.get("error")))
    items = _items(value)
    if items is None:
        return _text_of(value)
    if not items:
        return str(say["nothing_found"])
    summary = summarise(result.tool, make_payload(value, max_bytes=10**6), None).partition(":")[0]
    lines = [say["found"].format(summary=summary), *(f"- {_item_line(item)}" for item in items[:MAX_SHOWN_ITEMS])]
    if _follow_up(result, tools) is not None and result.ids:
        lines.append(say["offer"].format(id=result.ids[0]))
    return "\n".join(lines)


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, list):
        return value
    lists = [item for item in value.values() if isinstance(item, list)] if isinstance(value, dict) else []
    return lists[0] if len(lists) == 1 else None


def _item_line(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)[:200]
    shown = [str(item[key]) for key in ("subject", "title", "name", "from", "url", "date", "id") if item.get(key)]
    return " — ".join(shown)[:300] if shown else orjson.dumps(item).decode()[:200]


def _text_of(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)[:MAX_SHOWN_CHARS]
    heading = [str(value[key]) for key in ("subject", "title", "from", "date") if value.get(key)]
    body = next((str(value[key]) for key in TEXT_KEYS if value.get(key)), None)
    if body is None:
        return orjson.dumps(value).decode()[:MAX_SHOWN_CHARS]
    return "\n\n".join(part for part in (" — ".join(heading), body[:MAX_SHOWN_CHARS]) if part)


def _fresh_results(messages: Sequence[BaseMessage]) -> Iterator[Result]:
    """The results that stand at the end of the conversation, unanswered."""
    count = next((n for n, message in enumerate(reversed(messages)) if not isinstance(message, ToolMessage)), 0)
    return _results(messages, last=count) if count else iter(())


def _results(messages: Sequence[BaseMessage], *, last: int | None = None) -> Iterator[Result]:
    names = {
        call["id"]: call["name"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }
    for message in messages[-last:] if last else messages:
        if isinstance(message, ToolMessage):
            yield Result(names.get(message.tool_call_id, ""), _parsed(str(message.content)))


def _sender(earlier: Sequence[Result]) -> str | None:
    for result in earlier:
        found = _ADDRESS.search(orjson.dumps(result.value).decode())
        if found:
            return found.group()
    return None


def _ordinal(message: str) -> int:
    words = {_plain(word) for word in re.findall(r"\w+", message)}
    for index, spoken in _VOCABULARY["ordinals"].items():
        if any(word in message if _HAN.search(word) else _plain(word) in words for word in spoken):
            return int(index)
    return 0


def _offered(tool: Mapping[str, Any]) -> OfferedTool:
    function = tool["function"]
    schema = function["parameters"]
    properties = schema.get("properties", {})
    return OfferedTool(
        name=function["name"],
        words=_words_of(function["name"]),
        required=tuple(schema.get("required") or [name for name in QUERY_ARGUMENTS if name in properties]),
    )


def _words_of(tool_name: str) -> frozenset[str]:
    spoken = tool_name.replace("_", " ").replace("-", " ")
    return concepts(spoken) | {_plain(word) for word in spoken.split() if len(word) > 3}  # noqa: PLR2004


def _parsed(content: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content


def _call(tool: OfferedTool, args: Mapping[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[LangChainCall(name=tool.name, args=dict(args), id="offline", type="tool_call")])


def _say(language: str, text: str) -> AIMessage:
    return AIMessage(f"{text}\n\n{_SAY[language]['offline']}")


def _plain(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))
