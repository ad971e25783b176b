import asyncio
import gzip
import sys
import traceback
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from segue.domain.tool import Tool, ToolContext, ToolRetry
from segue.net.addresses import IPAddress, is_public, resolve_host
from segue.net.http_client import checked_client
from segue.tools.builtin.web_fetch import MAX_TEXT_CHARS, from_html, web_fetch_tool
from segue.tools.run import run_tool
from segue.tools.tool_health import counts
from segue.tools.tool_settings import ToolSettings
from tests.support.patience import PATIENCE_S
from tests.support.redis_servers import free_port

HERE = "127.0.0.1"
CONTEXT = ToolContext(
    owner="anna", session_id="session", turn_id="turn", tool_call_id="call", now=datetime(2026, 5, 4, tzinfo=UTC)
)
ARTICLE = """<!doctype html><html><head><title> The  ferry
 timetable </title><script>var secret = "script";</script></head><body>
<nav><a href="/">Home</a></nav><article><h1>The ferry</h1>
<p>The ferry from Trieste to Grado leaves every morning at nine from the old pier, from May until late September.</p>
<p>Tickets are sold on board; bicycles travel free of charge when there is room on the lower deck of the boat.</p>
</article></body></html>"""


@dataclass
class Site:
    """Serves whole answers by path, byte for byte, one a connection. A path without an answer is never answered."""

    port: int = 0
    answers: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(request)
            if (answer := self.answers.get(request.split()[1])) is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass  # the client has heard enough
        finally:
            writer.close()

    def url(self, path: str = "/", host: str = "shop.test") -> str:
        return f"http://{host}:{self.port}{path}"


def answer(body: bytes | str, content_type: str = "text/html", status: str = "200 OK", **headers: str) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def redirect(to: str) -> bytes:
    return answer("", status="302 Found", Location=to)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, HERE, 0)
    async with server:
        site.port = server.sockets[0].getsockname()[1]
        yield site


@pytest.fixture
async def fetch() -> AsyncIterator[Tool]:
    """The real tool, patient, since the first page starts a process and imports much; names under `.test` live on
    127.0.0.1, which plays a public address.
    """

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [HERE] if host.endswith(".test") else await resolve_host(host, port)

    def is_allowed(address: IPAddress) -> bool:
        return str(address) == HERE or is_public(address)

    timeout = httpx2.Timeout(PATIENCE_S)
    async with checked_client(resolve=resolve, is_allowed=is_allowed, timeout=timeout) as client:
        yield web_fetch_tool(client=client, timeout_s=PATIENCE_S)


async def run(tool: Tool, url: str) -> dict[str, Any]:
    result = await tool.run({"url": url}, CONTEXT)
    assert isinstance(result, dict)
    return result


async def test_a_page_becomes_its_title_and_readable_text(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer(ARTICLE, "text/html; charset=utf-8")
    page = await run(fetch, site.url())
    assert page["url"] == site.url()
    assert page["title"] == "The ferry timetable"
    assert page["content_type"] == "text/html"
    assert page["truncated"] is False
    assert "Trieste to Grado" in page["text"]
    assert "secret" not in page["text"]
    assert "<p>" not in page["text"]


async def test_a_page_is_summed_up_by_its_title_size_and_address(site: Site, fetch: Tool) -> None:
    for source, kind, summary in (
        (ARTICLE, "text/html", "The ferry timetable — {} characters of {}"),
        ("a" * (MAX_TEXT_CHARS + 1), "text/plain", "{} characters of {}, cut"),
    ):
        site.answers["/"] = answer(source, kind)
        outcome = await run_tool(fetch, {"url": site.url()}, CONTEXT, settings=ToolSettings())
        assert outcome.error is None
        assert outcome.summary == summary.format(len(outcome.payload.value["text"]), site.url())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<html><body><p>Short.</p><style>p{}</style></body></html>", "Short."),
        ("<span>one</span>", "one"),
        ("just words", "just words"),
        ("", ""),
        ("<html></html>", ""),
        ("<script>alert(1)</script>", ""),
    ],
)
async def test_a_page_without_an_article_gives_all_the_text_it_shows(
    source: str, text: str, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = answer(source)
    assert (await run(fetch, site.url()))["text"].split() == text.split()


@pytest.mark.sweep
async def test_a_page_of_very_many_elements_is_read_without_extraction(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer("<ul>" + "<li><b>x</b>" * 100_000)
    page = await run(fetch, site.url())
    assert (page["text"][:4], len(page["text"]), page["truncated"]) == ("x\nx\n", MAX_TEXT_CHARS, True)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/ld+json; charset=utf-8", "application/atom+xml"]
)
async def test_text_and_json_are_returned_as_they_are(content_type: str, site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer('{"città": "<b>Trieste</b>"}', content_type)
    page = await run(fetch, site.url())
    assert (page["text"], page["title"]) == ('{"città": "<b>Trieste</b>"}', "")


@pytest.mark.parametrize(
    ("content_type", "shown"),
    [("image/png", "image/png"), ("application/pdf", "application/pdf"), ("", "an unnamed type")],
)
async def test_a_type_that_is_not_text_is_refused_by_its_name(
    content_type: str, shown: str, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = answer(b"\x89PNG\r\n", content_type)
    with pytest.raises(ToolRetry, match=f"reads text, and this is {shown}"):
        await run(fetch, site.url())


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param("text/plain; charset=iso-8859-1", "perché".encode("latin-1"), id="header"),
        pytest.param("text/plain; charset=utf-16", "perché".encode("utf-16"), id="utf-16"),
        pytest.param("text/plain; charset=iso-8859-1", b"\xef\xbb\xbf" + "perché".encode(), id="bom-over-header"),
        pytest.param("text/html", '<meta charset="windows-1252"><p>perché'.encode("cp1252"), id="meta"),
        pytest.param("text/plain", "perché".encode(), id="utf-8-undeclared"),
        pytest.param("text/plain", "perché".encode("cp1252"), id="legacy-undeclared"),
        pytest.param("text/plain; charset=klingon", "perché".encode(), id="unknown"),
        pytest.param("text/plain; charset=hex", "perché".encode(), id="not-a-text-codec"),
        pytest.param("text/plain; charset=punycode", "perché".encode(), id="quadratic-codec"),
    ],
)
async def test_characters_survive_every_way_a_charset_is_declared(
    content_type: str, body: bytes, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = answer(body, content_type)
    assert (await run(fetch, site.url()))["text"] == "perché"


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("content_type", "encoding", "text"),
    [
        pytest.param("text/html; charset=iso-8859-1", "utf-8", "<p>perché", id="utf-8-declared-otherwise"),
        pytest.param("text/html; charset=iso-8859-1", "cp1252", "<p>5 € – “perché”", id="as-browsers-read-latin-1"),
        pytest.param("text/html; charset=gb2312", "gb18030", "<p>朱镕基和㐀", id="as-browsers-read-gb2312"),
        pytest.param("text/html; charset=utf-8", "cp1252", "<p>perché", id="windows-declared-utf-8"),
        pytest.param("text/html; charset=utf-8", "koi8-r", "<meta charset=koi8-r><p>Привет", id="page-knows-better"),
        pytest.param("text/xml", "cp1251", '<?xml version="1.0" encoding="windows-1251"?><p>Привет', id="xml"),
        pytest.param("text/plain", "gb18030", "本合同自双方签字之日起生效", id="chinese-undeclared"),
        pytest.param("text/plain; charset=utf-16le", "utf-16-le", "plain", id="utf-16-without-a-mark"),
    ],
)
async def test_a_page_is_read_in_the_encoding_that_fits_whatever_is_declared(
    content_type: str, encoding: str, text: str, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = answer(text.encode(encoding), content_type)
    read = (await run(fetch, site.url()))["text"]
    assert read[-5:] == text[-5:]


async def test_a_page_that_shows_nothing_without_its_scripts_says_so(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer('<!doctype html><script src="/app.js"></script><div id="root"></div>')
    assert "none without running its scripts" in (await run(fetch, site.url()))["note"]
    site.answers["/"] = answer("words", "text/plain")
    assert "note" not in await run(fetch, site.url())


async def test_a_long_text_is_cut_and_says_so(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer("à" * (MAX_TEXT_CHARS + 1), "text/plain")
    page = await run(fetch, site.url())
    assert (page["text"], page["truncated"]) == ("à" * MAX_TEXT_CHARS, True)


async def test_a_body_without_end_is_read_up_to_the_limit(site: Site, fetch: Tool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99999999999\r\n\r\n"
    site.answers["/"] = head + "à".encode() * 4_000_000
    page = await run(fetch, site.url())
    assert (page["text"], page["truncated"]) == ("à" * MAX_TEXT_CHARS, True)


@pytest.mark.sweep
@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
async def test_a_compressed_page_is_unpacked(encoding: str, site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer(gzip.compress(ARTICLE.encode()), Content_Encoding=encoding)
    assert "Trieste to Grado" in (await run(fetch, site.url()))["text"]


@pytest.mark.sweep
async def test_a_gzip_bomb_is_unpacked_only_up_to_the_limit(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer(gzip.compress(b"a" * 100_000_000), "text/plain", Content_Encoding="gzip")
    tracemalloc.start()
    page = await run(fetch, site.url())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (page["text"], page["truncated"]) == ("a" * MAX_TEXT_CHARS, True)
    assert peak < 40_000_000


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "nonsense"])
async def test_stacked_and_unknown_compression_is_refused(encoding: str, site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer(b"", Content_Encoding=encoding)
    with pytest.raises(ToolRetry, match="compressed in a way"):
        await run(fetch, site.url())


async def test_damaged_compression_is_the_fault_of_the_page(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer(b"not gzip at all", Content_Encoding="gzip")
    with pytest.raises(ToolRetry, match="damaged"):
        await run(fetch, site.url())


async def test_redirects_are_followed_and_the_last_address_is_reported(site: Site, fetch: Tool) -> None:
    for hop in range(5):
        site.answers[f"/{hop}"] = redirect(f"/{hop + 1}" if hop % 2 else site.url(f"/{hop + 1}", "other.test"))
    site.answers["/5"] = answer("arrived", "text/plain")
    page = await run(fetch, site.url("/0"))
    assert (page["url"], page["text"]) == (site.url("/5", "other.test"), "arrived")


async def test_a_sixth_redirect_is_one_too_many(site: Site, fetch: Tool) -> None:
    site.answers["/"] = redirect("/")
    with pytest.raises(ToolRetry, match="redirects more than 5 times"):
        await run(fetch, site.url())
    assert len(site.requests) == 6


async def test_the_body_of_a_redirect_is_not_read(site: Site, fetch: Tool) -> None:
    site.answers["/"] = redirect("/end").replace(b"Content-Length: 0", b"Content-Length: 99999999999")
    site.answers["/end"] = answer("arrived", "text/plain")
    assert (await run(fetch, site.url()))["text"] == "arrived"


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2/",
        "http://127.2/",
        "http://0x7f.2/",
        "http://2130706434/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
        "http://192.168.1.1:8080/",
    ],
)
async def test_neither_a_private_address_nor_a_redirect_to_one_is_opened(target: str, site: Site, fetch: Tool) -> None:
    site.answers["/"] = redirect(target)
    for url in (target, site.url()):
        with pytest.raises(ToolRetry, match="refuses addresses that are not public"):
            await run(fetch, url)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("file:///etc/passwd", "http:// or https://"),
        ("ftp://shop.test/", "http:// or https://"),
        ("shop.test/page", "http:// or https://"),
        ("//shop.test/", "http:// or https://"),
        ("http:///page", "http:// or https://"),
        ("http://anna:secret@shop.test/", "user name or password"),
        ("http://anna@shop.test/", "user name or password"),
        ("http://shop.test:22/", "only ports"),
        ("http://shop.test:0/", "only ports"),
        ("http://shop.test:99999/", "only ports"),
        ("http://shop.test:port/", "not a valid address"),
        ("http://a\0b/", "not a valid address"),
        ("http://shop.test/\ud800", "not a valid address"),
    ],
)
async def test_an_address_that_cannot_be_opened_tells_the_model_why(url: str, hint: str, fetch: Tool) -> None:
    with pytest.raises(ToolRetry, match=hint) as refusal:
        await run(fetch, url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://anna:secret@shop.test/", "http://shop.test:22/"])
async def test_a_redirect_to_an_address_that_cannot_be_opened_is_not_followed(
    target: str, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = redirect(target)
    with pytest.raises(ToolRetry, match="redirects elsewhere"):
        await run(fetch, site.url())


@pytest.mark.parametrize("target", ["http://[::1", "http://a:b:c/"])
async def test_a_redirect_to_nonsense_is_not_followed(target: str, site: Site, fetch: Tool) -> None:
    site.answers["/"] = redirect(target)
    with pytest.raises(ToolRetry, match="its server answers 302"):
        await run(fetch, site.url())


@pytest.mark.parametrize("url", ["http://a..b/", "http://xn--/"])
async def test_a_host_that_does_not_exist_is_the_fault_of_the_address(url: str, fetch: Tool) -> None:
    with pytest.raises(ToolRetry, match="no such host"):
        await run(fetch, url)


async def test_a_page_that_is_not_there_asks_the_model_for_another_address(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer("no", status="404 Not Found")
    with pytest.raises(ToolRetry, match="404"):
        await run(fetch, site.url())


@pytest.mark.parametrize("status", ["500 Oops", "503 Busy", "304 Same", "302 Nowhere"])
async def test_a_server_in_trouble_is_that_pages_and_takes_the_tool_from_nobody(
    status: str, site: Site, fetch: Tool
) -> None:
    site.answers["/"] = answer("no", status=status)
    outcome = await run_tool(fetch, {"url": site.url()}, CONTEXT, settings=ToolSettings())
    assert (outcome.status, f"answers {status[:3]}" in (outcome.error or "")) == ("failed", True)
    assert not counts(outcome)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Type: text/plain\r\n\r\nab"],
)
async def test_an_answer_that_is_no_http_is_that_pages_too(garbage: bytes, site: Site, fetch: Tool) -> None:
    site.answers["/"] = garbage
    outcome = await run_tool(fetch, {"url": site.url()}, CONTEXT, settings=ToolSettings())
    assert (outcome.error or "").startswith("The page's server gave no answer that can be read.")
    assert not counts(outcome)


async def test_a_server_that_cannot_be_reached_counts_as_it_may_be_our_own_network(fetch: Tool) -> None:
    outcome = await run_tool(fetch, {"url": f"http://shop.test:{free_port()}/"}, CONTEXT, settings=ToolSettings())
    assert outcome.error == "The page's server could not be reached."
    assert counts(outcome)


async def test_a_server_that_does_not_answer_is_left_after_the_total_time(site: Site) -> None:
    async with checked_client(is_allowed=lambda _: True) as client:
        with pytest.raises(ToolRetry, match=r"within 0\.1 seconds"):
            await run(web_fetch_tool(client=client, timeout_s=0.1), site.url("/never", HERE))


@pytest.mark.sweep
async def test_a_page_that_takes_long_to_read_is_given_up_and_none_of_our_threads_goes_on_with_it(
    site: Site, fetch: Tool
) -> None:
    """One element takes the square of its attributes: 40,000 of them four seconds, and a thread cannot be stopped."""
    site.answers["/"] = answer(f"<p {' '.join(f'a{number}' for number in range(40_000))}>x</p>")
    site.answers["/plain"] = answer(ARTICLE)
    async with checked_client(is_allowed=lambda _: True) as client:
        with pytest.raises(ToolRetry, match=r"not read(: that takes longer than| within) 0\.5 s"):
            await run(web_fetch_tool(client=client, timeout_s=0.5), site.url("/", HERE))
    stacks = (traceback.walk_stack(frame) for frame in sys._current_frames().values())  # noqa: SLF001 (as documented)
    assert not [frame for stack in stacks for frame, _ in stack if frame.f_code is from_html.__code__]
    assert "Trieste to Grado" in (await run(fetch, site.url("/plain")))["text"]


async def test_a_cookie_of_one_fetch_is_not_sent_with_the_next(site: Site, fetch: Tool) -> None:
    site.answers["/"] = answer("ok", "text/plain", Set_Cookie="user=anna; Path=/")
    await run(fetch, site.url())
    await run(fetch, site.url())
    assert not any("cookie" in request.lower() for request in site.requests)
