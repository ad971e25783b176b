"""A search that was forced while the search tool is taken out."""

from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segue.config import Settings
from tests.support.health import QUESTION, put
from tests.support.plans import Frozen
from tests.support.provider import Provider, says
from tests.support.server import serving
from tests.support.service import Client, running


@pytest.fixture
def searches() -> list[str]:
    return []


@pytest.fixture
async def client(settings: Settings, clock: Frozen, searches: list[str]) -> AsyncIterator[Client]:
    async def search(request: Request) -> Response:
        searches.append(request.query_params["q"])
        return JSONResponse({"results": [{"url": "https://words.example/", "title": "Words", "content": "many"}]})

    async with serving(Starlette(routes=[Route("/search", search)])) as url:
        searching = settings.model_copy(update={"web_search_provider": "searxng", "searxng_url": url})
        async with running(searching, clock=clock) as served:
            yield served


async def test_a_forced_search_without_its_tool_is_reported_and_the_answer_still_comes(
    client: Client, provider: Provider, searches: list[str]
) -> None:
    session = await client.new_session()
    await put(client, session, "web_search", "maintenance", reason="No contract")
    provider.will(says("From memory: many."))
    answer = await client.chat(session, QUESTION, force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": False, "reason": "unavailable"}
    assert answer["message"]["content"] == "From memory: many."
    assert "- web_search: No contract" in provider.messages(role="system")[0]["content"]
    assert searches == []
    await put(client, session, "web_search", "available")
    provider.will(says("Very many."))
    answer = await client.chat(session, QUESTION, force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": True, "reason": "forced"}
    assert searches == [QUESTION]
