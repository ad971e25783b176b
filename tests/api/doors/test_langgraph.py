"""The door for LangGraph's clients, as its Python SDK comes through, unmodified, and useStream on Node."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError

from segue.config import Settings
from tests.support.identity import new_key
from tests.support.node import needs_node, node
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.proxy import proxied
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf, serving_shelf

THREAD = "a thread of the page's"
AGENT = "segue"


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        yield shelf


@pytest.fixture
async def langgraph(client: Client) -> AsyncIterator[Any]:
    async with sdk(client) as opened:
        yield opened


def sdk(client: Client, key: str | None = None) -> Any:
    """Untyped: what it takes and gives are TypedDicts, which a test would have to spell out."""
    return get_client(url=str(client.http.base_url).rstrip("/"), api_key=key)


def said(text: str, made: str | None = None) -> dict[str, Any]:
    return {"messages": [{"type": "human", "content": text, **({"id": made} if made else {})}]}


def decided(*decisions: dict[str, Any]) -> dict[str, Any]:
    return {"resume": {"decisions": list(decisions)}}


def last(values: Any) -> str:
    return str(values["messages"][-1]["content"])


def interrupt(values: Any) -> dict[str, Any]:
    [found] = values["__interrupt__"]
    return dict(found)


async def refused(call: Any) -> tuple[int, str]:
    with pytest.raises(APIStatusError) as caught:
        await call
    assert isinstance(caught.value.body, dict)
    assert caught.value.message == caught.value.body["detail"]
    return caught.value.status_code, str(caught.value.code)


async def test_a_plan_is_an_interrupt_that_is_approved_edited_and_rejected_in_both_forms(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(planned(THREE_STEPS), says("1 is gone."))
    for number in (2, 3, 4, 5):
        provider.will(calls(("mcp_delete_item", {"item_id": f"itm-{number}"})))
        provider.will(*([says("Another is gone.")] if number in (2, 4) else []))
    async with running(settings) as service, sdk(service) as client:
        await service.connected("shelf")
        runs = client.runs
        await client.threads.create(thread_id=THREAD)
        asked = await runs.wait(THREAD, AGENT, input=said(ASK))
        question = interrupt(asked)
        assert [(each["name"], each["args"]) for each in question["value"]["action_requests"]] == [
            ("mcp_delete_item", {"item_id": "itm-1"})
        ]
        assert question["value"]["review_configs"] == [
            {"action_name": "mcp_delete_item", "allowed_decisions": ["approve", "edit", "reject"]}
        ]
        state = await client.threads.get_state(THREAD)
        assert [state["next"], state["interrupts"], state["tasks"][0]["interrupts"]] == [
            ["tool_loop"],
            *[[question]] * 2,
        ]
        assert (await client.threads.get(THREAD))["status"] == "interrupted"
        misnamed = {"type": "edit", "edited_action": {"name": "delete_item", "args": {"item_id": "itm-7"}}}
        with pytest.raises(APIStatusError, match="`mcp_delete_item`"):
            await runs.create(THREAD, AGENT, command=decided(misnamed))
        done = await runs.wait(THREAD, AGENT, command=decided({"type": "approve"}))
        assert (last(done), "__interrupt__" in done) == ("1 is gone.", False)

        for number, verdict in (
            (2, decided({"type": "edit", "edited_action": {"name": "mcp_delete_item", "args": {"item_id": "itm-7"}}})),
            (3, decided({"type": "reject"})),
            (4, {"resume": [{"type": "edit", "args": {"action": "mcp_delete_item", "args": {"item_id": "itm-8"}}}]}),
            (5, {"goto": "__end__"}),
        ):
            interrupt(await runs.wait(THREAD, AGENT, input=said(f"Delete item {number}")))
            ended = await runs.wait(THREAD, AGENT, command=verdict)
            assert "__interrupt__" not in ended, verdict
    assert shelf.effects == ["get itm-1", "delete itm-1", "delete itm-7", "delete itm-8"]


async def test_words_in_the_place_of_a_decision_are_said_and_those_of_a_no_cancel_the_plan(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(planned(THREE_STEPS), says("It is gone."))
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-2"})), says("Then I leave it."))
    async with running(settings) as service, sdk(service) as client:
        await service.connected("shelf")
        thread = (await client.threads.create())["thread_id"]
        interrupt(await client.runs.wait(thread, AGENT, input=said(ASK)))
        assert last(await client.runs.wait(thread, AGENT, command={"resume": "sì, grazie"})) == "It is gone."
        interrupt(await client.runs.wait(thread, AGENT, input=said("Delete item 2")))
        left = await client.runs.wait(thread, AGENT, command=decided({"type": "reject", "message": "yes, but later"}))
        assert (last(left), left["messages"][-2]["content"], left["plan"]) == (
            "Then I leave it.",
            "yes, but later",
            None,
        )
    assert shelf.effects == ["get itm-1", "delete itm-1"]


async def test_of_actions_that_are_asked_together_those_run_that_are_approved(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(*(("mcp_delete_item", {"item_id": f"itm-{number}"}) for number in (1, 2, 3))), says("Done."))
    async with running(settings) as service, sdk(service) as client:
        await service.connected("shelf")
        await client.threads.create(thread_id=THREAD)
        shown = interrupt(await client.runs.wait(THREAD, AGENT, input=said("Delete 1, 2 and 3")))["id"]
        each = {"decisions": [{"type": "approve"}, {"type": "reject"}, {"type": "approve"}]}
        run = await client.runs.create(THREAD, AGENT, command={"resume": {shown: each}})
        assert last(await client.runs.join(THREAD, run["run_id"])) == "Done."
        again = await client.runs.create(THREAD, AGENT, command={"resume": {shown: each}})
    assert again["run_id"] == run["run_id"]
    assert sorted(shelf.effects) == ["delete itm-1", "delete itm-3"]


async def test_an_answer_holds_for_what_was_shown_and_counts_once(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"}), ("mcp_delete_item", {"item_id": "itm-2"})))
    provider.will(says("Both are gone."), calls(("mcp_delete_item", {"item_id": "itm-3"})))
    async with running(settings) as service, sdk(service) as client:
        await service.connected("shelf")
        await client.threads.create(thread_id=THREAD)
        asked = await client.runs.wait(THREAD, AGENT, input=said("Delete 1 and 2"))
        shown = interrupt(asked)["id"]
        yes, no = {"type": "approve"}, {"type": "reject"}
        edit = {"type": "edit", "edited_action": {"name": "mcp_delete_item", "args": {"item_id": "itm-9"}}}
        for wrong in ([yes], [yes, edit], [no, {**no, "message": "why"}], [edit, edit], [{"type": "perhaps"}] * 2, []):
            found = await refused(client.runs.create(THREAD, AGENT, command=decided(*wrong)))
            assert found == (422, "invalid_request"), wrong
        assert shelf.effects == []
        seen = (await client.threads.get_state(THREAD))["checkpoint"]
        by_name = {"resume": {shown: {"decisions": [yes, yes]}}}
        first = await client.runs.create(THREAD, AGENT, command=by_name)
        assert last(await client.runs.join(THREAD, first["run_id"])) == "Both are gone."
        assert (await client.runs.create(THREAD, AGENT, command=by_name))["run_id"] == first["run_id"]
        interrupt(await client.runs.wait(THREAD, AGENT, input=said("Delete 3")))
        stale = {"resume": {shown: {"decisions": [no, no]}}}
        for command, more in ((stale, {}), (decided(yes), {"checkpoint": seen})):
            assert await refused(client.runs.create(THREAD, AGENT, command=command, **more)) == (409, "plan_changed")
        wanted = {"command": decided(no), "checkpoint": (await client.threads.get_state(THREAD))["checkpoint"]}
        ended = [await client.runs.create(THREAD, AGENT, **wanted) for _ in range(2)]
        await client.runs.join(THREAD, ended[0]["run_id"])
        ended.append(await client.runs.create(THREAD, AGENT, **wanted))
        assert len({each["run_id"] for each in ended}) == 1
        assert await refused(client.runs.create(THREAD, AGENT, command=decided(yes))) == (404, "no_open_plan")
    assert sorted(shelf.effects) == ["delete itm-1", "delete itm-2"]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
async def test_what_waits_is_approved_and_done_once_through_kill_nine(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    told = asyncio.Event()
    provider.will(planned(THREE_STEPS), streams("It ", told), says("It is gone."))
    async with proxied(0) as door, get_client(url=f"http://127.0.0.1:{door.port}", api_key=None) as opened:
        client: Any = opened
        async with process(settings) as (first, service):
            door.lead_to(service.http.base_url.port or 0)
            await client.threads.create(thread_id=THREAD)
            interrupt(await client.runs.wait(THREAD, AGENT, input=said(ASK)))
            approving = asyncio.create_task(client.runs.wait(THREAD, AGENT, command=decided({"type": "approve"})))
            await shelf.wait_for("delete itm-1")
            await provider.wait_for_requests(2)
            first.kill()
        async with process(settings) as (_, service):
            door.lead_to(service.http.base_url.port or 0)
            assert last(await approving) == "It is gone."
            runs = await client.runs.list(THREAD)
        assert [each["status"] for each in runs] == ["success", "success"]
    assert shelf.effects == ["get itm-1", "delete itm-1"]
    told.set()


@pytest.mark.usefixtures("shelf")
async def test_the_modes_of_a_stream_and_how_it_goes_on_behind_a_part(settings: Settings, provider: Provider) -> None:
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"})), streams("It ", "is ", "old."))
    made: list[Any] = []
    modes: Any = ["values", "messages", "messages-tuple", "updates", "custom"]
    async with running(settings) as service, sdk(service) as client:
        await service.connected("shelf")
        await client.threads.create(thread_id=THREAD)
        run = client.runs.stream(
            THREAD, AGENT, input=said("Look at item 1"), stream_mode=modes, on_run_created=made.append
        )
        parts = [part async for part in run]
        [created] = made
        deltas = [part for part in parts if part.event == "messages"]
        at = deltas[0].id
        rest = [
            part
            async for part in client.runs.join_stream(
                created["thread_id"], created["run_id"], stream_mode=modes, last_event_id=at
            )
        ]
        over = [
            part.event async for part in client.runs.join_stream(THREAD, created["run_id"], last_event_id=rest[-1].id)
        ]
    assert (parts[0].event, parts[0].data["run_id"], parts[-1].event) == ("metadata", created["run_id"], "end")
    chunks = [part.data[0] for part in parts if part.event == "messages"]
    assert "".join(each["content"] for each in chunks if each["type"] == "AIMessageChunk") == "It is old."
    assert [each["tool_call_chunks"][0]["name"] for each in chunks if "tool_call_chunks" in each] == ["mcp_get_item"]
    assert [(each["type"], each["status"]) for each in chunks if each["type"] == "tool"] == [("tool", "success")]
    states = [part.data["messages"] for part in parts if part.event == "values"]
    assert [each["type"] for each in states[0]] == ["human"]
    assert [each["type"] for each in states[-1]] == ["human", "ai", "tool", "ai"]
    assert {each["id"] for each in chunks} == {each["id"] for each in states[-1][1:]}
    assert [part.data[0]["content"] for part in parts if part.event == "messages/complete"][-1] == "It is old."
    assert "custom" in {part.event for part in parts}
    assert [next(iter(part.data)) for part in parts if part.event == "updates"] == ["tool_loop", "tools", "respond"]
    assert [part.data[0] for part in rest if part.event == "messages"] == chunks[1:]
    assert (rest[-1].event, over) == ("end", ["values", "end"])


@pytest.mark.parametrize("modes", [["messages-tuple"], ["updates", "custom"]])
async def test_where_a_stream_goes_on_has_the_modes_that_were_asked_for(
    client: Client, provider: Provider, modes: list[str]
) -> None:
    provider.will(says("Noon."))
    asked = {"assistant_id": AGENT, "input": said("What time is it?"), "stream_mode": modes}
    begun = await client.http.post(f"/threads/{THREAD}/runs/stream", json=asked)
    again = await client.http.get(begun.headers["location"])
    events = [set(re.findall(r"^event: (\w+)", each.text, re.MULTILINE)) for each in (begun, again)]
    assert events[0] == events[1]
    assert ("messages" in events[1], "values" in events[1]) == (modes == ["messages-tuple"], False)


@pytest.mark.sweep
async def test_an_older_checkpoint_is_where_a_message_is_said_anew_or_answered_again(
    langgraph: Any, provider: Provider
) -> None:
    provider.will(*map(says, ("One.", "Two.", "Two again.", "Uno.", "Tre.")))
    runs, threads = langgraph.runs, langgraph.threads
    await threads.create(thread_id=THREAD)
    for text in ("first", "second"):
        await runs.wait(THREAD, AGENT, input=said(text))
    newest, oldest = await threads.get_history(THREAD)
    assert newest["parent_checkpoint"] == oldest["checkpoint"]
    again = await runs.wait(THREAD, AGENT, checkpoint=newest["parent_checkpoint"])
    assert [each["content"] for each in again["messages"]] == ["first", "One.", "second", "Two again."]
    unknown = {**newest["checkpoint"], "checkpoint_id": "turn_" + 26 * "0"}
    assert await refused(runs.create(THREAD, AGENT, input=said("x"), checkpoint=unknown)) == (404, "turn_not_found")
    edited = await runs.wait(THREAD, AGENT, input=said("primo"), checkpoint=oldest["parent_checkpoint"])
    assert [each["content"] for each in edited["messages"]] == ["primo", "Uno."]
    left = runs.create(THREAD, AGENT, input=said("x"), checkpoint=newest["checkpoint"])
    assert await refused(left) == (409, "not_in_history")
    [head] = await threads.get_history(THREAD)
    keyed: dict[str, Any] = {"input": said("terzo"), "headers": {"Idempotency-Key": "k"}}
    more = await runs.wait(THREAD, AGENT, checkpoint=head["checkpoint"], **keyed)
    assert [each["content"] for each in more["messages"]] == ["primo", "Uno.", "terzo", "Tre."]
    elsewhere = runs.create(THREAD, AGENT, checkpoint=oldest["parent_checkpoint"], **keyed)
    assert await refused(elsewhere) == (422, "idempotency_key_reused")
    assert await threads.get_history(THREAD, before=head["checkpoint"]["checkpoint_id"]) == []


async def test_a_message_sent_again_is_the_same_run_with_a_thread_and_without(
    langgraph: Any, provider: Provider
) -> None:
    provider.will(says("Hello."), says("Alone."), fails(500))
    first = await langgraph.runs.create(THREAD, AGENT, input=said("hello", "m1"))
    second = await langgraph.runs.create(THREAD, AGENT, input=said("hello", "m1"))
    assert first["run_id"] == second["run_id"]
    assert last(await langgraph.runs.join(THREAD, first["run_id"])) == "Hello."
    key = {"Idempotency-Key": "k1"}
    alone = [await langgraph.runs.wait(None, AGENT, input=said("alone"), headers=key) for _ in range(2)]
    assert (last(alone[0]), alone[0]) == ("Alone.", alone[1])
    with pytest.raises(Exception, match=r"^model_unavailable: "):
        await langgraph.runs.wait(THREAD, AGENT, input=said("well?"))
    [failed, _] = await langgraph.runs.list(THREAD)
    assert (failed["status"], (await langgraph.runs.get(THREAD, failed["run_id"]))["metadata"]["error"]) == (
        "error",
        "model_unavailable",
    )
    events = [part async for part in langgraph.runs.join_stream(THREAD, failed["run_id"])]
    assert (events[-1].event, events[-1].data["error"]) == ("error", "model_unavailable")


async def test_a_file_beside_the_words_becomes_a_file_of_the_session(
    client: Client, langgraph: Any, provider: Provider
) -> None:
    provider.will(says("It says tea."))
    file = {"type": "file", "mimeType": "text/plain", "data": "dGVh", "metadata": {"filename": "drink.txt"}}
    message = {"role": "user", "content": [{"type": "text", "text": "What does it say?"}, file]}
    assert last(await langgraph.runs.wait(THREAD, AGENT, input={"messages": [message]})) == "It says tea."
    [session] = (await client.get("/sessions"))["items"]
    [kept] = (await client.get(f"/sessions/{session['id']}/attachments"))["items"]
    assert (kept["name"], kept["media_type"]) == ("drink.txt", "text/plain")


async def test_a_run_is_cancelled_or_ends_with_its_client(client: Client, langgraph: Any, provider: Provider) -> None:
    never = asyncio.Event()
    provider.will(streams("A", never), streams("But then", never))
    await langgraph.threads.create(thread_id=THREAD)
    run = await langgraph.runs.create(THREAD, AGENT, input=said("a long story"))
    await provider.wait_for_requests(1)
    busy = langgraph.runs.create(THREAD, AGENT, input=said("and?"), multitask_strategy="reject")
    assert await refused(busy) == (409, "turn_in_progress")
    assert (await langgraph.threads.get(THREAD))["status"] == "busy"
    await langgraph.runs.cancel(THREAD, run["run_id"], wait=True)
    assert (await langgraph.runs.get(THREAD, run["run_id"]))["status"] == "interrupted"
    body = {"assistant_id": AGENT, "input": said("another"), "on_disconnect": "cancel", "stream_mode": "messages-tuple"}
    async with client.http.stream("POST", f"/threads/{THREAD}/runs/stream", json=body) as response:
        async for line in response.aiter_lines():
            if "But then" in line:
                break
    turns = await client.ended((await client.get("/sessions"))["items"][0]["id"], 2)
    assert [turn["status"] for turn in turns] == ["cancelled", "cancelled"]
    never.set()


async def test_threads_are_the_callers_sessions(settings: Settings, provider: Provider) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    provider.will(says("Hello."))
    async with (
        running(guarded) as service,
        sdk(service, await new_key(guarded, "ada")) as ada,
        sdk(service, await new_key(guarded, "bob")) as bob,
    ):
        assert [each["assistant_id"] for each in await ada.assistants.search()] == [AGENT]
        assert (await ada.assistants.get(AGENT))["name"] == "Segue"
        made = await ada.threads.create(thread_id=THREAD, metadata={"color": "red"}, graph_id=AGENT)
        assert (made["thread_id"], made["values"]["messages"]) == (THREAD, [])
        assert await refused(ada.threads.create(thread_id=THREAD)) == (409, "session_exists")
        assert (await ada.threads.create(thread_id=THREAD, if_exists="do_nothing"))["created_at"] == made["created_at"]
        at_once = [ada.threads.create(thread_id="twice", if_exists="do_nothing") for _ in range(6)]
        assert len({each["created_at"] for each in await asyncio.gather(*at_once)}) == 1
        await ada.threads.delete("twice")
        plain = (await ada.threads.create())["thread_id"]
        await ada.runs.wait(THREAD, AGENT, input=said("hello"))
        [found] = await ada.threads.search(metadata={"color": "red", "graph_id": AGENT}, status="idle")
        assert found["values"]["messages"][0]["content"] == "hello"
        assert [each["thread_id"] for each in await ada.threads.search(offset=1)] == [plain]
        counts = [await who.threads.count(**what) for who, what in ((ada, {}), (ada, {"status": "busy"}), (bob, {}))]
        assert counts == [2, 0, 0]
        changed = await ada.threads.update(THREAD, metadata={"size": 3, "graph_id": AGENT})
        assert (await ada.threads.get(THREAD))["metadata"] == changed["metadata"]
        assert (changed["metadata"]["color"], changed["metadata"]["size"]) == ("red", 3)
        assert await refused(ada.threads.update(THREAD, metadata={"graph_id": "nobody"})) == (404, "unknown_agent")
        assert await refused(ada.threads.update(THREAD, metadata={"x": "y" * 20_000})) == (422, "invalid_request")
        kept = {"x": "y" * 9_000}
        await ada.threads.update(THREAD, metadata=kept)
        with pytest.raises(APIStatusError, match=r"body\.metadata: The metadata has \d+ bytes as JSON") as too_much:
            await ada.threads.update(THREAD, metadata={"z": "y" * 9_000})
        assert "yyy" not in too_much.value.response.text
        assert await refused(bob.threads.update(plain, metadata={})) == (404, "session_not_found")
        assert await ada.threads.search(status="interrupted") == []
        assert await bob.threads.search() == []
        for foreign in (THREAD, plain, found["thread_id"]):
            assert await refused(bob.threads.get(foreign)) == (404, "session_not_found")
        for foreign in (plain, found["thread_id"]):
            assert await refused(bob.runs.create(foreign, AGENT, input=said("hi"))) == (404, "session_not_found")
        await ada.threads.delete(plain)
        assert await refused(ada.threads.get_state(plain)) == (404, "session_not_found")
        assert (await service.http.get("/info")).status_code == 401


@pytest.mark.sweep
async def test_what_segue_has_nothing_for_is_refused_with_a_sentence(client: Client, langgraph: Any) -> None:
    hello = said("hello")
    runs, threads = langgraph.runs, langgraph.threads
    await threads.create(thread_id=THREAD)
    nothing = (422, "not_supported")
    for call in (
        langgraph.store.put_item(["a"], "b", {}),
        langgraph.store.get_item(["a"], "b"),
        langgraph.crons.create(AGENT, schedule="* * * * *"),
        langgraph.assistants.create(AGENT),
        langgraph.assistants.get_versions(AGENT),
        langgraph.assistants.get_graph(AGENT),
        langgraph.assistants.delete(AGENT, delete_threads=True),
        threads.update_state(THREAD, {}),
        threads.copy(THREAD),
        threads.create(ttl=5),
        threads.search(values={"a": 1}),
        runs.create_batch([]),
        runs.create(THREAD, AGENT, input=hello, webhook="http://example.com"),
        runs.create(THREAD, AGENT, input=hello, interrupt_before="*"),
        runs.create(THREAD, AGENT, command={"update": {"messages": []}}),
        runs.create(THREAD, AGENT, command={"goto": "tools"}),
    ):
        assert await refused(call) == nothing
    invalid = (422, "invalid_request")
    wrong: list[Any] = [None, {}, {"messages": []}, {"messages": [{"type": "ai", "content": "x"}]}, said("")]
    for given in wrong:
        assert await refused(runs.create(THREAD, AGENT, input=given)) == invalid, given
    assert await refused(runs.create(THREAD, AGENT, input=hello, stream_mode="debug")) == invalid
    assert await refused(runs.create(THREAD, "nobody", input=hello)) == (404, "unknown_agent")
    assert await refused(runs.create("ses_" + 26 * "0", AGENT, input=hello)) == (404, "session_not_found")
    assert await refused(threads.copy("no thread")) == (404, "session_not_found")
    assert (await client.http.get("/ok")).json()["ok"]
    assert await client.turns((await client.get("/sessions"))["items"][0]["id"]) == []


async def page(client: Client, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    url = str(client.http.base_url).rstrip("/")
    done: list[dict[str, Any]] = orjson.loads(await node("langgraph.mjs", url, json.dumps(steps)))
    return done


def texts(step: dict[str, Any]) -> list[str]:
    shown = (each for each in step["messages"] if each["type"] != "tool")
    return [each["content"] for each in shown if each["content"]]


@pytest.mark.sweep  # the client in Python goes through kill -9 above
@needs_node
async def test_a_page_approves_once_through_kill_nine_edits_and_regenerates(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    told = asyncio.Event()
    provider.will(planned(THREE_STEPS), streams("It ", told), *map(says, ("It is gone.", "Salve.", "Ciao a te.")))
    yes = {"resume": {"decisions": [{"type": "approve"}]}}
    async with process(settings) as (first, service):
        talking = asyncio.create_task(page(service, {"open": "my page", "say": ASK}, yes))
        await shelf.wait_for("delete itm-1")
        await provider.wait_for_requests(2)
        first.kill()
        asked, cut_off = await talking
    [action] = asked["interrupt"]["action_requests"]
    assert (action["name"], action["args"], texts(asked)[0]) == ("mcp_delete_item", {"item_id": "itm-1"}, ASK)
    assert cut_off["error"] is not None
    async with process(settings) as (_, service):
        await service.ended((await service.get("/sessions"))["items"][0]["id"], 2)
        reloaded, twice, edited, again = await page(
            service, {"open": "my page"}, yes, {"edit": {"at": 0, "say": "ciao"}}, {"edit": {"at": 1}}
        )
    assert (texts(reloaded)[-1], reloaded["interrupt"], reloaded["error"]) == ("It is gone.", None, None)
    assert "no_open_plan" in twice["error"]
    assert [texts(each) for each in (edited, again)] == [["ciao", "Salve."], ["ciao", "Ciao a te."]]
    assert [each["error"] for each in (edited, again)] == [None, None]
    assert shelf.effects == ["get itm-1", "delete itm-1"]
    told.set()
