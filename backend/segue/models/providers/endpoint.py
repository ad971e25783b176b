"""Asks a provider over HTTP: JSON out, dicts back, whole or as server-sent events, bounded, without what was refused.

`Endpoint` is one path of an OpenAI-compatible provider; `guarded` watches an HTTP client of another library: our
errors, no redirects, bounded answers. The key goes as a bearer or in Azure's header.
"""

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import httpx2
from pydantic import SecretStr

from segue import __version__
from segue.domain.agent import OPENAI, ModelProvider, ProviderApi
from segue.domain.redaction import header_secrets
from segue.domain.telemetry import Attribute
from segue.log import log
from segue.models.amended_requests import NOTHING_LEARNED, Learned, RequestBody
from segue.models.refusals import BROKEN, NotAnAnswer, ProviderRefusal, ProviderUnreachable, RefusalReader, too_long
from segue.models.reply import SIGN_OF_LIFE, read_json, write_json
from segue.net.http_client import BodyTooLarge, bounded, tell_trace, unchecked_client_arguments
from segue.secret_files import LiveKeys

RequestHook = Callable[[httpx2.Request], Awaitable[None]]
Rewrite = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

UNPACKED: Final = {"Accept-Encoding": "identity"}  # an answer that is packed could be small on its way, large in memory
_OPENAI_HOST: Final = "api.openai.com"
_AZURES_QUERY: Final = "api-version"  # only its classic addresses have one
_AGENT: Final = f"segue/{__version__}"
_HEADERS: Final = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": _AGENT}
_DATA: Final = re.compile(rb"data: ?|(?:error: )?(?=\{)")  # an error may stand alone, or as llama.cpp wrote it
_LINE_END = re.compile(rb"\r\n|\n|\r")
_CUT: Final = (httpx2.NetworkError, httpx2.ProtocolError)  # the reader of the events knows if they were all
_DRAIN_S = 0.1  # for the end of a stream, after which the connection can be used again


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """Options of None are not sent."""

    model: str  # the name without the provider's prefix
    api_key: SecretStr | None
    base_url: str | None
    timeout_s: float
    max_answer_bytes: int
    provider: ModelProvider = OPENAI
    api: ProviderApi = "auto"  # which of OpenAI's is asked
    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # merged last
    structured_output: bool = True
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # merged last
    keys: LiveKeys | None = field(default=None, repr=False)  # in the place of the key

    @property
    def url(self) -> str:
        return self.base_url or self.provider.default_url

    @property
    def address(self) -> str:
        """Returns the URL without its query."""
        return self.url.partition("?")[0]

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.url).query))

    @property
    def is_openai_itself(self) -> bool:
        return self.host == _OPENAI_HOST

    @property
    def takes_files(self) -> bool:
        """Whether the provider is known to hand files on to models that read them."""
        return bool(self.provider.extra) or self.host in (_OPENAI_HOST, "openrouter.ai")

    @property
    def server(self) -> dict[str, Attribute]:
        url = urlsplit(self.url)
        return {"server.address": self.host, "server.port": url.port or (80 if url.scheme == "http" else 443)}

    @property
    def timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.timeout_s, connect=min(10.0, self.timeout_s / 2))

    @property
    def key(self) -> str:
        if self.keys is not None:
            return self.keys.value
        return self.api_key.get_secret_value() if self.api_key else "none"

    @property
    def secrets(self) -> Collection[str]:
        """Returns the texts to hide if a provider repeats them: extra headers, the keys and their derived forms."""
        never_told = self.keys.never_told if self.keys else {self.key} if self.api_key else set[str]()
        never_told.update(header_secrets(self.extra_headers.values()))
        return never_told

    def made_by(self, api: str = "") -> str:
        """Returns the name of who makes the opaque parts of an API's answers: they go back to no other."""
        return " ".join(filter(None, (self.address, api, self.model)))


async def _heard(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        SIGN_OF_LIFE.get()()  # also for comments and pings, of which no event comes
        yield piece


class _BoundedStream(httpx2.AsyncByteStream):
    """Without the mark of its byte order. Read once more it goes on, as OpenAI's client does behind `[DONE]`."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, rewritten: Rewrite | None) -> None:
        self._stream = stream
        pieces = _heard(bounded(stream, max_bytes))
        self._pieces = pieces if rewritten is None else rewritten(pieces)
        self._max_bytes = max_bytes
        self._mark = BOM_UTF8

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                mark, self._mark = self._mark, b""
                yield piece.removeprefix(mark)
        except BodyTooLarge as error:
            raise too_long(self._max_bytes) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


def with_live_key(options: ProviderOptions) -> list[RequestHook]:
    """Returns hooks that send the key as it is now: libraries keep the one that they were made with."""
    keys = options.keys
    if keys is None:
        return []

    async def renew(request: httpx2.Request) -> None:
        if len(keys.seen) == 1:
            return
        for name, value in list(request.headers.items()):
            scheme, space, token = value.rpartition(" ")
            if token in keys.seen:
                request.headers[name] = f"{scheme}{space}{keys.value}"

    return [renew]


def guarded(
    refusals: RefusalReader, max_answer_bytes: int, before: Sequence[RequestHook] = (), rewritten: Rewrite | None = None
) -> dict[str, Any]:
    """Returns arguments for httpx2's AsyncClient, whose requests raise ModelFailure too. Send them with UNPACKED.
    `rewritten` returns the data of an answer's events as a library reads them, which then come without comments.
    """

    async def check(response: httpx2.Response) -> None:
        await refusals.check(response)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise NotAnAnswer("The model provider packed its answer although it was asked not to.", again=False)
        response.encoding = "utf-8"  # as JSON is: decoding a long "punycode" takes hours
        stream = cast(httpx2.AsyncByteStream, response.stream)
        is_events = "event-stream" in response.headers.get("content-type", "")
        read = (as_events if rewritten else None) if is_events else without_error
        response.stream = _BoundedStream(stream, max_answer_bytes, read)

    async def as_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in (rewritten or aiter)(events(pieces)):
            if data:
                yield b"data: %b\n\n" % data.replace(b"\n", b" ")

    async def without_error(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        body = b"".join([piece async for piece in pieces])
        with suppress(ValueError, RecursionError):
            if (refused := refusals.within(read_json(body))) is not None:
                raise refused
        yield body

    return {"event_hooks": {"request": [*before, tell_trace], "response": [check]}, "follow_redirects": False}


def before_requests(options: ProviderOptions) -> list[RequestHook]:
    """Returns the hooks of an HTTP client that send the key as the address wants it."""

    async def as_azure_takes_it(request: httpx2.Request) -> None:
        request.headers.pop("Authorization", None)
        request.headers["api-key"] = options.key

    return [as_azure_takes_it] if _AZURES_QUERY in options.query else with_live_key(options)


@dataclass(eq=False, repr=False)
class Endpoint:
    """The parameters that it refuses, and parts that it misses, are remembered while the process lives."""

    client: httpx2.AsyncClient
    refusals: RefusalReader
    path: str
    max_answer_bytes: int
    _learned: Learned = NOTHING_LEARNED

    async def ask(self, body: RequestBody) -> dict[str, Any]:
        """Returns the whole answer. Raises ModelFailure, TimeoutError or ValueError."""
        async with aclosing(self.events(body)) as received:
            return await anext(received, {})

    async def events(self, body: RequestBody, *, forget: Collection[str] = ()) -> AsyncGenerator[dict[str, Any]]:
        """Yields the events of an answer, or a whole one. Raises as `ask` does. It is asked for again without what the
        endpoint refuses, or with what it misses; a refused one in `forget` is left out of this request alone. The last
        event is empty if the provider said that it is complete.
        """
        learned, has_begun = self._learned, False
        while True:
            sent = body if learned is NOTHING_LEARNED else learned.applied_to(body)
            try:
                async with aclosing(self._received(sent)) as received:
                    async for event in received:
                        if event and not has_begun:
                            has_begun = True
                            if learned is not self._learned:
                                self._learned |= learned.without(forget)  # kept only once it has helped
                        yield event
            except ProviderRefusal as refusal:
                more = None if has_begun else learned.after(refusal, sent)
                if more is None:
                    raise
                learned, name = more
                log.warning("model_parameter_left_out", parameter=name, reason=refusal.message, status=refusal.status)
                continue
            return

    async def _received(self, body: RequestBody) -> AsyncGenerator[dict[str, Any]]:
        response = await self._post(body)
        try:
            kind = response.headers.get("content-type", "")
            if "html" in kind:
                raise ValueError("a page for people")
            if "event-stream" not in kind and (not body.get("stream") or "json" in kind):
                with self._reading():  # also from an endpoint that does not stream
                    whole = b"".join([piece async for piece in bounded(response.aiter_bytes(), self.max_answer_bytes)])
                yield self._checked(read_json(whole))
                yield {}
                return
            with self._reading(), suppress(*_CUT):
                pieces = _heard(bounded(response.aiter_bytes(), self.max_answer_bytes))
                async for data in events(pieces):
                    if data.strip() == b"[DONE]":
                        await _drain(pieces)
                        yield {}
                        return
                    if data and not data.isspace():  # some send empty events while nothing comes
                        yield self._checked(read_json(data))
        finally:
            await response.aclose()

    def _checked(self, body: Any) -> dict[str, Any]:
        if (refused := self.refusals.within(body)) is not None:
            raise refused
        if not isinstance(body, dict):
            raise TypeError("no JSON object")
        return body

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BodyTooLarge as error:
            raise too_long(self.max_answer_bytes) from error
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except BROKEN as error:
            raise NotAnAnswer from error

    async def _post(self, body: RequestBody) -> httpx2.Response:
        request = self.client.build_request("POST", self.path, content=write_json(body))
        try:
            return await self.client.send(request, stream=True)
        except (httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.PoolTimeout) as error:
            raise TimeoutError from error
        except BROKEN as error:
            raise ProviderUnreachable from error


@asynccontextmanager
async def endpoint_of(options: ProviderOptions, path: str) -> AsyncIterator[Endpoint]:
    """Yields one endpoint of a provider whose connections close with the block. It never retries: ChatModel does."""
    refusals = RefusalReader(options.secrets, options.provider)
    headers = httpx2.Headers({**_HEADERS, "Authorization": f"Bearer {options.key}"})
    headers.update(options.extra_headers)
    async with httpx2.AsyncClient(
        base_url=options.address,
        params=options.query,
        headers=headers,
        timeout=options.timeout,
        **unchecked_client_arguments(),
        follow_redirects=False,  # one of them would take the whole conversation to another host
        event_hooks={"request": [*before_requests(options), tell_trace], "response": [refusals.check]},
    ) as client:
        yield Endpoint(client, refusals, path, options.max_answer_bytes)


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the data of each event."""
    pending = bytearray()
    data: list[bytes] = []
    kept = 0
    async for piece in pieces:
        pending += piece
        if not kept and b"\n" not in piece and b"\r" not in piece:
            continue
        whole = bytes(pending)
        kept = 1 if whole.endswith(b"\r") else 0  # the other half of this line end may be in the next piece
        *lines, rest = _LINE_END.split(whole[: len(whole) - kept])
        pending = bytearray(rest + whole[len(whole) - kept :])
        for line in lines:
            if not line and data:
                yield b"\n".join(data)
                data.clear()
            else:
                data += _data_in(line)
    data += _data_in(bytes(pending).rstrip(b"\r"))
    if data:
        yield b"\n".join(data)


def _data_in(line: bytes) -> list[bytes]:
    found = _DATA.match(line := line.removeprefix(BOM_UTF8))
    return [line[found.end() :]] if found else []


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, BodyTooLarge, *BROKEN):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass
