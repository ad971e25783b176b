"""The words and sentences of the offline model in five languages: `offline.toml`, `language/actions.toml`. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import product
from typing import Any, Self

import orjson
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from segue.language.detect_language import detect_language
from segue.language.lexicon import load_toml
from segue.language.utterance import fold
from segue.models.untrusted import unfenced
from segue.plans.acknowledgement import conversation_language
from segue.plans.asked_words import ACTIONS
from segue.tools.summaries import identifiers

URL = re.compile(r"https?://[^\s\"'<>）」»]+")
FILE = re.compile(r"(?<![\w@])[\w./~-]{0,100}\w\.[A-Za-z]\w{0,4}(?!\w)")
QUERY_ARGUMENTS = ("query", "q", "search", "keywords", "text")
URL_ARGUMENTS = ("url", "uri", "link")
NAMING_ENDINGS = ("id", "key", "sku", "code", "number", "path", "file", "filename", "file_name", "slug")
KEPT_WORDS = 4096  # of so many names and descriptions of tools: to find them takes milliseconds
_COUNTED = re.compile(r"(?:^|— )(?:\d+ of )?(\d+) \w")  # as `tools/summaries.py` says it
WEB_SEARCH = "web_search"
READ = frozenset({"read"})
LOOKS = READ | {"search"}  # the verbs that change nothing
_HAN = re.compile("[\u4e00-\u9fff]")
JOINER = re.compile(  # a comma or an "and"; what follows is a step of its own if it begins with a verb
    r"\s*[,，、;；،]\s*(?:(?:and|e|ed|并且?)\s*)?|\s+(?:and|e|ed|y|et|und)\s+|并且?|\s+و(?=\w)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Synonyms:
    """Words that mean one thing. Chinese ones are patterns found anywhere, all others are whole words or phrases."""

    words: frozenset[str]
    phrases: tuple[str, ...]
    han: str

    @classmethod
    def of(cls, listed: Sequence[str]) -> Self:
        han = sorted(filter(_HAN.search, listed), key=len, reverse=True)
        spaced = [fold(word) for word in listed if not _HAN.search(word)]
        phrases = tuple(f" {word} " for word in spaced if " " in word)
        return cls(frozenset(word for word in spaced if " " not in word), phrases, "|".join(han))

    def are_in(self, text: str, words: Iterable[str]) -> bool:
        """Whether one of them is in a text; `words` are its `words_of`."""
        if not self.words.isdisjoint(words) or (self.han and re.search(self.han, text)):
            return True
        line = f" {' '.join(words)} " if self.phrases else ""
        return any(phrase in line for phrase in self.phrases)

    def begin(self, word: str) -> bool:
        return fold(word) in self.words or bool(self.han and re.match(self.han, word))


def words_of(text: str) -> list[str]:
    """Returns the folded words of a text; Chinese has no spaces and comes as one."""
    return [fold(word) for word in re.findall(r"\w+", text)]


_VOCABULARY: Mapping[str, Any] = load_toml("offline.toml", package="segue.around.offline")
SENTENCES: Mapping[str, Mapping[str, Any]] = _VOCABULARY["say"]
_AMBIGUOUS = frozenset(map(fold, _VOCABULARY["ambiguous"]["words"]))
VERBS = frozenset(_VOCABULARY["verbs"])
# What is asked of a thing that was read, and the keys that may have it.
DETAILS: Mapping[str, Sequence[str]] = _VOCABULARY["details"]
NOUNS = frozenset(_VOCABULARY["nouns"])


def _words_for(concept: str) -> Iterator[str]:
    """Returns the words of `actions.toml` that a concept shares; a single Han character would mean too much."""
    for lists, action in product(map(ACTIONS.shipped.__getitem__, SENTENCES), _VOCABULARY["actions"].get(concept, ())):
        for form in lists.forms(action):
            word = form.replace(" ", "") if _HAN.search(form) else form
            if len(word) > 1 and word not in _AMBIGUOUS:
                yield word


@cache  # `actions.toml` is not read before a model answers
def _concepts() -> dict[str, Synonyms]:
    return {
        concept: Synonyms.of([*listed, *_words_for(concept)])
        for group in ("verbs", "nouns", "aspects")
        for concept, listed in _VOCABULARY[group].items()
    }


_ORDINALS = {int(place): Synonyms.of(listed) for place, listed in _VOCABULARY["ordinals"].items()}
_THEN: Sequence[str] = _VOCABULARY["sequence"]["words"]
_CUTS = (each if _HAN.search(each) else rf"(?:,\s*)?(?<!\w){re.escape(each)}(?!\w)" for each in _THEN)
_SEQUENCE = re.compile("|".join(_CUTS), re.IGNORECASE)
_FILLER = Synonyms.of(_VOCABULARY["filler"]["words"])


def _places() -> tuple[Synonyms, ...]:
    return _concepts()["oldest"], *_ORDINALS.values()


def concepts(text: str) -> frozenset[str]:
    """Returns the concepts of `offline.toml` that a text speaks of."""
    words = words_of(text)
    return frozenset(concept for concept, synonyms in _concepts().items() if synonyms.are_in(text, words))


def stems(text: str) -> frozenset[str]:
    """Returns the telling words of a text without a plural s, to compare with the names of tools."""
    kept = words_of(strip_words(text, VERBS))
    return frozenset(re.sub(r"(?<=[^s])s$", "", re.sub("ies$", "y", word)) for word in kept if len(word) > 3)  # noqa: PLR2004


def ordinal(text: str) -> int:
    """Returns the place in a list that a text speaks of, from 0; 0 if it speaks of none."""
    words = words_of(text)
    return next((place for place, synonyms in _ORDINALS.items() if synonyms.are_in(text, words)), 0)


def names_only_a_place(text: str) -> bool:
    """Whether a text says which one of a list and nothing else: `and the second?`."""
    words = words_of(text)
    return any(each.are_in(text, words) for each in _places()) and not strip_words(text, ())


def is_order(text: str) -> bool:
    """Returns whether a text begins with something to be done: `please call my wife`, `voglio leggere …`."""
    first = next(iter(re.findall(r"\w+", _without(text, (_FILLER,)))), "")
    return _concepts()["ask"].begin(text.strip()) or any(_concepts()[verb].begin(first) for verb in VERBS)


def looks_only(text: str) -> bool:
    """Returns whether a text is an order to look at something: `show me the new mails`."""
    verbs = concepts(strip_words(text, {"fresh"})) & VERBS
    return is_order(text) and bool(verbs) and verbs <= LOOKS


def strip_words(text: str, dropped: Iterable[str]) -> str:
    """Returns a text without the words of these concepts, ordinals and small words."""
    named = (_concepts()[concept] for concept in sorted(dropped) if concept in _concepts())
    return _without(text, (_FILLER, *_places(), *named))


def _without(text: str, unwanted: Sequence[Synonyms]) -> str:
    for pattern in sorted((part for each in unwanted for part in each.han.split("|") if part), key=len, reverse=True):
        text = re.sub(pattern, " ", text)
    for phrase in (phrase.strip() for each in unwanted for phrase in each.phrases):
        text = re.sub(rf"(?<!\w){phrase}(?!\w)", " ", text, flags=re.IGNORECASE)
    words = frozenset().union(*(each.words for each in unwanted))
    kept = (word.strip("._-+") for word in re.findall(r"[\w@.+-]+", text))
    return " ".join(word for word in kept if word and fold(word) not in words)


def split_steps(text: str) -> list[str]:
    """Returns the parts of a request, cut at every "then", and at every "and" and comma with a verb after it."""
    parts = []
    for piece in _SEQUENCE.split(text):
        start = 0
        for joiner in JOINER.finditer(piece):
            if is_order(piece[joiner.end() :]):
                parts.append(piece[start : joiner.start()])
                start = joiner.end()
        parts.append(piece[start:])
    return [part for part in (each.strip(" ,.;:、，。；،") for each in parts) if part]


def reply_language(messages: Sequence[str]) -> str:
    """Returns the language of the newest message that shows one of `offline.toml`'s; `en` if none does."""
    spoken = (text for text in reversed(messages) if detect_language(text, default="") in SENTENCES)
    return conversation_language(spoken) or "en"


def sentence(language: str, key: str, **values: object) -> str:
    """Returns a sentence of `offline.toml` with its values filled in."""
    return str(SENTENCES[language][key]).format(**values)


def found_sentence(language: str, *, noun: str, number: int, query: str) -> str:
    """Returns the sentence that says how many things were found."""
    about = sentence(language, "about", query=query) if query else ""
    if not number:
        return sentence(language, "nothing_found", about=about)
    forms: Sequence[str] = SENTENCES[language]["nouns"].get(noun, SENTENCES[language]["nouns"]["thing"])
    # The forms are for one, two, a few (as Arabic counts) and many; a language with fewer has its last for the rest.
    place = number - 1 if number <= 2 else 2 if 3 <= number % 100 <= 10 else 3  # noqa: PLR2004 (Arabic grammar)
    return sentence(language, "found", things=forms[min(place, len(forms) - 1)].format(n=number), about=about)


# --- what is wanted later ---

_APART = r"(?<![^\W\d_\u3400-\u9fff])(?:{})(?![^\W\d_\u3400-\u9fff]|['’]\w)"  # Chinese has no spaces
_GROUP_NAME = re.compile(r"\?P<\w+>")
_WAYS = ("every", "days", "weekdays", "times", "parts", "ahead")  # to say when


class LaterWords:
    """The patterns of a language in `[later]`; each is compiled when it is first needed, since all take a second."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        self._rows: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    @cached_property
    def when(self) -> re.Pattern[str]:
        """Finds words in a row that say nothing but when."""
        forms = (f"(?:{_GROUP_NAME.sub('?:', each)})" for kind in _WAYS for _, each in self._written(kind))
        way, links = _APART.format("|".join(forms)), self.table["links"]
        return re.compile(rf"{way}(?:[\s,،，]*(?:{links})?[\s,،，]*{way})*", re.IGNORECASE)

    def found(self, kind: str, text: str) -> tuple[str, re.Match[str]] | None:
        """Returns the meaning of the first row of a kind that is in a text, and where it is."""
        if kind not in self._rows:
            form, rows = _APART if kind in _WAYS else "{}", self._written(kind)
            self._rows[kind] = [(what, re.compile(form.format(each), re.IGNORECASE)) for what, each in rows]
        return next(((meaning, match) for meaning, each in self._rows[kind] if (match := each.search(text))), None)

    def number(self, text: str) -> int:
        return int(text if text.isdecimal() else self.table["numbers"][text.casefold()])

    def _written(self, kind: str) -> list[tuple[str, str]]:
        if kind not in _WAYS:
            return [("", self.table[kind])]
        names = sorted(map(re.escape, self.table["numbers"]), key=len, reverse=True)
        number = "|".join([r"(?<!\d)\d{1,3}(?!\d)", *names])
        return [(meaning, each.replace("{number}", number)) for meaning, each in self.table[kind].items()]


LATER = {language: LaterWords(table) for language, table in _VOCABULARY["later"].items()}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the prompt offers it."""

    name: str
    about: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    query: str | None  # the argument that says what to search for, if it has one
    named: frozenset[str]  # concepts and words of its name
    described: frozenset[str]  # those of its description

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

    @property
    def items(self) -> list[Any] | None:
        """What it lists; None if it is one thing, which may have a list among what it says of itself."""
        if isinstance(self.value, list):
            return self.value
        members = list(self.value.values()) if isinstance(self.value, dict) else []
        lists = [item for item in members if isinstance(item, list)]
        return lists[0] if len(lists) == 1 and sum(isinstance(item, str) for item in members) <= 1 else None

    @property
    def has_failed(self) -> bool:
        return isinstance(self.value, dict) and self.value.get("status") == "failed" and "error" in self.value

    @property
    def reference(self) -> str | None:
        """The id by which its whole is loaded, if it is not shown whole."""
        is_reference = isinstance(self.value, dict) and {"tool_call_id", "identifiers"} <= self.value.keys()
        return str(self.value["tool_call_id"]) if is_reference else None

    def names_for(self, tool: OfferedTool) -> list[str]:
        """Returns the ids or addresses in it that a tool could open, in order."""
        found = self.value["identifiers"] if self.reference else identifiers(self.value)
        return [text for text in found if (URL.match(text) is not None) == (tool.opens in URL_ARGUMENTS)]


def offered_tool(function: Mapping[str, Any]) -> OfferedTool:
    schema, named = function["parameters"], name_words(function["name"])
    about = str(function.get("description") or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    properties, required = schema.get("properties", {}), tuple(schema.get("required", ()))
    query = next((name for name in QUERY_ARGUMENTS if name in properties), None)
    return OfferedTool(function["name"], about, properties, required, query, named, described_words(about) - named)


@lru_cache(maxsize=KEPT_WORDS)
def name_words(tool_name: str) -> frozenset[str]:
    """Returns the concepts and words that a tool's name is made of: `mcp_listOrders` gives search and order."""
    return described_words(re.sub("(?<=[a-z])(?=[A-Z])", " ", re.sub("[_.:/-]", " ", tool_name.removeprefix("mcp_"))))


@lru_cache(maxsize=KEPT_WORDS)
def described_words(text: str) -> frozenset[str]:
    return (concepts(text) & (VERBS | NOUNS)) | stems(text)


def follow_up(result: ShownResult, tools: Sequence[OfferedTool], verbs: frozenset[str] = READ) -> OfferedTool | None:
    """Returns the tool that does this with the things a result lists: it shares a noun and needs only a name."""
    able = (tool for tool in tools if tool.opens and tool.name != result.tool and tool.does(verbs))
    fitting = [tool for tool in able if result.nouns & tool.named]
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
    """Returns the tool that shares most words with the message and does what it asks for, or follows the last result;
    the one that searches the web only if the message says so, or if `web` is wanted and nothing else fits.
    """
    if (named := called_by_name(message, tools)) is not None:
        return named
    if URL.search(message):
        return next((tool for tool in tools if tool.opens in URL_ARGUMENTS), None)
    spoken = concepts(message)
    verbs = (spoken & VERBS) | ({"send"} if "reply" in spoken else set())
    subjects = (spoken & NOUNS) | stems(message) | ({"file"} if FILE.search(message) else set())
    verbs |= {"read"} if names_only_a_place(message) else set()
    doing = [tool for tool in tools if tool.does(verbs)]
    able = [  # the web has to be named to be searched, and a page to be opened without its address
        tool
        for tool in doing
        if ("web" in spoken if tool.name == WEB_SEARCH else tool.opens not in URL_ARGUMENTS or "page" in spoken)
    ]
    fitting = [tool for tool in able if subjects & tool.named or (subjects & tool.described and verbs & tool.verbs)]
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
    return max(fitting, key=lambda tool: _fit(tool, subjects, verbs, first), default=None)


def _fit(
    tool: OfferedTool, subjects: frozenset[str], verbs: frozenset[str], first: frozenset[str]
) -> tuple[int, bool, bool, int]:
    shared = 3 * len(subjects & tool.named) + 2 * len(verbs & tool.verbs) + len(subjects & tool.described)
    return shared, bool(first & tool.verbs), tool.query is not None, -len(tool.named - subjects - verbs)


def results_in(messages: Sequence[BaseMessage]) -> list[ShownResult]:
    """Returns the results in a conversation, oldest first."""
    calls = {call["id"]: call for reply in messages if isinstance(reply, AIMessage) for call in reply.tool_calls}
    results = []
    for message in messages:
        if isinstance(message, ToolMessage) and (call := calls.get(message.tool_call_id)):
            value: Any = unfenced(str(message.content))
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
            results.append(ShownResult(call["name"], call["args"], value))
    return results
