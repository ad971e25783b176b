"""Files of a session: uploaded, carried by messages, shown to the model as results, and gone with the session."""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from segue.agent.prompts import TEXTS
from segue.config import Settings
from segue.domain.ids import new_id, utc_now
from tests.support.files import PNG, pdf
from tests.support.plans import planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into
from tests.support.uploads import upload, uploaded

CSV = b"name,address\nRossi,rossi@x.example\nBianchi,bianchi@x.example\n"
LONG = "".join(f"line {number}\n" for number in range(2000)).encode()


def code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def test_a_file_is_kept_as_it_came_under_what_its_content_says(client: Client) -> None:
    session = await client.new_session()
    path = f"/sessions/{session}/attachments"
    table = (await upload(client, session, CSV, "../..\\tmp/costs\u202e.exe")).json()
    assert table == {
        "id": table["id"],
        "name": "costs.exe",
        "media_type": "text/csv",
        "size_bytes": len(CSV),
        "summary": "table of 2 rows: name, address",
    }
    picture = (await upload(client, session, PNG, "Größe.html")).json()
    assert (picture["media_type"], picture["summary"]) == ("image/png", f"image/png, {len(PNG)} bytes")
    assert (await client.get(path))["items"] == [picture, table]
    page = await client.get(path, limit=1)
    assert (await client.get(path, limit=1, cursor=page["next_cursor"]))["items"] == [table]
    loaded = {each["id"]: await client.http.get(f"{path}/{each['id']}") for each in (picture, table)}
    assert [each.content for each in loaded.values()] == [PNG, CSV]
    shown, downloaded = (each.headers for each in loaded.values())
    assert (shown["content-type"], downloaded["content-type"]) == ("image/png", "text/csv; charset=utf-8")
    assert shown["content-disposition"] == "inline; filename*=UTF-8''Gr%C3%B6%C3%9Fe.html"
    assert downloaded["content-disposition"] == "attachment; filename*=UTF-8''costs.exe"
    for headers in (shown, downloaded):
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert (await client.http.delete(f"{path}/{table['id']}")).status_code == 204
    assert (await client.get(path))["items"] == [picture]
    for gone in (table["id"], new_id("att", utc_now()), "nonsense"):
        assert code(await client.http.get(f"{path}/{gone}")) == (404, "attachment_not_found")
        assert code(await client.http.delete(f"{path}/{gone}")) == (404, "attachment_not_found")


async def test_what_is_not_taken_is_refused_and_nothing_of_it_is_stored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = {"attachment_max_bytes": 150_000, "attachment_user_bytes": 200_000}
    async with running(settings.model_copy(update=quota)) as client:
        session, path = await client.new_session(), "/sessions/{}/attachments"
        refused = {
            b"": (422, "unreadable_attachment"),
            "Привет".encode("cp1251"): (422, "unreadable_attachment"),
            b"%PDF-1.7 and no more": (422, "unreadable_attachment"),  # read in a process of its own
            b"#!/bin/sh": (415, "unsupported_attachment"),
            b"a\0b": (415, "unsupported_attachment"),
            b"x" * 150_001: (413, "body_too_large"),
            b"x" * 300_000: (413, "body_too_large"),
        }
        for content, why in refused.items():
            assert code(await upload(client, session, content)) == why
        twice = [("file", ("a", b"a")), ("file", ("b", b"b"))]
        assert code(await client.http.post(path.format(session), files=twice)) == (422, "invalid_request")
        more = await client.http.post(path.format(session), files={"file": ("a", b"a")}, data={"name": "b"})
        assert code(more) == (422, "invalid_request")
        assert "in one part called `file`" in more.json()["detail"]
        assert code(await client.http.post(path.format(session), files={"other": ("a", b"a")})) == (
            422,
            "invalid_request",
        )
        assert code(await client.http.post(path.format(session), json={"file": "a"})) == (422, "invalid_request")
        assert code(await upload(client, new_id("ses", utc_now()), b"a")) == (404, "session_not_found")
        monkeypatch.setitem(sys.modules, "pypdf", None)
        missing = await upload(client, session, pdf("one"))
        assert code(missing) == (415, "unsupported_attachment")
        assert "pip install 'segue-agent[files]'" in missing.json()["detail"]
        another = await client.new_session()
        # One process serves a user's files one by one; two do so by the database alone.
        async with (
            running(settings.model_copy(update=quota)) as other,
            looking_into(settings) as stores,
            looking_into(settings) as holder,
            asyncio.TaskGroup() as uploads,
            holder.database.transaction(),
        ):
            await holder.database.execute("LOCK TABLE attachments IN SHARE MODE")
            ways = ((client, session), (other, another))
            both = [uploads.create_task(upload(via, each, b"x" * 90_000)) for via, each in ways]
            await stores.until_locked(count=2)
        several = [each.result() for each in both]
        assert sorted(each.status_code for each in several) == [201, 413]
        [over] = [each for each in several if each.status_code == 413]
        assert code(over) == (413, "attachment_quota_exceeded")
        assert (
            len((await client.get(path.format(session)))["items"])
            + len((await client.get(path.format(another)))["items"])
            == 1
        )


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(settings: Settings, client: Client) -> None:
    session = await client.new_session()
    url = client.http.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = (
        f"POST /sessions/{session}/attachments HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: 5000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhalf a fi'
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with looking_into(settings) as stores:
        await uploaded(client, session, b"whole")
        assert await stores.database.fetchval("SELECT count(*) FROM attachments") == 1


async def test_the_model_is_shown_how_a_text_begins_and_loads_the_rest_as_of_any_result(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    attachment = await uploaded(client, session, LONG, "notes.txt")

    async def as_known(_: dict[str, Any]) -> Any:
        [reference] = [each["content"] for each in await client.messages(session) if each["role"] == "tool"]
        return calls(("get_tool_result", {"tool_call_id": reference["tool_call_id"], "offset": 10_000, "limit": 500}))

    provider.will(as_known, says("More lines."), says("Still there."), says("Read anew."), says("Gone."))
    answer = await client.chat(session, "What comes later?", attachments=[attachment, attachment])
    [call] = answer["tool_calls"]
    assert (call["tool_name"], call["args"], call["status"]) == (
        "read_attachment",
        {"attachment_id": attachment},
        "succeeded",
    )
    assert call["metadata"]["summary"] == f"notes.txt: {len(LONG) - 1} characters in 2000 lines: line 0"
    said = {"id": attachment, "name": "notes.txt", "media_type": "text/plain", "size_bytes": len(LONG)}
    history = await client.messages(session)
    assert history[0]["metadata"] == {"attachments": [said]}
    first, loaded = (provider.messages(request) for request in (0, 1))
    assert [each["role"] for each in first] == ["system", "user", "assistant", "tool"]
    assert TEXTS["attached"] in provider.notes(0)
    assert '"name":"notes.txt"' in provider.notes(0)
    shown = first[3]["content"]
    assert "line 50\n" in shown
    assert f"characters left out; load them with get_tool_result of {call['tool_call_id']}" in shown
    assert len(shown) < 3000
    assert "line 1120" not in str(first)
    assert "line 1120" in loaded[-1]["content"]
    page = await client.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}", offset=len(LONG) - 5)
    assert page["result"] == "1999\n"
    await client.chat(session, "Sure?")
    reference = provider.messages(role="tool")[0]["content"]
    assert '"summary":"notes.txt: ' in reference
    assert len(reference) < 1500
    again = await client.chat(session, "And now?", attachments=[attachment])
    assert again["tool_calls"][0]["metadata"] == call["metadata"]
    markdown = (await client.http.get(f"/sessions/{session}/export?format=markdown")).text
    assert f"- `` notes.txt `` (text/plain, {len(LONG)} bytes)\n\nWhat comes later?" in markdown
    await client.http.delete(f"/sessions/{session}/attachments/{attachment}")
    deleted = await client.http.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}")
    assert code(deleted) == (410, "tool_result_expired")
    assert (await client.messages(session))[0] == history[0]
    await client.chat(session, "What did it say?")
    assert "This file has been deleted." in str(provider.requests[-1])
    assert "line 0" not in str(provider.requests[-1])
    assert "line 0" not in (await client.http.get("/me/export")).text


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("query", "clause"),
    [
        ("termination notice", "Either party may end this with a notice of 90 days. TERMINATION is in writing."),
        ("preavviso di recesso", "Il recesso è possibile con un preavviso di novanta giorni."),
        ("解除合同的通知期", "任何一方均可提前九十天书面通知解除本合同。"),
        ("إشعار الإنهاء", "يجوز الإنهاء بموجب إشعار كتابي قبل تسعين يوما."),
    ],
)
async def test_the_model_finds_a_passage_and_its_page_in_a_file_of_hundreds_of_pages(
    client: Client, provider: Provider, query: str, clause: str
) -> None:
    filling = "The parties agree on a notice board. Le parti hanno un recapito. 双方同意以下条款。 يتفق الطرفان. " * 20
    pages = [f"[page {number}] {filling}{clause if number == 250 else ''}" for number in range(1, 501)]
    session = await client.new_session()
    attachment = await uploaded(client, session, "\n\n".join(pages).encode(), "contract.txt")

    async def searches(body: dict[str, Any]) -> Any:
        call_id = re.search(r"get_tool_result of (call_\w+)", str(body["messages"]))
        return calls(("get_tool_result", {"tool_call_id": call_id and call_id[1], "query": query}))

    provider.will(searches, says("On page 250."))
    await client.chat(session, "How do we get out of it?", attachments=[attachment])
    told = json.loads(provider.messages(role="tool")[-1]["content"])
    best = told["found"][0]
    assert (clause in best["text"], best["page"]) == (True, "[page 250]")
    assert "\n\n".join(pages)[best["offset"] :].startswith(best["text"])


async def test_a_file_is_read_on_after_the_result_that_showed_its_text_has_expired_and_not_once_it_is_deleted(
    settings: Settings, provider: Provider
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    async with running(settings, clock=lambda: now) as client:
        session = await client.new_session()
        attachment = await uploaded(client, session, LONG, "notes.txt")
        provider.will(says("Many."))
        [call] = (await client.chat(session, "How many lines?", attachments=[attachment]))["tool_calls"]
        now += timedelta(days=40)
        loading = ("get_tool_result", {"tool_call_id": call["tool_call_id"], "offset": 10_000, "limit": 500})
        provider.will(calls(loading), says("It is."))
        await client.chat(session, "Is there a line 1120?")
        reference, loaded = (each["content"] for each in provider.messages(role="tool"))
        assert ("expired" in reference, "line 1120" in loaded) == (False, True)
        await client.http.delete(f"/sessions/{session}/attachments/{attachment}")
        provider.will(calls(loading), says("I cannot."))
        await client.chat(session, "And a line 1121?")
        gone = provider.messages(role="tool")[-1]["content"]
        assert ("line 1121" in gone, "Run the tool again" in gone) == (False, False)
        assert "Ask the user to attach the file again" in gone


async def test_a_deleted_file_is_no_longer_listed_with_the_summary_and_all_else_is(
    client: Client, provider: Provider, stores: Stores
) -> None:
    provider.summary = says("They spoke.")
    session, covered = await client.new_session(), "SELECT count(*) = 1 FROM sessions WHERE summary_seq > 0"
    named = {"salaries.csv": b"name,iban\nzitronenfalter,IT60X\nBianchi,DE89\n", "costs.csv": CSV}
    files = [await uploaded(client, session, content, name) for name, content in named.items()]
    provider.always("question", says("answer"))
    await client.chat(session, "question 0", attachments=files)
    for number in range(1, 11):
        await client.chat(session, f"question {number}")
    await stores.until(covered)
    listed = "SELECT summary_references::text FROM sessions"
    for name in named:
        assert name in await stores.database.fetchval(listed)
    await client.chat(session, "question 11")
    assert "salaries.csv" in provider.messages()[0]["content"]
    await client.http.delete(f"/sessions/{session}/attachments/{files[0]}")
    kept = await stores.database.fetchval(listed)
    assert ("salaries.csv" in kept, "costs.csv" in kept) == (False, True)
    await client.chat(session, "question 12")
    system = provider.messages()[0]["content"]
    assert ("zitronenfalter" in system, "salaries" in system, "costs.csv" in system) == (False, False, True)
    await client.http.delete(f"/sessions/{session}/attachments/{files[1]}")
    assert await stores.database.fetchval(listed) is None
    await client.chat(session, "question 13")
    assert "costs.csv" not in provider.messages()[0]["content"]


async def test_a_file_that_is_deleted_after_its_turn_began_is_not_read_and_nothing_of_it_is_stored(
    settings: Settings, provider: Provider
) -> None:
    asked, deleted = asyncio.Event(), asyncio.Event()

    async def plans_nothing(_: dict[str, Any]) -> Any:
        asked.set()
        await deleted.wait()
        return planned([])

    provider.will(plans_nothing, says("It is gone."))
    async with running(settings.model_copy(update={"planning": "always"})) as client:
        session = await client.new_session()
        attachment = await uploaded(client, session, LONG, "notes.txt")
        turn = asyncio.create_task(client.chat(session, "Sum it up", attachments=[attachment]))
        await asked.wait()
        assert (await client.http.delete(f"/sessions/{session}/attachments/{attachment}")).status_code == 204
        deleted.set()
        [call] = (await turn)["tool_calls"]
        assert (call["status"], call["error"]) == ("failed", "This file has been deleted.")
        assert "line 0" not in (await client.http.get("/me/export")).text
    assert "line 0" not in str(provider.requests[-1])


async def test_an_image_goes_to_a_model_that_takes_it_and_words_to_any_other(
    settings: Settings, provider: Provider
) -> None:
    for model, expected in (("gpt-4o", 1), ("scripted", 0)):
        async with running(settings.model_copy(update={"llm_model": model})) as client:
            session = await client.new_session()
            picture = await uploaded(client, session, PNG, "photo.png")
            provider.will(says("Seen."), says("Answered."))
            answer = await client.chat(session, "What is this?", attachments=[picture])
            urls = re.findall(r"data:image/png;base64,", str(provider.requests[-1]["messages"]))
            assert len(urls) == expected
            assert '"name":"photo.png"' in str(provider.requests[-1]["messages"])
            await client.chat(session, "Thanks")
            assert "base64," not in str(provider.requests[-1]["messages"])
            stored = await client.get(f"/sessions/{session}/tool-results/{answer['tool_calls'][0]['tool_call_id']}")
            assert stored["result"] == {"name": "photo.png", "media_type": "image/png", "size_bytes": len(PNG)}


async def test_a_message_carries_only_files_of_its_session_and_a_key_repeats_them(
    client: Client, provider: Provider
) -> None:
    session, other = await client.new_session(), await client.new_session()
    mine, theirs = await uploaded(client, session, b"mine"), await uploaded(client, other, b"theirs")
    for unknown in (theirs, new_id("att", utc_now()), "nonsense", "a\0b"[:1]):
        assert code(await client.send(session, "hi", attachments=[mine, unknown])) == (422, "unknown_attachment")
    assert code(await client.send(session, "hi", attachments=[mine] * 11)) == (422, "invalid_request")
    missing = new_id("ses", utc_now())
    assert code(await client.send(missing, "hi", attachments=[mine])) == (404, "session_not_found")
    assert await client.messages(session) == []
    key = {"Idempotency-Key": "k"}
    body = {"message": "hi", "attachments": [mine]}
    provider.will(says("Hello."), says("Again."), says("Edited."), says("Bare."))
    first = await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)
    await client.http.delete(f"/sessions/{session}/attachments/{mine}")
    assert (await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)).json() == first.json()
    bare = await client.http.post(f"/sessions/{session}/chat", json={"message": "hi"}, headers=key)
    assert code(bare) == (422, "idempotency_key_reused")
    asked, *_ = await client.messages(session)
    again = (await client.http.post(f"/sessions/{session}/messages/{asked['id']}/regenerate")).json()
    assert (again["tool_calls"][0]["status"], again["tool_calls"][0]["error"]) == (
        "failed",
        "This file has been deleted.",
    )
    [said, *_] = await client.messages(session)
    assert said["metadata"]["attachments"] == asked["metadata"]["attachments"]
    newer = await uploaded(client, session, b"newer", "newer.txt")
    edit = {"message": "hello", "attachments": [newer]}
    await client.http.post(f"/sessions/{session}/messages/{said['id']}/edit", json=edit)
    [said, *_] = await client.messages(session)
    assert [each["name"] for each in said["metadata"]["attachments"]] == ["newer.txt"]
    await client.http.post(f"/sessions/{session}/messages/{said['id']}/edit", json={"message": "bare"})
    assert "attachments" not in (await client.messages(session))[0]["metadata"]
