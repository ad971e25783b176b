"""One endpoint of an OpenAI-compatible provider: JSON out as it is, plain dicts back, bounded, and what it has refused
before is left out.

Uses public parts of the `openai` client only. Knows nothing of messages' content, deadlines and retries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import httpx2
import openai
import structlog

from segue.agent.llm.model_errors import BROKE_OFF, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.agent.llm.providers.event_stream import BROKEN, BodyTooLong, bounded, events
from segue.agent.llm.providers.learned import Body, Learned
from segue.agent.llm.providers.openai_address import before_requests, client_arguments
from segue.agent.llm.providers.options import ProviderOptions
from segue.agent.llm.providers.refusals import RefusalReader
from segue.agent.llm.providers.wire_json import read_json, write_json
from segue.net.http_client import tell_trace, tls_context

_DRAIN_S = 0.1  # for the end of a stream, after which the connection can be used again

log = structlog.get_logger()


class Endpoint:
    """What it refuses or misses is remembered for as long as the process lives."""

    def __init__(
        self, client: openai.AsyncOpenAI, refusals: RefusalReader, *, path: str, max_answer_bytes: int
    ) -> None:
        self._path = path
        self._client = client
        self._refusals = refusals
        self._max_answer_bytes = max_answer_bytes
        self._learned = Learned()

    async def ask(self, body: Body) -> dict[str, Any]:
        """Returns the whole answer. Raises ModelFailure, TimeoutError or ValueError."""
        async with aclosing(self._asked(body)) as received:
            return cast(dict[str, Any], await anext(received))

    async def stream(self, body: Body) -> AsyncIterator[dict[str, Any] | None]:
        """Yields the events of an answer, and None as a sign of life. Raises as `ask` does.

        The last one yielded is empty if the provider said that the answer is complete.
        """
        async with aclosing(self._asked({**body, "stream": True})) as received:
            async for event in received:
                yield event

    async def _asked(self, body: Body) -> AsyncGenerator[dict[str, Any] | None]:
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

    async def _received(self, body: Body) -> AsyncGenerator[dict[str, Any] | None]:
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

    async def _post(self, body: Body) -> httpx2.Response:
        try:
            # With a response for `cast_to` it is returned as it is, unread because of `stream`.
            response = await self._client.post(
                self._path,
                cast_to=httpx2.Response,
                content=write_json(body),
                stream=True,
                stream_cls=openai.AsyncStream[Any],
            )
        except openai.APITimeoutError as error:
            is_absent = isinstance(error.__cause__, httpx2.ConnectTimeout)
            raise (ProviderUnreachable if is_absent else TimeoutError) from error
        except openai.APIConnectionError as error:
            raise ProviderUnreachable from error
        return cast(httpx2.Response, response)


@asynccontextmanager
async def endpoint_of(options: ProviderOptions, path: str) -> AsyncIterator[Endpoint]:
    """Yields one endpoint of a provider whose connections close with the block. It never retries: ChatModel does."""
    refusals = RefusalReader(options.secrets, options.provider)
    async with (
        openai.DefaultAsyncHttpxClient(
            verify=tls_context(),
            follow_redirects=False,  # one of them would take the whole conversation to another host
            event_hooks={"request": [*before_requests(options), tell_trace], "response": [refusals.check]},
        ) as http_client,
        openai.AsyncOpenAI(**client_arguments(options), http_client=http_client) as client,
    ):
        yield Endpoint(client, refusals, path=path, max_answer_bytes=options.max_answer_bytes)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, BodyTooLong, *BROKEN):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass
