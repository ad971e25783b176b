"""Which tools the requests of a session have, if a turn may use more than LLM_MAX_TOOLS.

They are chosen for the first message, and their array stays: providers cache a request from its beginning. Later tools
stand behind the history, in a message's notes or in what `find_tools` returns, and are called by `call_tool`. They
leave the view with that message; what the session uses comes again. A choice is stored before a request has it.
"""

import asyncio
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, chain
from operator import mul
from typing import Any, Final, Protocol

import orjson

from segue.agent.agent_settings import AgentSettings
from segue.agent.prompts import TEXTS
from segue.domain.tool import Tool, ToolChoice, ToolContext, ToolRetry, ToolSpec
from segue.domain.user_request import PAGE
from segue.memory.fact_cues import search_words
from segue.memory.history_window import CountTokens
from segue.memory.long_term import Embeddings, fused
from segue.models.tool_schemas import CALL_TOOL, MAX_TOOLS, shown_schema
from segue.plans.asked_words import english_words, tool_words
from segue.tools.availability import ToolGuard
from segue.tools.builtin import defined
from segue.tools.summaries import shortened
from segue.tools.tool_health import is_blocked
from segue.users.usage import Payer
from segue.watch import end_tasks

IN_NAME, IN_TEXT, IN_ARGUMENT, IN_ARGUMENT_TEXT = 3.0, 1.0, 0.5, 0.25
ACTION, THING = 0.15, 0.25  # of a word that the text itself has; English has many words for one action
SATURATION, LENGTH = 1.2, 0.3  # BM25's k1 and b
BEST, SHARED_WORDS, SHARED = 5, 30, 0.5  # the tools whose words are shared, how many words, and their weight together

MAX_INDEXES = 8  # catalogues of agents, and before and after a server's tools change
MAX_EMBEDDED_CHARS = 1000
EMBEDDED_AT_ONCE = 64

FOUND: Final = 10
LATER, SURE = 1 / 4, 1 / 20  # of LLM_MAX_TOOLS: what a later message may bring up to MOST_LATER, and up to GROWN
MOST_LATER, GROWN = 3 / 2, 2  # times LLM_MAX_TOOLS: what is in view, the array included
FIRST_TOKENS, GROWN_TOKENS = 1 / 3, 1 / 2  # of the budget
MAX_FOUND_CHARS: Final = 6000  # of definitions in what is found; a fresh result is cut at 20 kB
MAX_DESCRIPTION_CHARS: Final = 1024
MAX_SCHEMA_CHARS: Final = 4000
MAX_KNOWN: Final = 5000

_NAMES: Final = re.compile(r"[\w:./-]*\w")
_BUILTIN: Final = "builtin"
STEM_LETTERS: Final = 7
_ENDING: Final = re.compile(r"(?<=...)[aeios]+$")  # `emails`, `fatture` and `fattura` lose theirs


def asked_words(text: str) -> dict[str, float]:
    """Returns the words to look for: the text's telling ones, and English ones for the actions and things it names."""
    actions, things = english_words(text)
    own = dict.fromkeys(_stems(search_words(text).split()), 1.0)
    return dict.fromkeys(_stems(actions), ACTION) | dict.fromkeys(_stems(things), THING) | own


class ToolIndex:
    """Finds the tools that a text is about, by BM25: a word counts for more the fewer tools have it, and in a tool's
    name more than elsewhere. A second look with the words that the best tools share finds what belongs to them: who
    moves a file may have to change the folder first. To make one takes a tenth of a millisecond for each tool.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._names = [spec.name for spec in specs]
        self._words = [_words_of(spec) for spec in specs]
        lengths = [sum(words.values()) for words in self._words]
        mean = sum(lengths) / max(len(lengths), 1)
        counts, all_of = Counter(chain.from_iterable(self._words)), len(specs)
        self._rarity = {word: math.log(1 + (all_of - count + 0.5) / (count + 0.5)) for word, count in counts.items()}
        self._entries: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, (words, length) in enumerate(zip(self._words, lengths, strict=True)):
            bound = SATURATION * (1 - LENGTH + LENGTH * length / mean) if mean else 1
            for word, weight in words.items():
                self._entries[word].append((place, self._rarity[word] * weight * (SATURATION + 1) / (weight + bound)))

    def rank(self, query: Mapping[str, float]) -> list[str]:
        """Returns the tools that share a word with the query or with the best of those, best first."""
        scores = self._scores(query)
        if not scores:
            return []
        shared: Counter[str] = Counter()  # the words that tell the best tools from the others
        for place in self._sorted(scores)[:BEST]:
            for word, weight in self._words[place].items():
                shared[word] += min(weight, 2.0) * self._rarity[word] * scores[place]  # type: ignore[assignment]
        words = sorted(shared, key=lambda word: (-shared[word], word))[:SHARED_WORDS]
        asked_too = {word: SHARED * shared[word] / shared[words[0]] for word in words}
        for place, score in self._scores(asked_too).items():
            scores[place] += score
        return [self._names[place] for place in self._sorted(scores)]

    def _scores(self, query: Mapping[str, float]) -> dict[int, float]:
        scores: dict[int, float] = defaultdict(float)
        for word, weight in query.items():
            for place, score in self._entries.get(word, ()):
                scores[place] += weight * score
        return scores

    def _sorted(self, scores: Mapping[int, float]) -> list[int]:
        return sorted(scores, key=lambda place: (-scores[place], self._names[place]))


def _words_of(spec: ToolSpec) -> dict[str, float]:
    """Returns the stems of a tool's texts with their weights; the name of its server counts as a text."""
    found: dict[str, float] = defaultdict(float)
    server = tool_words(spec.source.partition(":")[2])
    parts: list[tuple[float, Sequence[str]]] = [(IN_NAME, tool_words(spec.name)), (IN_TEXT, server)]
    parts += [(IN_TEXT, search_words(text).split()) for text in (spec.title, spec.description) if text]
    properties = spec.input_schema.get("properties")
    arguments: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    schemas = (each for each in arguments.values() if isinstance(each, Mapping))
    described = " ".join(str(each["description"]) for each in schemas if each.get("description"))
    parts += [(IN_ARGUMENT, tool_words(" ".join(arguments))), (IN_ARGUMENT_TEXT, search_words(described).split())]
    for weight, words in parts:
        for stem in _stems(words):
            found[stem] += weight
    return dict(found)


def _stems(words: Iterable[str]) -> list[str]:
    return [_ENDING.sub("", word)[:STEM_LETTERS] for word in words]


class Embed(Protocol):
    """Returns a vector for each text; None if no embedder is configured or it does not answer. `payer` is charged."""

    def __call__(
        self, texts: Sequence[str], *, payer: Payer | None, urgent: bool = False
    ) -> Awaitable[Embeddings | None]: ...


class ToolSearch:
    """Ranks tools for a text, by words and, once they have embeddings, by meaning. One for a process."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._indexes: dict[tuple[int, ...], tuple[Sequence[ToolSpec], ToolIndex]] = {}
        self._vectors: dict[str, array[float]] = {}
        self._embedding: asyncio.Task[None] | None = None

    async def rank(self, specs: Sequence[ToolSpec], text: str, *, payer: Payer) -> list[str]:
        """Returns names of tools, best first. One that is not about the text, which is paid for, may be missing."""
        by_words = await asyncio.to_thread(self._by_words, specs, text)
        query = await self._embed([text[:MAX_EMBEDDED_CHARS]], payer=payer, urgent=True) if text.strip() else None
        if query is None:
            return by_words
        vectors = {spec.name: vector for spec in specs if (vector := self._vectors.get(_embedded_text(spec)))}
        if len(vectors) < len(specs) and (self._embedding is None or self._embedding.done()):
            self._embedding = asyncio.create_task(self._embed_missing(specs))
        return fused(by_words, await asyncio.to_thread(nearest, vectors, query[0]))

    async def close(self) -> None:
        await end_tasks(self._embedding)

    def _by_words(self, specs: Sequence[ToolSpec], text: str) -> list[str]:
        key = tuple(map(id, specs))  # the entry keeps them, so no other can have the id of one
        _, index = self._indexes.get(key) or (specs, None)
        if index is None:
            index = ToolIndex(specs)
            if len(self._indexes) >= MAX_INDEXES:
                self._indexes.clear()
            self._indexes[key] = specs, index
        return index.rank(asked_words(text))

    async def _embed_missing(self, specs: Sequence[ToolSpec]) -> None:
        texts = [text for text in dict.fromkeys(map(_embedded_text, specs)) if text not in self._vectors]
        for start in range(0, len(texts), EMBEDDED_AT_ONCE):
            batch = texts[start : start + EMBEDDED_AT_ONCE]
            if (found := await self._embed(batch, payer=None)) is None:
                return
            self._vectors.update({text: array("f", vector) for text, vector in zip(batch, found, strict=True)})


def nearest(vectors: Mapping[str, Sequence[float]], query: Sequence[float]) -> list[str]:
    """Returns the names by the cosine of their vectors with the query's; another model's may be of another length."""
    found: dict[str, float] = {
        name: sum(map(mul, vector, query)) / (math.hypot(*vector) * math.hypot(*query) or 1)
        for name, vector in vectors.items()
        if len(vector) == len(query)
    }
    return sorted(found, key=lambda name: (-found[name], name))


def _embedded_text(spec: ToolSpec) -> str:
    return f"{' '.join(tool_words(spec.name))}: {spec.description}"[:MAX_EMBEDDED_CHARS]


FIND_TOOLS: Final = defined("find_tools")
CountToolTokens = Callable[[Iterable[ToolSpec]], int]


@dataclass(frozen=True, slots=True)
class ToolNeeds:
    """What a turn needs tools for."""

    message: str  # the turn's
    user_texts: Sequence[str] = ()  # earlier messages of the user
    used: Iterable[str] = ()  # tools called, newest first, and planned
    turns: Collection[int] = ()  # those in view, by their seqs


class ToolTokens:
    """Counts the tokens that tools take in a request, those of each tool once. `count` gives those of a text."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._known: dict[str, tuple[ToolSpec, int]] = {}

    def __call__(self, specs: Iterable[ToolSpec]) -> int:
        total = 0
        for spec in specs:
            known = self._known.get(spec.name)
            if known is None or known[0] is not spec:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                sent = orjson.dumps([spec.name, spec.description, spec.input_schema]).decode()
                known = self._known[spec.name] = spec, self._count(sent)
            total += known[1]
        return total


@dataclass(eq=False, repr=False)
class ToolChooser:
    """Chooses for the turn `seq`; `save` stores that. `_names` are in its array, `_later` came since, by their turn."""

    rank: Callable[[Sequence[ToolSpec], str], Awaitable[list[str]]]
    guard: ToolGuard
    settings: AgentSettings
    tokens: CountToolTokens
    _: KW_ONLY
    stored: ToolChoice | None
    seq: int
    save: Callable[[ToolChoice], Awaitable[None]]

    def __post_init__(self) -> None:
        self._most, self._budget = self.settings.llm_max_tools, self.settings.context_token_budget
        self._stored = self.stored or ToolChoice((), 0)
        self._wanted = ToolNeeds("")
        self._names: tuple[str, ...] = ()
        self._later: dict[int, tuple[str, ...]] = {}
        self._found: set[str] = set()
        self._lock = asyncio.Lock()  # tools run side by side
        may_find = FIND_TOOLS.name not in self.settings.disabled_tools and self.guard.may_use(FIND_TOOLS.name)
        self._own = (*([Tool(FIND_TOOLS, self._find)] if may_find else []), Tool(CALL_TOOL, _call_nothing))

    async def choose(self, needs: ToolNeeds) -> int:
        """Chooses the turn's tools, once. Returns their tokens in a request, at most half of the budget."""
        tools, self._wanted = self.guard.tools(), needs
        if len(tools) <= self._most:
            return self._counted(tool.spec for tool in tools.values())
        names = self._stored.names[: MAX_TOOLS - len(self._own)]
        if 2 * sum(name in tools for name in names) < len(names):
            names = ()  # another agent's, most of which this one may not use
        self._names, self._later = names, {seq: of for seq, of in self._stored.later if seq in needs.turns}
        if not names or self._stored.seq < self.seq:
            ranked = await self._ranked(needs.message, tools)
            if names:
                # What the session uses, what the message names, and what it may be about is added.
                own = (name for name, tool in tools.items() if tool.spec.source == _BUILTIN)
                for name in (*own, *needs.used, *_named([needs.message], tools)):
                    self._extend([name], tools)
                for place, name in enumerate(ranked[: int(self._most * LATER)]):
                    self._extend([name], tools, growth=GROWN if place < self._most * SURE else MOST_LATER)
            else:
                self._names = self._made(tools, ranked)
            await self.save(self._choice())
        self.guard.choose(self._names, self._own, list(chain(*self._later.values())))
        array = [*self._own, *(tools[name] for name in self._names if name in tools)]
        return self._counted(tool.spec for tool in array)

    def definitions(self) -> dict[int, list[dict[str, Any]]]:
        """Returns the definitions of the tools that came later, by the turn whose message they came with."""
        tools = self.guard.tools()
        return {seq: [_definition(tools[name].spec) for name in of if name in tools] for seq, of in self._later.items()}

    async def add(self, names: Iterable[str]) -> None:
        """Adds tools that were called or planned."""
        async with self._lock:
            tools, own = self.guard.tools(), [tool.spec.name for tool in self._own]
            new = [name for name in names if name in tools and name not in own]
            if self.guard.chosen_names is not None and [name for name in new if self._extend([name], tools)]:
                await self.save(self._choice())
                self.guard.choose(self._names, self._own, list(chain(*self._later.values())))

    async def find(self, query: str) -> list[dict[str, Any]]:
        """Returns definitions of tools that the turn has not been shown, the best first, in MAX_FOUND_CHARS."""
        tools = self.guard.tools()
        shown = {*self._names, *self._later.get(self.seq, ()), *self._found, *(tool.spec.name for tool in self._own)}
        ranked = dict.fromkeys([*_named([query], tools), *await self._ranked(query, tools)])
        found = [_definition(tools[name].spec) for name in ranked if name not in shown][:FOUND]
        sizes = accumulate(len(orjson.dumps(definition).decode()) for definition in found)
        fitting = [definition for definition, size in zip(found, sizes, strict=True) if size <= MAX_FOUND_CHARS]
        self._found.update(definition["name"] for definition in fitting)
        return fitting

    async def _find(self, args: dict[str, Any], _: ToolContext) -> object:
        found = await self.find(args["query"])
        return {"tools": found} if found else {"tools": [], "note": TEXTS["nothing_found"]}

    async def _ranked(self, text: str, tools: Mapping[str, Tool]) -> list[str]:
        """Returns the names of tools that may be offered, best first."""
        # Those of the client's page are in every request of the turn, and no index keeps what a client writes.
        specs = [tool.spec for tool in tools.values() if tool.spec.source not in (_BUILTIN, PAGE)]
        return [name for name in await self.rank(specs, text) if not is_blocked(self.guard.state(tools[name].spec))]

    def _counted(self, specs: Iterable[ToolSpec]) -> int:
        return min(self.tokens(specs), int(self._budget * GROWN_TOKENS))

    def _choice(self) -> ToolChoice:
        return ToolChoice(self._names, self.seq, tuple(self._later.items()))

    def _extend(self, new: Iterable[str], tools: Mapping[str, Tool], *, growth: float = GROWN) -> bool:
        """Adds tools, and those they depend on, to the turn's. Returns False if all are in view, or do not fit."""
        known = [*self._names, *chain(*self._later.values())]
        added = [name for name in _with_needed(new, tools) if name not in known]
        specs = [tools[name].spec for name in (*known, *added) if name in tools]
        if not added or len(specs) > self._most * growth or self.tokens(specs) > self._budget * GROWN_TOKENS:
            return False
        self._later[self.seq] = (*self._later.get(self.seq, ()), *added)
        return True

    def _made(self, tools: Mapping[str, Tool], ranked: Iterable[str]) -> tuple[str, ...]:
        """Returns a new array: built-in tools, those the session needs, and as many of the ranked ones as fit."""
        needs = self._wanted
        own = [tool.spec.name for tool in self._own]
        first = [name for name, tool in tools.items() if tool.spec.source == _BUILTIN and name not in own]
        needed = [*needs.used, *_named([needs.message, *needs.user_texts], tools)]
        max_tools, room = self._most - len(own), self._budget * FIRST_TOKENS
        room -= self.tokens(tools[name].spec for name in first)
        chosen = dict.fromkeys(first)
        for name in dict.fromkeys([*_with_needed(needed, tools), *ranked]):
            names = [each for each in _with_needed([name], tools) if each not in chosen]
            size = self.tokens(tools[each].spec for each in names)
            if len(chosen) + len(names) <= max_tools and size <= room:
                chosen |= dict.fromkeys(names)
                room -= size
        # Those that others unlock come last, so that one is only ever appended.
        return tuple(sorted(chosen, key=lambda name: bool(tools[name].spec.depends_on)))


def _definition(spec: ToolSpec) -> dict[str, Any]:
    described = shortened(spec.description, MAX_DESCRIPTION_CHARS)
    return {"name": spec.name, "description": described, "arguments": shown_schema(spec.input_schema, MAX_SCHEMA_CHARS)}


async def _call_nothing(_: dict[str, Any], __: ToolContext) -> object:
    raise ToolRetry("`name` is the name of a tool whose definition you were shown; find_tools finds one.")


def _with_needed(names: Iterable[str], tools: Mapping[str, Tool]) -> list[str]:
    """Returns the names of tools that exist, each behind those that it depends on."""
    found: dict[str, None] = {}

    def add(name: str) -> None:  # ends, since tools that depend on each other in a circle are refused
        if name not in found and name in tools:
            for group in tools[name].spec.depends_on:
                for member in group.tools:
                    add(member)
            found[name] = None

    for name in names:
        add(name)
    return list(found)


def _named(texts: Iterable[str], tools: Mapping[str, Tool]) -> list[str]:
    """Returns the tools whose names are in the texts, with or without prefix; a name that is a plain word is none."""
    words = {word for text in texts for word in _NAMES.findall(text) if not word.isalpha()}
    return [name for name, tool in tools.items() if name in words or tool.spec.original_name in words] if words else []
