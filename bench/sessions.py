"""One turn after another in one session: plain, with a tool, streamed.

Every batch of turns follows a batch of bare calls, so that other work of the machine slows down both.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import asyncpg

from bench.client import Session, connected
from bench.meter import COMMANDS, Meter, database_of, meter_of, processor_ms, stored, transactions, waits_ms
from bench.processes import BareCaller, Group, Setup
from bench.provider import TOOL, TOOL_MESSAGE
from bench.report import Measure, Results, count, deviation, growth, p99, ratio

BATCH = 10
FILLED = 50  # turns after which the window has been full
BETWEEN_SUMMARIES = 40  # turns at most; from one to the next a prompt grows
IDLE_S = 10.0
SETTLE_S = 1.1  # PostgreSQL publishes its statistics once a second
IDLE_AFTER_S = 11.0  # and those of a connection that falls idle within ten


@dataclass(frozen=True, slots=True)
class Candidate:
    """One version of Segue with a session of each kind, every window full."""

    results: Results
    database: asyncpg.Connection
    meter: Meter
    plain: Session
    tool: Session
    streamed: Session


@dataclass(frozen=True, slots=True)
class Series:
    """Milliseconds by round, of turns and of the bare calls before them, and what all of them used."""

    turns: list[list[float]] = field(default_factory=list)
    bare: list[list[float]] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)

    @property
    def ratios(self) -> list[float]:
        return [median(turns) / median(bare) for turns, bare in zip(self.turns, self.bare, strict=True)]

    def __add__(self, later: "Series") -> "Series":
        return Series(self.turns + later.turns, self.bare + later.bare, self.used + later.used)


@asynccontextmanager
async def candidate(results: Results, group: Group, bare: BareCaller) -> AsyncIterator[Candidate]:
    async with (
        database_of(group.stores) as database,
        meter_of(group.stores, {"server": group.pids, "bare caller": [bare.pid]}) as meter,
        connected(group.ports[0]) as connection,
    ):
        plain, tool, streamed = [await Session.new(connection) for _ in range(3)]
        for _ in range(FILLED):
            await plain.turn()
            await streamed.turn()
            answer = await tool.turn(TOOL_MESSAGE)
        if [call["tool_name"] for call in answer["tool_calls"]] != [TOOL]:
            raise RuntimeError(f"the turn did not call {TOOL}: {answer['tool_calls']}")
        yield Candidate(results, database, meter, plain, tool, streamed)


async def set_bare_window(within: Setup, candidate: Candidate, bare: BareCaller) -> None:
    """Lets the bare caller send the messages that a plain turn sends."""
    await candidate.plain.turn()
    async with connected(within.provider_port) as provider:
        bare.set_window((await provider.get("/"))["messages"])
    await bare.milliseconds(FILLED)


async def rounds(
    bare: BareCaller,
    candidates: Sequence[Candidate],
    turn: Callable[[Candidate], Awaitable[float]],
    *,
    number: int,
    stream: bool = False,
) -> list[Series]:
    """Returns a series for each candidate; they take turns, round by round."""
    measured = [Series() for _ in candidates]
    for _ in range(number):
        for each, series in zip(candidates, measured, strict=True):
            async with each.meter.adding_to(series.used):
                series.bare.append(await bare.milliseconds(BATCH, stream=stream))
                series.turns.append([await turn(each) for _ in range(BATCH)])
    return measured


async def plain_turns(bare: BareCaller, candidates: Sequence[Candidate], *, number: int) -> None:
    def turn(each: Candidate) -> Awaitable[float]:
        return each.plain.timed_turn()

    starts = [await _snapshot(each) for each in candidates]
    first = await rounds(bare, candidates, turn, number=number // 2)
    middles = [await _snapshot(each) for each in candidates]
    second = await rounds(bare, candidates, turn, number=number // 2)
    ends = [await _snapshot(each) for each in candidates]
    for at, each in enumerate(candidates):
        series, counted = first[at] + second[at], (number // 2 * BATCH + BETWEEN_SUMMARIES) * 2
        idle_per_s = await _idle_transactions_per_s(each.database)
        each.results.measures += [
            *_plain_measures(each.results, series),
            *_stored_measures(starts[at], middles[at], ends[at], turns=counted),
            *_transaction_measures(starts[at], ends[at], turns=counted, idle_per_s=idle_per_s),
            *_wait_measures(series, (await waits_ms(each.database, each.plain.id))[FILLED:]),
        ]


def _plain_measures(results: Results, series: Series) -> list[Measure]:
    turns = len(series.turns) * BATCH
    spent = processor_ms(series.used, turns)
    results.processor_ms["one after another"] = spent
    results.rounds_ms["a plain turn"] = [median(batch) for batch in series.turns]
    results.rounds_ms["a bare call of the same window"] = [median(batch) for batch in series.bare]
    processor = sum(spent.values()) / spent["bare caller"] - 1
    return [
        ratio("plain turn ÷ bare call of the same window", series.ratios, at_most=1.8),
        count("the same in processor time, servers included", processor, digits=2),
        growth("time of a plain turn, last quarter of the session ÷ first", series.ratios, at_most=1.1),
        _milliseconds("plain turn", series.turns),
        _milliseconds("bare call", series.bare),
        count("Redis commands a turn", series.used[COMMANDS] / turns, at_most=8),
    ]


def _milliseconds(name: str, batches: Sequence[Sequence[float]]) -> Measure:
    middles = [median(batch) for batch in batches]
    return Measure(name, median(middles), "ms", spread=deviation(middles))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the plain session has stored, transactions of all sessions, and the size of the largest prompt of late."""

    rows: int
    bytes: int
    text: int
    prompt: int
    transactions: int
    ready_at: float


async def _snapshot(each: Candidate) -> Snapshot:
    await asyncio.sleep(SETTLE_S)
    # On every connection, so that each publishes its count.
    prompt = max([(await each.plain.turn())["usage"]["input_tokens"] for _ in range(BETWEEN_SUMMARIES)])
    async with each.database.transaction():  # counts as one
        rows, size, text = await stored(each.database, each.plain.id)
    return Snapshot(rows, size, text, prompt, await transactions(each.database), time.monotonic())


async def _idle_transactions_per_s(database: asyncpg.Connection) -> float:
    await asyncio.sleep(IDLE_AFTER_S)
    before = await transactions(database)
    await asyncio.sleep(IDLE_S)
    return (await transactions(database) - 1 - before) / IDLE_S  # one is the question itself


def _transaction_measures(start: Snapshot, end: Snapshot, *, turns: int, idle_per_s: float) -> list[Measure]:
    of_all = end.transactions - start.transactions
    of_turns = of_all - idle_per_s * (end.ready_at - start.ready_at)
    return [
        count("PostgreSQL transactions a turn and of the jobs behind it", of_turns / turns, digits=2, at_most=3),
        count("the same with those of an idle process", of_all / turns, digits=2),
        count("PostgreSQL transactions of an idle process", idle_per_s, "/s"),
    ]


def _stored_measures(start: Snapshot, middle: Snapshot, end: Snapshot, *, turns: int) -> list[Measure]:
    size, text = end.bytes - start.bytes, end.text - start.text
    halves = (end.bytes - middle.bytes) / (middle.bytes - start.bytes)
    return [
        count("rows a turn", (end.rows - start.rows) / turns),
        count("rows' bytes a turn beyond its text", (size - text) / turns, "B", 0, at_most=2000),
        count("rows' bytes a turn, second half of the session ÷ first", halves, digits=2, at_most=1.1),
        Measure("prompt, end of the session ÷ start", end.prompt / start.prompt, digits=2, at_most=1.1),
    ]


def _wait_measures(series: Series, waits: Sequence[float]) -> list[Measure]:
    name, middle, spread = "accepted → started", median(waits), deviation(waits)
    ratio_to_bare = middle / median(median(batch) for batch in series.bare)
    return [
        Measure(f"{name}, median", middle, "ms", 1, spread, 2, compared=ratio_to_bare, noise=spread / middle),
        Measure(f"{name}, p99", p99(waits), "ms", at_most=20),
    ]


async def tool_turns(bare: BareCaller, candidates: Sequence[Candidate], *, number: int) -> None:
    async def largest_prompt(each: Candidate) -> int:
        # It grows from one summary to the next: less than that may miss the peak. Turns without a call are shorter.
        turns = [await each.tool.turn(TOOL_MESSAGE) for _ in range(BETWEEN_SUMMARIES)]
        sizes: list[int] = [turn["usage"]["input_tokens"] for turn in turns]
        return max(sizes)

    starts = [await largest_prompt(each) for each in candidates]
    measured = await rounds(bare, candidates, lambda each: each.tool.timed_turn(TOOL_MESSAGE), number=number)
    for each, series, start in zip(candidates, measured, starts, strict=True):
        prompts = await largest_prompt(each) / start
        each.results.processor_ms["with a tool"] = processor_ms(series.used, number * BATCH)
        each.results.measures += [
            ratio("turn with one tool call ÷ bare call", series.ratios, at_most=3.5),
            growth("time of a turn with a tool call, last quarter of the session ÷ first", series.ratios, at_most=1.1),
            Measure("prompt with tool calls, end of the session ÷ start", prompts, digits=2, at_most=1.05),
            _milliseconds("turn with one tool call", series.turns),
        ]


async def streamed_turns(bare: BareCaller, candidates: Sequence[Candidate], *, number: int) -> None:
    measured = await rounds(bare, candidates, lambda each: each.streamed.first_token(), number=number, stream=True)
    for each, series in zip(candidates, measured, strict=True):
        each.results.measures += [
            ratio("stream: first token ÷ that of a bare stream", series.ratios, at_most=2),
            _milliseconds("stream: first token", series.turns),
        ]
