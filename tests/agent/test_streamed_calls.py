"""The arguments of a call as the model writes them: the same to the letter as what is recorded, or given up."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from segue.agent.stream_reply import MAX_SHOWN_BYTES
from segue.config import Settings
from segue.plans.policy import Ruling
from tests.support.provider import Provider, calls, says, streams
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf
from tests.support.streams import Sent, chatting, check, listening, replayed, streamed

HARD = (
    '{ "query" : "caf\\u00e9 \\ud83d\\udc4d \\"}]\\" 10", "n":[1.50, {"x" : null}, true,-7], "deep":{"a":"}","b":[]} }'
)


def piece(args: str, *, name: str | None = None, index: int = 0) -> dict[str, Any]:
    """A delta of a chat completion."""
    named = {"id": f"call_{index}", "type": "function"} if name else {}
    function = {"name": name, "arguments": args} if name else {"arguments": args}
    return {"tool_calls": [{"index": index, **named, "function": function}]}


def of_calls(sent: list[Sent]) -> dict[str, list[dict[str, Any]]]:
    """The events of each call, by its id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in sent:
        if each.type.startswith("TOOL_CALL_"):
            found.setdefault(each.event["toolCallId"], []).append(each.event)
    return found


def types(events: list[dict[str, Any]]) -> str:
    """The types of a call's events, pieces in a row as one."""
    short = [each["type"].removeprefix("TOOL_CALL_") for each in events]
    return " ".join(kind for at, kind in enumerate(short) if kind != "ARGS" or short[at - 1] != "ARGS")


def written(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "TOOL_CALL_ARGS")


def status(events: list[dict[str, Any]]) -> str:
    return str(orjson.loads(events[-1]["content"])["status"])


async def recorded(client: Client, session: str) -> list[tuple[str, str]]:
    """The calls of a session as they are stored, by their ids."""
    rows = await client.messages(session)
    return [(call["id"], orjson.dumps(call["args"]).decode()) for row in rows for call in row.get("tool_calls") or ()]


async def test_arguments_come_while_they_are_written_and_are_together_what_is_recorded(
    shelved: Client, provider: Provider
) -> None:
    gate = asyncio.Event()
    halves = piece('{"que', name="mcp_find_items"), piece('ry": "ros'), gate, piece('si"}')
    provider.will(streams("Let me see.", *halves, finish_reason="tool_calls"), says("Found."))
    session = await shelved.new_session()
    async with chatting(shelved, session, "Find rossi") as stream:
        heard = await stream.until("TOOL_CALL_ARGS")
        assert written([heard[-1].event]) == '{"query":"ros'
        assert await recorded(shelved, session) == []
        gate.set()
        heard += await stream.rest()
    check(heard)
    [(call_id, events)] = of_calls(heard).items()
    assert types(events) == "START ARGS END RESULT"
    assert await recorded(shelved, session) == [(call_id, written(events))]
    stored = await shelved.messages(session)
    assert [events[0]["parentMessageId"], stored[1]["content"]] == [stored[1]["id"], "Let me see."]


async def test_whatever_they_are_and_wherever_they_are_cut_they_are_what_is_recorded(
    shelved: Client, provider: Provider
) -> None:
    letters = [piece("", name="mcp_find_items"), *map(piece, HARD)]
    provider.will(streams(*letters, finish_reason="tool_calls"), says("Odd."))
    session = await shelved.new_session()
    [(call_id, events)] = of_calls(await streamed(shelved, session, "Find it")).items()
    assert (types(events), len(events) > 4) == ("START ARGS END RESULT", True)
    assert written(events) == orjson.dumps(json.loads(HARD)).decode()
    [(recorded_id, args)] = await recorded(shelved, session)  # PostgreSQL sorts their names
    assert (recorded_id, json.loads(args)) == (call_id, json.loads(HARD))


async def test_calls_side_by_side_are_told_apart_and_one_that_is_the_same_again_is_given_up(
    shelved: Client, provider: Provider
) -> None:
    names = [piece('{"query":', name="mcp_find_items", index=at) for at in range(3)]
    words = [piece(f' "{word}"}}', index=at) for at, word in enumerate(("rossi", "bianchi", "rossi"))]
    provider.will(streams(*names, *words, finish_reason="tool_calls"), says("Found."))
    session = await shelved.new_session()
    found = of_calls(await streamed(shelved, session, "Find both"))
    stored = dict(await recorded(shelved, session))
    assert {call_id: written(found[call_id]) for call_id in stored} == stored
    [unmade] = [events for call_id, events in found.items() if call_id not in stored]
    assert (types(unmade), status(unmade), written(unmade)) == ("START ARGS END RESULT", "failed", '{"query":"rossi')


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("pieces", "given_up"),
    [
        (['{"query": "a', "b", '", "query": "c"}'], 1),  # of which the last counts
        (['{"query": "ros', '{"query": "rossi"}'], 0),  # each begins with the one before
        (['{"query": "rossi"}', '{"query": "rossi"}'], 0),  # written twice
        (["```json\n", '{"query": ', '"rossi"}\n```'], 0),
        (['"{\\"query\\"', ': \\"rossi\\"}"'], 0),  # in a text
        (['{"query": ', "1e5", "0}"], 0),
        (['{"query": "C:\\\\', "bin \\u001b[3", '1m \\\\\\b"}'], 0),
        (['{"query": "ros', "sî"], 1),  # cut off
        (["", ""], 0),
    ],
    ids=["twice", "cumulative", "doubled", "fenced", "encoded", "number", "control", "broken", "none"],
)
async def test_arguments_that_have_to_be_mended_are_shown_as_they_are_recorded(
    shelved: Client, provider: Provider, pieces: list[str], given_up: int
) -> None:
    first, *rest = pieces
    made = piece(first, name="functions.MCP_find_items"), *map(piece, rest)
    provider.will(streams(*made, finish_reason="tool_calls"), says("Done."))
    session = await shelved.new_session()
    found = of_calls(await streamed(shelved, session, "Find rossi"))
    [(call_id, args)] = await recorded(shelved, session)
    assert (written(found.pop(call_id)), all(status(events) == "failed" for events in found.values())) == (args, True)
    assert len(found) == given_up


async def test_a_call_that_may_be_held_or_denied_shows_nothing_before_that_is_decided(
    settings: Settings, shelf: Shelf, provider: Provider
) -> None:
    settings.mcp_config.write_text(orjson.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}).decode())
    held = piece('{"item_', name="mcp_delete_item"), piece('id": "itm-'), piece('1"}')
    unknown = piece('{"item_', name="mcp_eat_item"), piece('id": "itm-'), piece('1"}')
    read = piece('{"que', name="mcp_find_items"), piece('ry": "ros'), piece('si"}')

    async def policy(*_: Any) -> Ruling:
        return "allow"

    async def told(client: Client, made: tuple[dict[str, Any], ...], *then: Any) -> list[dict[str, Any]]:
        provider.will(streams(*made, finish_reason="tool_calls"), *then)
        sent = await streamed(client, await client.new_session(), "Do it")
        return [event for events in of_calls(sent).values() for event in events]

    async with running(settings) as client:
        await client.connected("shelf")
        assert await told(client, held) == []
        assert len(await told(client, unknown, says("There is none."))) == 4
    async with running(settings, before_call=policy) as client:
        await client.connected("shelf")
        assert len(await told(client, read, says("Found."))) == 4
    async with running(settings.model_copy(update={"confirm": "always"})) as client:
        await client.connected("shelf")
        assert await told(client, read) == []


async def test_a_call_that_broke_off_is_closed_and_made_anew_under_an_id_of_its_own(
    settings: Settings, provider: Provider
) -> None:
    begun = piece('{"time', name="current_time"), piece('zone": "Europe/R')
    whole = calls(("current_time", {"timezone": "Europe/Rome"}))
    provider.will(streams(*begun, finish_reason=None), whole, says("It is noon."))
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        session = await client.new_session()
        broken, made = of_calls(await streamed(client, session, "What time is it?")).items()
        assert (types(broken[1]), status(broken[1])) == ("START ARGS END RESULT", "failed")
        assert written(broken[1]) == '{"timezone":"Europe/R'
        assert await recorded(client, session) == [(made[0], written(made[1]))]


async def test_a_turn_that_fails_or_is_stopped_closes_what_has_begun(shelved: Client, provider: Provider) -> None:
    gate = asyncio.Event()
    begun = [piece('{"que', name="mcp_find_items"), piece('ry": "ros')]
    provider.will(streams("Well.", *begun, finish_reason=None), streams(*begun, gate))
    failed = await streamed(shelved, await shelved.new_session(), "Find rossi")
    session = await shelved.new_session()
    async with chatting(shelved, session, "Find rossi") as stream:
        stopped = await stream.until("TOOL_CALL_ARGS")
        turn = stream.response.headers["x-turn-id"]
        await shelved.http.post(f"/sessions/{session}/turns/{turn}/cancel")
        stopped += await stream.rest()
    gate.set()
    for sent in (failed, stopped):
        check(sent)
        [events] = of_calls(sent).values()
        assert (types(events), status(events), sent[-1].type) == ("START ARGS END RESULT", "failed", "RUN_ERROR")


async def test_more_than_the_bound_comes_once_it_is_complete(shelved: Client, provider: Provider) -> None:
    gate, text = asyncio.Event(), "è}" * MAX_SHOWN_BYTES
    some = [piece(text[at : at + 500]) for at in range(0, len(text), 500)]
    begins = piece('{"query": "', name="mcp_find_items")
    provider.will(streams(begins, *some, gate, piece('"}'), finish_reason="tool_calls"), says("Found."))
    session = await shelved.new_session()
    async with chatting(shelved, session, "Find it") as stream:
        sent, shown = await stream.until("TOOL_CALL_START mcp_find_items"), 0
        while shown < MAX_SHOWN_BYTES - 2:
            sent.append(await stream.next())
            shown += len(sent[-1].event["delta"].encode())
        assert shown <= MAX_SHOWN_BYTES
        gate.set()
        rest = await stream.rest()
    check([*sent, *rest])
    assert max(len(each.event["delta"]) for each in rest if each.type == "TOOL_CALL_ARGS") <= 16_000
    [(call_id, events)] = of_calls([*sent, *rest]).items()
    assert await recorded(shelved, session) == [(call_id, written(events))]


@pytest.mark.sweep
async def test_pieces_that_come_close_together_are_one_event(shelved: Client, provider: Provider) -> None:
    made = [piece('{"query": "', name="mcp_find_items"), *map(piece, "abcdefgh" * 200), piece('"}')]
    provider.will(streams(*made, finish_reason="tool_calls"), says("Found."))
    [events] = of_calls(await streamed(shelved, await shelved.new_session(), "Find it")).values()
    assert len(events) < 60


@pytest.mark.sweep
async def test_who_comes_later_or_back_reads_the_same(shelved: Client, provider: Provider) -> None:
    gate, arrived = asyncio.Event(), asyncio.Event()
    halves = piece('{"que', name="mcp_find_items"), piece('ry": "ros'), gate, piece('si"}')
    provider.will(streams(*halves, finish_reason="tool_calls"), says("Found."))
    session = await shelved.new_session()
    async with chatting(shelved, session, "Find rossi") as stream:
        heard = await stream.until("TOOL_CALL_ARGS")
        turn = stream.response.headers["x-turn-id"]
        path, known = f"/sessions/{session}/turns/{turn}/events", {"Last-Event-ID": str(heard[-1].id)}
        async with listening(shelved, path, headers=known) as back:
            arrived.set()
            gate.set()
            again = [*heard, *await back.rest()]
        heard += await stream.rest()
    assert again == heard == await replayed(shelved, session, turn)
    check(heard)
    for each in heard:
        assert [*heard[: heard.index(each) + 1], *await replayed(shelved, session, turn, after=each.id)][-1] == heard[
            -1
        ]


@pytest.mark.sweep
async def test_what_a_killed_process_has_begun_is_closed_by_the_one_that_goes_on(
    settings: Settings, shelf: Shelf, provider: Provider
) -> None:
    settings.mcp_config.write_text(orjson.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}).decode())
    gate = asyncio.Event()
    begun = piece('{"time', name="current_time"), piece('zone": "Europe/R')
    whole = calls(("current_time", {"timezone": "Europe/Rome"}))
    provider.will(streams("Well.", *begun, gate), whole, says("It is noon."))
    async with running(settings) as alive, process(settings) as (killed, service):
        session = await alive.new_session()
        async with chatting(service, session, "What time is it?") as stream:
            turn = stream.response.headers["x-turn-id"]
            async with listening(alive, f"/sessions/{session}/turns/{turn}/events") as elsewhere:
                heard = await elsewhere.until("TOOL_CALL_ARGS")
                killed.kill()
                heard += await elsewhere.rest()
        gate.set()
        assert heard == await replayed(alive, session, turn)
        stored = await recorded(alive, session)
    check(heard)
    broken, made = of_calls(heard).items()
    assert (types(broken[1]), status(broken[1])) == ("START ARGS END RESULT", "failed")
    assert written(broken[1]) == '{"timezone":"Europe/R'
    assert stored == [(made[0], written(made[1]))]
