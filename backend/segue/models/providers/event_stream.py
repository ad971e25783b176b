"""Reads server-sent events from bytes, and bodies up to a bound of decoded bytes. Knows nothing of what they say.

JSON goes to and comes from providers by orjson, and by Python's own where a provider writes what orjson refuses.
"""

import json
import re
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import httpx2
import orjson

from segue.net.http_client import paced

BROKEN: Final = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)  # what a connection that breaks off raises

_LINE_END = re.compile(rb"\r\n|\n|\r")


class BodyTooLong(Exception):
    """A body has more bytes than its bound allows."""


async def bounded(response: httpx2.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Yields the decoded body piece by piece. Raises BodyTooLong, and httpx2's errors.

    httpx2 decodes at most a megabyte at once, so that a small compressed body never becomes a large one in memory.
    """
    size = 0
    async for piece in paced(response.aiter_bytes()):
        size += len(piece)
        if size > max_bytes:
            raise BodyTooLong
        yield piece


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """Yields the data of each event, and None for a piece of the stream in which none ended: a sign of life."""
    pending = bytearray()
    data: list[bytes] = []
    held = 0
    async for piece in pieces:
        pending += piece
        if not held and b"\n" not in piece and b"\r" not in piece:
            yield None
            continue
        whole = bytes(pending)
        held = 1 if whole.endswith(b"\r") else 0  # the other half of this line end may be in the next piece
        *lines, rest = _LINE_END.split(whole[: len(whole) - held])
        pending = bytearray(rest + whole[len(whole) - held :])
        found = False
        for line in lines:
            if not line and data:
                yield b"\n".join(data)
                data.clear()
                found = True
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
        if not found:
            yield None
    last = bytes(pending).rstrip(b"\r")
    if last.startswith(b"data:"):
        data.append(last[5:].removeprefix(b" "))
    if data:
        yield b"\n".join(data)


def read_json(body: bytes) -> Any:
    """Returns any JSON, half characters and NaN too. Raises ValueError or RecursionError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body, strict=False)


def write_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, half a character
        return json.dumps(value).encode()
