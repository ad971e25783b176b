"""One endpoint of an OpenAI-compatible provider: JSON out as it is, plain dicts back, bounded, and what it has refused
before is left out.

Knows nothing of messages' content, deadlines and retries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import httpx2
import structlog

from segue.agent.llm.model_errors import BROKE_OFF, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.agent.llm.providers.event_stream import BROKEN, BodyTooLong, bounded, events
from segue.agent.llm.providers.learned import Learned, RequestBody
from segue.agent.llm.providers.openai_address import before_requests, http_arguments
from segue.agent.llm.providers.options import ProviderOptions
from segue.agent.llm.providers.refusals import RefusalReader
from segue.agent.llm.providers.wire_json import read_json, write_json
from segue.net.http_client import tell_trace, tls_context

_CONNECTIONS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
_DRAIN_S = 0.1  # for the end of a stream, after which the connection can be used again

log = structlog.get_logger()


class Endpoint:
    """What it refuses or misses is remembered for as long as the process lives."""

    def __init__(
        self, client: httpx2.AsyncClient, refusals: RefusalReader, *, path: str, max_answer_bytes: int
    ) -> None:
        self._path = path
        self._client = client
        self._refusals = refusals
        self._max_answer_bytes = max_answer_bytes
        self._learned = Learned()

    async def ask(self, body: RequestBody) -> dict[str, Any]:
        """Returns the whole answer. Raises ModelFailure, TimeoutError or ValueError."""
        async with aclosing(self._asked(body)) as received:
            return cast(dict[str, Any], await anext(received))

    async def stream(self, body: RequestBody) -> AsyncIterator[dict[str, Any] | None]:
        """Yields the events of an answer, and None as a sign of life. Raises as `ask` does.

        The last one yielded is empty if the provider said that the answer is complete.
        """
        async with aclosing(self._asked({**body, "stream": True})) as received:
            async for event in received:
                yield event

    async def _asked(self, body: RequestBody) -> AsyncGenerator[dict[str, Any] | None]:
        """Yields an answer, asked for again without what the endpoint refuses, or with what it misses."""
        learned, has_begun = self._learned, False
        while True:
            sent = learned.applied_to(body)
            try:
                async with aclosing(self._received(sent)) as received:
                    async for event in received:
                        if event and not has_begun:
                            has_begun = True
                            self._learned |= learned  # kept only once it has helped
                        yield event
            except ProviderRefusal as refusal:
                more = None if has_begun else learned.after(refusal, sent)
                if more is None:
                    raise
                learned, name = more
                log.warning("model_parameter_left_out", parameter=name, reason=refusal.message, status=refusal.status)
                continue
            return

    async def _received(self, body: RequestBody) -> AsyncGenerator[dict[str, Any] | None]:
        response = await self._post(body)
        try:
            kind = response.headers.get("content-type", "")
            if "html" in kind:
                raise ValueError("a page for people")
            if not body.get("stream") or "json" in kind:
                yield await self._whole(response)  # also from an endpoint that does not stream
                yield {}
                return
            with self._reading():
                pieces = bounded(response, self._max_answer_bytes)
                async for data in events(pieces):
                    if data is None:
                        yield None
                    elif data.strip() == b"[DONE]":
                        await _drain(pieces)
                        yield {}
                        return
                    else:
                        yield self._checked(read_json(data))
        finally:
            await response.aclose()

    async def _whole(self, response: httpx2.Response) -> dict[str, Any]:
        body = bytearray()
        with self._reading():
            async for piece in bounded(response, self._max_answer_bytes):
                body += piece
        return self._checked(read_json(bytes(body)))

    def _checked(self, body: Any) -> dict[str, Any]:
        if (refused := self._refusals.within(body)) is not None:
            raise refused
        if not isinstance(body, dict):
            raise TypeError("no JSON object")
        return body

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BodyTooLong as error:
            raise too_long(self._max_answer_bytes) from error
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except BROKEN as error:
            raise NotAnAnswer(BROKE_OFF) from error

    async def _post(self, body: RequestBody) -> httpx2.Response:
        request = self._client.build_request("POST", self._path, content=write_json(body))
        try:
            return await self._client.send(request, stream=True)
        except httpx2.ConnectTimeout as error:
            raise ProviderUnreachable from error
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except BROKEN as error:
            raise ProviderUnreachable from error


@asynccontextmanager
async def endpoint_of(options: ProviderOptions, path: str) -> AsyncIterator[Endpoint]:
    """Yields one endpoint of a provider whose connections close with the block. It never retries: ChatModel does."""
    refusals = RefusalReader(options.secrets, options.provider)
    async with httpx2.AsyncClient(
        **http_arguments(options),
        verify=tls_context(),
        limits=_CONNECTIONS,
        follow_redirects=False,  # one of them would take the whole conversation to another host
        event_hooks={"request": [*before_requests(options), tell_trace], "response": [refusals.check]},
    ) as client:
        yield Endpoint(client, refusals, path=path, max_answer_bytes=options.max_answer_bytes)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, BodyTooLong, *BROKEN):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass
