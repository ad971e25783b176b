"""Conversations with turns of every kind. A client asks again, with the same key, until it knows how a turn ended."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx2

from tests.chaos.ledger import ENDED, Turn
from tests.chaos.site import ANSWER_S, Site
from tests.chaos.world import PLAN
from tests.support.service import Client
from tests.support.streams import Sent, Stream, listening

BOUND_S = 60.0  # a turn is terminal by then, whatever happens meanwhile
CANCELLED_WITHIN_S = 15.0  # five seconds, and what a fault in between takes
PAUSE_S = 0.2
KEPT = 2  # sessions that are not deleted
UNLIKELY = 0.1
LOST = (httpx2.TransportError, TimeoutError)
EXPECTED = ("completed", "turn_cancelled", "turn_gave_up")  # the last: killed in each of its three attempts
ENDS = ("RUN_FINISHED", "RUN_ERROR")


class Talker:
    """One client with one session after the other, until `over` is set. `sessions` are those that are left."""

    def __init__(self, site: Site, random: Random, over: asyncio.Event) -> None:
        self._site = site
        self._ledger = site.ledger
        self._random = random
        self._over = over
        self.sessions: deque[str] = deque()

    async def talk(self) -> None:
        kinds: dict[Callable[[str], Awaitable[None]], int] = {
            self.tell: 6,
            self.use_tools: 6,
            self.approve: 3,
            self.plan: 2,
            self.stream: 4,
            self.cancel: 2,
            self.interrupt: 1,
            self.queue: 1,
        }
        while not self._over.is_set():
            session = await self._new_session()
            self.sessions.append(session)
            for _ in range(self._random.randint(3, 10)):
                if not self._over.is_set():
                    [kind] = self._random.choices(list(kinds), list(kinds.values()))
                    await kind(session)
            if len(self.sessions) > KEPT:
                await self._delete(self.sessions.popleft())

    async def say(self, session: str, message: str, word: str, **options: Any) -> Turn:
        """Returns the turn once it has ended."""
        turn = self._ledger.turn(session, message, word)
        await self._ask(turn, **options)
        await self._ended(turn)
        if self._random.random() < UNLIKELY:
            await self._repeat(turn, **options)
        return turn

    async def say_goodbye(self) -> None:
        """Every session that is left answers its next message."""
        for session in self.sessions:
            await self.tell(session)

    # --- kinds of turns ---

    async def tell(self, session: str) -> None:
        word = self._ledger.word()
        turn = await self.say(session, f"Tell me about {word}", word)
        if turn.answer is not None and word not in turn.answer:
            self._ledger.wrong(f"answer of another: {turn.answer!r} to {turn.message!r} of {turn.turn_id}")

    async def use_tools(self, session: str) -> None:
        word, verb = self._ledger.word(), self._random.choice(("look", "stamp", "carry", "handle"))
        await self.say(session, f"Please {verb} {word}", word)

    async def approve(self, session: str) -> None:
        word = self._ledger.word()
        turn = await self.say(session, f"Please delete {word}", word)
        reply = self._random.choice(("yes", "yes", "no", "thanks"))
        if reply == "yes":
            self._ledger.approved.add(word)
        if turn.outcome == "completed":
            await self.say(session, reply, word)

    async def plan(self, session: str) -> None:
        word = self._ledger.word()
        await self.say(session, PLAN.format(word), word)
        self._ledger.approved.add(word)
        await self.say(session, "yes", word)

    async def stream(self, session: str) -> None:
        word = self._ledger.word()
        turn = self._ledger.turn(session, f"Please {self._random.choice(('carry', 'handle', 'tell'))} {word}", word)
        seen: list[Sent] = []
        cut = self._random.randint(1, 12)
        while not seen or seen[-1].type not in ENDS:
            if self._is_overdue(turn):
                return
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._read(turn, seen, cut)
            except LOST:
                await asyncio.sleep(PAUSE_S)
            cut = len(seen) + 1000
        ids = [each.id for each in seen]
        if ids != sorted(set(ids)):
            self._ledger.wrong(f"stream of {turn.turn_id}: ids {ids}")
        event = seen[-1].event
        if event["type"] == "RUN_FINISHED":
            turn.answered(event["result"])
        else:
            turn.ended(event["code"])
        await self._ended(turn)

    async def cancel(self, session: str) -> None:
        turn = await self._begin(session)
        await asyncio.sleep(self._random.uniform(0, 0.5))
        await self._until(turn, lambda client: client.http.post(f"{_path(turn)}/cancel"))
        cancelled_at = time.monotonic()
        await self._ended(turn)
        if time.monotonic() - cancelled_at > CANCELLED_WITHIN_S:
            self._ledger.wrong(f"cancelled late: {turn.turn_id}, after {time.monotonic() - cancelled_at:.0f} s")

    async def interrupt(self, session: str) -> None:
        turn = await self._begin(session)
        word = self._ledger.word()
        await self.say(session, f"Tell me about {word}", word, on_busy="interrupt")
        await self._ended(turn)

    async def queue(self, session: str) -> None:
        turns = [await self._begin(session) for _ in range(3)]
        for turn in turns:
            await self._ended(turn)

    # --- one turn ---

    async def _begin(self, session: str) -> Turn:
        """Returns a turn that takes a while, accepted."""
        word = self._ledger.word()
        turn = self._ledger.turn(session, f"Please carry {word}", word)
        await self._ask(turn, background=True)
        return turn

    async def _ask(self, turn: Turn, **options: Any) -> None:
        """Returns once the turn is accepted or has ended."""
        body, headers = {"message": turn.message, **options}, {"Idempotency-Key": turn.key}
        path = f"/sessions/{turn.session}/chat"
        while turn.turn_id is None and turn.outcome is None:
            response = await self._until(turn, lambda client: client.http.post(path, json=body, headers=headers))
            if response is not None:
                self._heard(turn, response)

    def _heard(self, turn: Turn, response: httpx2.Response) -> None:
        said = response.json()
        turn.turn_id = said.get("turn_id", turn.turn_id)
        if response.status_code == 200:
            turn.answered(said)
        elif turn.turn_id is None:
            turn.ended(said["code"])
            self._ledger.wrong(f"not accepted: {turn.message!r}, {said}")

    async def _until(self, turn: Turn, ask: Callable[[Client], Awaitable[httpx2.Response]]) -> httpx2.Response | None:
        """Returns the first answer that is none of an outage; None if the turn is overdue."""
        while not self._is_overdue(turn):
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await ask(self._anyone())
            except LOST:
                await asyncio.sleep(PAUSE_S)
                continue
            if response.status_code not in (429, 503) or "turn_id" in response.json():
                return response
            await asyncio.sleep(PAUSE_S)
        return None

    async def _ended(self, turn: Turn) -> None:
        while turn.outcome is None:
            response = await self._until(turn, lambda client: client.http.get(_path(turn)))
            if response is None:
                return
            found = response.json()
            if found.get("status") == "completed":
                turn.answered(found["answer"])
            elif found.get("status") in ENDED:
                turn.ended(found["error"]["code"])
            else:
                await asyncio.sleep(PAUSE_S / 2)
        if turn.outcome not in EXPECTED:
            self._ledger.wrong(f"failed: {turn.message!r} of {turn.turn_id}, {turn.outcome}")

    async def _repeat(self, turn: Turn, **options: Any) -> None:
        """The same key finds the same turn."""
        again = Turn(turn.session, turn.message, turn.word, turn.key)
        await self._ask(again, **options)
        await self._ended(again)
        if (again.turn_id, again.answer) != (turn.turn_id, turn.answer):
            self._ledger.wrong(f"repeated: {turn.message!r} of {turn.turn_id} became {again.turn_id}: {again.outcome}")

    async def _read(self, turn: Turn, seen: list[Sent], cut: int) -> None:
        client = self._anyone()
        if turn.turn_id is None:
            body, headers = {"message": turn.message, "stream": True}, {"Idempotency-Key": turn.key}
            path = f"/sessions/{turn.session}/chat"
            async with listening(client, path, method="POST", json=body, headers=headers) as stream:
                await self._take(turn, stream, seen, cut)
            return
        after = {"Last-Event-ID": str(seen[-1].id)} if seen else {}
        async with listening(client, f"{_path(turn)}/events", headers=after) as stream:
            await self._take(turn, stream, seen, cut)

    async def _take(self, turn: Turn, stream: Stream, seen: list[Sent], cut: int) -> None:
        if stream.response.status_code != 200:
            turn.turn_id = stream.response.json().get("turn_id", turn.turn_id)
            await asyncio.sleep(PAUSE_S)
            return
        async for sent in stream.sent:
            seen.append(sent)
            if sent.type == "RUN_STARTED":
                turn.turn_id = sent.event["runId"]
            if sent.type in ENDS or len(seen) >= cut:
                return

    def _is_overdue(self, turn: Turn) -> bool:
        late = time.monotonic() - turn.sent_at > BOUND_S
        if late:
            turn.ended("overdue")
            self._ledger.wrong(f"not terminal in {BOUND_S:.0f} s: {turn.message!r} of {turn.turn_id}")
        return late

    def _anyone(self) -> Client:
        return self._random.choice(self._site.living or self._site.instances).client

    # --- sessions ---

    async def _new_session(self) -> str:
        while True:
            try:
                response = await self._anyone().http.post("/sessions", json={})
                if response.status_code == 201:
                    return str(response.json()["id"])
            except LOST:
                pass
            await asyncio.sleep(PAUSE_S)

    async def _delete(self, session: str) -> None:
        self._ledger.deleted.add(session)
        while True:
            try:
                response = await self._anyone().http.delete(f"/sessions/{session}")
                if response.status_code in (204, 404):
                    return
            except LOST:
                pass
            await asyncio.sleep(PAUSE_S)


def _path(turn: Turn) -> str:
    return f"/sessions/{turn.session}/turns/{turn.turn_id}"
