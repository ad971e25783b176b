"""The feed of a user: small events of all their sessions, from which a client keeps its lists up to date.

Only its followers make and keep a feed; `EventLog.tell` adds to one that exists, so a user who follows nothing costs no
round trip. Unless it goes on from a position, a stream begins with a gap, after which the client rereads its lists.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Literal, Self

import orjson

from segue.db.redis_keys import Streams
from segue.domain.errors import TURN_CANCELLED, AppError
from segue.domain.session import Memory, Session, TurnAnswer, TurnKey
from segue.events import agui_encoding
from segue.events.event_buffer import Entry
from segue.watch import end_tasks

LASTS_S = 900  # then the client comes again
MAX_UNREAD = 256
RENEW_EVERY_S = 10
RETRY_S = 0.25

GAP = orjson.dumps({"type": "replay_gap"})


def session_event(kind: Literal["session_created", "session_titled"], session: Session) -> bytes:
    return _event(kind, session_id=session.id, title=session.title)


def turn_started(turn: TurnKey, title: str | None) -> bytes:
    """Returns the event with the title of the session, because the first message gives one."""
    return _event("turn_started", session_id=turn.session_id, turn_id=turn.turn_id, title=title)


def turn_ended(turn: TurnKey, outcome: TurnAnswer) -> list[bytes]:
    """Returns the event and, if the turn ended with a question, that an approval is asked."""
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id}
    if isinstance(outcome, AppError):
        status = "cancelled" if outcome.code == TURN_CANCELLED else "failed"
        return [_event("turn_ended", **ids, status=status, code=outcome.code)]
    ended, plan = _event("turn_ended", **ids, status=outcome.status), outcome.plan
    if plan is None or plan.status != "waiting" or plan.page_steps:
        return [ended]
    return [ended, _event("approval_asked", **ids, plan_id=plan.id, version=plan.version)]


def schedule_failed(schedule_id: str, turn: TurnKey, code: str) -> bytes:
    ids = {"schedule_id": schedule_id, "session_id": turn.session_id, "turn_id": turn.turn_id}
    return _event("schedule_failed", **ids, code=code)


def fact_noted(memory: Memory) -> bytes:
    return _event("fact_noted", memory_id=memory.id, session_id=memory.session_id)


def mandate_changed(mandate_id: str) -> bytes:
    """Returns the event for a standing approval that was given or revoked."""
    return _event("mandate_changed", mandate_id=mandate_id)


def _event(kind: str, **members: str | int | None) -> bytes:
    return orjson.dumps({"type": kind, **members})


class _Reader:
    """What one client has not taken yet: at most MAX_UNREAD events, then a gap in their place."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._unread: list[Entry] = []
        self._changed = asyncio.Event()

    def add(self, entry: Entry) -> None:
        if entry.position <= self.position:
            return
        if len(self._unread) == MAX_UNREAD:
            self.restart(entry.position)
            return
        self.position = entry.position
        self._unread.append(entry)
        self._changed.set()

    def restart(self, position: int) -> None:
        """Whatever was to come before this position is missing."""
        self.position = position
        self._unread = [Entry(position, GAP)]
        self._changed.set()

    async def unread(self, *, until: float) -> Sequence[Entry]:
        """Waits for events; returns none if none came until then."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        self._changed.clear()
        unread, self._unread = self._unread, []
        return unread


class UserFeeds:
    """The feeds that are followed in one process, while it is entered. One connection reads them all."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._readers: dict[str, set[_Reader]] = {}
        self._someone_follows = asyncio.Event()
        self._lost = False
        self._renew_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_reading(), name="feeds of users")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._task)

    async def follow(self, user: str, *, after: int) -> AsyncGenerator[Sequence[Entry]]:
        """Yields what follows, for LASTS_S. A position that the feed does not have, such as 0, begins with a gap."""
        until = asyncio.get_running_loop().time() + LASTS_S
        last = await self._streams.open_feeds([user], GAP)
        if last is not None and await self._streams.in_feed(user, after):
            reader = _Reader(after)
        else:
            reader = _Reader(0)
            reader.restart(last[0] if last else 0)
            self._lost = self._lost or last is None
        self._readers.setdefault(user, set()).add(reader)
        self._someone_follows.set()
        try:
            while entries := await reader.unread(until=until):
                yield entries
        finally:
            self._readers[user].discard(reader)
            if not self._readers[user]:
                del self._readers[user]

    async def _keep_reading(self) -> None:
        while True:
            await self._someone_follows.wait()
            if not self._readers:
                self._someone_follows.clear()
                continue
            if self._lost or time.monotonic() >= self._renew_at:
                await self._renew()
                if self._lost:
                    await asyncio.sleep(RETRY_S)
                continue
            # a reader that comes meanwhile waits for the end of the read, at most 200 ms
            after = {user: min(each.position for each in readers) for user, readers in self._readers.items()}
            found = await self._streams.read_feeds(after)
            self._lost = found is None
            for user, entries in (found or {}).items():
                for position, event in entries:
                    entry = Entry(position, event if agui_encoding.is_readable(event, is_last=False) else GAP)
                    for reader in self._readers.get(user, ()):
                        reader.add(entry)

    async def _renew(self) -> None:
        """Keeps the feeds, and makes those that Redis lost: its events were not kept meanwhile, so there is a gap."""
        followed = {user: tuple(readers) for user, readers in self._readers.items()}
        last = await self._streams.open_feeds(list(followed), GAP)
        for readers, position in zip(followed.values(), last or (), strict=False):
            for reader in readers:
                if self._lost or position < reader.position:
                    reader.restart(position)
        self._lost = last is None
        self._renew_at = time.monotonic() + RENEW_EVERY_S
