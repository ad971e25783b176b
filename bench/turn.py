"""One turn after another beside the bare model calls they are made of: a long session, turns with a tool, streams.

Turns and bare calls alternate in batches, so that whatever else the machine does hits both.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import asyncpg

from bench.cost import Cost, server_pids
from bench.load import Refused, Session, connected
from bench.measure import Left, Measure, p99, quarters
from bench.processes import BareCaller, Surroundings, bare_caller, segue
from bench.provider import MESSAGE, TOOL, TOOL_MESSAGE
from bench.storage import Stored, looking_into, questions, stored, waits_ms

BATCH = 10
FILLED = 30  # turns after which the window is full
STORED_PER_TURN = 2000  # bytes


@dataclass(frozen=True, slots=True)
class Beside:
    """Milliseconds of turns and of the bare calls made between them."""

    turns: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        return median(self.turns) / median(self.bare)

    @property
    def growth(self) -> float:
        """The last quarter to the first, less what became of the bare calls in the meantime."""
        (first_turns, last_turns), (first_bare, last_bare) = quarters(self.turns), quarters(self.bare)
        return last_turns / first_turns / (last_bare / first_bare)


@dataclass(frozen=True, slots=True)
class LongSession:
    """`prompts` are bytes, once the window is full and at the end; `halves` what each half of the turns has stored;
    `trips` and `cost_ms` by server and by kind of process, for a turn and the bare call beside it.
    """

    beside: Beside
    prompts: tuple[int, int]
    halves: tuple[Stored, Stored]
    waits_ms: list[float]
    trips: dict[str, float]
    cost_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Scene:
    """One process, one connection to it, and the bare caller, which has been given the window of a turn."""

    within: Surroundings
    session: Session
    bare: BareCaller
    database: asyncpg.Connection
    cost: Cost

    async def beside(self, count: int, turn: Callable[[], Awaitable[float]], *, stream: bool = False) -> Beside:
        measured = Beside([], [])
        for _ in range(count // BATCH):
            measured.bare.extend(await self.bare.milliseconds(BATCH, stream=stream))
            measured.turns.extend([await turn() for _ in range(BATCH)])
        return measured

    async def other_session(self) -> Session:
        """One whose window is full as well."""
        session = await Session.new(self.session.connection)
        for _ in range(FILLED):
            await session.turn()
        return session


@asynccontextmanager
async def scene(within: Surroundings) -> AsyncIterator[Scene]:
    async with (
        looking_into(within.servers) as database,
        segue(within) as serving,
        bare_caller(within) as bare,
        connected(serving.port) as connection,
        connected(within.provider_port) as provider,
    ):
        session = await Session.new(connection)
        for _ in range(FILLED):
            await session.turn()
        bare.take(_window(await provider.get("/")))
        await bare.milliseconds(BATCH)
        pids = {"segue": [serving.process.pid], "bare caller": [bare.pid]}
        cost = Cost({**pids, **await server_pids(within.servers), "provider": [within.provider.pid]})
        yield Scene(within, session, bare, database, cost)


def _window(request: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = request["messages"]
    if messages[-1]["content"] != MESSAGE:
        raise RuntimeError("the last request the model saw was not that of the turn")
    return messages


async def long_session(scene: Scene, *, turns: int) -> LongSession:
    session = scene.session
    full = await prompt_bytes(session)
    start = await stored(scene.database, session.id)
    asked = await questions(scene.database, scene.within.servers)
    scene.cost.since()
    first = await scene.beside(turns // 2, session.timed_turn)
    middle = await stored(scene.database, session.id)
    second = await scene.beside(turns // 2, session.timed_turn)
    cost = scene.cost.since()
    end = await stored(scene.database, session.id)
    asked_then = await questions(scene.database, scene.within.servers)
    return LongSession(
        Beside(first.turns + second.turns, first.bare + second.bare),
        prompts=(full, await prompt_bytes(session)),
        halves=(middle - start, end - middle),
        waits_ms=await waits_ms(scene.database, [session.id]),
        trips={name: (asked_then[name] - asked[name]) / turns for name in asked},
        cost_ms={name: seconds * 1000 / turns for name, seconds in cost.items()},
    )


async def prompt_bytes(session: Session) -> int:
    """Of the next turn's, as the provider saw it."""
    told: int = (await session.turn())["usage"]["input_tokens"]
    return told


async def with_a_tool(scene: Scene, *, turns: int) -> tuple[Beside, tuple[int, int]]:
    """And the bytes of a prompt in that session, once its window is full of calls and at the end."""
    session = await scene.other_session()
    answer = await session.turn(TOOL_MESSAGE)
    if [call["tool_name"] for call in answer["tool_calls"]] != [TOOL]:
        raise RuntimeError(f"the turn did not call {TOOL}: {answer['tool_calls']}")
    for _ in range(FILLED):
        await session.turn(TOOL_MESSAGE)
    full = await prompt_bytes(session)
    measured = await scene.beside(turns, partial(session.timed_turn, TOOL_MESSAGE))
    return measured, (full, await prompt_bytes(session))


async def first_tokens(scene: Scene, *, turns: int) -> Beside | Left:
    session = await scene.other_session()
    try:
        await session.first_token()
    except Refused:
        return Left("stream: first token", "this Segue does not stream")
    return await scene.beside(turns, session.first_token, stream=True)


def session_measures(long: LongSession) -> Iterator[Measure]:
    turns, (first, second) = len(long.beside.turns), long.halves
    both = first + second
    spent = long.cost_ms["segue"] + long.cost_ms["PostgreSQL"] + long.cost_ms["Redis"]
    growth = f"over {turns:,} turns of a session"
    yield Measure("plain turn ÷ bare call of the same window", long.beside.ratio, digits=2, at_most=4, aim="aim 2.5")
    yield Measure("the same in processor time, servers included", spent / long.cost_ms["bare caller"], digits=2)
    yield Measure(f"time of a turn {growth}, last quarter ÷ first", long.beside.growth, digits=2, at_most=1.1)
    yield Measure(f"prompt {growth}, last ÷ {FILLED}th", long.prompts[1] / long.prompts[0], digits=2, at_most=1.1)
    yield Measure(f"rows' bytes {growth}, second half ÷ first", second.bytes / first.bytes, digits=2, at_most=1.1)
    yield Measure(
        "rows' bytes a turn beyond its text", (both.bytes - both.text) / turns, "B", 0, at_most=STORED_PER_TURN
    )
    yield from (Measure(f"{name} a turn", trips, "", 2) for name, trips in long.trips.items())
    yield Measure("rows a turn", both.rows / turns)
    yield Measure("bytes on disk a turn, indexes and dead rows included", both.disk / turns, "B", 0)
    yield Measure("accepted → started, median", median(long.waits_ms), "ms", at_most=2)
    yield Measure("accepted → started, p99", p99(long.waits_ms), "ms", at_most=20)
    yield Measure("plain turn, median", median(long.beside.turns), "ms")
    yield Measure("bare call, median", median(long.beside.bare), "ms")


def tool_measures(tool: Beside, prompts: tuple[int, int]) -> Iterator[Measure]:
    growth = f"over {len(tool.turns):,} turns with a tool call"
    yield Measure("turn with one tool call ÷ bare call", tool.ratio, digits=2)
    yield Measure(f"time of a turn {growth}, last quarter ÷ first", tool.growth, digits=2, at_most=1.1)
    yield Measure(f"prompt {growth}, last ÷ {FILLED}th", prompts[1] / prompts[0], digits=2, at_most=1.05)
    yield Measure("turn with one tool call, median", median(tool.turns), "ms")


def stream_measures(stream: Beside | Left) -> Iterator[Measure | Left]:
    if isinstance(stream, Left):
        yield stream
        return
    yield Measure("stream: first token ÷ that of a bare stream", stream.ratio, digits=2)
    yield Measure("stream: first token, median", median(stream.turns), "ms")
