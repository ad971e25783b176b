"""One endpoint of an OpenAI-compatible provider: JSON out as it is, plain dicts back, bounded, and what it has refused
before is left out.

Uses public parts of the `openai` client only. Knows nothing of messages' content, deadlines and retries.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, cast

import anyio
import httpx2
import openai
import structlog

from segue.agent.model_errors import BAD_REQUEST, BROKE_OFF, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.agent.providers.event_stream import BodyTooLong, bounded, events
from segue.agent.providers.opaque import CALL_FIELDS, MESSAGE_FIELDS
from segue.agent.providers.openai_address import before_requests, client_arguments
from segue.agent.providers.options import ProviderOptions
from segue.agent.providers.refusals import RefusalReader, parameter_named
from segue.agent.providers.wire_json import read_json, write_json
from segue.net.http_client import tls_context

Body = Mapping[str, Any]

# What a request cannot do without.
_ESSENTIAL: Final = frozenset({"model", "messages", "tools", "stream"})
# Under what other name a value goes if the first is refused.
_RENAMED: Final[Mapping[str, str]] = {"max_tokens": "max_completion_tokens"}
_DRAIN_S = 0.1  # for the end of a stream, after which the connection can be used again
_BROKEN = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)

log = structlog.get_logger()


class Endpoint:
    """`url` is where it is. What it refuses is remembered for as long as the process lives."""

    def __init__(
        self, client: openai.AsyncOpenAI, refusals: RefusalReader, *, path: str, max_answer_bytes: int
    ) -> None:
        self._path = path
        self.url = str(client.base_url)
        self._client = client
        self._refusals = refusals
        self._max_answer_bytes = max_answer_bytes
        self._refused: frozenset[tuple[str, object]] = frozenset()

    async def ask(self, body: Body) -> dict[str, Any]:
        """Returns the whole answer. Raises ModelFailure, TimeoutError or ValueError."""
        response = await self._open(body)
        try:
            return await self._whole(response)
        finally:
            await response.aclose()

    async def stream(self, body: Body) -> AsyncIterator[dict[str, Any] | None]:
        """Yields the events of an answer, and None as a sign of life. Raises as `ask` does.

        The last one yielded is empty if the provider said that the answer is complete.
        """
        response = await self._open({**body, "stream": True})
        try:
            if "json" in response.headers.get("content-type", ""):  # an endpoint that does not stream
                yield await self._whole(response)
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
        except _BROKEN as error:
            raise NotAnAnswer(BROKE_OFF) from error

    async def _open(self, body: Body) -> httpx2.Response:
        """Returns the response to a request, asked again without what the endpoint refuses of it."""
        refused = self._refused
        while True:
            sent = _without(body, refused)
            try:
                response = await self._post(sent)
            except ProviderRefusal as refusal:
                name = parameter_named(refusal, _optional_names(sent)) or _suspect(refusal, sent)
                if name is None:
                    raise
                log.warning("model_parameter_left_out", parameter=name, reason=refusal.message, status=refusal.status)
                refused |= {_refused_part(sent, name)}
                continue
            if refused is not self._refused:  # kept only once it has helped
                self._refused |= refused
            return response

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
            event_hooks={"request": before_requests(options), "response": [refusals.check]},
        ) as http_client,
        openai.AsyncOpenAI(**client_arguments(options), http_client=http_client) as client,
    ):
        yield Endpoint(client, refusals, path=path, max_answer_bytes=options.max_answer_bytes)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, BodyTooLong, *_BROKEN):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


def _optional_names(body: Body) -> set[str]:
    """Returns what of a request could be left out: parameters, and what was given back as it came."""
    messages = body.get("messages", ())
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    given_back = {name for message in messages for name in message if name not in MESSAGE_FIELDS}
    return given_back.union(body.keys() - _ESSENTIAL, *(call.keys() - CALL_FIELDS for call in calls))


def _suspect(refusal: ProviderRefusal, body: Body) -> str | None:
    """Returns what a refusal may be about that names nothing: few endpoints say that they take no schema of answers."""
    is_vague = refusal.status in BAD_REQUEST and refusal.cause.name == "refused"
    return "response_format" if is_vague and "response_format" in body else None


def _refused_part(body: Body, name: str) -> tuple[str, object]:
    """Returns a parameter with its value, if that is one of a few: another may be welcome."""
    value = body.get(name)
    return name, value if isinstance(value, str) else None


def _without(body: Body, refused: Collection[tuple[str, object]]) -> Body:
    if not refused:
        return body
    sent = dict(body)
    for name, value in refused:
        if name in sent and value in (None, sent[name]):
            given = sent.pop(name)
            if (other := _RENAMED.get(name)) and (other, None) not in refused:
                sent[other] = given
    unwanted = {name for name, _ in refused} - body.keys()
    if unwanted:
        sent["messages"] = [_without_fields(message, unwanted) for message in sent["messages"]]
    return sent


def _without_fields(message: Mapping[str, Any], unwanted: Collection[str]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in unwanted or name in MESSAGE_FIELDS}
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [{name: value for name, value in call.items() if name not in unwanted} for call in calls]
    return kept
