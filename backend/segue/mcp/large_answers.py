"""Large answers of MCP servers, which are not read where other work goes on: megabytes of JSON would hold it up.

The result of a call travels through the SDK packed, as one short text, and is unpacked in the process that reads what
tools give (`tools/run.py`).
"""

import re
from collections.abc import AsyncIterator
from typing import Final

from segue.mcp.budget import IN_PROGRESS, Budget, McpServerGone
from segue.mcp.packing import packed_message
from segue.tools.apart import LARGE, READ_S, TooMuch, apart

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END: Final = 4


async def light(message: bytes) -> bytes:
    """Returns a message that is read in a moment. Raises McpServerGone if that cannot be had."""
    if len(message) <= LARGE:
        return message
    try:
        return await apart(packed_message, message, deadline_s=READ_S)
    except TooMuch as error:
        raise McpServerGone(f"it sent a message that {error} to read") from error


async def light_body(body: AsyncIterator[bytes], budget: Budget, *, is_stream: bool) -> AsyncIterator[bytes]:
    """Yields a body with its messages light: JSON as a whole, or an event stream event by event, without those that
    the budget skips.
    """
    held = bytearray()
    async for chunk in body:
        begin = max(len(held) - _LONGEST_END, 0)
        held += chunk
        if is_stream and (ends := [end.end() for end in _EVENT_END.finditer(held, begin)]):
            yield await _light_events(_read_of(bytes(held[: ends[-1]]), budget))
            del held[: ends[-1]]
    yield await _light_events(bytes(held)) if is_stream else await light(bytes(held))


def _read_of(events: bytes, budget: Budget) -> bytes:
    if IN_PROGRESS not in events:
        return events
    return b"".join(event + b"\n\n" for event in _EVENT_END.split(events) if event and not budget.skips(event))


async def _light_events(events: bytes) -> bytes:
    if len(events) <= LARGE:
        return events
    return b"".join([await _light_event(event) + b"\n\n" for event in _EVENT_END.split(events) if event])


async def _light_event(event: bytes) -> bytes:
    lines = event.splitlines()
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    beside = [line for line in lines if not line.startswith(b"data:")]
    return b"\n".join([*beside, b"data: " + await light(data)])
