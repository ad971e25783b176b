"""Sessions over HTTP: made, listed, changed, read page by page, and gone when they are deleted."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from unicodedata import normalize

import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import Stores


class Held:
    """A reply of the provider that stays away until the test lets it go."""

    def __init__(self, reply: Response) -> None:
        self._reply = reply
        self.asked = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, _: dict[str, Any]) -> Response:
        self.asked.set()
        await self.release.wait()
        return self._reply


async def walk(client: Client, path: str, *, limit: int) -> list[list[dict[str, Any]]]:
    """Every page of a list, by its cursors."""
    pages: list[list[dict[str, Any]]] = []
    path, _, asked = path.partition("?")
    params: dict[str, Any] = {"limit": limit, **dict(part.split("=") for part in asked.split("&") if part)}
    while True:
        page = await client.get(path, **params)
        pages.append(page["items"])
        if page["next_cursor"] is None:
            return pages
        params["cursor"] = page["next_cursor"]


async def test_a_new_session_is_empty_and_reads_back_as_it_was_made(client: Client) -> None:
    made = await client.http.post("/sessions", json={"title": "Tàxes 税", "metadata": {"tags": ["a", None, 1.5]}})
    assert made.status_code == 201
    session = made.json()
    assert session == {
        "id": session["id"],
        "title": "Tàxes 税",
        "agent": "segue",
        "language": None,
        "time_zone": "UTC",
        "archived": False,
        "pinned": False,
        "metadata": {"tags": ["a", None, 1.5]},
        "created_at": session["created_at"],
        "updated_at": session["created_at"],
        "message_count": 0,
        "pending_plan": None,
        "running_turn_id": None,
    }
    assert datetime.fromisoformat(session["created_at"]).tzinfo == UTC
    assert await client.get(f"/sessions/{session['id']}") == session


async def test_a_session_asked_for_again_under_its_key_is_the_same_one(client: Client) -> None:
    asked = [client.http.post("/sessions", json={"title": "Once"}, headers={"Idempotency-Key": "a"}) for _ in range(8)]
    answers = await asyncio.gather(*asked)
    [made] = {answer.json()["id"] for answer in answers}
    assert {answer.status_code for answer in answers} == {201}
    again = await client.http.post("/sessions", json={}, headers={"Idempotency-Key": "a"})
    other = await client.http.post("/sessions", json={}, headers={"Idempotency-Key": "b"})
    assert (again.json()["id"], again.json()["title"]) == (made, "Once")
    assert [session["id"] for session in (await client.get("/sessions"))["items"]] == [other.json()["id"], made]


async def test_a_session_needs_neither_title_nor_metadata(client: Client) -> None:
    session = await client.get(f"/sessions/{await client.new_session()}")
    bare = await client.http.post("/sessions")  # `curl -X POST`
    assert (session["title"], session["metadata"], bare.status_code) == (None, {}, 201)


async def test_metadata_is_bounded_as_a_list_carries_that_of_every_session(client: Client) -> None:
    session = await client.new_session(metadata={"notes": "x" * 16_000})
    more = {"metadata": {"notes": "x" * 17_000}}
    for response in (
        await client.http.post("/sessions", json=more),
        await client.http.patch(f"/sessions/{session}", json=more),
    ):
        assert response.status_code == 422
        assert "may have 16384" in response.json()["detail"]


async def test_metadata_keeps_the_numbers_it_was_given(client: Client) -> None:
    numbers = {"largest": 2**63, "smallest": -(2**63), "tiny": 5e-324, "large": 1e18, "zero": 0}
    session = await client.new_session(metadata=numbers)
    assert (await client.get(f"/sessions/{session}"))["metadata"] == numbers


async def test_the_list_shows_every_session_once_even_where_all_are_of_the_same_moment(settings: Settings) -> None:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    async with running(settings, clock=lambda: moment) as client:
        made = [await client.new_session() for _ in range(5)]
        pages = await walk(client, "/sessions", limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [session["id"] for page in pages for session in page] == made[::-1]


async def listed(client: Client, **params: Any) -> list[str]:
    return [session["id"] for session in (await client.get("/sessions", **params))["items"]]


async def test_a_session_is_called_by_its_first_words_until_somebody_names_it(
    client: Client, provider: Provider
) -> None:
    long = "Cerca tutte le mail di Marco Rossi sulla consegna delle lenti e poi\npreparami un riassunto"
    provider.will(says("Fatto."), says("Fatto."), says("好的"), says("Ok"), says("Ciao"))
    session = await client.new_session()
    await client.chat(session, long)
    path = f"/sessions/{session}"
    assert (await client.get(path))["title"] == "Cerca tutte le mail di Marco Rossi sulla consegna delle…"
    await client.http.patch(path, json={"title": "Lenti"})
    await client.chat(session, "e ora?")
    assert (await client.get(path))["title"] == "Lenti"
    chinese, named = await client.new_session(), await client.new_session(title="Mine")
    await client.chat(chinese, "请帮我查找罗西的邮件" * 10)
    await client.chat(named, "hello")
    titles = [(await client.get(f"/sessions/{each}"))["title"] for each in (chinese, named)]
    assert titles == [("请帮我查找罗西的邮件" * 10)[:59] + "…", "Mine"]
    family = await client.new_session()
    await client.chat(family, "\N{WOMAN}\u200d\N{GIRL}" * 30)
    assert (await client.get(f"/sessions/{family}"))["title"] == "\N{WOMAN}\u200d\N{GIRL}" * 19 + "…"


async def test_archived_sessions_are_listed_apart_and_pinned_ones_on_request(client: Client) -> None:
    first, second, third = [await client.new_session() for _ in range(3)]
    archived = (await client.http.patch(f"/sessions/{first}", json={"archived": True})).json()
    assert (archived["archived"], archived["updated_at"]) == (True, archived["created_at"])
    await client.http.patch(f"/sessions/{second}", json={"pinned": True})
    assert await listed(client) == [third, second]
    assert await listed(client, archived=True) == [first]
    assert (await listed(client, pinned=True), await listed(client, pinned=False)) == ([second], [third])
    await client.http.patch(f"/sessions/{first}", json={"archived": False})
    assert await listed(client) == [third, second, first]


async def test_sessions_are_found_by_words_of_their_titles_and_messages_in_any_language(
    client: Client, provider: Provider
) -> None:
    said = (
        *("È arrivata la FATTURA di Rossi?", "请查找罗西的邮件", "ابحث عن رسائل ليلى", "100% sure_thing?"),
        normalize("NFD", "Perché è caffè"),
        "\u0958\u0932\u092e",  # which no normal form has: qalam, a pen, with a letter of one character
        "Dov’è l'ufficio dell’Aquila?",
    )
    provider.will(*(says("Eccola: numero 2026-118, da pagare.") for _ in said))
    made = [await client.new_session(title="x") for _ in said]
    for session, message in zip(made, said, strict=True):
        await client.chat(session, message)
    invoices = await client.new_session(title="Fatture di Rossi, novembre")
    trip = await client.new_session(title="Viaggio a İstanbul, ΟΔΟΣ ΕΡΜΟΥ")
    for query, found in {
        "rossi fattura": [made[0]],
        "ROSSI": [invoices, made[0]],
        "邮件": [made[1]],
        "ليلى": [made[2]],
        "\u202b\u200fليلى\u202c": [made[2]],
        "0% sure_": [made[3]],
        "%": [made[3]],
        "lampada": [],
        "x eccola": [],
        "İSTANBUL": [trip],
        "ΟΔΟΣ": [trip],
        "CAFFÈ perché": [made[4]],
        "caffe PERCHE": [made[4]],
        "fattúra": [made[0]],
        "أبحث ليلي": [made[2]],
        "e" * 190 + "(": [],
        normalize("NFD", "è arrivata"): [made[0]],
        "\u0958\u0932": [made[5]],
        "dov'è L’UFFICIO": [made[6]],
        "«dell'Aquila»,": [made[6]],
        "“邮件”。": [made[1]],
    }.items():
        assert await listed(client, query=query) == found, query
    [hit] = (await client.get("/sessions", query="118", limit=1))["items"]
    assert "2026-118" in hit["snippet"]
    around = await client.get(f"/sessions/{hit['id']}/messages", around=hit["message_id"], limit=1)
    assert "2026-118" in around["items"][0]["content"]
    [titled] = (await client.get("/sessions", query="novembre"))["items"]
    assert titled["message_id"] is None
    pages = await walk(client, "/sessions?query=numero", limit=3)
    assert [session["id"] for page in pages for session in page] == made[::-1]


async def test_a_search_whose_pages_look_at_little_finds_all_by_its_cursors(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.memory.session_search.MOST_SESSIONS", 2)
    monkeypatch.setattr("segue.memory.session_search.MOST_MESSAGES", 3)
    provider.will(*(says("Bene.") for _ in range(5)))
    long, *_, short = [await client.new_session(title="x") for _ in range(6)]
    for message in ("il girasole", "due", "tre", "quattro"):
        await client.chat(long, message)
    await client.chat(short, "un girasole")
    pages = await walk(client, "/sessions?query=girasole", limit=2)
    assert [[session["id"] for session in page] for page in pages] == [[short], [], [], [long], [], []]
    broken = await client.http.get("/sessions", params={"query": "x", "cursor": "WzEsMiwzXQ=="})
    assert (broken.status_code, broken.json()["code"]) == (422, "invalid_cursor")


async def test_a_message_moves_its_session_to_the_top_of_the_list(client: Client, provider: Provider) -> None:
    provider.will(says("hello"))
    first, second = await client.new_session(), await client.new_session()
    assert [session["id"] for session in (await client.get("/sessions"))["items"]] == [second, first]
    await client.chat(first, "hi")
    assert [session["id"] for session in (await client.get("/sessions"))["items"]] == [first, second]


async def test_a_full_last_page_has_no_cursor(client: Client) -> None:
    for _ in range(2):
        await client.new_session()
    assert [len(page) for page in await walk(client, "/sessions", limit=2)] == [2]


async def test_a_change_touches_only_what_it_names(client: Client) -> None:
    session = await client.new_session(title="old", metadata={"a": 1})
    path = f"/sessions/{session}"
    titled = await client.http.patch(path, json={"title": "new"})
    assert titled.status_code == 200
    assert (titled.json()["title"], titled.json()["metadata"]) == ("new", {"a": 1})
    replaced = (await client.http.patch(path, json={"metadata": {"b": 2}})).json()
    assert (replaced["title"], replaced["metadata"]) == ("new", {"b": 2})
    cleared = (await client.http.patch(path, json={"title": None})).json()
    assert (cleared["title"], cleared["metadata"]) == (None, {"b": 2})
    assert await client.get(path) == cleared
    untouched = (await client.http.patch(path, json={})).json()
    assert untouched == cleared


async def test_messages_come_in_order_of_seq_page_by_page(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {})), says("noon"), says("bye"))
    session = await client.new_session()
    await client.chat(session, "what time is it?")
    await client.chat(session, "thanks")
    pages = await walk(client, f"/sessions/{session}/messages", limit=4)
    assert [len(page) for page in pages] == [4, 2]
    rows = [row for page in pages for row in page]
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert rows[1]["tool_calls"][0]["id"] == rows[2]["tool_call_id"] == rows[2]["content"]["tool_call_id"]
    assert (await client.get(f"/sessions/{session}"))["message_count"] == 6


async def test_the_memory_of_a_session_is_empty_and_then_holds_the_last_exchange(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", {})), says("noon"))
    session = await client.new_session()
    empty = await client.get(f"/sessions/{session}/memory")
    assert empty == {"short_term": None, "ttl_s": empty["ttl_s"], "long_term": []}
    answer = await client.chat(session, "what time is it?")
    memory = await client.get(f"/sessions/{session}/memory")
    assert memory["long_term"] == []
    assert 0 < memory["ttl_s"] <= 3600
    short_term = memory["short_term"]
    assert short_term["session_id"] == session
    assert short_term["turn_id"] == answer["turn_id"]
    assert (short_term["last_user_message"], short_term["last_assistant_message"]) == ("what time is it?", "noon")
    assert short_term["message_count"] == 4
    [reference] = short_term["tool_results"]
    assert reference["tool_call_id"] == answer["tool_calls"][0]["tool_call_id"]


async def test_a_deleted_session_leaves_no_row_and_no_key(client: Client, provider: Provider, stores: Stores) -> None:
    provider.will(calls(("current_time", {})), says("noon"))
    session = await client.new_session()
    call = (await client.chat(session, "what time is it?"))["tool_calls"][0]["tool_call_id"]
    assert await stores.rows() == {"sessions": 1, "turns": 1, "messages": 4, "tool_calls": 1, "tool_results": 1}
    provider.will(says("noon"))
    at_a_door = {"model": "segue", "conversation": session, "messages": [{"role": "user", "content": "and now?"}]}
    turn = (await client.http.post("/v1/chat/completions", json=at_a_door)).headers["x-turn-id"]
    assert [bool(await stores.keys(each)) for each in (session, turn)] == [True, True]

    deleted = await client.http.delete(f"/sessions/{session}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert set((await stores.rows()).values()) == {0}
    assert [await stores.keys(each) for each in (session, turn)] == [[], []]
    for path in ("", "/messages", "/memory", "/tool-results"):
        gone = await client.http.get(f"/sessions/{session}{path}")
        assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found"), path
    assert (await client.http.get(f"/sessions/{session}/tool-results/{call}")).status_code == 404
    assert (await client.send(session, "still there?")).status_code == 404
    assert (await client.http.patch(f"/sessions/{session}", json={"title": "x"})).status_code == 404
    assert (await client.http.delete(f"/sessions/{session}")).status_code == 404
    assert (await client.get("/sessions"))["items"] == []


async def test_deleting_one_session_leaves_the_others_alone(client: Client, provider: Provider) -> None:
    provider.will(says("one"), says("two"))
    gone, kept = await client.new_session(), await client.new_session()
    await client.chat(gone, "a")
    await client.chat(kept, "b")
    await client.http.delete(f"/sessions/{gone}")
    assert [message["content"] for message in await client.messages(kept)] == ["b", "two"]
    assert (await client.get(f"/sessions/{kept}/memory"))["short_term"]["last_assistant_message"] == "two"


async def test_a_running_turn_shows_in_its_session_until_it_ends(client: Client, provider: Provider) -> None:
    held = Held(says("done"))
    provider.will(held)
    session = await client.new_session()
    chat = asyncio.create_task(client.chat(session, "take your time"))
    await held.asked.wait()
    running_turn = (await client.get(f"/sessions/{session}"))["running_turn_id"]
    held.release.set()
    assert running_turn == (await chat)["turn_id"]
    assert (await client.get(f"/sessions/{session}"))["running_turn_id"] is None


async def test_deleting_a_session_stops_its_turns_and_tells_those_who_wait_for_them(
    client: Client, provider: Provider, stores: Stores
) -> None:
    held = Held(says("too late"))
    provider.will(held, says("fine"))
    session = await client.new_session()
    waiting = asyncio.create_task(client.send(session, "take your time"))
    await held.asked.wait()
    queued = asyncio.create_task(client.send(session, "and then?"))
    await stores.until_messages(session, 2)
    assert (await client.http.delete(f"/sessions/{session}")).status_code == 204
    for told in (await waiting, await queued):
        assert (told.status_code, told.json()["code"]) == (404, "session_not_found")
    held.release.set()
    assert set((await stores.rows()).values()) == {0}
    assert await stores.keys(session) == []
    other = await client.new_session()
    assert (await client.chat(other, "how are you?"))["message"]["content"] == "fine"


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("stage", ["last answer", "tool round"])
async def test_a_session_deleted_through_another_process_leaves_nothing_when_its_turn_ends(
    settings: Settings, provider: Provider, stores: Stores, stage: str
) -> None:
    held = Held(says("too late") if stage == "last answer" else calls(("current_time", {})))
    provider.will(held)
    async with running(settings) as here:
        session = await here.new_session()
        waiting = asyncio.create_task(here.send(session, "take your time"))
        await held.asked.wait()
        async with running(settings) as elsewhere:
            assert (await elsewhere.http.delete(f"/sessions/{session}")).status_code == 204
        held.release.set()
        told = await waiting
        assert (told.status_code, told.json()["code"]) == (404, "session_not_found")
    assert set((await stores.rows()).values()) == {0}
    assert await stores.keys(session) == []
