"""The official client of OpenAI, as it is, speaking to a service of ours. What it hears may be recorded."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import environ
from pathlib import Path

import httpx2
import orjson
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support.patience import PATIENCE_S
from tests.support.service import Client

RECORDS = "RECORD_OPENAI"  # the file that gets a line for each answer: `make proof-openai`


class _Heard(httpx2.AsyncByteStream):
    """The body of an answer; it is recorded as far as it has been read: a client leaves a stream at its end."""

    def __init__(self, response: httpx2.Response, request: httpx2.Request) -> None:
        self._response, self._request, self._body = response, request, bytearray()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._response.aiter_raw():
            self._body += part
            yield part

    async def aclose(self) -> None:
        await self._response.aclose()
        record = {
            "test": environ.get("PYTEST_CURRENT_TEST"),
            "path": self._request.url.path,
            "streamed": self._response.headers["content-type"].startswith("text/event-stream"),
            "body": self._body.decode(),
        }
        with Path(environ[RECORDS]).open("ab") as file:  # noqa: ASYNC230 (a line, of a test)
            file.write(orjson.dumps(record) + b"\n")


class _Recording(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        return httpx2.Response(response.status_code, headers=response.headers, stream=_Heard(response, request))


@asynccontextmanager
async def openai_client(
    client: Client, key: str = "none", *, headers: Mapping[str, str] | None = None
) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"{str(client.http.base_url).rstrip('/')}/v1"
    transport = _Recording() if RECORDS in environ else None
    async with (
        DefaultAsyncHttpxClient(transport=transport) as http,
        AsyncOpenAI(
            api_key=key, base_url=base_url, timeout=PATIENCE_S, default_headers=dict(headers or {}), http_client=http
        ) as opened,
    ):
        yield opened
