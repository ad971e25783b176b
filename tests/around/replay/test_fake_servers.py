"""The servers as a service finds it: a model and tools that judge what they are sent."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from langchain_core.messages import HumanMessage

from segue.agent import prompts
from segue.around.replay.fake_servers import FakeServers, TurnPlayback
from segue.domain.recording import RecordedTurn
from segue.models.normal_form import normal_form
from tests.support.server import serving

TOOLS = [
    {"type": "function", "function": {"name": "get_tool_result", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture
def servers() -> FakeServers:
    turn = RecordedTurn(message="And now?", answer="It is late.")
    return FakeServers((), TurnPlayback(turn, None, sent=("Hello", "And now?"), earlier=("call_1",)))


@pytest.fixture
async def model(servers: FakeServers) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(servers.app("127.0.0.1")) as url, httpx2.AsyncClient(base_url=url) as client:
        yield client


def request(*said: str, results: str = "call_1", **more: Any) -> dict[str, Any]:
    system = {"role": "system", "content": f"{prompts.TEXTS['system']}\n{results}"}
    users = [HumanMessage(each) for each in said]
    talk = [
        {"role": "user" if each.type == "human" else "assistant", "content": each.text} for each in normal_form(users)
    ]
    return {"messages": [system, *talk], "tools": TOOLS, **more}


async def faults(servers: FakeServers, model: httpx2.AsyncClient, body: dict[str, Any]) -> list[str]:
    await model.post("/v1/chat/completions", json=body)
    assert servers.turn is not None
    return servers.turn.faults


async def test_the_recorded_answer_comes_at_once_or_as_a_stream(model: httpx2.AsyncClient) -> None:
    whole = await model.post("/v1/chat/completions", json=request("Hello", "And now?"))
    assert whole.json()["choices"][0]["message"]["content"] == "It is late."
    pieces = await model.post("/v1/chat/completions", json=request("Hello", "And now?", stream=True))
    assert pieces.headers["content-type"].startswith("text/event-stream")
    assert "It is late." in pieces.text
    assert pieces.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("said", [("Hello", "And now?"), ("And now?",)])
async def test_the_last_messages_each_once_are_as_it_should_be(
    servers: FakeServers, model: httpx2.AsyncClient, said: tuple[str, ...]
) -> None:
    assert await faults(servers, model, request(*said)) == []


@pytest.mark.parametrize("said", [("Hello", "And now?", "And now?"), ("Hello",), ("Good day", "And now?")])
async def test_a_message_twice_missing_or_not_the_users_is_a_fault(
    servers: FakeServers, model: httpx2.AsyncClient, said: tuple[str, ...]
) -> None:
    [fault] = await faults(servers, model, request(*said))
    assert "not the last ones sent, each once" in fault


async def test_a_result_of_an_earlier_turn_that_is_not_in_sight_is_a_fault(
    servers: FakeServers, model: httpx2.AsyncClient
) -> None:
    [fault] = await faults(servers, model, request("Hello", "And now?", results=""))
    assert fault == "results of earlier turns the model cannot see: call_1"


async def test_an_invalid_request_is_a_fault(servers: FakeServers, model: httpx2.AsyncClient) -> None:
    body = request("Hello", "And now?")
    body["messages"].append({"role": "tool", "tool_call_id": "call_2", "content": "found"})
    assert await faults(servers, model, body) == ["an invalid request: a result without a call: call_2"]


async def test_what_is_nothing_of_the_turns_is_answered_without_a_fault(
    servers: FakeServers, model: httpx2.AsyncClient
) -> None:
    job = {"messages": [{"role": "system", "content": "Summarise."}, {"role": "user", "content": "…"}]}
    answer = await model.post("/v1/chat/completions", json=job)
    assert answer.json()["choices"][0]["message"]["content"] == "{}"
    assert await faults(servers, model, job) == []
