"""`segue mcp serve` as an editor starts it: what its tools do, who decides, how a call is cancelled and left."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

from segue.around.mcp_server import server_for
from segue.around.service_client import MCP_ADVICE, AsyncApi
from segue.around.service_commands import key_of_caller
from segue.config import Settings
from segue.domain.tool import ToolContext
from segue.domain.user_request import ToolAsks, UserRequest
from segue.tools.native import tool
from tests.support.commands import python, surroundings
from tests.support.identity import new_key, speaking
from tests.support.plans import ASK, THREE_STEPS, deletion, offered, planned
from tests.support.provider import Provider, calls, says, streams
from tests.support.server import serving
from tests.support.service import Client as ServiceClient
from tests.support.service import running
from tests.support.shelf import Shelf

DELETED = "delete itm-1"
FORM_SCHEMA = {"type": "object", "properties": {"address": {"type": "string"}}, "required": ["address"]}
FORM_FILLED_IN = {"address": "via Roma 3"}
MODEL_FILLS_IN = json.dumps({"reading": "answer", "values": json.dumps({"address": "Elm Street 1"})})
delivered: list[Any] = []


@tool(effect="write")
async def deliver(what: str, context: ToolContext) -> str:
    """Deliver something."""
    if not context.answers:
        raise ToolAsks(UserRequest("form", "Where to?", schema=FORM_SCHEMA))
    delivered.append(context.answers[0].content)
    return what


class Person:
    """Sits before the client, and answers its forms one after the other."""

    def __init__(self, *answers: ElicitResult) -> None:
        self.answers = list(answers)
        self.shown: list[str] = []
        self.schemas: list[dict[str, Any]] = []

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert context.session is not None
        assert isinstance(params, ElicitRequestFormParams)
        self.shown.append(params.message)
        self.schemas.append(params.requested_schema)
        return self.answers.pop(0)


def decides(decision: str, change: str = "") -> ElicitResult:
    return ElicitResult(action="accept", content={"decision": decision, "change": change})


@asynccontextmanager
async def editor(
    url: str, *arguments: str, person: Person | None = None, mode: str = "legacy", **environment: str
) -> AsyncIterator[Client]:
    program, *options = python()
    command = [*options, "-m", "segue", "mcp", "serve", "--url", url, *arguments]
    server = StdioServerParameters(command=program, args=command, env=surroundings(environment))
    async with Client(server, mode=mode, elicitation_callback=person.answer if person else None) as client:
        yield client
    assert person is None or not person.answers


def text_of(result: CallToolResult) -> str:
    [part] = result.content
    assert isinstance(part, TextContent)
    return part.text


async def told(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    return result.structured_content.get("result", result.structured_content)


async def test_an_editor_finds_agents_and_sessions_and_reads_what_was_said(
    service: ServiceClient, provider: Provider
) -> None:
    async with editor(str(service.http.base_url)) as client:
        assert [agent["id"] for agent in await told(client, "list_agents")] == ["segue"]
        session = (await told(client, "start_session", title="Lamps"))["session_id"]
        heard: list[str | None] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            assert (progress, total) == (len(heard) + 1, None)
            heard.append(message)

        provider.will(calls(("mcp_find_items", {"query": "lamp"})), streams("There are ", "three."))
        given = {"session_id": session, "message": "Which lamps are there?", "message_id": "one"}
        said = await client.call_tool("send_message", given, progress_callback=hear)
        assert text_of(said) == "There are three."
        assert "calls mcp_find_items" in heard
        again = await told(client, "send_message", **given)
        assert again == said.structured_content
        messages = await told(client, "get_messages", session_id=session)
        assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[2]["content"].startswith("mcp_find_items: ")
        [shown] = await told(client, "list_sessions")
        assert (shown["id"], shown["title"], shown["waits"]) == (session, "Lamps", False)
        assert await told(client, "get_plan", session_id=session) == {"plan": None}
        unknown = await client.call_tool("get_plan", {"session_id": "ses_x/../../me"})
        assert unknown.is_error
        assert "list_sessions lists the sessions" in text_of(unknown)
    assert len(await service.turns(session)) == 1


async def test_without_a_service_each_call_says_so() -> None:
    async with (
        httpx2.AsyncClient(base_url="http://127.0.0.1:1") as http,
        Client(server_for(lambda _: AsyncApi(http, {}, MCP_ADVICE), may_decide=False)) as client,
    ):
        nobody = await client.call_tool("list_agents", {})
    assert "http://127.0.0.1:1 cannot be reached (ConnectError). Does `segue serve` run there?" in text_of(nobody)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_person_at_the_client_decides_on_each_step(
    service: ServiceClient, provider: Provider, shelf: Shelf, mode: str
) -> None:
    person = Person(
        decides("confirm", "not that one"),
        decides("confirm"),
        ElicitResult(action="cancel"),
        ElicitResult(action="decline"),
    )
    session = await service.new_session()
    async with editor(str(service.http.base_url), person=person, mode=mode) as client:
        provider.will(planned(THREE_STEPS), planned([deletion(2), deletion(3)]))
        answer = await told(client, "send_message", session_id=session, message=ASK)
        assert shelf.effects == ["get itm-1", "delete itm-2"]
        assert answer["waits"]["question"] == person.shown[2]
        assert "Tool: mcp_delete_item\n  item_id: itm-1" in person.shown[0]
        rejected = await told(client, "decide_plan", session_id=session)
        assert rejected["waits"] is None
    assert shelf.effects == ["get itm-1", "delete itm-2"]
    assert person.shown[2] == person.shown[3]


@pytest.mark.sweep
async def test_the_person_and_not_the_calling_model_fills_in_what_a_tool_asks_for(
    settings: Settings, provider: Provider
) -> None:
    person = Person(ElicitResult(action="accept", content=FORM_FILLED_IN))
    async with running(settings, tools=[deliver]) as service:
        url, session = str(service.http.base_url), await service.new_session()
        async with editor(url) as client:
            provider.will(calls(("deliver", {"what": "pizza"})), says(MODEL_FILLS_IN))
            for message in ("Deliver a pizza", "Elm Street 1"):
                asked = await told(client, "send_message", session_id=session, message=message)
                assert "the_tool_says: Where to?" in asked["waits"]["question"]
        async with editor(url, person=person, mode="2026-07-28") as client:
            provider.will(says("On its way."))
            done = await told(client, "decide_plan", session_id=session)
            assert done["waits"] is None
    assert person.schemas == [FORM_SCHEMA]
    assert delivered == [FORM_FILLED_IN]


async def test_a_calling_model_approves_nothing_unless_the_operator_lets_it(
    service: ServiceClient, provider: Provider, shelf: Shelf
) -> None:
    url = str(service.http.base_url)
    session, asked = await offered(service, provider, [deletion(1), deletion(2)])
    async with editor(url) as client:
        again = await told(client, "send_message", session_id=session, message="yes")
        assert again["waits"]["version"] == asked["plan"]["version"]
        refused = await client.call_tool("decide_plan", {"session_id": session})
        assert refused.is_error
        assert f"the console at {url}/" in text_of(refused)
    assert shelf.effects == []
    async with editor(url, "--decide") as client:
        waits = (await told(client, "get_plan", session_id=session))["plan"]
        given = {"session_id": session, "version": waits["version"], "choice": "confirm"}
        assert (await told(client, "decide_plan", **given))["waits"]
        assert shelf.effects == [DELETED]
        stale = await client.call_tool("decide_plan", given)
        assert stale.is_error
        provider.will(says("Both are gone."))
        assert (await told(client, "send_message", session_id=session, message="yes"))["waits"] is None
    assert shelf.effects == [DELETED, "delete itm-2"]


async def test_a_message_that_is_too_long_is_refused_in_the_services_words(service: ServiceClient) -> None:
    async with editor(str(service.http.base_url)) as client:
        given = {"session_id": await service.new_session(), "message": "x" * 32_001}
        assert "may have 32000 (MAX_MESSAGE_CHARS)" in text_of(await client.call_tool("send_message", given))


@pytest.mark.sweep
async def test_a_call_that_is_cancelled_cancels_its_turn_and_one_that_is_left_goes_on(
    service: ServiceClient, provider: Provider, shelf: Shelf
) -> None:
    url, session = str(service.http.base_url), await service.new_session()
    look = calls(("mcp_look_up", {"item_id": "itm-1"}))
    given = {"session_id": session, "message": "Where is it?", "message_id": "two"}
    async with editor(url) as client:
        provider.will(look)
        call = asyncio.create_task(client.call_tool("send_message", {**given, "message_id": "one"}))
        await shelf.wait_for_effects(1)
        call.cancel()
        [turn] = await service.ended(session)
        assert turn["status"] == "cancelled"
        provider.will(look)
        call = asyncio.create_task(client.call_tool("send_message", given))
        await shelf.wait_for_effects(2)
    await asyncio.gather(call, return_exceptions=True)
    provider.will(says("In the cellar."))
    shelf.go.set()
    async with editor(url) as client:
        assert (await told(client, "send_message", **given))["answer"] == "In the cellar."
    assert [each["status"] for each in await service.turns(session)] == ["cancelled", "completed"]


@pytest.mark.sweep
async def test_over_http_each_caller_has_a_key_and_a_closed_call_cancels_its_turn(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    async with running(guarded) as service, httpx2.AsyncClient(base_url=service.http.base_url) as http:
        server = server_for(lambda ctx: AsyncApi(http, key_of_caller(ctx), MCP_ADVICE), may_decide=False)
        async with serving(server.streamable_http_app()) as url:
            keys = [await new_key(guarded, user) for user in ("ada", "eve")]
            async with over_http(url, keys[0]) as ada, over_http(url, keys[1]) as eve, over_http(url) as nobody:
                session = (await told(ada, "start_session"))["session_id"]
                assert await told(eve, "list_sessions") == []
                assert "SEGUE_API_KEY" in text_of(await nobody.call_tool("list_sessions", {}))
                provider.will(calls(("mcp_look_up", {"item_id": "itm-1"})))
                given = {"session_id": session, "message": "Where is it?"}
                call = asyncio.create_task(ada.call_tool("send_message", given))
                await shelf.wait_for_effects(1)
                call.cancel()
                async with speaking(service, keys[0]) as theirs:
                    [turn] = await theirs.ended(session)
                assert turn["status"] == "cancelled"
            elsewhere = await http.post(f"{url}/mcp", json={}, headers={"Host": "evil.example"})
            assert elsewhere.status_code == 421


@asynccontextmanager
async def over_http(url: str, key: str | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode="2026-07-28") as client,
    ):
        yield client
