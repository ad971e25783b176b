"""`web_fetch`: the readable text of one public page. All that arrives is hostile: redirects, compression, encoding
names and markup are bounded here. The given HTTP client decides which addresses are dialled.
"""

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import httpx2

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry
from segue.net.addresses import NoSuchHost, NotPublic
from segue.tools.builtin import defined
from segue.tools.child_process import TooMuch, in_child_process

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MAX_TITLE_CHARS = 300
MAX_ELEMENTS = 30_000  # extraction costs up to 100 µs an element; very large articles have 20,000
MAX_BODY_BYTES = 5_000_000
MAX_REDIRECTS = 5
MAX_TEXT_CHARS = 100_000
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Segue)",
    "Accept": "text/html, text/plain;q=0.9, application/json;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip",
}
_Body = tuple[str, str, str | None, bytes, bool]  # address, media type, charset, content, whether that is whole
_TEXT_TYPE = re.compile(r"text/.+|application/(.+\+)?(json|xml)|application/(x-ndjson|yaml)")
# The codecs of the web. Python knows others, and decoding a long "punycode" takes hours.
_WEB_CODEC = re.compile(r"ascii|utf-(8|16|32).*|iso.+|cp\d+|koi8.+|gb.+|big5.*|euc.+|shift.+|mac.+|tis-620")
_DECLARED = re.compile(rb"<(?:meta|\?xml)\b[^>]{1,200}?(?:charset|encoding)=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_AS_BROWSERS = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
# What texts of Western Europe and in Arabic have beside ASCII, of the characters of their encodings in Windows.
_SIGNS = r"\0-\x7f\xa0«°»…‘’“”•–—"
_WESTERN = re.compile(rf"(?s)(?!.*[À-ÿ]{{3}})[{_SIGNS}€œ¡£§-ª·ºÀ-ÂÄÇ-ÔÖÙ-Üß-âäç-ïñ-ôöù-ü]*")
_LETTERS = r"[\u0686\u0698\u0621-\u063a\u0640-\u0652]"
_ARABIC = re.compile(rf"(?:[{_SIGNS}]++|[،؛؟](?!{_LETTERS})|(?<![A-Za-z]){_LETTERS}++(?![A-Za-z]))*+")


def decoded(content: bytes, declared: str | None = None, *, is_whole: bool = True) -> str | None:
    """Returns a text in the first encoding that fits all of it: by its mark, UTF-8, that `declared` or named at its
    beginning, or one that Windows writes. None if none does, or several of these. What is cut may end in a character.
    """
    named = _DECLARED.search(content[:4096])
    known = content.startswith(UTF16) and "utf-16", declared, named and named[1].decode("ascii", "ignore")
    # UTF-16 and ISO-2022 may be valid UTF-8, which no other encoding is by chance.
    names = [*known, "utf-8-sig"] if re.search(rb"\0|\x1b[$(]", content) else ["utf-8-sig", *known]
    texts = (_decoded(content, name, is_whole=is_whole) for name in chain(names, map(_of_windows, [content])) if name)
    return next((text for text in texts if text is not None), None)


def _decoded(content: bytes, name: str, errors: str = "strict", *, is_whole: bool = True) -> str | None:
    with suppress(LookupError, ValueError):
        if _WEB_CODEC.fullmatch(codec := codecs.lookup(name).name):
            return codecs.getincrementaldecoder(_AS_BROWSERS.get(codec, codec))(errors).decode(content, is_whole)
    return None


def _of_windows(content: bytes) -> str:
    """Returns the encoding of Windows that alone fits a text, empty if there is none."""
    leads = [pair[0] for pair in re.findall(rb"[\x81-\xfe][\x40-\xfe]", content[:50_000])]
    common = sum(lead in range(0xB0, 0xD8) or lead in range(0xA1, 0xA4) for lead in leads)
    # The last third of the common characters: Korean, which is written alike, has none of these.
    is_chinese = common >= len(leads) * 0.8 and sum(lead in range(0xC9, 0xD8) for lead in leads) > len(leads) * 0.1
    western, arabic, chinese = (_decoded(content, name) for name in ("cp1252", "cp1256", "gb18030"))
    fits = {"cp1252": western and _WESTERN.fullmatch(western), "cp1256": arabic and _ARABIC.fullmatch(arabic)}
    fitting = [name for name, is_so in {**fits, "gb18030": chinese and is_chinese}.items() if is_so]
    return fitting[0] if len(fitting) == 1 else ""


def from_html(source: str) -> tuple[str, str]:
    """Returns the title and the text of a page, as readers want it: the article, if one is found."""
    import trafilatura  # noqa: PLC0415 (with lxml; this runs in a child process)

    tree = trafilatura.load_html(source)  # no bytes: trafilatura would look for compression and guess encodings
    if tree is None:  # a fragment, which it takes for no HTML at all
        tree = trafilatura.load_html(f"<html><body>{source}")
    if tree is None:
        return "", source
    title = " ".join((tree.findtext(".//title") or "").split())[:MAX_TITLE_CHARS]
    small = tree.xpath("count(//*)") <= MAX_ELEMENTS
    # Fast: the slow way ends in jusText, whose time grows with the square of the paragraphs.
    article = trafilatura.extract(tree, fast=True, include_comments=False) if small else None
    if article:
        return title, article
    unseen = tree.iter("head", "script", "style", "noscript", "template")
    for element in [element for element in unseen if element.getparent() is not None]:
        element.drop_tree()
    return title, "\n".join(filter(None, (" ".join(text.split()) for text in tree.itertext())))


def web_fetch_tool(*, client: httpx2.AsyncClient, timeout_s: float = 20.0) -> Tool:
    """Returns `{"url", "title", "content_type", "text", "truncated"}`; `url` is where the redirects ended. `client`
    dials checked addresses only (`checked_client`). `timeout_s` bounds the whole call, from name to text.
    """

    async def run(arguments: dict[str, Any], _: ToolContext) -> object:
        try:
            async with asyncio.timeout(timeout_s):
                # Not in a thread: libxml2 takes the square of the attributes of one element.
                return await in_child_process(_readable, *await _fetch(client, arguments["url"]), deadline_s=timeout_s)
        except TooMuch as error:
            raise ToolRetry(f"The page was not read: that {error}. Try another address.") from error
        except TimeoutError:
            raise ToolRetry(f"The page was not read within {timeout_s:g} seconds. Try another address.") from None

    return Tool(spec=replace(defined("web_fetch"), timeout_s=timeout_s + 5), run=run, summarise=_summary)


def _summary(_: dict[str, Any], page: dict[str, Any]) -> str:
    size = f"{len(page['text'])} characters of {page['url']}{', cut' if page['truncated'] else ''}"
    return f"{page['title']} — {size}" if page["title"] else size


def _objection(url: httpx2.URL) -> str | None:
    if url.scheme not in {"http", "https"} or not url.host:
        return "opens only full addresses that start with http:// or https://"
    if url.userinfo:
        return "opens no address with a user name or password in it"
    if url.port not in {None, 80, 443} and url.port not in range(1024, 65536):
        return "opens only ports 80, 443 and those from 1024 on"
    return None


async def _fetch(client: httpx2.AsyncClient, address: str) -> _Body:
    try:
        url = httpx2.URL(address.strip())
        if objection := _objection(url):
            raise ToolRetry(f"web_fetch {objection}.")
    except (httpx2.InvalidURL, ValueError):
        raise ToolRetry("`url` is not a valid address. Give a full one, such as https://example.org/page.") from None
    try:
        async with _last_hop(client, url) as response:
            return await _body(response)
    except NotPublic:  # the model corrects a bad address; three dead links must not fail the tool
        raise ToolRetry("web_fetch refuses addresses that are not public.") from None
    except NoSuchHost:
        raise ToolRetry("There is no such host. Check the address, or try another.") from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout):  # it may be our own network that is down
        raise ToolFailed("The page's server could not be reached.") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        why = "fell silent" if isinstance(error, httpx2.TimeoutException) else "gave no answer that can be read"
        raise ToolRetry(f"The page's server {why}. Try another address.") from None


@asynccontextmanager
async def _last_hop(client: httpx2.AsyncClient, url: httpx2.URL) -> AsyncIterator[httpx2.Response]:
    # Not httpx2's `follow_redirects`: that reads the body of every redirect to its end, whatever it decodes to.
    request = client.build_request("GET", url, headers=_HEADERS)
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
        finally:
            await response.aclose()
        request = response.next_request
        if objection := _objection(request.url):
            raise ToolRetry(f"The page redirects elsewhere, and web_fetch {objection}.")
    raise ToolRetry(f"The page redirects more than {MAX_REDIRECTS} times. Try another address.")


async def _body(response: httpx2.Response) -> _Body:
    if not httpx2.codes.is_success(response.status_code):  # a server in trouble is that page's, and not the tool's
        raise ToolRetry(f"The page cannot be read: its server answers {response.status_code}. Try another address.")
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not _TEXT_TYPE.fullmatch(content_type):
        kind = content_type[:100] or "an unnamed type"
        raise ToolRetry(f"web_fetch reads text, and this is {kind}. Try another address.")
    return str(response.url), content_type, response.charset_encoding, *await _read(response)


async def _read(response: httpx2.Response) -> tuple[bytes, bool]:
    decode = _decoder(response.headers.get("content-encoding", ""))
    content = bytearray()
    try:
        async for chunk in response.aiter_raw():
            content += decode(chunk, MAX_BODY_BYTES + 1 - len(content))
            if max(len(content), response.num_bytes_downloaded) > MAX_BODY_BYTES:
                return bytes(content[:MAX_BODY_BYTES]), False
    except zlib.error:
        raise ToolRetry("The page is compressed, and damaged. Try another address.") from None
    return bytes(content), True


def _decoder(encoding: str) -> Callable[[bytes, int], bytes]:
    """Returns a function that decodes a chunk to at most that many bytes; httpx2's decoders have no limit."""
    match encoding.strip().lower():
        case "" | "identity":
            return lambda chunk, _: chunk
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress
        case _:
            raise ToolRetry("The page is compressed in a way web_fetch does not read. Try another address.")


def _readable(url: str, kind: str, charset: str | None, content: bytes, is_whole: bool) -> dict[str, object]:  # noqa: FBT001 (for a child)
    if (source := decoded(content, charset, is_whole=is_whole)) is None:
        source = _decoded(content, charset or "", "replace") or content.decode("cp1252", "replace")
    title, text = from_html(source) if kind in {"text/html", "application/xhtml+xml"} else ("", source)
    page = {"url": url, "title": title, "content_type": kind, "text": text[:MAX_TEXT_CHARS]}
    note = {} if text.strip() else {"note": "There is no text in this page, or none without running its scripts."}
    return {**page, **note, "truncated": not is_whole or len(text) > MAX_TEXT_CHARS}
