"""Event streams as a client reads them, and what AG-UI asks of them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

import httpx2
import orjson
from ag_ui.core import Event
from pydantic import TypeAdapter

from segue.api.event_streams import EVENT_TYPES
from tests.support.service import Client

RECORDS = "RECORD_STREAMS"  # the file that gets a line for each stream: `make proof-agui`
_check = TypeAdapter[Any](Event).validate_python
_STARTS = {
    "TEXT_MESSAGE_START": "messageId",
    "TOOL_CALL_START": "toolCallId",
    "STEP_STARTED": "stepName",
    "REASONING_START": "messageId",
    "REASONING_MESSAGE_START": "messageId",
}
_INSIDE = {
    "TEXT_MESSAGE_CONTENT": "TEXT_MESSAGE_START",
    "TOOL_CALL_ARGS": "TOOL_CALL_START",
    "REASONING_MESSAGE_CONTENT": "REASONING_MESSAGE_START",
}
_ENDS = {
    "TEXT_MESSAGE_END": "TEXT_MESSAGE_START",
    "TOOL_CALL_END": "TOOL_CALL_START",
    "STEP_FINISHED": "STEP_STARTED",
    "REASONING_END": "REASONING_START",
    "REASONING_MESSAGE_END": "REASONING_MESSAGE_START",
}


@dataclass(frozen=True, slots=True)
class Sent:
    id: int
    event: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.event["type"])

    @property
    def kind(self) -> str:
        """The type, and what a custom event, a step or a call is called."""
        name = next((self.event[key] for key in ("name", "stepName", "toolCallName") if key in self.event), "")
        return f"{self.type} {name}".strip()


@asynccontextmanager
async def listening(client: Client, path: str, *, method: str = "GET", **request: Any) -> AsyncIterator["Stream"]:
    """An open stream. Leaving it is a client that goes away."""
    async with client.http.stream(method, path, **request) as response:
        if response.status_code != 200:
            await response.aread()
        async with aclosing(_sent(response)) as sent:
            yield Stream(response, sent)


@asynccontextmanager
async def chatting(client: Client, session: str, message: str, **options: Any) -> AsyncIterator["Stream"]:
    body = {"message": message, "stream": True, **options}
    async with listening(client, f"/sessions/{session}/chat", method="POST", json=body) as stream:
        yield stream


async def streamed(client: Client, session: str, message: str, **options: Any) -> list[Sent]:
    """Everything that a message brings about, checked against the protocol."""
    async with chatting(client, session, message, **options) as stream:
        sent = await stream.rest()
    check(sent)
    return sent


async def replayed(client: Client, session: str, turn: str, **params: Any) -> list[Sent]:
    async with listening(client, f"/sessions/{session}/turns/{turn}/events", params=params) as stream:
        return await stream.rest()


@dataclass(frozen=True, slots=True)
class Stream:
    response: httpx2.Response
    sent: AsyncIterator[Sent]

    async def next(self) -> Sent:
        return await anext(self.sent)

    async def until(self, kind: str) -> list[Sent]:
        """What comes up to and with the next event of a kind."""
        found: list[Sent] = []
        while not found or kind not in (found[-1].type, found[-1].kind):
            found.append(await self.next())
        return found

    async def rest(self) -> list[Sent]:
        return [sent async for sent in self.sent]


async def _sent(response: httpx2.Response) -> AsyncGenerator[Sent]:
    """LF framing: an id and one line of data, then a blank line; comments are heartbeats."""
    field: dict[str, str] = {}
    events: list[Any] = []
    try:
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                assert name in ("id", "data"), line
                assert name not in field, line
                field[name] = value
            elif field:
                events.append(orjson.loads(field["data"]))
                yield Sent(int(field["id"]), events[-1])
                field = {}
    finally:
        _record(events)


def _record(events: list[Any]) -> None:
    """What goes on after a known event is no stream of its own."""
    if RECORDS in environ and events and events[0]["type"] == "RUN_STARTED":
        with Path(environ[RECORDS]).open("ab") as file:
            file.write(orjson.dumps({"test": environ.get("PYTEST_CURRENT_TEST"), "events": events}) + b"\n")


def check(sent: list[Sent]) -> None:
    """A whole stream is valid AG-UI: each event by itself, and all of them in this order."""
    for each in sent:
        _check(each.event)
        assert each.event.keys() == {"type", *EVENT_TYPES[each.type][0].split()}, each
    ids = [each.id for each in sent]
    assert ids == sorted(set(ids)), ids
    assert sent[0].type == "RUN_STARTED"
    assert sent[-1].type in ("RUN_FINISHED", "RUN_ERROR")
    opened: set[tuple[str, str]] = set()
    for each in sent[1:-1]:
        assert not each.type.startswith("RUN_"), each
        if each.type in _STARTS:
            place = each.type, each.event[_STARTS[each.type]]
            assert place not in opened, each
            opened.add(place)
        elif start := _ENDS.get(each.type) or _INSIDE.get(each.type):
            place = start, each.event[_STARTS[start]]
            assert place in opened, each
            if each.type in _ENDS:
                opened.remove(place)
    assert sent[-1].type == "RUN_ERROR" or not opened, opened


def kinds(sent: list[Sent]) -> list[str]:
    return [each.kind for each in sent]


def texts(sent: list[Sent]) -> dict[str, str]:
    """What was said, by the id of the message."""
    said: dict[str, str] = {}
    for each in sent:
        if each.type == "TEXT_MESSAGE_START":
            said[each.event["messageId"]] = ""
        elif each.type == "TEXT_MESSAGE_CONTENT":
            assert each.event["delta"]
            said[each.event["messageId"]] += each.event["delta"]
    return said
