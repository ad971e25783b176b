import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ddgs import DDGS
from pydantic import SecretStr

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry, ToolUnauthorized
from segue.tools.builtin.web_search import SearchProvider, web_search_tool
from segue.tools.run import run_tool
from segue.tools.tool_settings import ToolSettings
from tests.support.patience import PATIENCE_S

HERE = "127.0.0.1"
KEY = "tvly-very-secret"
CONTEXT = ToolContext(
    owner="anna", session_id="session", turn_id="turn", tool_call_id="call", now=datetime(2026, 5, 4, tzinfo=UTC)
)


@dataclass
class Engine:
    """A provider that gives one answer to every request. Without a status it never answers."""

    port: int = 0
    status: int | None = 200
    body: str = '{"results": []}'
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((line[15:] for line in head.splitlines() if line.lower().startswith("content-length:")), "0")
        self.requests.append((head, (await reader.readexactly(int(length))).decode()))
        if self.status is None:
            await reader.read()
        else:
            writer.write(http(self.status, self.body))
            await writer.drain()
        writer.close()

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self.port}"


def http(status: int, body: str) -> bytes:
    content = body.encode()
    return f"HTTP/1.1 {status} Said\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, HERE, 0)
    async with server:
        engine.port = server.sockets[0].getsockname()[1]
        yield engine


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        yield client


def tool_for(
    provider: SearchProvider, engine: Engine, client: httpx2.AsyncClient, timeout_s: float = PATIENCE_S
) -> Tool:
    return web_search_tool(
        provider=provider,
        client=client,
        searxng_url=f"{engine.url}/",
        tavily_api_key=SecretStr(KEY),
        tavily_url=engine.url,
        timeout_s=timeout_s,
    )


async def run(tool: Tool, query: str = "ferry Trieste", /, **arguments: int) -> dict[str, Any]:
    result = await tool.run({"query": query, **arguments}, CONTEXT)
    assert isinstance(result, dict)
    return result


BOTH = pytest.mark.parametrize("provider", ["searxng", "tavily"])


async def test_searxng_is_asked_for_json(engine: Engine, client: httpx2.AsyncClient) -> None:
    await run(tool_for("searxng", engine, client), " città & C. ")
    ((head, _),) = engine.requests
    target = urlsplit(head.split()[1])
    assert (target.path, parse_qs(target.query)) == ("/search", {"q": ["città & C."], "format": ["json"]})


async def test_tavily_is_asked_with_the_key_as_bearer(engine: Engine, client: httpx2.AsyncClient) -> None:
    await run(tool_for("tavily", engine, client), max_results=3)
    ((head, body),) = engine.requests
    assert head.startswith("POST /search ")
    assert f"authorization: bearer {KEY}" in head.lower()
    assert json.loads(body) == {"query": "ferry Trieste", "max_results": 3}


@BOTH
async def test_results_have_title_address_and_snippet(
    provider: SearchProvider, engine: Engine, client: httpx2.AsyncClient
) -> None:
    found = [
        {"url": "https://a.example/", "title": "A", "content": "About a", "score": 0.5, "engine": "x"},
        {"title": "no address"},
        {"url": "https://b.example/", "title": None, "content": None},
        {"url": "https://c.example/", "title": "C" * 1_000, "content": "c" * 10_000},
    ]
    engine.body = json.dumps({"query": "ferry", "results": found, "answers": []})
    assert await run(tool_for(provider, engine, client)) == {
        "query": "ferry Trieste",
        "results": [
            {"title": "A", "url": "https://a.example/", "snippet": "About a"},
            {"title": "", "url": "https://b.example/", "snippet": ""},
            {"title": "C" * 300, "url": "https://c.example/", "snippet": "c" * 1_000},
        ],
    }


@pytest.mark.parametrize(
    ("found", "summary"),
    [
        (["Ferries", ""], "2 results for “ferry Trieste”: Ferries; https://1.example/"),
        (["F" * 300], "1 results for “ferry Trieste”: " + "F" * 168 + "…"),
        ([], "Nothing was found, or the search engines gave no answer."),
    ],
)
async def test_a_search_is_summed_up_by_its_query_and_titles(
    found: list[str], summary: str, engine: Engine, client: httpx2.AsyncClient
) -> None:
    results = [{"url": f"https://{index}.example/", "title": title} for index, title in enumerate(found)]
    engine.body = json.dumps({"results": results})
    settings = ToolSettings()
    outcome = await run_tool(
        tool_for("searxng", engine, client), {"query": "ferry Trieste"}, CONTEXT, settings=settings
    )
    assert outcome.summary == summary


@BOTH
@pytest.mark.parametrize(("arguments", "count"), [({}, 5), ({"max_results": 2}, 2), ({"max_results": 10}, 10)])
async def test_no_more_results_come_back_than_were_asked_for(
    provider: SearchProvider, arguments: dict[str, int], count: int, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.body = json.dumps({"results": [{"url": f"https://{number}.example/"} for number in range(20)]})
    assert len((await run(tool_for(provider, engine, client), **arguments))["results"]) == count


@BOTH
async def test_an_empty_search_says_so(provider: SearchProvider, engine: Engine, client: httpx2.AsyncClient) -> None:
    answer = await run(tool_for(provider, engine, client))
    assert answer["results"] == []
    assert "Nothing was found" in answer["note"]


@BOTH
@pytest.mark.parametrize("status", [400, 422])
async def test_a_search_that_is_not_understood_asks_the_model_for_other_words(
    provider: SearchProvider, status: int, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.status = status
    with pytest.raises(ToolRetry, match="Word it differently"):
        await run(tool_for(provider, engine, client))


@BOTH
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "authentication"),
        (403, "authentication"),
        (429, "limiting requests"),
        (500, "trouble of its own"),
        (503, "trouble of its own"),
        (302, "did not accept"),
        (432, "did not accept"),
    ],
)
async def test_a_refusal_is_a_sentence_without_secrets(
    provider: SearchProvider, status: int, said: str, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.status, engine.body = status, json.dumps({"detail": f"bad key {KEY}"})
    with pytest.raises(ToolFailed, match=said) as failure:
        await run(tool_for(provider, engine, client))
    assert str(status) in str(failure.value)
    assert KEY not in repr(failure.value)
    assert isinstance(failure.value, ToolUnauthorized) is (status in {401, 403})


@BOTH
@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "{}", '{"results": 1}', '{"results": [1]}', '{"results": [{"url": 1}]}']
)
async def test_an_answer_that_is_not_results_is_a_plain_failure(
    provider: SearchProvider, body: str, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.body = body
    with pytest.raises(ToolFailed, match="could not be read"):
        await run(tool_for(provider, engine, client))


@BOTH
async def test_an_answer_is_asked_for_unpacked_and_read_no_further_than_its_bound(
    provider: SearchProvider, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.body = json.dumps({"results": [], "padding": "x" * 2_000_000})
    with pytest.raises(ToolFailed, match="more than 2 MB"):
        await run(tool_for(provider, engine, client))
    [(head, _)] = engine.requests
    assert "accept-encoding: identity" in head.lower()


@BOTH
async def test_a_provider_that_does_not_answer_is_left_after_the_total_time(
    provider: SearchProvider, engine: Engine, client: httpx2.AsyncClient
) -> None:
    engine.status = None
    with pytest.raises(ToolFailed, match="did not answer in time"):
        await run(tool_for(provider, engine, client, timeout_s=0.1))


@BOTH
async def test_a_provider_that_is_not_there_is_a_plain_failure(
    provider: SearchProvider, client: httpx2.AsyncClient
) -> None:
    with pytest.raises(ToolFailed, match="could not be reached"):
        await run(tool_for(provider, Engine(port=9), client))


@pytest.mark.parametrize(("provider", "missing"), [("searxng", "address"), ("tavily", "API key")])
async def test_a_provider_without_its_setting_is_refused_when_it_is_made(
    provider: SearchProvider, missing: str, client: httpx2.AsyncClient
) -> None:
    with pytest.raises(ValueError, match=missing):
        web_search_tool(provider=provider, client=client, searxng_url="", tavily_api_key=None)


# ddgs asks engines on the internet. The real ddgs runs here with a proxy that plays those engines, TLS and all.

Answer = Callable[[str, str], bytes]


@dataclass
class Internet:
    """An HTTPS proxy behind which `answer(host, target)` is every site. Without an answer nothing comes back."""

    tls: ssl.SSLContext
    answer: Answer | None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().partition(":")[0]
            self.asked.append(host)
            self.reached.set()
            if self.answer is None:
                await reader.read()
                return
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await writer.start_tls(self.tls)
            target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            writer.write(self.answer(host, target))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the engine's client has gone
        finally:
            writer.close()


@asynccontextmanager
async def internet(tls: ssl.SSLContext, answer: Answer | None) -> AsyncIterator[Internet]:
    internet = Internet(tls, answer)
    server = await asyncio.start_server(internet.serve, HERE, 0)
    async with server:
        internet.port = server.sockets[0].getsockname()[1]
        yield internet


def ddgs_tool(internet: Internet, client: httpx2.AsyncClient, timeout_s: float = PATIENCE_S) -> Tool:
    return web_search_tool(
        provider="ddgs",
        client=client,
        searxng_url=None,
        tavily_api_key=None,
        new_ddgs=lambda: DDGS(proxy=f"http://anna:secret@{HERE}:{internet.port}", timeout=20, verify=False),
        timeout_s=timeout_s,
    )


def wikipedia_and_duckduckgo(host: str, target: str) -> bytes:
    if host == "en.wikipedia.org" and "action=opensearch" in target:
        return http(200, json.dumps(["ferry", ["Ferry"], [""], ["https://en.wikipedia.org/wiki/Ferry"]]))
    if host == "en.wikipedia.org":
        return http(200, json.dumps({"query": {"pages": {"1": {"extract": "A <b>ferry</b> is a boat."}}}}))
    if host == "html.duckduckgo.com":
        hit = '<div class="body"><h2>Ferries of Trieste</h2><a href="https://ferry.example/">All ferry times.</a></div>'
        return http(200, f"<html><body>{hit}</body></html>")
    return http(404, "")


async def test_ddgs_results_have_title_address_and_snippet(tls: ssl.SSLContext, client: httpx2.AsyncClient) -> None:
    async with internet(tls, wikipedia_and_duckduckgo) as web:
        found = (await run(ddgs_tool(web, client), "ferry"))["results"]
    assert {"title": "Ferry", "url": "https://en.wikipedia.org/wiki/Ferry", "snippet": "A ferry is a boat."} in found
    assert {"title": "Ferries of Trieste", "url": "https://ferry.example/", "snippet": "All ferry times."} in found


async def test_a_ddgs_search_that_finds_nothing_says_so(tls: ssl.SSLContext, client: httpx2.AsyncClient) -> None:
    async with internet(tls, lambda *_: http(404, "<html><body>Go away</body></html>")) as web:
        answer = await run(ddgs_tool(web, client))
    assert answer["results"] == []
    assert "gave no answer" in answer["note"]


async def test_ddgs_without_a_way_out_is_a_plain_failure(tls: ssl.SSLContext, client: httpx2.AsyncClient) -> None:
    web = Internet(tls, None, port=9)
    with pytest.raises(ToolFailed, match="could not be reached") as failure:
        await run(ddgs_tool(web, client))
    assert "secret" not in repr(failure.value)


async def test_ddgs_engines_that_answer_nonsense_are_a_plain_failure(
    tls: ssl.SSLContext, client: httpx2.AsyncClient
) -> None:
    async with internet(tls, lambda *_: b"SSH-2.0-OpenSSH_9.6\r\n") as web:
        with pytest.raises(ToolFailed, match="could not be read"):
            await run(ddgs_tool(web, client))


async def test_a_ddgs_search_that_hangs_is_left_after_the_total_time(
    tls: ssl.SSLContext, client: httpx2.AsyncClient
) -> None:
    async with internet(tls, None) as web:
        with pytest.raises(ToolFailed, match="did not answer in time"):
            await run(ddgs_tool(web, client, timeout_s=0.1))


async def test_a_ddgs_search_that_hangs_does_not_hold_up_its_cancellation(
    tls: ssl.SSLContext, client: httpx2.AsyncClient
) -> None:
    async with internet(tls, None) as web:
        search = asyncio.create_task(run(ddgs_tool(web, client)))
        await web.reached.wait()
        search.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await search


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The server's side of a certificate for any name, made for this run."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "everyone")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context
