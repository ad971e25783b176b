"""The window of stored messages a turn starts from: whole, in order, valid to the strictest provider, bounded."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import hypothesis
import orjson
import pytest
from hypothesis import strategies as st
from langchain_core.messages import SystemMessage, convert_to_openai_messages
from starlette.responses import Response

from segue.agent.render_messages import to_model
from segue.around.replay.request_rules import invalid_history
from segue.config import Settings
from segue.domain.session import Message, RequestedCall
from segue.memory.history_window import INTERRUPTED, provider_valid
from segue.models.normal_form import normal_form, short_id
from tests.support.provider import Provider, calls, says
from tests.support.results import TOOLBOX
from tests.support.service import Client, running
from tests.support.stores import arrived, looking_into

AT = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ("Europe/Rome", "Asia/Tokyo", "Asia/Kolkata", "Africa/Lagos", "America/Lima", "Pacific/Fiji")


def user(text: str = "hello") -> Message:
    return Message(id="msg_u", seq=1, turn_id="turn_1", role="user", content=text, created_at=AT)


def assistant(*call_ids: str) -> Message:
    made = tuple(RequestedCall(call_id, "find", {"id": call_id}) for call_id in call_ids)
    return Message(
        id="msg_a", seq=2, turn_id="turn_1", role="assistant", content="well", created_at=AT, tool_calls=made
    )


def tool(call_id: str, status: str = "succeeded") -> Message:
    content = {"tool_call_id": call_id, "status": status}
    return Message(
        id="msg_t", seq=3, turn_id="turn_1", role="tool", content=content, created_at=AT, tool_call_id=call_id
    )


def outline(window: Sequence[Message]) -> list[str]:
    """One word a message: `user`, `assistant` with what it calls, `tool` with the call and the status it reports."""
    words = []
    for message in window:
        match message.role:
            case "tool":
                assert isinstance(message.content, dict)
                words.append(f"{message.tool_call_id}={message.content['status']}")
            case role:
                words.append("+".join([role, *(call.id for call in message.tool_calls)]))
    return words


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([user(), assistant(), user()], ["user", "assistant", "user"], id="plain talk"),
        pytest.param(
            [user(), assistant("a", "b"), tool("b"), tool("a"), assistant()],
            ["user", "assistant+a+b", "a=succeeded", "b=succeeded", "assistant"],
            id="answers in the order of their calls",
        ),
        pytest.param(
            [user(), assistant("a", "b"), tool("b"), user()],
            ["user", "assistant+a+b", "a=unknown", "b=succeeded", "user"],
            id="a call without an answer gets one that says so",
        ),
        pytest.param(
            [user(), assistant("a"), user(), tool("a"), assistant()],
            ["user", "assistant+a", "a=succeeded", "user", "assistant"],
            id="a late answer goes back to its call",
        ),
        pytest.param([tool("a"), assistant("b"), tool("b"), user()], ["user"], id="nothing before the first user"),
        pytest.param([user(), tool("a"), assistant()], ["user", "assistant"], id="an answer without a call"),
        pytest.param([assistant("a"), tool("a")], [], id="no user at all"),
    ],
)
def test_a_window_is_repaired_to_what_a_provider_accepts(stored: list[Message], shown: list[str]) -> None:
    assert outline(provider_valid(stored)) == shown


def test_a_call_that_was_interrupted_does_not_claim_to_have_failed() -> None:
    [_, _, repaired] = provider_valid([user(), assistant("a")])
    assert repaired.content == {"tool_call_id": "a", "tool_name": "find", "status": "unknown", "summary": INTERRUPTED}


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Any slice of any order of messages; calls have ids of their own, answers may be missing, early or late."""
    kinds = draw(st.lists(st.sampled_from(["user", "assistant", 1, 2, 3]), max_size=12))
    spoken: list[Message] = []
    called: list[str] = []
    for kind in kinds:
        if isinstance(kind, int):
            made = [f"call_{len(called) + number}" for number in range(kind)]
            called += made
            spoken.append(assistant(*made))
        else:
            spoken.append(user() if kind == "user" else assistant())
    answered = draw(st.lists(st.sampled_from(called), unique=True)) if called else []
    for call_id in [*answered, *(["call_x"] if draw(st.booleans()) else [])]:
        spoken.insert(draw(st.integers(0, len(spoken))), tool(call_id))
    start = draw(st.integers(0, len(spoken)))
    return spoken[start : draw(st.integers(start, len(spoken)))]


@hypothesis.settings(max_examples=hypothesis.settings().max_examples * 3)
@hypothesis.given(conversations())
def test_any_slice_of_any_conversation_is_one_a_strict_provider_accepts(stored: list[Message]) -> None:
    window = provider_valid(stored)
    spoken = [message for message in stored if message.role != "tool"]
    start = next((index for index, message in enumerate(spoken) if message.role == "user"), len(spoken))
    assert [message for message in window if message.role != "tool"] == spoken[start:]
    shown = [to_model(message, str(message.content)) for message in window]
    sent = convert_to_openai_messages(normal_form([SystemMessage("be good"), *shown]))
    assert isinstance(sent, list)
    assert not window or invalid_history(sent) is None


@pytest.fixture
async def with_tools(settings: Settings) -> AsyncIterator[Client]:
    """A service with the toolbox, whose turns may take two seconds."""
    servers = {"toolbox": {"command": "python", "args": [TOOLBOX]}}
    settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
    async with running(settings.model_copy(update={"turn_timeout_s": 2})) as served:
        await served.connected("toolbox")
        yield served


async def test_each_stored_message_reaches_the_model_exactly_once(client: Client, provider: Provider) -> None:
    rome, tokyo = ({"timezone": zone} for zone in ZONES[:2])
    provider.will(calls(("current_time", rome), ("current_time", tokyo), text="Let me look."), says("Noon and eight."))
    provider.will(says("Later."))
    session = await client.new_session()
    await client.chat(session, "What time is it?")
    stored = await client.messages(session)
    await client.chat(session, "And now?")
    [system, *sent] = provider.messages()
    assert system["role"] == "system"
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    said = [message["content"] for message in sent if message["role"] != "tool"]
    assert said == ["What time is it?", "Let me look.", "Noon and eight.", "And now?"]
    shown = {message["tool_call_id"]: message["content"] for message in sent if message["role"] == "tool"}
    assert shown == {
        short_id(row["tool_call_id"]): row["content"]["preview"] for row in stored if row["role"] == "tool"
    }
    assert [call["id"] for call in sent[1]["tool_calls"]] == list(shown)
    assert not any(row["tool_call_id"] in system["content"] for row in stored if row["role"] == "tool")


@pytest.mark.sweep
async def test_history_limit_bounds_the_window_and_leaves_no_question_without_its_answer(
    settings: Settings, provider: Provider
) -> None:
    provider.will(*(says(f"answer {number}") for number in range(1, 6)))
    async with running(settings.model_copy(update={"history_limit": 4})) as client:
        session = await client.new_session()
        answers = [await client.chat(session, f"question {number}") for number in range(1, 6)]
    windows = [[message["content"] for message in provider.messages(turn)[1:]] for turn in range(5)]
    assert windows == [
        ["question 1"],
        ["question 1", "answer 1", "question 2"],
        ["question 2", "answer 2", "question 3"],
        ["question 3", "answer 3", "question 4"],
        ["question 4", "answer 4", "question 5"],
    ]
    assert [answer["memory_used"]["history_messages"] for answer in answers] == [0, 2, 2, 2, 2]


@pytest.mark.sweep
async def test_a_window_that_starts_inside_a_turn_with_many_tool_calls_starts_with_what_the_user_said(
    settings: Settings, provider: Provider
) -> None:
    provider.will(calls(*(("current_time", {"timezone": zone}) for zone in ZONES)), says("Many times. Shall I go on?"))
    provider.will(says("Gladly."))
    async with running(settings.model_copy(update={"history_limit": 5})) as client:
        session = await client.new_session()
        await client.chat(session, "What time is it everywhere?")
        await client.chat(session, "yes please")
    window = [message["content"] for message in provider.messages()[1:]]
    assert window == ["What time is it everywhere?", "Many times. Shall I go on?", "yes please"]
    [system] = provider.messages(role="system")
    assert all(zone in system["content"] for zone in ZONES)


async def test_a_long_result_costs_the_next_turn_less_than_three_kilobytes(
    with_tools: Client, provider: Provider
) -> None:
    provider.will(calls(("mcp_big", {"n_bytes": 50_000})), says("A great deal."), says("It was nothing but x."))
    session = await with_tools.new_session()
    await with_tools.chat(session, "Get me a lot")
    await with_tools.chat(session, "What was it?")
    before, fresh, after = (len(orjson.dumps(request["messages"])) for request in provider.requests)
    assert fresh > before + 10_000
    assert after < before + 3000
    [reference] = [orjson.loads(message["content"]) for message in provider.messages(role="tool")]
    assert reference["size_bytes"] >= 50_000
    assert reference["tool_call_id"].startswith("call_")


async def test_a_turn_that_ended_between_a_call_and_its_result_leaves_a_history_the_provider_accepts(
    with_tools: Client, provider: Provider
) -> None:
    provider.will(calls(("mcp_echo", {"id": "eml-0a1b2c"}), ("mcp_slow", {})), says("I did not hear back."))
    session = await with_tools.new_session()
    failed = await with_tools.send(session, "Find it, and wait")
    assert (failed.status_code, failed.json()["code"]) == (504, "turn_timeout")
    answer = await with_tools.chat(session, "Well?")
    assert answer["message"]["content"] == "I did not hear back."
    found, hung = (orjson.loads(message["content"]) for message in provider.messages(role="tool"))
    assert found == {"id": "eml-0a1b2c"}
    assert (hung["status"], hung["summary"]) == ("unknown", INTERRUPTED)


@pytest.mark.sweep
async def test_a_session_counts_no_message_that_a_second_run_of_a_turn_has_replaced(
    with_tools: Client, provider: Provider
) -> None:
    provider.will(calls(("mcp_slow", {})))
    session = await with_tools.new_session()
    failed = await with_tools.send(session, "Wait for it")
    assert [message["seq"] for message in await with_tools.messages(session)] == [1, 2, 3]
    await with_tools.http.post(f"/sessions/{session}/turns/{failed.json()['turn_id']}/retry")
    assert [message["seq"] for message in await with_tools.messages(session)] == [1, 2, 4]
    assert (await with_tools.get(f"/sessions/{session}"))["message_count"] == 3


async def test_a_history_that_cannot_be_read_is_an_error_and_not_an_empty_one(
    settings: Settings, client: Client, provider: Provider
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await release.wait()
        return says("first")

    provider.will(held, says("third"))
    session = await client.new_session()
    first = asyncio.create_task(client.send(session, "one"))
    await entered.wait()
    second = asyncio.create_task(client.send(session, "two"))
    await arrived(settings, session, 2)
    async with looking_into(settings) as stores, stores.hidden("messages"):
        release.set()
        answers = [await first, await second]
    assert [answer.status_code for answer in answers] == [500, 500]
    await client.chat(session, "three")
    assert [message["content"] for message in provider.messages()[1:]] == ["one", "two", "three"]
    assert len(provider.requests) == 2


async def test_history_is_ordered_by_turn_though_messages_arrived_in_between(
    client: Client,
    provider: Provider,
    settings: Settings,
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await release.wait()
        return calls(("current_time", {}))

    provider.will(held, says("first"), says("second"))
    session = await client.new_session()
    first = asyncio.create_task(client.chat(session, "one"))
    await entered.wait()
    second = asyncio.create_task(client.chat(session, "two"))
    await arrived(settings, session, 2)
    release.set()
    await asyncio.gather(first, second)
    assert [message["content"] for message in provider.messages(1)[1:2]] == ["one"]
    assert [message["role"] for message in provider.messages()[1:]] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert [message["content"] for message in provider.messages(role="user")] == ["one", "two"]
    rows = await client.messages(session)
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["content"] for row in rows if row["role"] == "user"] == ["one", "two"]
    assert [row["role"] for row in rows] == ["user", "user", "assistant", "tool", "assistant", "assistant"]
