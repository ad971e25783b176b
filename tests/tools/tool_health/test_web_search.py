"""Searches of the web: forced while the tool is out, unwanted, failed, and with a query that the model writes."""

from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segue.config import Settings
from tests.support.health import QUESTION, put
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.server import serving
from tests.support.service import Client, running
from tests.support.shelf import Shelf


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
    assert "- web_search: No contract" in provider.notes()
    assert searches == []
    await put(client, session, "web_search", "available")
    provider.will(says("Very many."))
    answer = await client.chat(session, QUESTION, force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": True, "reason": "forced"}
    assert searches == [QUESTION]


async def test_the_model_writes_the_query_of_what_leans_on_the_user(
    client: Client, provider: Provider, searches: list[str]
) -> None:
    session = await client.new_session()
    provider.will(calls(("web_search", {"query": "flight status Oslo"})), says("It is late."))
    answer = await client.chat(session, "What became of flight NQNU5R to Oslo?", force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": True, "reason": "forced"}
    assert "The user wants the web searched" in provider.notes()
    provider.will(says("There it is cold."))
    answer = await client.chat(session, "And how cold is it there?", force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": False, "reason": "offered"}
    provider.will(calls(("web_search", {"query": "ferries"})), says("Two a day."))
    answer = await client.chat(session, "How else would one get there?")
    assert answer["web_search"] == {"requested": False, "performed": True, "reason": "model"}
    assert searches == ["flight status Oslo", "ferries"]


async def test_a_name_from_an_earlier_result_is_not_sent_unless_the_model_writes_it(
    client: Client, provider: Provider, searches: list[str], shelf: Shelf
) -> None:
    shelf.texts["itm-4"] = "Mail from Ondrej Havlicek"
    session = await client.new_session()
    provider.will(calls(("mcp_get_item", {"item_id": "itm-4"})), says("A mail."))
    await client.chat(session, "Read item 4")
    provider.will(says("I do not know."), says("Prague."))
    answer = await client.chat(session, "Who is Havlicek the architect?", force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": False, "reason": "offered"}
    await client.chat(session, "Who is Palladio the architect?", force_web_search=True)
    assert searches == ["Who is Palladio the architect?"]


async def test_a_user_who_wants_no_search_gets_none_though_the_toggle_is_on_and_the_model_tries(
    client: Client, provider: Provider, searches: list[str]
) -> None:
    session = await client.new_session()
    provider.will(calls(("web_search", {"query": "Paris"})), says("Paris."))
    answer = await client.chat(session, "Don't search the web: what is France's capital?", force_web_search=True)
    assert answer["web_search"] == {"requested": True, "performed": False, "reason": "forbidden"}
    assert "web_search" not in [tool["function"]["name"] for tool in provider.requests[0]["tools"]]
    assert searches == []
