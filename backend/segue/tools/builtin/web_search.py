"""`web_search`: hits of one of three providers, which are data from strangers. No error message contains a key."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal, assert_never

import httpx2
from ddgs import DDGS
from ddgs.exceptions import DDGSException, TimeoutException
from pydantic import BaseModel, SecretStr, ValidationError

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry, ToolUnauthorized
from segue.net.http_client import BodyTooLarge, answer_of
from segue.tools.builtin import defined

SearchProvider = Literal["ddgs", "searxng", "tavily"]
Hit = dict[str, str]

MAX_TITLE_CHARS = 300
MAX_URL_CHARS = 4_096  # what web_fetch takes
MAX_ANSWER_BYTES = 2_000_000


class _Result(BaseModel):
    url: str = ""
    title: str | None = None
    content: str | None = None


class _Results(BaseModel):
    results: list[_Result]


def web_search_tool(
    *,
    provider: SearchProvider,
    client: httpx2.AsyncClient,
    searxng_url: str | None,
    tavily_api_key: SecretStr | None,
    tavily_url: str = "https://api.tavily.com",
    new_ddgs: Callable[[], DDGS] = partial(DDGS, timeout=5),  # noqa: B008 (makes none yet; 5 s for each engine)
    timeout_s: float = 20.0,
) -> Tool:
    """The tool returns `{"query", "results": [{"title", "url", "snippet"}]}`, and a `note` if nothing was found. Raises
    ValueError if the provider's own setting is missing. `timeout_s` bounds the whole call.
    """
    match provider:
        case "ddgs":
            # Its own threads: searches that hang must not hold up name resolution, which uses the loop's.
            threads = ThreadPoolExecutor(4, thread_name_prefix="web_search")
            return _tool(partial(_search_ddgs, new_ddgs, threads), timeout_s)
        case "searxng":
            if not searxng_url:
                raise ValueError("web_search by SearXNG needs its address")
            return _tool(partial(_search_searxng, client, searxng_url.rstrip("/")), timeout_s)
        case "tavily":
            if tavily_api_key is None:
                raise ValueError("web_search by Tavily needs an API key")
            return _tool(partial(_search_tavily, client, tavily_url.rstrip("/"), tavily_api_key), timeout_s)
        case _:
            assert_never(provider)


def _tool(search: Callable[[str, int], Awaitable[list[Hit]]], timeout_s: float) -> Tool:
    async def run(arguments: dict[str, Any], _: ToolContext) -> object:
        query, limit = arguments["query"].strip(), arguments.get("max_results", 5)
        try:
            async with asyncio.timeout(timeout_s):
                hits = await search(query, limit)
        except TimeoutError:
            raise ToolFailed("The search did not answer in time.") from None
        answer: dict[str, object] = {"query": query, "results": hits[:limit]}
        return answer if hits else answer | {"note": "Nothing was found, or the search engines gave no answer."}

    return Tool(spec=replace(defined("web_search"), timeout_s=timeout_s + 5), run=run, summarise=_summary)


def _summary(args: dict[str, Any], answer: dict[str, Any]) -> str:
    titles = [hit["title"] or hit["url"] for hit in answer["results"]]
    return f"{len(titles)} results for “{args['query']}”: {'; '.join(titles)}" if titles else str(answer["note"])


async def _search_ddgs(new_ddgs: Callable[[], DDGS], threads: ThreadPoolExecutor, query: str, limit: int) -> list[Hit]:
    try:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(threads, lambda: new_ddgs().text(query, max_results=limit))
    except TimeoutException:
        raise ToolFailed("The search engines did not answer in time.") from None
    except DDGSException as error:
        if str(error) == "No results found.":  # ddgs has no type for it; also says so if every engine turned it away
            return []
        raise ToolFailed("The search engines could not be reached, or their answers could not be read.") from None
    return [_hit(result["href"], result["title"], result["body"]) for result in found]


async def _search_searxng(client: httpx2.AsyncClient, url: str, query: str, _: int) -> list[Hit]:
    request = client.build_request("GET", f"{url}/search", params={"q": query, "format": "json"})
    return await _ask(client, request, name="SearXNG", refusal="is its JSON format enabled?")


async def _search_tavily(client: httpx2.AsyncClient, url: str, key: SecretStr, query: str, limit: int) -> list[Hit]:
    body, headers = {"query": query, "max_results": limit}, {"Authorization": f"Bearer {key.get_secret_value()}"}
    request = client.build_request("POST", f"{url}/search", json=body, headers=headers)
    return await _ask(client, request, name="Tavily", refusal="check the API key.")


async def _ask(client: httpx2.AsyncClient, request: httpx2.Request, *, name: str, refusal: str) -> list[Hit]:
    try:
        response = await answer_of(client, request, max_bytes=MAX_ANSWER_BYTES)
    except httpx2.TimeoutException:
        raise ToolFailed(f"{name} did not answer in time.") from None
    except BodyTooLarge:
        raise ToolFailed(f"{name} gave an answer of more than {MAX_ANSWER_BYTES // 10**6} MB.") from None
    except httpx2.HTTPError:
        raise ToolFailed(f"{name} could not be reached.") from None
    _check_status(response.status_code, name=name, refusal=refusal)
    try:
        page = _Results.model_validate_json(response.content)
    except ValidationError:
        raise ToolFailed(f"{name} gave an answer that could not be read.") from None
    return [_hit(found.url, found.title, found.content) for found in page.results if found.url]


def _check_status(status: int, *, name: str, refusal: str) -> None:
    if status in {401, 403}:
        raise ToolUnauthorized(f"{name} refused authentication ({status}): {refusal}")
    if status == httpx2.codes.TOO_MANY_REQUESTS:
        raise ToolFailed(f"{name} is limiting requests ({status}). Try again later.")
    if status in {400, 422}:
        raise ToolRetry(f"{name} did not understand the search ({status}). Word it differently.")
    if httpx2.codes.is_server_error(status):
        raise ToolFailed(f"{name} is having trouble of its own ({status}).")
    if status != httpx2.codes.OK:
        raise ToolFailed(f"{name} did not accept the search ({status}).")


def _hit(url: str, title: str | None, snippet: str | None) -> Hit:
    return {"title": (title or "")[:MAX_TITLE_CHARS], "url": url[:MAX_URL_CHARS], "snippet": (snippet or "")[:1_000]}
