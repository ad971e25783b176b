"""Tool results from the outside: what is kept of a call, how clients and the model get at it, what is sent to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from starlette.responses import Response

import segue
from segue.config import Settings
from segue.domain.identity import current_user
from segue.domain.ids import new_id
from tests.support.identity import new_key, speaking
from tests.support.loop_lag import loop_kept_free
from tests.support.plans import Frozen, planned
from tests.support.provider import Provider, calls, calls_raw, says
from tests.support.results import Call, last_result, listed, loaded, problem, ran, use_toolbox
from tests.support.service import Client, running
from tests.support.stores import looking_into

NEVER_MADE = new_id("call", datetime(2026, 1, 1, tzinfo=UTC))
MEGABYTE = 1_000_000


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


def reads_to_the_end(provider: Provider, tool_call_id: str, pieces: list[Any], **part: Any) -> None:
    """Scripts a model that loads page after page of a result, and answers when there are no more."""
    wanted = {"tool_call_id": tool_call_id, **part}

    async def next_page(request: dict[str, Any]) -> Response:
        page = last_result(request)
        pieces.append(page["result"])
        if page["next_offset"] is None:
            return says("That was all.")
        provider.will(next_page)
        return calls(("get_tool_result", {**wanted, "offset": page["next_offset"]}))

    provider.will(calls(("get_tool_result", wanted)), next_page)


async def test_a_call_is_kept_with_its_arguments_outcome_and_a_reference_to_its_result(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("table", {"rows": 3}))
    assert call == {
        **call,
        "tool_name": "table",
        "args": {"rows": 3},
        "status": "succeeded",
        "error": None,
        "plan_id": None,
        "step_id": None,
        "result_ref": {"storage_type": "tool_results", "session_id": session, "tool_call_id": call["tool_call_id"]},
    }
    shown = '{"rows":[{"id":"row-000000","title":"Row 0"},{"id":"row-000001","title":"Row 1"},'
    assert call["metadata"]["summary"] == "3 rows: Row 0, Row 1, Row 2"
    assert call["metadata"]["truncated_preview"].startswith(shown)
    assert call["metadata"]["size_bytes"] == len(call["metadata"]["truncated_preview"])
    assert call["duration_ms"] >= 0
    assert await listed(client, session) == [call]
    whole = await loaded(client, session, call)
    assert whole == {**call, "result": whole["result"], "result_total": None, "next_offset": None}
    assert whole["result"]["rows"][2] == {"id": "row-000002", "title": "Row 2"}


async def test_the_list_is_newest_first_and_filtered_by_tool_turn_and_status(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    first = await ran(client, provider, session, ("echo", {"a": 1}), ("fails", {"message": "no"}))
    second = await ran(client, provider, session, ("echo", {"a": 2}))
    newest_first = [*second, *first[::-1]]
    assert await listed(client, session) == newest_first
    assert [call["args"] for call in await listed(client, session, tool="echo")] == [{"a": 2}, {"a": 1}]
    assert await listed(client, session, turn_id=first[0]["turn_id"]) == first[::-1]
    assert [call["tool_name"] for call in await listed(client, session, status="failed")] == ["fails"]
    assert await listed(client, session, tool="echo", status="failed") == []
    assert await listed(client, session, turn_id="turn_of_nobody") == []


@pytest.mark.sweep  # test_turns.py goes through a list page by page
async def test_a_cursor_goes_through_the_list_without_loss_or_repetition(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    made = await ran(client, provider, session, *(("echo", {"n": number}) for number in range(5)))
    seen: list[Call] = []
    cursor: dict[str, str] = {}
    while True:
        page = await client.get(f"/sessions/{session}/tool-results", limit=2, **cursor)
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == made[::-1]


async def test_a_filter_that_cannot_be_meant_is_refused(client: Client) -> None:
    session = await client.new_session()
    for query in ("status=done", "limit=0", "limit=201", "cursor=x", "tool=a%00b"):
        response = await client.http.get(f"/sessions/{session}/tool-results?{query}")
        assert response.status_code == 422, query


async def test_a_path_selects_a_part_of_a_result(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("table", {"rows": 20}))
    for path, result, total in (
        ("rows[0].id", "row-000000", 10),
        ("rows[-1].id", "row-000019", 10),
        ("rows[?id=='row-000007'].title | [0]", "Row 7", 5),
        ("length(rows)", 20, None),
        ("rows[:2].id", ["row-000000", "row-000001"], 2),
        ("rows[0].{it: id, called: title}", {"it": "row-000000", "called": "Row 0"}, None),
        ("rows[99]", None, None),
        ("no.such.thing", None, None),
    ):
        part = await loaded(client, session, call, path=path)
        assert (part["result"], part["result_total"], part["next_offset"]) == (result, total, None), path


async def test_a_path_that_cannot_be_followed_is_refused_and_says_why(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    table, text = await ran(client, provider, session, ("table", {"rows": 200}), ("plain_text", {"lines": 2}))
    paths = ("rows[", "foo(@)", "rows[::0]", "sort(@)", "(" * 900, "!" * 900, "keys(rows)")
    for path in paths:
        status, code, detail = await problem(client, session, table["tool_call_id"], path=path)
        assert (status, code) == (422, "invalid_path"), path
        assert repr(path[:200]) in detail
    assert await problem(client, session, text["tool_call_id"], path="rows") == (
        422,
        "invalid_path",
        "The path 'rows' does not apply: the result is text. Leave the path out and use offset and limit.",
    )


async def test_text_is_paged_to_its_end_without_loss(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("plain_text", {"lines": 500}))
    text = ""
    offset: int | None = 0
    while offset is not None:
        part = await loaded(client, session, call, offset=offset, limit=1000)
        assert len(part["result"]) <= 1000
        assert part["result_total"] == 8000
        text, offset = text + part["result"], part["next_offset"]
    assert text == "".join(f'{number:06} «极光» "è"\n' for number in range(500))
    assert (await loaded(client, session, call))["result"] == text
    assert (await loaded(client, session, call, offset=8001))["result"] == ""


async def test_a_list_is_paged_to_its_end_without_loss(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("table", {"rows": 250}))
    ids: list[str] = []
    offset: int | None = 0
    while offset is not None:
        part = await loaded(client, session, call, path="rows[].id", offset=offset, limit=100)
        assert part["result_total"] == 250
        ids, offset = ids + part["result"], part["next_offset"]
    assert ids == [f"row-{number:06}" for number in range(250)]


async def test_unknown_ids_and_those_of_another_session_look_alike(client: Client, provider: Provider) -> None:
    mine, other = await client.new_session(), await client.new_session()
    [call] = await ran(client, provider, other, ("echo", {"a": 1}))
    missing = await problem(client, mine, NEVER_MADE)
    assert missing[:2] == (404, "tool_result_not_found")
    assert await problem(client, mine, call["tool_call_id"]) == missing
    assert await problem(client, mine, "no-id-at-all") == missing
    assert await listed(client, mine) == []
    gone = await client.http.get(f"/sessions/{new_id('ses', datetime.now(UTC))}/tool-results")
    assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found")


@pytest.mark.sweep
async def test_of_parallel_calls_each_keeps_its_own_outcome(settings: Settings, provider: Provider) -> None:
    use_toolbox(settings, timeout_s=3)
    async with running(settings) as client:
        session = await client.new_session()
        wanted: list[tuple[str, dict[str, Any]]] = [
            ("echo", {"id": "one"}),
            ("fails", {"message": "the disk is full"}),
            ("slow", {}),
            ("echo", {"error": "says so itself"}),
            ("table", {"rows": "three"}),
            ("no_such_tool", {}),
            ("returns_binary", {}),
            ("echo", {"id": "two"}),
        ]
        made = await ran(client, provider, session, *wanted)
        assert [(call["tool_name"], call["args"]) for call in made] == wanted
        outcomes = [(call["status"], call["error"] and call["error"].partition(":")[0]) for call in made]
        assert outcomes == [
            ("succeeded", None),
            ("failed", "the disk is full"),
            ("failed", "slow did not answer within 3 s."),
            ("failed", "says so itself"),
            ("failed", "Invalid arguments for table"),
            ("failed", "There is no tool called 'no_such_tool'. There are"),
            ("succeeded", None),
            ("succeeded", None),
        ]
        results = [(await loaded(client, session, call))["result"] for call in made]
    assert results == [
        {"id": "one"},
        None,
        None,
        {"error": "says so itself"},
        None,
        None,
        {"type": "image", "mime_type": "image/png", "part": 0, "size_bytes": 300},
        {"id": "two"},
    ]
    told = [orjson.loads(message["content"]) for message in provider.messages(role="tool")]
    assert told[0] == {"id": "one"}
    assert told[1] == {"status": "failed", "error": "the disk is full"}
    assert [answer.get("status") for answer in told[2:6]] == ["failed"] * 4


async def test_arguments_that_are_no_json_object_are_an_error_the_model_can_act_on(
    client: Client, provider: Provider
) -> None:
    provider.will(calls_raw(("echo", '{"a": ')), calls(("echo", {"a": 1})), says("done"))
    session = await client.new_session()
    answer = await client.chat(session, "Echo it.")
    assert [call["status"] for call in answer["tool_calls"]] == ["failed", "succeeded"]
    assert last_result(provider.requests[1])["error"].startswith("The arguments were not a JSON object.")


async def test_an_identical_call_in_one_turn_is_answered_from_its_result(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    provider.will(
        calls_raw(("count", '{"of": "x", "by": 1}')),
        calls_raw(("count", '{"by": 1, "of": "x"}')),
        calls(("count", {"of": "y"})),
        says("done"),
    )
    answer = await client.chat(session, "Count twice.")
    told = [orjson.loads(message["content"]) for message in provider.messages(role="tool")]
    assert told == [{"calls": 1}, {"calls": 1}, {"calls": 1}]
    assert [call["args"]["of"] for call in answer["tool_calls"]] == ["x", "y"]
    assert len(await listed(client, session)) == 2


@pytest.mark.sweep
async def test_a_failed_call_is_made_again_and_in_the_next_turn_so_is_a_successful_one(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(*[calls(("fails", {"message": "no"}))] * 2, calls(("count", {"of": "x"})), says("done"))
    await client.chat(session, "Try.")
    await ran(client, provider, session, ("count", {"of": "x"}))
    results = [(await loaded(client, session, call))["result"] for call in await listed(client, session)]
    assert results == [{"calls": 2}, {"calls": 1}, None, None]
    memory = (await client.get(f"/sessions/{session}/memory"))["short_term"]
    assert [(result["tool_name"], result["preview"]) for result in memory["tool_results"]] == [
        ("count", '{"calls":2}'),
        ("fails", "no"),
    ]


@pytest.mark.sweep  # the next test pages through one to its end
async def test_the_model_loads_a_result_of_an_earlier_turn_by_path_and_page(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("table", {"rows": 1000}))
    wanted = {"tool_call_id": call["tool_call_id"]}
    provider.will(
        calls(("get_tool_result", {**wanted, "path": "rows[500]"})),
        calls(("get_tool_result", {**wanted, "path": "rows", "offset": 998})),
        calls(("get_tool_result", {**wanted, "path": "rows["})),
        says("done"),
    )
    answer = await client.chat(session, "Show me some rows.")
    one, tail, refused = (last_result(request) for request in provider.requests[-3:])
    assert one["result"] == {"id": "row-000500", "title": "Row 500"}
    assert [row["id"] for row in tail["result"]] == ["row-000998", "row-000999"]
    assert (tail["result_total"], tail["next_offset"]) == (1000, None)
    assert "is not JMESPath" in refused["error"]
    assert answer["tool_calls"] == []
    assert await listed(client, session) == [call]


async def test_what_is_loaded_or_found_of_an_earlier_result_says_when_it_was_made(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    async with running(settings, clock=clock) as client:
        session = await client.new_session(time_zone="Europe/Rome")
        [call] = await ran(client, provider, session, ("table", {"rows": 1000}))
        clock.now += timedelta(days=21)
        by_id = {"tool_call_id": call["tool_call_id"], "path": "rows[0].id"}
        provider.will(calls(("get_tool_result", by_id), ("get_tool_result", {"query": "table"})), says("It is old."))
        await client.chat(session, "How many rows are there?")
    loaded, found = (orjson.loads(each["content"]) for each in provider.messages(role="tool")[-2:])
    assert loaded["at"] == found["results"][0]["at"] == "2026-11-20T10:00+01:00"


async def test_words_to_find_in_one_result_are_refused_and_not_answered_with_its_beginning(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("table", {"rows": 1000}))
    wanted = {"tool_call_id": call["tool_call_id"], "query": "Row 999"}
    path = "rows[?contains(title, 'Row 999')]"
    provider.will(
        calls(("get_tool_result", wanted)), calls(("get_tool_result", {**wanted, "path": path})), says("There it is.")
    )
    await client.chat(session, "Is there a row 999?")
    refused, found = (last_result(request) for request in provider.requests[-2:])
    assert "give a path, such as" in refused["error"]
    assert found["result"] == [{"id": "row-000999", "title": "Row 999"}]


async def test_the_model_pages_through_a_result_to_its_end_without_loss(client: Client, provider: Provider) -> None:
    results: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("big", {"n_bytes": 30_000}, {}),
        ("plain_text", {"lines": 1000}, {}),
        ("echo", {"text": '极光“è”\n"' * 4000}, {"path": "text"}),
        ("echo", {"deep": {"text": "x" * 20_000}}, {}),
        ("table", {"rows": 300}, {"path": "rows"}),
        ("table", {"rows": 300}, {}),
    ]
    for tool, args, part in results:
        session = await client.new_session()
        [call] = await ran(client, provider, session, (tool, args))
        pieces: list[Any] = []
        reads_to_the_end(provider, call["tool_call_id"], pieces, **part)
        await client.chat(session, "Read all of it.")
        told = [message["content"] for message in provider.messages(role="tool")[1:]]
        assert len(pieces) == len(told) > 1
        assert all(len(answer.encode()) < 20_000 for answer in told)
        whole = (await loaded(client, session, call, limit=MEGABYTE, **part))["result"]
        if isinstance(whole, list):
            assert [item for piece in pieces for item in piece] == whole
        else:
            assert "".join(pieces) == (whole if isinstance(whole, str) else orjson.dumps(whole).decode())


async def test_an_item_too_long_for_one_answer_is_named_with_the_path_that_loads_it(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("echo", {"items": ["short", "x" * 30_000, "last"]}))
    wanted = {"tool_call_id": call["tool_call_id"], "path": "items"}
    provider.will(
        calls(("get_tool_result", wanted)),
        calls(("get_tool_result", {**wanted, "offset": 1})),
        calls(("get_tool_result", {**wanted, "path": "items | [1]", "offset": 29_990})),
        says("read"),
    )
    await client.chat(session, "Read the items.")
    short, too_long, item = (last_result(request) for request in provider.requests[-3:])
    assert (short["result"], short["next_offset"]) == (["short"], 1)
    assert (too_long["result"], too_long["next_offset"]) == ([], 2)
    assert too_long["note"].endswith("load it with the path items | [1]")
    assert (item["result"], item["result_total"]) == ("x" * 10, 30_000)


@pytest.mark.sweep
async def test_an_unknown_id_is_answered_with_the_newest_results_there_are(client: Client, provider: Provider) -> None:
    other, session = await client.new_session(), await client.new_session()
    [foreign] = await ran(client, provider, other, ("echo", {"secret": "s3cret"}))
    provider.will(calls(("get_tool_result", {"tool_call_id": "call_0"})), says("nothing yet"))
    await client.chat(session, "Load it.")
    assert last_result(provider.requests[-1])["error"].endswith("Newest results: none yet.")
    made = await ran(client, provider, session, *(("table", {"rows": rows}) for rows in range(1, 8)))
    provider.will(calls(("get_tool_result", {"tool_call_id": foreign["tool_call_id"]})), says("no"))
    await client.chat(session, "Load it.")
    error = last_result(provider.requests[-1])["error"]
    newest = [f"{call['tool_call_id']}: {call['metadata']['summary']}" for call in made[:1:-1]]
    assert error == f"This session has no result {foreign['tool_call_id']}. Newest results: {'; '.join(newest)}."


async def test_loading_a_result_is_no_step_of_a_plan_and_asks_nobody(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"confirm": "always", "planning": "always"})) as client:
        session = await client.new_session()
        load = {"tool_call_id": NEVER_MADE}
        step = {"id": 1, "description": "Load it", "tool": "get_tool_result", "args": load}
        provider.will(planned([step]), calls(("get_tool_result", load)), says("There is nothing."))
        answer = await client.chat(session, "Load the result first, then tell me what it says.")
    assert (answer["plan"], answer["tool_calls"], answer["message"]["content"]) == (None, [], "There is nothing.")
    assert '"name":"get_tool_result"' not in str(provider.messages(0))
    assert "This session has no result" in last_result(provider.requests[-1])["error"]


@pytest.mark.sweep
async def test_a_result_beyond_the_newest_twenty_is_found_by_its_words_after_a_restart(
    settings: Settings, provider: Provider
) -> None:
    def find(**wanted: Any) -> Any:
        provider.will(calls(("get_tool_result", wanted)), says("done"))

    async with running(settings) as client:
        session, other = await client.new_session(), await client.new_session()
        [first] = await ran(client, provider, session, ("echo", {"name": "Fattura città_1"}))
        rest = await ran(client, provider, session, *(("echo", {"n": number}) for number in range(25)))
        await ran(client, provider, other, ("echo", {"name": "Fattura of another"}))
    async with running(settings) as client, looking_into(settings) as stores:
        await stores.redis.flushdb()
        for query, found in (("FATTURA echo", [first]), ("città_1", [first]), ("città%1", []), ("no such", [])):
            find(query=query)
            await client.chat(session, "Where is that invoice?")
            told = last_result(provider.requests[-1])
            assert [entry["tool_call_id"] for entry in told["results"]] == [call["tool_call_id"] for call in found]
            assert (told["results_total"], told["next_offset"]) == (len(found), None)
        find(limit=10)
        find(offset=10)
        await client.chat(session, "And all?")
        await client.chat(session, "And then?")
    newest_first = [call["tool_call_id"] for call in (*rest[::-1], first)]
    pages = [last_result(provider.requests[index]) for index in (-3, -1)]
    assert [entry["tool_call_id"] for page in pages for entry in page["results"]] == newest_first
    assert [(page["results_total"], page["next_offset"]) for page in pages] == [(26, 10), (26, None)]


async def test_a_result_already_given_in_full_in_this_turn_is_not_given_again(
    client: Client, provider: Provider
) -> None:
    async def load_it(request: dict[str, Any]) -> Response:
        return calls(("get_tool_result", {"tool_call_id": request["messages"][-1]["tool_call_id"]}))

    session = await client.new_session()
    provider.will(calls(("table", {"rows": 3})), load_it, says("done"))
    await client.chat(session, "Show the table.")
    assert "You already have the whole result" in last_result(provider.requests[-1])["error"]
    provider.will(calls(("table", {"rows": 1000})), load_it, says("done"))
    await client.chat(session, "Show the large table.")
    assert last_result(provider.requests[-1])["result"].startswith('{"rows":[{"id":"row-000000"')


@pytest.mark.sweep
async def test_a_megabyte_is_stored_and_paged_by_clients_and_by_the_model(client: Client, provider: Provider) -> None:
    session, other = await client.new_session(), await client.new_session()
    with loop_kept_free():
        [call] = await ran(client, provider, session, ("big", {"n_bytes": MEGABYTE}))
    assert call["metadata"]["size_bytes"] == MEGABYTE
    assert len(call["metadata"]["truncated_preview"]) <= 500
    with loop_kept_free():
        pages = [await loaded(client, session, call, offset=start) for start in range(0, MEGABYTE, 100_000)]
    assert [page["next_offset"] for page in pages] == [*range(100_000, MEGABYTE, 100_000), None]
    assert "".join(page["result"] for page in pages) == "x" * MEGABYTE
    last_page = calls(("get_tool_result", {"tool_call_id": call["tool_call_id"], "offset": MEGABYTE - 1000}))
    for asking, told in ((session, {"result": "x" * 1000, "next_offset": None}), (other, {"status": "failed"})):
        provider.will(last_page, says("done"))
        await client.chat(asking, "How does it end?")
        assert last_result(provider.requests[-1]).items() >= told.items()
    assert (await problem(client, other, call["tool_call_id"]))[:2] == (404, "tool_result_not_found")


@pytest.mark.sweep
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("wanted", [("big", {"n_bytes": MEGABYTE}), ("table", {"rows": 26_000})])
async def test_a_megabyte_costs_the_next_turn_less_than_three_hundred_tokens(
    wanted: tuple[str, dict[str, Any]], client: Client, provider: Provider
) -> None:
    session, plain = await client.new_session(), await client.new_session()
    with loop_kept_free():
        [call] = await ran(client, provider, session, wanted)
    assert call["metadata"]["size_bytes"] >= MEGABYTE
    assert len(orjson.dumps(provider.requests[-1])) < 25_000
    provider.will(says("done"), says("It is there."), says("What is?"))
    await client.chat(plain, "Please do that.")
    for asked in (session, plain):
        await client.chat(asked, "Is it there?")
    with_it, without = (
        "".join(f"{message['content']}{message.get('tool_calls', '')}" for message in provider.messages(request))
        for request in (-2, -1)
    )
    assert call["tool_call_id"] in with_it
    assert (len(with_it) - len(without)) / 4 < 300  # four characters a token
    assert len(orjson.dumps(provider.requests[-2])) < 25_000
    [reference] = [orjson.loads(message["content"]) for message in provider.messages(-2, role="tool")]
    assert reference["size_bytes"] == call["metadata"]["size_bytes"]


async def test_a_reference_in_the_next_turn_names_every_id_that_was_found(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    await ran(client, provider, session, ("table", {"rows": 200}))
    provider.will(says("Which one?"))
    await client.chat(session, "Open one.")
    [reference] = [orjson.loads(message["content"]) for message in provider.messages(role="tool")]
    assert reference["identifiers"] == [f"row-{number:06}" for number in range(20)]


async def test_a_long_error_is_kept_but_its_preview_holds_the_bound(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("fails", {"message": "no " * 1000}))
    assert len(call["error"]) == 1000
    assert len(call["metadata"]["truncated_preview"]) <= 500
    assert len(call["metadata"]["summary"]) <= 200


async def test_a_result_over_the_limit_is_cut_with_a_note(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"tool_result_max_bytes": 50_000})) as client:
        session = await client.new_session()
        made = await ran(client, provider, session, ("big", {"n_bytes": 200_000}), ("table", {"rows": 5000}))
        texts = [(await loaded(client, session, call))["result"] for call in made]
    assert texts[0] == "x" * 50_000 + "\n[cut by Segue: 50000 of 200000 bytes kept]"
    assert texts[1].startswith('{"rows":[{"id":"row-000000","title":"Row 0"}')
    assert texts[1].endswith("bytes kept]")
    assert all(call["metadata"]["summary"].startswith("cut at the size limit: ") for call in made)
    assert all(call["metadata"]["size_bytes"] == len(text) for call, text in zip(made, texts, strict=True))


@pytest.mark.sweep
async def test_a_user_whose_results_take_long_to_read_holds_up_no_other_user(
    settings: Settings, provider: Provider
) -> None:
    users: list[str] = []

    @segue.tool(effect="read_only")
    async def numbers() -> list[int]:
        """Lists numbers."""
        users.append(current_user.get())
        return list(range(30_000))

    async with AsyncExitStack() as stack:
        guarded = settings.model_copy(update={"auth": "api_key"})
        service = await stack.enter_async_context(running(guarded, tools=[numbers]))
        results = {}
        for name in ("ada", "eve"):
            client = await stack.enter_async_context(speaking(service, await new_key(guarded, name)))
            provider.will(calls(("numbers", {})), says("Here they are."))
            session = await client.new_session()
            [call] = (await client.chat(session, "List the numbers"))["tool_calls"]
            results[name] = client.http, f"/sessions/{session}/tool-results/{call['tool_call_id']}"
        assert users == ["ada", "eve"]
        answered: list[str] = []

        async def load(name: str, path: str) -> None:
            http, result = results[name]
            loaded = await http.get(result, params={"path": path})
            assert loaded.status_code == 200, loaded.text
            answered.append(name)

        async with asyncio.TaskGroup() as tasks:
            of_eve = [tasks.create_task(load("eve", "[*]|[*]|[*]|length(@)")) for _ in range(20)]
            await asyncio.wait(of_eve, return_when=asyncio.FIRST_COMPLETED)
            await load("ada", "sum(@)")
            assert answered.count("eve") < len(of_eve) / 2, answered
