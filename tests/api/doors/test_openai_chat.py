"""The official `openai` client against a running service: chat completions, and what makes a request a turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from segue.config import Settings
from tests.support.openai_client import openai_client
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, running
from tests.support.shelf import Shelf


@pytest.fixture
async def service(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{shelf.url}"}}}}}}')
    async with running(settings.model_copy(update={"max_door_body_bytes": 1_000_000})) as served:
        await served.connected("shelf")
        yield served


@pytest.fixture
async def ai(service: Client) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(service) as opened:
        yield opened


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


async def ask(ai: AsyncOpenAI, *messages: Any, **more: Any) -> str:
    completion = await ai.chat.completions.create(model="segue", messages=list(messages), **more)
    return completion.choices[0].message.content or ""


async def session_ids(service: Client) -> list[str]:
    """Newest activity first."""
    return [each["id"] for each in (await service.get("/sessions"))["items"]]


async def said_in(service: Client, session_id: str) -> list[str]:
    messages = await service.messages(session_id)
    return [each["content"] for each in messages if each["role"] != "tool" and each["content"]]


async def test_models_are_agents_and_an_unknown_one_is_an_error_the_client_understands(ai: AsyncOpenAI) -> None:
    assert [model.id async for model in ai.models.list()] == ["segue"]
    assert (await ai.models.retrieve("segue")).owned_by == "segue"
    with pytest.raises(openai.NotFoundError) as refused:
        await ai.chat.completions.create(model="gpt-9", messages=[user("hello")])
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert "GET /agents" in refused.value.message


async def test_a_conversation_by_header_has_one_session_and_its_ids_come_back(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(says("Good morning."), says("Still Ada."))
    answer = await ai.chat.completions.with_raw_response.create(
        model="segue", messages=[user("I am Ada")], extra_headers={"X-Session-Id": "chat 1"}, temperature=0.5, user="x"
    )
    session = answer.headers["x-session-id"]
    [turn] = await service.turns(session)
    assert turn["turn_id"] == answer.headers["x-turn-id"]
    completion = answer.parse()
    assert completion.choices[0].message.content == "Good morning."
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (11, 18)
    by_metadata = {"metadata": {"session_id": session}}
    assert await ask(ai, user("who am I?"), extra_body=by_metadata) == "Still Ada."
    assert await session_ids(service) == [session]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_without_an_id_is_found_by_what_was_said_in_it(
    ai: AsyncOpenAI, service: Client, provider: Provider, *, streamed: bool
) -> None:
    provider.will(says("Good morning."), says("Ada."), says("Bob."))
    first = [{"role": "system", "content": "Today is Monday."}, user("I am Ada"), assistant("Good  morning.\n")]
    assert await ask(ai, user("I am Ada")) == "Good morning."
    if streamed:
        stream = await ai.chat.completions.create(model="segue", messages=[*first, user("who am I?")], stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Ada."
    else:
        assert await ask(ai, *first, user("who am I?")) == "Ada."
    [session] = await session_ids(service)
    assert await said_in(service, session) == ["I am Ada", "Good morning.", "who am I?", "Ada."]
    # what was said is another conversation than the one that is stored
    assert await ask(ai, user("I am Bob"), assistant("Hello."), user("who am I?")) == "Bob."
    other, _ = await session_ids(service)
    assert await said_in(service, other) == ["I am Bob", "Hello.", "who am I?", "Bob."]
    assert [each["content"] for each in provider.messages(role="user")] == ["I am Bob", "who am I?"]


@pytest.mark.sweep
async def test_two_conversations_that_begin_alike_stay_two(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(says("Hello."), says("Hello."), says("Tea."), says("Coffee."))
    for _ in range(2):
        assert await ask(ai, user("hi")) == "Hello."
    begun = (user("hi"), assistant("Hello."))
    assert await ask(ai, *begun, user("tea?")) == "Tea."
    assert await ask(ai, *begun, user("coffee?")) == "Coffee."
    said = [await said_in(service, session) for session in await session_ids(service)]
    assert ["hi", "Hello.", "tea?", "Tea."] in said
    assert ["hi", "Hello.", "coffee?", "Coffee."] in said


async def test_a_stream_shows_what_the_agent_does_and_never_its_calls(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(calls(("mcp_find_items", {"query": "lamps"}), text="Looking."), says("Three lamps."))
    stream = await ai.chat.completions.create(
        model="segue", messages=[user("which lamps?")], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.to_dict() == {"role": "assistant", "content": ""}
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta for delta in deltas if delta.tool_calls] == []
    assert "".join(delta.content or "" for delta in deltas) == "Looking.\n\nThree lamps."
    thought = "".join(str(delta.to_dict().get("reasoning_content", "")) for delta in deltas)
    assert '`mcp_find_items` {"query":"lamps"}' in thought
    assert "succeeded" in thought
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 14
    # what was said before the tool is part of what the client sends back
    provider.will(says("Red."))
    told = (user("which lamps?"), assistant("Looking.\n\nThree lamps."))
    assert await ask(ai, *told, user("which colour?")) == "Red."
    assert len(await session_ids(service)) == 1


async def test_open_webui_sees_statuses_and_nobody_else_does(service: Client, provider: Provider) -> None:
    seen = []
    for headers in ({"X-OpenWebUI-Chat-Id": "c1"}, {}):
        provider.will(calls(("mcp_find_items", {"query": "lamps"})), says("Three."))
        body = {"model": "segue", "messages": [user("which lamps?")], "stream": True}
        answer = await service.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.text.splitlines()
        assert [line for line in lines if line and not line.startswith(("data: ", ":"))] == []
        assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
        seen.append([line for line in lines if '"event":{"type":"status"' in line and '"choices":[]' in line])
    assert [len(each) for each in seen] == [2, 0]
    assert '"done":true' in seen[0][-1]


RETRY = {"x-stainless-retry-count": "1"}


async def test_a_retry_is_the_same_turn_until_the_next_one_begins(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    chat = {"extra_headers": {"X-Session-Id": "chat 1"}}
    retry = {"extra_headers": {**chat["extra_headers"], **RETRY}}
    provider.will(says("One."), says("Two."), says("Three."), says("Four."))
    assert [await ask(ai, user("count"), **each) for each in (chat, retry)] == ["One.", "One."]
    assert await ask(ai, user("count"), **chat) == "Two."  # the client says that it has not asked this before
    assert await ask(ai, user("go on"), **chat) == "Three."
    assert await ask(ai, user("count"), **retry) == "Four."
    provider.will(fails(400), fails(400))
    with pytest.raises(openai.InternalServerError) as failed:
        await ask(ai.with_options(max_retries=0), user("again"), **chat)
    assert failed.value.code == "model_unavailable"
    turns = await service.turns((await session_ids(service))[0])
    assert [turn["status"] for turn in turns] == ["completed"] * 4 + ["failed"]
    assert failed.value.response.headers["x-turn-id"] == turns[-1]["turn_id"]


async def test_a_plan_asks_in_text_a_text_decides_and_asking_for_it_again_approves_nothing_twice(
    ai: AsyncOpenAI, provider: Provider, shelf: Shelf
) -> None:
    provider.will(planned([deletion(1), deletion(2)]))
    ask_for = user("Delete the first item, then delete the second one")
    question = await ask(ai, ask_for)
    assert "itm-1" in question
    yes = (ask_for, assistant(question), user("yes"))
    again = await ask(ai, *yes)
    assert shelf.effects == ["delete itm-1"]
    assert await ask(ai, *yes, extra_headers=RETRY) == again
    provider.will(says("Both are gone."))
    assert await ask(ai, *yes, assistant(again), user("yes")) == "Both are gone."
    assert shelf.effects == ["delete itm-1", "delete itm-2"]
    provider.will(says("Yes to what?"))
    assert await ask(ai, *yes) == "Yes to what?"  # regenerated: that conversation goes on in a session of its own
    assert shelf.effects == ["delete itm-1", "delete itm-2"]


def headers_of(message: str, parent: str) -> dict[str, str]:
    return {
        "X-OpenWebUI-Chat-Id": "c1",
        "X-OpenWebUI-Message-Id": message,
        "X-OpenWebUI-User-Message-Parent-Id": parent,
    }


async def test_an_edit_or_a_regenerate_in_open_webui_begins_anew_from_there(
    ai: AsyncOpenAI, service: Client, provider: Provider, shelf: Shelf
) -> None:
    provider.will(planned([deletion(1), deletion(2)]))
    ask_for = user("Delete the first item, then delete the second one")
    question = await ask(ai, ask_for, extra_headers=headers_of("a1", ""))
    asked = (ask_for, assistant(question))
    await ask(ai, *asked, user("yes"), extra_headers=headers_of("a2", "a1"))
    assert shelf.effects == ["delete itm-1"]
    provider.will(says("Yes to what?"))
    assert await ask(ai, *asked, user("yes"), extra_headers=headers_of("a3", "a1")) == "Yes to what?"
    assert shelf.effects == ["delete itm-1"]
    provider.will(says("Hello."))
    assert await ask(ai, user("hello"), extra_headers=headers_of("b1", "")) == "Hello."
    [session] = await session_ids(service)
    assert await said_in(service, session) == ["hello", "Hello."]
    # and back to what has left the history: that is a conversation of its own
    provider.will(says("It is gone."))
    told = (*asked, user("yes"), assistant("Yes to what?"))
    assert await ask(ai, *told, user("which is gone?"), extra_headers=headers_of("a4", "a3")) == "It is gone."
    assert len(await session_ids(service)) == 2
    assert [each["content"] for each in provider.messages(role="user")][-1] == "which is gone?"


async def test_a_session_that_is_named_by_its_own_id_goes_on_whatever_the_client_shows_of_it(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    session = await service.new_session()
    shown, left = (user("the sun?"), assistant("A star.")), (user("and?"), assistant("It is hot."))

    async def say(text: str, *before: Any, message: str, parent: str) -> str:
        return await ask(ai, *before, user(text), extra_headers=headers_of(message, parent) | {"X-Session-Id": session})

    provider.will(says("A star."), says("It is hot."), says("It is large."), says("Hot."), says("Hotter."))
    await say("the sun?", message="a1", parent="")
    await say("and?", *shown, message="a2", parent="a1")
    await say("and?", *shown, message="a3", parent="a1")
    assert await say("how hot?", *shown, *left, message="a4", parent="a2") == "Hot."
    assert await session_ids(service) == [session]
    assert await say("how hot?", *shown, *left, message="a5", parent="a2") == "Hotter."


async def test_another_version_of_an_answer_is_asked_for_behind_that_answer(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(says("The sun is a star."), says("It is hot."), says("Very hot."))
    sun, told = user("the sun?"), assistant("The sun is a star.")
    await ask(ai, sun, extra_headers=headers_of("a1", ""))
    await ask(ai, sun, told, user("and?"), extra_headers=headers_of("a2", "a1"))
    shorter = (sun, told, user("and?"), assistant("It is hot."), user("More Concise"))
    assert await ask(ai, *shorter, extra_headers=headers_of("a3", "a1")) == "Very hot."
    [session] = await session_ids(service)
    said = ["the sun?", "The sun is a star.", "and?", "It is hot.", "More Concise", "Very hot."]
    assert await said_in(service, session) == said
    provider.will(says("A star."), says("Big."))
    of_the_first = (sun, told, user("More Concise"))  # what came after it leaves the history
    assert await ask(ai, *of_the_first, extra_headers=headers_of("b1", "")) == "A star."
    assert await said_in(service, session) == [*said[:2], "More Concise", "A star."]
    assert await ask(ai, *of_the_first[:2], user("and?"), extra_headers=headers_of("b2", "a1")) == "Big."
    assert await said_in(service, session) == [*said[:3], "Big."]


async def test_a_client_that_leaves_stops_the_turn_if_it_asks_for_that(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(streams("Hel", asyncio.Event()))
    leaving = {"X-Session-Id": "c1", "X-On-Disconnect": "cancel"}
    answer = await ai.chat.completions.create(
        model="segue", messages=[user("hello")], stream=True, extra_headers=leaving
    )
    async for chunk in answer:
        if chunk.choices[0].delta.content:
            break
    await answer.close()
    [session] = await session_ids(service)
    assert [turn["status"] for turn in await service.ended(session)] == ["cancelled"]


@pytest.mark.sweep
async def test_titles_and_tags_are_answered_outside_of_the_conversation(
    ai: AsyncOpenAI, service: Client, provider: Provider
) -> None:
    provider.will(says("Hello."), says("Greetings"), says("Words"), says("Tags"))
    chat = {"X-OpenWebUI-Chat-Id": "c1"}
    await ask(ai, user("hello"), extra_headers=chat)
    title = user("### Task:\nWrite a title\n<chat_history>\nUSER: hello\n</chat_history>")
    assert await ask(ai, title, extra_headers=chat) == "Greetings"
    named = await ai.chat.completions.create(model="segue-title", messages=[user("hello")])
    assert named.choices[0].message.content == "Words"
    task = await ai.chat.completions.create(
        model="segue",
        messages=[user("tags?")],
        stream=True,
        extra_headers={**chat, "X-OpenWebUI-Task": "tags_generation"},
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in task]) == "Tags"
    [session] = await session_ids(service)
    assert await said_in(service, session) == ["hello", "Hello."]
    [used] = (await service.get("/usage", group="user"))["items"]
    assert used["llm_calls"] == 4


async def test_a_message_of_the_users_that_looks_like_a_task_is_a_turn(service: Client, provider: Provider) -> None:
    history = "### Task:\nWrite a title\n<chat_history>\nUSER: hi\n</chat_history>"
    found = '### Task:\nAnswer.\n<context>\n<source id="1" name="a">b</source>\n</context>\n\nhello'
    turns: tuple[tuple[str, dict[str, str]], ...] = (
        ("### Task:\nMake tea", {"X-Session-Id": "c1"}),
        (history, {"X-OpenWebUI-Chat-Id": "c2", "X-OpenWebUI-Task": ""}),
        (found, {}),
    )
    for text, headers in turns:
        provider.will(says("Yes."))
        body = {"model": "segue", "messages": [user(text)]}
        answer = await service.http.post("/v1/chat/completions", json=body, headers=headers)
        assert "x-turn-id" in answer.headers, text


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "a role there is not": ({"messages": [{"role": "oracle", "content": "x"}]}, 422, "invalid_request"),
    "no role": ({"messages": [{"content": "x"}]}, 422, "invalid_request"),
    "an answer to go on with": ({"messages": [user("x"), assistant("y")]}, 422, "invalid_request"),
    "a text that is a number": ({"messages": [user([{"type": "text", "text": 1}])]}, 422, "parts_unsupported"),
    "a number": ({"messages": [user(7)]}, 422, "invalid_request"),
    "nothing said": ({"messages": [user(" \n")]}, 422, "invalid_request"),
    "ten thousand messages": ({"messages": [user("x")] * 10_000}, 422, "invalid_request"),
    "more than the bound": ({"messages": [user("x" * 2_000_000)]}, 413, "body_too_large"),
    "no messages": ({"messages": []}, 422, "invalid_request"),
    "no model": ({"model": None, "messages": [user("x")]}, 422, "invalid_request"),
    "a conversation that is a number": ({"messages": [user("x")], "conversation": {"id": 7}}, 422, "invalid_request"),
    "a session that is not theirs": (
        {"messages": [user("x")], "metadata": {"session_id": "ses_" + "0" * 26}},
        404,
        "session_not_found",
    ),
    "a session of no form": ({"messages": [user("x")], "metadata": {"thread_id": "ses_*"}}, 404, "session_not_found"),
    "an id that is too long": ({"messages": [user("x")], "conversation": "x" * 201}, 422, "invalid_request"),
}


async def test_every_error_has_openais_shape_and_nothing_is_run(service: Client, provider: Provider) -> None:
    def problem(response: httpx2.Response) -> tuple[int, str]:
        assert response.headers["content-type"] == "application/json", response.text
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "code", "param"}
        assert error["message"]
        return response.status_code, error["code"]

    for name, (body, status, code) in REFUSED.items():
        response = await service.http.post("/v1/chat/completions", json={"model": "segue", **body})
        assert problem(response) == (status, code), name
    broken = await service.http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert (problem(broken), broken.json()["error"]["param"]) == ((422, "invalid_request"), None)
    for method, path in (("GET", "/v1/embeddings"), ("GET", "/v1/chat/completions"), ("GET", "/v1/models?x=1")):
        assert problem(await service.http.request(method, path))[0] in (404, 405, 422)
    assert provider.requests == []
    assert await session_ids(service) == []


async def test_what_the_service_tells_in_the_place_of_a_model_comes_as_any_answer(
    ai: AsyncOpenAI, provider: Provider
) -> None:
    for as_stream in (False, True):
        provider.will(calls(("current_time", {})), fails(503), fails(503))
        if as_stream:
            chunks = await ai.chat.completions.create(model="segue", messages=[user("When is it?")], stream=True)
            told = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
        else:
            told = await ask(ai, user("What time is it?"))
        assert "✓ current time" in told
