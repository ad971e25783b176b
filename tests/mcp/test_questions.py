"""What servers ask of the user in the middle of a call, over the old protocol and the new one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, ElicitationResult, MCPServer
from mcp.server.mcpserver.resolve import Resolve
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import BaseModel

from segue.config import Settings
from segue.domain.tool import Tool, ToolContext, ToolLost, ToolRetry
from segue.domain.user_request import ToolAsks, UserAnswer
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.mcp.questions import MAX_ROUNDS
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says
from tests.support.server import serving
from tests.support.service import Client, process, running

PROGRAM = str(Path(__file__).with_name("mcp_asking_server.py"))
WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))
WRITE = CreateMessageRequestParams(messages=[], max_tokens=10)
ANSWER = {"address": "via Roma 3", "guests": 2}


def configured(folder: Path, **server: Any) -> Path:
    ours = server or {
        "command": "python",
        "args": [PROGRAM, str(folder / "effects")],
        "env": {"TOKEN": "s3cr3t-of-the-server"},
    }
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"asking": ours}}))
    return file


@asynccontextmanager
async def connected(folder: Path, **server: Any) -> AsyncIterator[McpServers]:
    config = read_mcp_config(configured(folder, **server))
    async with McpServers(config, timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
        yield servers


def tool(servers: McpServers, name: str) -> Tool:
    return next(tool for tool in servers.tools() if tool.spec.name == f"mcp_{name}")


async def asking(servers: McpServers, name: str, args: dict[str, Any], *answers: UserAnswer) -> ToolAsks:
    with pytest.raises(ToolAsks) as asks:
        await tool(servers, name).run(args, replace(WHO, answers=answers))
    return asks.value


def answered(asks: ToolAsks, content: dict[str, Any] | None = None, action: Any = "accept") -> UserAnswer:
    return UserAnswer(1, asks.request.key, action, content, asks.state)


async def test_a_call_that_asks_is_ended_and_its_answer_is_given_to_the_same_question_once(tmp_path: Path) -> None:
    async with connected(tmp_path) as servers:
        asks = await asking(servers, "deliver", {"what": "pizza"})
        assert asks.request.message == "Where to, and for how many? token=[redacted]"
        assert asks.request.schema is not None
        assert asks.request.schema["required"] == ["address", "guests"]
        given = await tool(servers, "deliver").run({"what": "pizza"}, replace(WHO, answers=(answered(asks, ANSWER),)))
        declined = answered(asks, action="decline")
        assert await tool(servers, "deliver").run({"what": "x"}, replace(WHO, answers=(declined,))) == "decline"
    assert given == "delivered"
    assert (tmp_path / "effects").read_text() == "pizza to via Roma 3\n"


async def test_several_questions_of_a_call_are_asked_in_turn_and_answers_accumulate(tmp_path: Path) -> None:
    async with connected(tmp_path) as servers:
        answers: list[UserAnswer] = []
        for number in range(3):
            asks = await asking(servers, "survey", {"questions": 3}, *answers)
            assert asks.request.message == f"Question {number}?"
            answers.append(answered(asks, {}))
        done = await tool(servers, "survey").run({"questions": 3}, replace(WHO, answers=tuple(answers)))
    assert done == "accept accept accept"


async def test_an_answer_is_given_to_one_question_and_not_to_the_next_one_like_it(tmp_path: Path) -> None:
    twice = {"questions": 2, "same": True}
    async with connected(tmp_path) as servers:
        first = answered(await asking(servers, "survey", twice), {})
        second = answered(await asking(servers, "survey", twice, first), {})
        assert await tool(servers, "survey").run(twice, replace(WHO, answers=(first, second))) == "accept accept"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    "question",
    [
        {"mode": "form", "message": "Who?", "requestedSchema": schema}
        for schema in (
            {"type": "object", "properties": {"a": {"$ref": "https://evil.example"}}},
            {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
            {"type": "object", "properties": {str(number): {"type": "string"} for number in range(21)}},
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["x" * 600]}}},
            {"type": "object", "properties": {}, "required": ["a"]},
        )
    ]
    + [
        {"mode": "url", "message": "Go", "url": url, "elicitationId": "1"}
        for url in ("javascript:alert(1)", "https://bank.example@evil.example/", "https://e.example/\u202e")
    ],
)
async def test_a_question_that_cannot_be_put_to_a_user_is_refused(tmp_path: Path, question: dict[str, Any]) -> None:
    async with connected(tmp_path) as servers:
        said = await tool(servers, "ask_raw").run({"question": question}, WHO)
    assert isinstance(said, dict)
    assert said["code"] == -32602


async def test_a_call_that_needs_something_done_at_a_link_first_asks_for_it(tmp_path: Path) -> None:
    async with connected(tmp_path) as servers:
        asks = await asking(servers, "statement", {})
        assert (asks.request.mode, asks.request.url) == ("url", "https://bank.example/login")
        (tmp_path / "effects").touch()
        assert await tool(servers, "statement").run({}, replace(WHO, answers=(answered(asks),))) == "seven"


async def test_a_question_of_one_of_two_calls_goes_to_nobody_and_then_they_run_one_at_a_time(tmp_path: Path) -> None:
    async with connected(tmp_path) as servers:
        run = tool(servers, "both").run
        said = await asyncio.gather(*(run({"who": who, "together": True}, WHO) for who in ("ann", "bob")))
        assert said == ["ann cancel", "bob cancel"]
        asked = await asyncio.gather(*(asking(servers, "both", {"who": who}) for who in ("ann", "bob")))
    assert [each.request.message for each in asked] == ["For ann?", "For bob?"]


async def test_a_question_of_a_call_that_was_cut_off_is_not_put_to_the_user_of_the_next_one(tmp_path: Path) -> None:
    begun = asyncio.Event()
    async with connected(tmp_path) as servers:
        run = tool(servers, "both").run
        heard = replace(WHO, report=lambda *_: begun.set())
        ann = asyncio.ensure_future(run({"who": "ann", "together": True}, heard))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        ann.cancel()
        await asyncio.wait([ann])
        assert await run({"who": "bob", "together": True}, WHO) == "bob cancel"


class Address(BaseModel):
    address: str


class Guests(BaseModel):
    guests: int


def new_server(effects: list[str]) -> MCPServer:
    """A server of 2026-07-28, which asks by ending the call with what it needs and a state."""
    server = MCPServer("asking", log_level="CRITICAL")

    async def where(what: str) -> Elicit[Address]:
        effects.append(f"looked up {what}")
        return Elicit(f"Where to bring {what}?", Address)

    async def how_many(to: Annotated[ElicitationResult[Address], Resolve(where)]) -> Elicit[Guests]:
        del to  # it is asked after that
        return Elicit("For how many?", Guests)

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    async def deliver(
        what: str,
        to: Annotated[ElicitationResult[Address], Resolve(where)],
        guests: Annotated[ElicitationResult[Guests], Resolve(how_many)],
    ) -> str:
        """Deliver something."""
        assert isinstance(to, AcceptedElicitation)
        assert isinstance(guests, AcceptedElicitation)
        effects.append(f"{what} to {to.data.address} for {guests.data.guests}")
        return "delivered"

    return server


async def test_a_call_of_the_new_protocol_goes_on_from_where_it_left_off(tmp_path: Path) -> None:
    effects: list[str] = []
    pizza = {"what": "pizza"}
    async with (
        serving(new_server(effects).streamable_http_app()) as url,
        connected(tmp_path, url=f"{url}/mcp") as servers,
    ):
        first = await asking(servers, "deliver", pizza)
        answers = [answered(first, {"address": "via Roma 3"})]
        second = await asking(servers, "deliver", pizza, *answers)
        assert (first.request.message, second.request.message) == ("Where to bring pizza?", "For how many?")
        answers.append(answered(second, {"guests": 2}))
        told = replace(WHO, answers=tuple(answers))
        assert await tool(servers, "deliver").run(pizza, told) == "delivered"
    assert effects == [*["looked up pizza"] * 3, "pizza to via Roma 3 for 2"]  # twice as often from its beginning
    async with (
        serving(new_server(effects).streamable_http_app()) as url,  # with another key for its states
        connected(tmp_path, url=f"{url}/mcp") as servers,
    ):
        assert await tool(servers, "deliver").run(pizza, told) == "delivered"
    assert effects[-1] == "pizza to via Roma 3 for 2"


def paying_server(effects: list[str]) -> MCPServer:
    """Its tool pays once it has wanted something so many times: an answer, or only time."""
    server = MCPServer("asking", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    async def pay(times: int, context: Context, question: str = "") -> str | InputRequiredResult:
        """Pay something."""
        asked = int(context.request_state or 0)
        if asked < times:
            form = ElicitRequestFormParams(message=question, requested_schema={"type": "object", "properties": {}})
            wanted = {"sure": ElicitRequest(params=form)} if question else None
            return InputRequiredResult(input_requests=wanted, request_state=str(asked + 1))
        effects.append("paid")
        return "paid"

    return server


@asynccontextmanager
async def paying(folder: Path, effects: list[str], timeout_s: float = PATIENCE_S) -> AsyncIterator[McpServers]:
    async with (
        serving(paying_server(effects).streamable_http_app()) as url,
        connected(folder, url=f"{url}/mcp", timeout_s=timeout_s) as servers,
    ):
        yield servers


async def test_what_a_call_returns_after_its_last_question_is_its_result(tmp_path: Path) -> None:
    effects: list[str] = []
    async with paying(tmp_path, effects) as servers:
        asks = await asking(servers, "pay", {"times": 1, "question": "Sure?"})
        told = replace(WHO, answers=(replace(answered(asks, {}), state=None),) * (MAX_ROUNDS + 1))
        run = tool(servers, "pay").run
        assert await run({"times": MAX_ROUNDS, "question": "Sure?"}, told) == "paid"
        with pytest.raises(ToolLost, match="unknown"):
            await run({"times": MAX_ROUNDS + 1, "question": "Sure?"}, told)
    assert effects == ["paid"]


@pytest.mark.sweep
async def test_a_call_that_only_wants_time_has_it_until_its_deadline(tmp_path: Path) -> None:
    effects: list[str] = []
    async with paying(tmp_path, effects) as servers:
        assert await tool(servers, "pay").run({"times": MAX_ROUNDS + 1}, WHO) == "paid"
    async with paying(tmp_path, effects, timeout_s=0.5) as servers:
        with pytest.raises(ToolLost):
            await tool(servers, "pay").run({"times": 1000}, WHO)
    assert effects == ["paid"]


def server_that_asks_as_before(effects: list[str]) -> MCPServer:
    """A server of 2026-07-28 whose tools ask in the middle of a call, which it can only pass on to older clients."""
    server = MCPServer("asking", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    async def deliver(what: str, context: Context) -> str:
        """Deliver something."""
        answer = await context.elicit(f"Where to bring {what}?", Address)
        assert isinstance(answer, AcceptedElicitation)
        effects.append(f"{what} to {answer.data.address}")
        return "delivered"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def compose(context: Context) -> str:
        """Let the client's model write."""
        return str(await context.session.send_request(CreateMessageRequest(params=WRITE), CreateMessageResult))

    return server


async def test_a_tool_that_asks_in_the_middle_of_its_call_is_reached_over_the_older_protocol(tmp_path: Path) -> None:
    effects: list[str] = []
    pizza = {"what": "pizza"}
    async with (
        serving(server_that_asks_as_before(effects).streamable_http_app()) as url,
        connected(tmp_path, url=f"{url}/mcp") as servers,
    ):
        with pytest.raises(ToolRetry, match="does not get"):
            await tool(servers, "compose").run({}, WHO)
        asks = await asking(servers, "deliver", pizza)
        assert (asks.request.message, effects) == ("Where to bring pizza?", [])
        told = replace(WHO, answers=(answered(asks, {"address": "via Roma 3"}),))
        assert await tool(servers, "deliver").run(pizza, told) == "delivered"
        assert effects == ["pizza to via Roma 3"]
        with pytest.raises(ToolRetry, match="does not get"):
            await tool(servers, "compose").run({}, WHO)


async def test_a_tool_that_can_ask_over_no_protocol_is_called_anew_over_the_older_one_once(tmp_path: Path) -> None:
    """A server without sessions has no way to ask: over the older protocol too."""
    tried, pizza = list[str](), {"what": "pizza"}
    server = MCPServer("asking", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    async def deliver(what: str, context: Context) -> str:
        """Deliver something."""
        tried.append(what)
        return str(await context.elicit(f"Where to bring {what}?", Address))

    async with (
        serving(server.streamable_http_app(stateless_http=True)) as url,
        connected(tmp_path, url=f"{url}/mcp") as servers,
    ):
        for calls_made in (2, 3, 4):
            with pytest.raises(ToolRetry, match="does not get"):
                await tool(servers, "deliver").run(pizza, WHO)
            assert len(tried) == calls_made


@pytest.fixture
def asking_settings(settings: Settings, tmp_path: Path) -> Settings:
    configured(tmp_path)
    return settings


async def asked(client: Client, provider: Provider) -> tuple[str, dict[str, Any]]:
    provider.will(calls(("mcp_deliver", {"what": "pizza"})))
    session = await client.new_session()
    answer = await client.chat(session, "Portami una pizza a casa, per favore")
    return session, answer["plan"]


@pytest.mark.sweep
async def test_a_question_outlives_kill_9_and_is_answered_at_another_instance(
    asking_settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    async with process(asking_settings) as (_, client):
        session, plan = await asked(client, provider)
    async with running(asking_settings) as client:
        assert await client.get(f"/sessions/{session}/plan") == plan
        reading = json.dumps({"reading": "answer", "values": json.dumps(ANSWER)})
        provider.will(says(reading), says("Consegnata."))
        answer = await client.chat(session, "sì, in via Roma 3, siamo in due")
    assert answer["plan"]["status"] == "completed"
    assert (tmp_path / "effects").read_text() == "pizza to via Roma 3\n"


@pytest.mark.sweep
async def test_of_two_answers_at_two_instances_one_counts(
    asking_settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    async with running(asking_settings) as one, running(asking_settings) as two:
        session, plan = await asked(one, provider)
        provider.will(says("Consegnata."))
        body = {"decision": "confirm", "version": plan["version"], "answer": ANSWER}
        path = f"/sessions/{session}/plan/decision"
        pressed = await asyncio.gather(*(each.http.post(path, json=body) for each in (one, two)))
    assert sorted(response.status_code for response in pressed) == [200, 409]
    assert (tmp_path / "effects").read_text() == "pizza to via Roma 3\n"
