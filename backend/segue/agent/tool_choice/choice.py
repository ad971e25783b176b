"""Which tools the requests of a session have, if a turn may use more than LLM_MAX_TOOLS.

They are chosen for the session's first message, and only ever appended to: by a few for each later message, by those
that `find_tools` finds, and by any other that is called or planned. The list is stored before a request has it. Once it
is as long as it may get it is made anew, of what the session has used and what the message is about.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from segue.agent.llm.offered_tools import MAX_TOOLS
from segue.agent.tool_choice.search import ToolSearch
from segue.domain.tool import Tool, ToolChoice, ToolContext, ToolSpec
from segue.memory.token_count import CountTokens
from segue.tools.availability import ToolGuard
from segue.tools.health import is_blocked
from segue.tools.summaries import one_line

FOUND: Final = 10
LATER: Final = 1 / 4  # of LLM_MAX_TOOLS: what a later message may append
GROWN: Final = 2  # times LLM_MAX_TOOLS: where the list is made anew
FIRST_TOKENS, GROWN_TOKENS = 1 / 3, 1 / 2  # of the budget
MAX_SHOWN_CHARS: Final = 200
MAX_KNOWN: Final = 5000

_NAMES: Final = re.compile(r"[\w:./-]*\w")
_BUILTIN: Final = "builtin"
_NOTHING_MORE: Final = "Nothing more was found. Look through the tools you have, or try other words."

FIND_TOOLS: Final = ToolSpec(
    name="find_tools",
    description=(
        "Find more tools: not all there are stand in your list. Call it before you say that you have no tool for "
        "something. `query` says in a few words what a tool has to do. The tools found can be called right after."
    ),
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1, "maxLength": 400}},
        "required": ["query"],
        "additionalProperties": False,
    },
    ephemeral=True,
)
PLAN_TO_FIND: Final = (
    "- You are not shown every tool there is. If none of yours does what a step needs, give that step the tool "
    'find_tools and the args {"query": "what the tool has to do"}: you are asked again with the tools that are found.'
)


@dataclass(frozen=True, slots=True)
class ChoiceLimits:
    """Of more than `most` tools some are chosen; `tokens` is the budget of a request, `size` what tools take of it.

    `finds` says that the others may be found.
    """

    most: int
    tokens: int
    size: Callable[[Iterable[ToolSpec]], int]
    finds: bool = True


@dataclass(frozen=True, slots=True)
class ToolNeeds:
    """What a turn needs tools for: its message, what the user said before, tools called, newest first, and planned."""

    message: str
    said: Sequence[str] = ()
    used: Iterable[str] = ()


class ToolTokens:
    """Counts the tokens that tools take in a request, those of each tool once. `count` gives those of a text."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._known: dict[str, tuple[ToolSpec, int]] = {}

    def __call__(self, specs: Iterable[ToolSpec]) -> int:
        return sum(map(self._of, specs))

    def _of(self, spec: ToolSpec) -> int:
        known = self._known.get(spec.name)
        if known is None or known[0] is not spec:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            sent = orjson.dumps([spec.name, spec.description, spec.input_schema]).decode()
            known = self._known[spec.name] = spec, self._count(sent)
        return known[1]


class ToolChooser:
    """Chooses for one turn. `seq` is the turn's, `save` stores a choice under the turn's fence."""

    def __init__(
        self,
        search: ToolSearch,
        guard: ToolGuard,
        limits: ChoiceLimits,
        *,
        stored: ToolChoice | None,
        seq: int,
        save: Callable[[ToolChoice], Awaitable[None]],
    ) -> None:
        self._search = search
        self._guard = guard
        self._limits = limits
        self._stored = stored or ToolChoice((), 0)
        self._seq = seq
        self._save = save
        self._wanted = ToolNeeds("")
        self._lock = asyncio.Lock()  # tools run side by side
        may_find = limits.finds and guard.may_use(FIND_TOOLS.name)
        self._own = (Tool(FIND_TOOLS, self._find),) if may_find else ()

    async def choose(self, wanted: ToolNeeds) -> int:
        """Chooses the tools for a turn, unless it has done so before. Returns the tokens they take in a request, and at
        most half of the budget: the rest is always the conversation's.
        """
        tools, self._wanted = self._guard.tools(), wanted
        if len(tools) <= self._limits.most:
            return self._counted(tool.spec for tool in tools.values())
        names = self._stored.names
        if 2 * sum(name in tools for name in names) < len(names):
            names = ()  # another agent's, most of which this one may not use
        if not names or self._stored.seq < self._seq:
            ranked = await self._ranked(wanted.message, tools)
            later = ranked[: int(self._limits.most * LATER)]
            needed = [*wanted.used, *_named([wanted.message], tools), *later]
            names = (names and self._grown(names, needed, tools)) or self._made(tools, (), ranked)
            await self._save(ToolChoice(names, self._seq))
        self._guard.choose(names, self._own)
        return self._counted(tool.spec for tool in self._guard.chosen(self._guard.tools()).values())

    async def add(self, names: Iterable[str]) -> None:
        """Adds tools that were called, planned or found."""
        async with self._lock:
            tools, chosen = self._guard.tools(), self._guard.chosen_names
            new = [name for name in names if name in tools and name != FIND_TOOLS.name]
            if chosen is None or set(new) <= set(chosen):
                return
            grown = self._grown(chosen, new, tools) or self._made(tools, new, chosen)
            await self._save(ToolChoice(grown, self._seq))
            self._guard.choose(grown, self._own)

    async def find(self, query: str) -> list[ToolSpec]:
        """Finds tools that the requests do not have, and adds them."""
        tools = {name: tool for name, tool in self._guard.tools().items() if name != FIND_TOOLS.name}
        known = self._guard.chosen_names or ()
        ranked = [*_named([query], tools), *await self._ranked(query, tools)]
        found = [name for name in dict.fromkeys(ranked) if name not in known][:FOUND]
        await self.add(found)
        return [tools[name].spec for name in found]

    async def _find(self, args: dict[str, Any], _: ToolContext) -> object:
        found = await self.find(args["query"])
        listed = [{"name": spec.name, "description": one_line(spec.description, MAX_SHOWN_CHARS)} for spec in found]
        return {"tools": listed} if listed else {"tools": [], "note": _NOTHING_MORE}

    async def _ranked(self, text: str, tools: Mapping[str, Tool]) -> list[str]:
        """Returns the names of tools that may be offered, best first."""
        specs = [tool.spec for tool in tools.values() if tool.spec.source != _BUILTIN]
        ranked = await self._search.rank(specs, text)
        return [name for name in ranked if not is_blocked(self._guard.state(tools[name].spec))]

    def _counted(self, specs: Iterable[ToolSpec]) -> int:
        return min(self._limits.size(specs), int(self._limits.tokens * GROWN_TOKENS))

    def _grown(self, names: Sequence[str], new: Iterable[str], tools: Mapping[str, Tool]) -> tuple[str, ...]:
        """Returns the list with new tools and those they depend on at its end; nothing if it would be too long."""
        grown = tuple(dict.fromkeys([*names, *_with_needed(new, tools)]))
        return grown if grown == tuple(names) or self._fits(grown, tools) else ()

    def _fits(self, names: Iterable[str], tools: Mapping[str, Tool]) -> bool:
        known = [tools[name].spec for name in names if name in tools]
        most = min(self._limits.most * GROWN, MAX_TOOLS - 1)
        return len(known) <= most and self._limits.size(known) <= self._limits.tokens * GROWN_TOKENS

    def _made(self, tools: Mapping[str, Tool], needed: Iterable[str], ranked: Iterable[str]) -> tuple[str, ...]:
        """Returns a new list: built-in tools, what the session needs, and of the ranking as much as has room."""
        wanted = self._wanted
        first = [name for name, tool in tools.items() if tool.spec.source == _BUILTIN and name != FIND_TOOLS.name]
        kept = [*needed, *wanted.used, *_named([wanted.message, *wanted.said], tools)]
        most, room = self._limits.most - 1, self._limits.tokens * FIRST_TOKENS  # find_tools is one more
        room -= self._limits.size(tools[name].spec for name in first)
        chosen = dict.fromkeys(first)
        for name in dict.fromkeys([*_with_needed(kept, tools), *ranked]):
            more = [each for each in _with_needed([name], tools) if each not in chosen]
            size = self._limits.size(tools[each].spec for each in more)
            if len(chosen) + len(more) <= most and size <= room:
                chosen |= dict.fromkeys(more)
                room -= size
        # Those that others unlock come last, so that one is only ever appended.
        return tuple(sorted(chosen, key=lambda name: bool(tools[name].spec.depends_on)))


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
    said = {word for text in texts for word in _NAMES.findall(text) if not word.isalpha()}
    return [name for name, tool in tools.items() if name in said or tool.spec.original_name in said] if said else []
