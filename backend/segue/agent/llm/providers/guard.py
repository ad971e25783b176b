"""What an HTTP client of another library is watched with: errors told as ours, no redirects, answers bounded.

Knows nothing of what answers say.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, cast

import httpx2

from segue.agent.llm.model_errors import NotAnAnswer, too_long
from segue.agent.llm.providers.options import ProviderOptions
from segue.agent.llm.providers.refusals import RefusalReader
from segue.net.http_client import paced, tell_trace

RequestHook = Callable[[httpx2.Request], Awaitable[None]]

# An answer that is packed could be small on its way and large in memory.
UNPACKED: Final = {"Accept-Encoding": "identity"}
_PACKED: Final = "The model provider packed its answer although it was asked not to."


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in paced(self._stream):
            size += len(piece)
            if size > self._max_bytes:
                raise too_long(self._max_bytes)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def with_live_key(options: ProviderOptions) -> list[RequestHook]:
    """Returns the hooks of an HTTP client that send the key as it is now; no hooks if it never changes. The clients of
    libraries keep the one that they were made with.
    """
    live = options.live_key
    if live is None:
        return []

    async def renew(request: httpx2.Request) -> None:
        for name, value in list(request.headers.items()):
            scheme, space, token = value.rpartition(" ")
            if token in live.seen:
                request.headers[name] = f"{scheme}{space}{live.value}"

    return [renew]


def guarded(refusals: RefusalReader, max_answer_bytes: int, before: Sequence[RequestHook] = ()) -> dict[str, Any]:
    """Returns arguments for httpx2's AsyncClient, with hooks `before` its requests, which then raise ModelFailure too.
    Send them with UNPACKED.
    """

    async def check(response: httpx2.Response) -> None:
        await refusals.check(response)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise NotAnAnswer(_PACKED, again=False)
        response.encoding = "utf-8"  # as JSON is: decoding a long "punycode" takes hours
        response.stream = _BoundedStream(cast(httpx2.AsyncByteStream, response.stream), max_answer_bytes)

    return {"event_hooks": {"request": [*before, tell_trace], "response": [check]}, "follow_redirects": False}
