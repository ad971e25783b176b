"""Clients that work on one session at once, and what they asked and heard: a round, a look at the stores, another."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random
from typing import Any

import asyncpg
import httpx2

from tests.chaos.history import ASKING, ENDS, REFUSED, Call, Op, Round
from tests.chaos.ledger import ENDED
from tests.chaos.load import LOST
from tests.chaos.model import Said, Seen, State, Turn, Waiting
from tests.chaos.search import Undecided
from tests.chaos.site import ANSWER_S, Site
from tests.chaos.world import HEARD

CLIENTS, OPS, ROUNDS = 3, 3, 2  # of each session, client and round, session
BOUND_S = 90.0  # all turns of a round have ended by then
PAUSE_S = 0.1
AT_ONCE_S = 0.1
GIVES_UP = 0.07  # after a lost answer
GONE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
ROWS = {
    "turns": "SELECT *, error->>'code' AS code FROM turns WHERE session_id = $1 ORDER BY seq",
    "messages": "SELECT * FROM messages WHERE session_id = $1 AND role <> 'tool' AND tool_calls IS NULL"
    " AND NOT cut_off ORDER BY seq",
    "plans": "SELECT id, version, status, origin_message_id FROM plans WHERE session_id = $1 ORDER BY id",
    "calls": "SELECT * FROM tool_calls WHERE session_id = $1 AND tool_name IN ('mcp_carry', 'mcp_delete') ORDER BY id",
    "session": "SELECT next_seq FROM sessions WHERE id = $1",
}
Rows = Mapping[str, list[Mapping[str, Any]]]


@dataclass(slots=True)
class Board:
    """What the clients of a session know: turns and messages that they may name, and plans they were asked about."""

    session: str
    start: State = field(default_factory=State)
    ops: list[Op] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    plans: list[Waiting] = field(default_factory=list)
    words: set[str] = field(default_factory=set)


class Historian:
    """One session after the other, each with a few clients, until `over` is set."""

    def __init__(self, site: Site, random: Random, over: asyncio.Event, tally: Counter[str]) -> None:
        self._site = site
        self._random = random
        self._over = over
        self._tally = tally
        self._began = time.monotonic()

    async def record(self) -> None:
        while not self._over.is_set():
            board = Board(await self._new_session())
            self._tally["sessions"] += 1
            for _ in range(ROUNDS):
                await self._round(board)
                if self._over.is_set():
                    return

    async def _round(self, board: Board) -> None:
        await self._say("Please delete {}", board)
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._client(board), name="client")
        if (found := await self._at_rest(board)) is None:
            self._site.ledger.wrong(f"not terminal: turns of {board.session}")
            return
        effects, rows = found
        seen = seen_in(rows)
        done = Round(board.ops, seen, board.start, list(calls_in(rows)), effects)
        self._tally["rounds"] += 1
        try:
            for what in await asyncio.to_thread(done.wrongs):
                self._tally["violations"] += 1
                self._site.ledger.wrong(f"{board.session}: {what}")
        except Undecided:
            self._tally["undecided"] += 1
        board.start = seen.state
        known = {turn.key for turn in seen.turns.values()}  # of others a request may still be on its way
        board.ops = [replace(op, heard=None, returned=inf) for op in board.ops if op.lost and op.key not in known]
        board.turns, board.messages = board.turns[-3:], [each for each in seen.log if each in board.messages]

    # --- what a client does ---

    async def _client(self, board: Board) -> None:
        kinds: dict[Callable[[Board], Awaitable[None]], int] = {
            partial(self._say, "Tell me about {}"): 4,
            partial(self._say, "Please delete {}"): 4,
            partial(self._say, "Please clear {}"): 1,
            partial(self._say, "Please carry {}"): 3,
            partial(self._say, "yes"): 4,
            partial(self._say, "no"): 1,
            partial(self._say, "wait"): 1,
            self._decide: 5,
            self._cancel: 2,
            self._say_anew: 2,
            self._read: 2,
            self._look: 3,
        }
        if board.plans:  # all decide on it, at about once
            await asyncio.sleep(self._random.uniform(0, AT_ONCE_S))
            await self._random.choice((partial(self._say, "yes"), self._decide))(board)
        for _ in range(OPS):
            [kind] = self._random.choices(list(kinds), list(kinds.values()))
            await kind(board)

    async def _say(self, text: str, board: Board) -> None:
        body: dict[str, Any] = {"message": text.format(self._word(board))}
        if self._random.random() < 0.3 and "{}" in text:
            body["on_busy"] = self._random.choice(("reject", "interrupt", "steer"))
        if self._random.random() < 0.3:
            body["background"] = True
        await self._ask(board, Op("chat", self._key(), body), "POST", "/chat")

    async def _decide(self, board: Board) -> None:
        if not board.plans:
            await self._look(board)
        if board.plans:
            plan = self._random.choice((*board.plans[-2:], board.plans[-1]))  # the last but one may be stale
            body = {"decision": self._random.choice(("confirm", "confirm", "reject")), "version": plan[1]}
            await self._ask(board, Op("decision", self._key(), body, plan), "POST", "/plan/decision")

    async def _cancel(self, board: Board) -> None:
        if board.turns:
            turn = self._random.choice(board.turns[-2:])
            await self._ask(board, Op("cancel", self._key(), {}, turn), "POST", f"/turns/{turn}/cancel")

    async def _say_anew(self, board: Board) -> None:
        if board.messages:
            message, kind = self._random.choice(board.messages[-3:]), self._random.choice(("edit", "regenerate"))
            body = {"message": f"Tell me about {self._word(board)}"} if kind == "edit" else {}
            await self._ask(board, Op(kind, self._key(), body, message), "POST", f"/messages/{message}/{kind}")

    async def _read(self, board: Board) -> None:
        op = Op("read", self._key(), {})
        await self._ask(board, op, "GET", "/messages?limit=200")
        if op.heard is not None:
            texts = [it for it in op.heard["items"] if it["role"] != "tool" and not (it["tool_calls"] or it["cut_off"])]
            op.heard = {"shown": tuple(each["id"] for each in texts)}
            board.messages = [each["id"] for each in texts if each["role"] == "user"]

    async def _look(self, board: Board) -> None:
        op = Op("look", self._key(), {})
        await self._ask(board, op, "GET", "/plan")
        if op.heard is not None:
            active = op.heard["id"] if op.heard.get("status") == "active" else None
            op.heard = {"plan": _waiting(op.heard), "active": active}
            board.plans += filter(None, [op.heard["plan"]])

    def _word(self, board: Board) -> str:
        board.words.add(word := self._site.ledger.word("h"))
        return word

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _anyone(self) -> httpx2.AsyncClient:
        return self._random.choice(self._site.living or self._site.instances).client.http

    def _key(self) -> str:
        return self._site.ledger.word("op")

    async def _ask(self, board: Board, op: Op, method: str, path: str) -> None:
        """Asks again, with the same key, until it knows or gives up."""
        board.ops.append(op)
        self._tally.update(("operations", "steer" if op.body.get("on_busy") == "steer" else op.kind))
        op.invoked = self._now
        headers = {"Idempotency-Key": op.key} if op.kind in ASKING else {}
        while op.heard is None:
            op.tried, http = self._now, self._anyone()
            body = op.body if op.kind in ASKING else None
            with suppress(*LOST):
                async with asyncio.timeout(ANSWER_S):
                    response = await http.request(
                        method, f"/sessions/{board.session}{path}", headers=headers, json=body
                    )
                try:
                    told = response.json()
                except ValueError:
                    told = {"code": "no JSON", "status": response.status_code, "text": response.text}
                code = told.get("code")
                if code is None or code in (*REFUSED, *ENDS):
                    op.returned, op.heard = self._now, told
                    break
                if response.status_code not in (429, 503):
                    self._site.ledger.wrong(f"unexpected: {op}, {told}")
            op.lost += 1
            if self._random.random() < GIVES_UP:
                self._tally["unknown"] += 1
                return
            await asyncio.sleep(PAUSE_S)
        if op.kind == "cancel":
            op.heard = {"turn_id": op.about, "status": op.heard["status"]}
        elif "turn_id" in op.heard and not op.refusal:
            board.turns.append(op.heard["turn_id"])
            board.plans += filter(None, [_waiting(op.heard.get("plan") or {})])

    # --- what is seen then ---

    async def _at_rest(self, board: Board) -> tuple[Mapping[str, int], Rows] | None:
        """Returns what the tools did to the things of a session, and its rows, once no turn is open."""
        deadline = time.monotonic() + BOUND_S
        while time.monotonic() < deadline:
            with suppress(*GONE):
                async with asyncio.timeout(ANSWER_S), self._site.stores() as stores:
                    before = await _rows(stores.database, board.session)
                    done = {effect.split()[1]: count for effect, count in self._site.ledger.effects.items()}
                    rows = await _rows(stores.database, board.session)
                    if before == rows and all(turn["status"] in ENDED for turn in rows["turns"]):
                        return {thing: done[thing] for thing in done if thing.split("-")[0] in board.words}, rows
            await asyncio.sleep(PAUSE_S)
        return None

    async def _new_session(self) -> str:
        while True:
            with suppress(*LOST, KeyError):
                async with asyncio.timeout(ANSWER_S):
                    return str((await self._anyone().post("/sessions", json={})).json()["id"])
            await asyncio.sleep(PAUSE_S)


def _waiting(plan: Mapping[str, Any]) -> Waiting | None:
    return (plan["id"], plan["version"]) if plan.get("status") == "waiting" else None


async def _rows(database: asyncpg.Connection, session: str) -> Rows:
    async with database.transaction(isolation="repeatable_read", readonly=True):
        return {name: list(map(dict, await database.fetch(query, session))) for name, query in ROWS.items()}


def seen_in(rows: Rows) -> Seen:
    said = {row["id"]: _said(row) for row in rows["messages"]}
    turns = {row["id"]: _turn(row, rows, said) for row in rows["turns"]}
    plans = {row["id"]: (row["version"], row["status"], row["origin_message_id"]) for row in rows["plans"]}
    return Seen(turns, said, plans, seq=rows["session"][0]["next_seq"] - 1)


def _said(row: Mapping[str, Any]) -> Said:
    words = tuple(HEARD.findall(row["content"])) if row["role"] == "user" else ()
    return Said(row["id"], row["seq"], row["turn_seq"], row["content"], words, row["branch"])


def _turn(row: Mapping[str, Any], rows: Rows, said: Mapping[str, Said]) -> Turn:
    by_user = [each for each in rows["messages"] if each["role"] == "user" and each["created_at"] == row["created_at"]]
    of_turn = [said[each["id"]] for each in rows["messages"] if each["turn_id"] == row["id"] and each["role"] != "user"]
    answer = max(of_turn, key=lambda it: it.at, default=None) if row["status"] == "completed" else None
    told = re.search(r"Heard: (.*?)\.", answer.text) if answer else None
    plan = json.loads(row["report"] or "{}").get("plan")
    calls = (each for each in rows["calls"] if each["turn_id"] == row["id"] and each["tool_name"] == "mcp_delete")
    return Turn(
        id=row["id"],
        key=row["idempotency_key"],
        at=row["seq"],
        status=row["status"],
        opening=said[by_user[0]["id"]] if by_user else Said("a message that is lost", 0, 0, "", ()),
        code=row["code"],
        answer=answer,
        heard=tuple(HEARD.findall(told[1])) if told else None,
        plan=(plan["id"], plan["version"], plan["status"]) if plan else None,
        ran=next((each["plan_id"] for each in calls if each["plan_id"]), None),
        read_by=row["read_by"],
    )


def calls_in(rows: Rows) -> Iterator[Call]:
    for row in rows["calls"]:
        step = (row["plan_id"], row["step_id"]) if row["plan_id"] else None
        destroys = row["tool_name"] == "mcp_delete"
        yield Call(row["turn_id"], json.loads(row["args"]).get("thing", ""), row["status"], destroys, step)
