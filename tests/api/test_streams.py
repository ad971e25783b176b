"""What a stream of events says, in which order, and what is refused before it begins."""

import asyncio
from typing import Any

import orjson
import pytest
from starlette.responses import Response, StreamingResponse

from segue.config import Settings
from tests.support.patience import PATIENCE_S
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, calls_raw, fails, says, streams
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.streams import Sent, chatting, kinds, listening, replayed, streamed, texts

NODES_BEFORE = [
    "STEP_STARTED detect_acknowledgement",
    "STEP_FINISHED detect_acknowledgement",
    "STEP_STARTED plan",
    "CUSTOM acknowledgement",
    "CUSTOM web_search",
    "STEP_FINISHED plan",
    "STEP_STARTED tool_loop",
]
NODES_AFTER = ["STEP_FINISHED respond", "STEP_STARTED knowledge", "STEP_FINISHED knowledge", "RUN_FINISHED"]


async def problem(client: Client, path: str, **request: Any) -> tuple[int, str]:
    """Status and code of a stream that is refused."""
    async with listening(client, path, **request) as stream:
        assert stream.response.headers["content-type"] == "application/problem+json", stream.response.text
        return stream.response.status_code, stream.response.json()["code"]


def once(sent: list[Sent]) -> list[str]:
    """The kinds, with repeated content as one."""
    found = kinds(sent)
    return [kind for index, kind in enumerate(found) if kind != "TEXT_MESSAGE_CONTENT" or found[index - 1] != kind]


async def test_a_plain_turn_is_told_from_its_start_to_its_answer(client: Client, provider: Provider) -> None:
    provider.will(says("It is noon in Rome."))
    session = await client.new_session()
    sent = await streamed(client, session, "What time is it?")
    assert once(sent) == [
        "RUN_STARTED",
        *NODES_BEFORE,
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "STEP_FINISHED tool_loop",
        "STEP_STARTED respond",
        "TEXT_MESSAGE_END",
        *NODES_AFTER,
    ]
    assert {sent[0].event["threadId"], sent[-1].event["threadId"]} == {session}
    assert [each.id for each in sent[:-1]] == list(range(1, len(sent)))
    answer = sent[-1].event["result"]
    assert sent[0].event["runId"] == sent[-1].event["runId"] == answer["turn_id"]
    assert texts(sent) == {answer["message"]["id"]: "It is noon in Rome."}
    assert answer["message"] == (await client.messages(session))[-1]
    assert answer["usage"] == {**answer["usage"], "llm_calls": 1, "input_tokens": 11, "output_tokens": 7}
    custom = {each.event["name"]: each.event["value"] for each in sent if each.type == "CUSTOM"}
    assert custom == {"acknowledgement": answer["acknowledgement"], "web_search": answer["web_search"]}


async def test_an_accept_header_asks_for_events_too_and_nothing_may_buffer_or_keep_them(
    client: Client, provider: Provider
) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    asked = {"headers": {"Accept": "text/event-stream"}, "json": {"message": "hello"}}
    async with listening(client, f"/sessions/{session}/chat", method="POST", **asked) as stream:
        headers = stream.response.headers
        assert headers["content-type"].partition(";")[0] == "text/event-stream"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        assert (await stream.rest())[-1].type == "RUN_FINISHED"


async def test_the_json_answer_is_the_result_of_the_log(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {"timezone": "Europe/Rome"})), says("Noon."))
    session = await client.new_session()
    answer = await client.chat(session, "What time is it?")
    sent = await replayed(client, session, answer["turn_id"])
    assert sent[-1].event["result"] == answer
    assert texts(sent) == {answer["message"]["id"]: "Noon."}
    assert [request.get("stream", False) for request in provider.requests] == [False, False]


async def test_the_json_answer_is_byte_for_byte_the_one_that_the_turn_is_read_with(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", {"timezone": "Europe/Rome"})), says("Mezzogiorno è “noon”.\n"))
    session = await client.new_session()
    answer = await client.send(session, "What time is it?")
    assert answer.headers["content-type"] == "application/json"
    turn = await client.http.get(f"/sessions/{session}/turns/{answer.json()['turn_id']}")
    assert turn.content.endswith(b',"answer":' + answer.content + b',"branch":null}')


async def test_calls_are_told_with_their_arguments_and_the_reference_to_their_result(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", {"timezone": "Europe/Rome"}), text="Let me see."), says("It is noon."))
    session = await client.new_session()
    sent = await streamed(client, session, "What time is it?")
    [start, *args, end, result] = [each.event for each in sent if each.type.startswith("TOOL_CALL_")]
    assert (start["toolCallName"], end["type"]) == ("current_time", "TOOL_CALL_END")
    assert kinds(sent).index("TEXT_MESSAGE_START") < kinds(sent).index("TOOL_CALL_START current_time")
    assert kinds(sent).index("TEXT_MESSAGE_END") < kinds(sent).index("TOOL_CALL_END")
    rows = await client.messages(session)
    assert list(texts(sent).items()) == [(rows[1]["id"], "Let me see."), (rows[3]["id"], "It is noon.")]
    assert (start["parentMessageId"], result["messageId"]) == (rows[1]["id"], rows[2]["id"])
    assert orjson.loads("".join(each["delta"] for each in args)) == {"timezone": "Europe/Rome"}
    assert orjson.loads(result["content"]) == rows[2]["content"]
    assert result["toolCallId"] == rows[2]["tool_call_id"]


async def test_a_tool_that_is_taken_away_is_told_with_its_state(settings: Settings, provider: Provider) -> None:
    provider.will(calls(("mcp_broken", {"item_id": "itm-1"})), says("It is closed."))
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(orjson.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}).decode())
        async with running(settings.model_copy(update={"tool_failure_threshold": 1})) as client:
            session = await client.new_session()
            sent = await streamed(client, session, "Open item 1")
            states = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]
    [told] = [each.event["value"] for each in sent if each.kind == "CUSTOM tool_state"]
    assert told["tool_name"] == "mcp_broken"
    assert told["state"] == {**states["mcp_broken"], "retry_at": told["state"]["retry_at"]}
    assert told["state"]["status"] == "failed"


async def test_arguments_too_large_for_a_log_are_told_by_where_they_are(client: Client, provider: Provider) -> None:
    fenced = f'```json\n{{"timezone": "{"x" * 20_000}"}}\n```'  # which is read when it is complete
    provider.will(calls_raw(("current_time", fenced)), says("There is no such zone."))
    session = await client.new_session()
    sent = await streamed(client, session, "What time is it?")
    [told] = [orjson.loads(each.event["delta"]) for each in sent if each.type == "TOOL_CALL_ARGS"]
    assert len((await client.get(told["$ref"]))["args"]["timezone"]) == 20_000


async def test_a_plan_is_told_as_a_state_that_changes(shelved: Client, provider: Provider) -> None:
    provider.will(planned(THREE_STEPS))
    session = await shelved.new_session()
    sent = await streamed(shelved, session, ASK)
    state: dict[str, Any] = {}
    for each in sent:
        if each.type == "STATE_SNAPSHOT":
            assert not state
            state = each.event["snapshot"]
        for change in each.event["delta"] if each.type == "STATE_DELTA" else ():
            apply(state, change)
    answer = sent[-1].event["result"]
    assert state["plan"] == answer["plan"]
    assert [step["status"] for step in state["plan"]["steps"]] == ["complete", "complete", "waiting"]
    assert texts(sent) == {answer["message"]["id"]: answer["message"]["content"]}
    assert "mcp_delete_item" in answer["message"]["content"]


def apply(state: dict[str, Any], change: dict[str, Any]) -> None:
    """RFC 6902, of which only `replace` is used."""
    assert change["op"] == "replace"
    *way, last = change["path"].split("/")[1:]
    place: Any = state
    for name in way:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = change["value"]


async def test_words_beside_a_call_that_waits_begin_the_question(shelved: Client, provider: Provider) -> None:
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"}), text="I can delete it."))
    session = await shelved.new_session()
    sent = await streamed(shelved, session, "Delete item 1")
    answer = sent[-1].event["result"]
    assert texts(sent) == {answer["message"]["id"]: answer["message"]["content"]}
    assert answer["message"]["content"].startswith("I can delete it.\n\n")


async def test_a_button_may_be_followed_as_well(shelved: Client, provider: Provider) -> None:
    provider.will(planned(THREE_STEPS), says("Fatto: è cancellata."))
    session = await shelved.new_session()
    offered = await shelved.chat(session, ASK)
    body = {"decision": "confirm", "version": offered["plan"]["version"]}
    asked = {"headers": {"Accept": "text/event-stream"}, "json": body}
    async with listening(shelved, f"/sessions/{session}/plan/decision", method="POST", **asked) as stream:
        sent = await stream.rest()
    assert list(texts(sent).values()) == ["Fatto: è cancellata."]
    assert provider.requests[-1]["stream"]


async def test_a_turn_that_fails_is_told_as_the_problem_it_would_have_been(client: Client, provider: Provider) -> None:
    provider.will(fails(500), fails(500))
    session = await client.new_session()
    async with chatting(client, session, "hello?") as stream:
        sent, sent_by = await stream.rest(), stream.response.headers["x-request-id"]
    refused = await client.send(session, "hello?")
    error = sent[-1].event
    assert (error["type"], error["code"], error["message"]) == (
        "RUN_ERROR",
        refused.json()["code"],
        refused.json()["detail"],
    )
    told, turns = error["metadata"]["problem"], await client.turns(session)
    of_request = {"turn_id": turns[0]["turn_id"], "request_id": sent_by}
    assert told == {**refused.json(), **of_request, "retryable": True, "extra": {}}
    again = await replayed(client, session, told["turn_id"])
    assert again[-1].event == error


async def test_words_come_as_the_model_writes_them(client: Client, provider: Provider) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    provider.will(streams("One", gates[0], " two", gates[1], " \ud83d", gates[2], "\ude00 three. "))
    session = await client.new_session()
    async with chatting(client, session, "count") as stream:
        heard = [(await stream.until("TEXT_MESSAGE_CONTENT"))[-1].event["delta"]]
        for gate in gates[:2]:
            gate.set()
            if gate is gates[0]:
                heard.append((await stream.until("TEXT_MESSAGE_CONTENT"))[-1].event["delta"])
        gates[2].set()
        rest = await stream.rest()
    assert heard == ["One", " two"]
    assert "".join([*heard, *texts_in(rest)]) == "One two 😀 three."
    assert rest[-1].event["result"]["message"]["content"] == "One two 😀 three."


def texts_in(sent: list[Sent]) -> list[str]:
    return [each.event["delta"] for each in sent if each.type == "TEXT_MESSAGE_CONTENT"]


async def test_what_comes_at_once_is_told_at_once(client: Client, provider: Provider) -> None:
    async def in_one_piece(body: dict[str, Any]) -> Response:
        word_by_word: Any = streams(*(f"{number} " for number in range(500)))
        answer: StreamingResponse = await word_by_word(body)
        return Response("".join([str(each) async for each in answer.body_iterator]), media_type="text/event-stream")

    provider.will(in_one_piece)
    session = await client.new_session()
    sent = await streamed(client, session, "count")
    assert len(texts_in(sent)) < 250
    assert "".join(texts_in(sent)) == " ".join(map(str, range(500)))


CUT = {
    "words": streams("I was about to", finish_reason=None),
    "words that ran out of room": streams("I was about to", finish_reason="content_filter"),
}


@pytest.mark.parametrize("reply", CUT.values(), ids=list(CUT))
async def test_an_answer_cut_after_it_was_heard_is_an_error_and_no_message(
    settings: Settings, provider: Provider, reply: Any
) -> None:
    provider.will(reply)
    async with running(settings.model_copy(update={"llm_max_retries": 2})) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "go on")
        assert sent[-1].event["code"] == "model_unavailable"
        assert kinds(sent)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
        assert [row["role"] for row in await client.messages(session)] == ["user"]


async def test_calls_that_are_cut_off_do_not_run_and_the_model_is_asked_again(
    settings: Settings, provider: Provider
) -> None:
    half = {"index": 0, "id": "c", "function": {"name": "current_time", "arguments": '{"timezone": "Eur'}}
    provider.will(streams({"tool_calls": [half]}, finish_reason=None), says("Never mind."))
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "what time is it?")
        assert "TOOL_CALL_START current_time" not in kinds(sent)
        assert sent[-1].event["result"]["message"]["content"] == "Never mind."


async def test_arguments_that_are_no_object_are_given_back_to_the_model(client: Client, provider: Provider) -> None:
    provider.will(calls_raw(("current_time", '{"timezone": "Eur')), says("I cannot tell."))
    session = await client.new_session()
    sent = await streamed(client, session, "what time is it?")
    [call] = sent[-1].event["result"]["tool_calls"]
    assert call["status"] == "failed"
    assert "JSON object" in provider.messages(1, role="tool")[-1]["content"]


async def test_calls_without_an_index_are_calls_of_their_own(client: Client, provider: Provider) -> None:
    zones = ("Europe/Rome", "Asia/Tokyo")
    whole = [
        {"id": f"c{zone}", "function": {"name": "current_time", "arguments": orjson.dumps({"timezone": zone}).decode()}}
        for zone in zones
    ]
    provider.will(streams(*({"tool_calls": [call]} for call in whole), finish_reason="tool_calls"), says("Both."))
    session = await client.new_session()
    sent = await streamed(client, session, "what time is it?")
    assert {call["args"]["timezone"] for call in sent[-1].event["result"]["tool_calls"]} == set(zones)


async def test_a_model_that_falls_silent_in_the_middle_is_given_up(settings: Settings, provider: Provider) -> None:
    never = asyncio.Event()
    provider.will(streams("Well,", never))
    async with running(settings.model_copy(update={"llm_idle_timeout_s": 0.2})) as client:
        session = await client.new_session()
        async with asyncio.timeout(PATIENCE_S):
            sent = await streamed(client, session, "go on")
    never.set()
    assert sent[-1].event["code"] == "model_timeout"


async def test_what_cannot_be_streamed_is_refused_before_a_stream_begins(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    session, other = await client.new_session(), await client.new_session()
    turn = (await client.chat(session, "hello"))["turn_id"]
    missing = "ses_" + "0" * 26
    chat = {"method": "POST", "json": {"message": "hello", "stream": True}}
    assert await problem(client, f"/sessions/{missing}/chat", **chat) == (404, "session_not_found")
    empty = {"method": "POST", "json": {"message": "", "stream": True}}
    assert await problem(client, f"/sessions/{session}/chat", **empty) == (422, "invalid_request")
    assert await problem(client, f"/sessions/{missing}/turns/{turn}/events") == (404, "session_not_found")
    assert await problem(client, f"/sessions/{other}/turns/{turn}/events") == (404, "turn_not_found")
    for unknown in ("turn_" + "0" * 26, "*", "turn_", f"{turn}x", "%00"):
        assert await problem(client, f"/sessions/{session}/turns/{unknown}/events") == (404, "turn_not_found"), unknown


HOSTILE = ["abc", "-1", "1-1", "1e3", "9" * 10_000, str(2**63), "", "null", "1;2", "$", "*", "\x00", "0x10"]


async def test_a_position_that_is_none_is_refused(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    path = f"/sessions/{session}/turns/{(await client.chat(session, 'hello'))['turn_id']}/events"
    for position in HOSTILE:
        assert await problem(client, path, params={"after": position}) == (422, "invalid_request"), position[:8]
        if position and "\x00" not in position:
            headers = {"Last-Event-ID": position}
            assert await problem(client, path, headers=headers) == (422, "invalid_request"), position[:8]


async def test_a_client_that_knows_the_last_event_is_told_to_stay_away(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    sent = await streamed(client, session, "hello")
    path = f"/sessions/{session}/turns/{sent[0].event['runId']}/events"
    last = await client.http.get(path, headers={"Last-Event-ID": str(sent[-1].id)})
    assert (last.status_code, last.content) == (204, b"")
    async with listening(client, path, params={"after": 0}, headers={"Last-Event-ID": str(sent[-2].id)}) as stream:
        assert await stream.rest() == sent[-1:]


async def test_a_reader_that_sends_an_empty_position_reads_on_from_the_start(
    client: Client, provider: Provider
) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    sent = await streamed(client, session, "hello")
    path = f"/sessions/{session}/turns/{sent[0].event['runId']}/events"
    async with listening(client, path, headers={"Last-Event-ID": ""}) as stream:
        assert await stream.rest() == sent
    async with listening(client, path, params={"after": sent[-2].id}, headers={"Last-Event-ID": ""}) as stream:
        assert await stream.rest() == sent[-1:]


async def test_the_offline_model_speaks_word_by_word(settings: Settings) -> None:
    async with running(settings.model_copy(update={"openai_base_url": None})) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "What can you do?")
    assert len(texts_in(sent)) > 3
    assert "".join(texts_in(sent)) == sent[-1].event["result"]["message"]["content"]
