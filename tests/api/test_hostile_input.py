"""Input nobody sends by accident: every bit of it is refused with a problem, and the session goes on working."""

import base64
from typing import Any

import httpx2
import orjson
import pytest

from segue.api.deps import MAX_DEPTH, MAX_VALUES
from tests.support.provider import Provider, calls, calls_raw, says
from tests.support.service import Client

MISSING = "0" * 26
JSON = {"content-type": "application/json"}


def nested(levels: int, *, inside: str = "1") -> str:
    return "[" * levels + inside + "]" * levels


NOT_JSON: dict[str, bytes] = {
    "nothing": b"",
    "cut short": b'{"title": "x',
    "two documents": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"title": "x"}'.encode("utf-16"),
    "invalid UTF-8": b'{"title": "\xff", "message": "\xff"}',
    "overlong UTF-8": b'{"title": "\xc0\x80", "message": "\xc0\x80"}',
    "a raw NUL": b'{"title": "\x00", "message": "\x00"}',
    "depth 100,000": nested(100_000).encode(),
    "depth 100,000 of objects": b'{"a":' * 100_000,
    "NaN": b'{"metadata": {"a": NaN}, "message": NaN}',
    "Infinity": b'{"metadata": {"a": -Infinity}, "message": Infinity}',
    "1e400": b'{"metadata": {"a": 1e400}, "message": 1e400}',
    "an integer of 5000 digits": b'{"metadata": {"a": %s}}' % (b"9" * 5000),
    "a high surrogate alone": rb'{"title": "\ud800", "message": "\ud800"}',
    "a low surrogate alone": rb'{"title": "\udc00", "message": "\udc00"}',
}
NO_OBJECT: dict[str, bytes] = {"null": b"null", "true": b"true", "an array": b"[]", "a number": b"1", "a text": b'"x"'}
BAD_SESSIONS: dict[str, bytes] = {
    "NUL in the title": rb'{"title": "a\u0000b"}',
    "NUL in metadata": rb'{"metadata": {"a": [{"b": "\u0000"}]}}',
    "NUL in a name": rb'{"metadata": {"a\u0000": 1}}',
    "an integer over 64 bits": b'{"metadata": {"a": %d}}' % 2**64,
    "an integer under 64 bits": b'{"metadata": {"a": %d}}' % (-(2**63) - 1),
    "a number no integer holds": b'{"metadata": {"a": 1e300}}',
    "lists too deep to answer with": b'{"metadata": {"a": %s}}' % nested(300).encode(),
    "lists one level too deep": b'{"metadata": {"a": %s}}' % nested(MAX_DEPTH - 1).encode(),
    "objects too deep": b'{"metadata": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
    "NUL far down": b'{"metadata": {"a": %s}}' % nested(900, inside=r'"\u0000"').encode(),
    "title is a number": b'{"title": 1}',
    "title is too long": b'{"title": "%s"}' % (b"x" * 201),
    "metadata is null": b'{"metadata": null}',
    "metadata is a list": b'{"metadata": []}',
    "metadata has too many names": orjson.dumps({"metadata": {str(number): 1 for number in range(65)}}),
    "an unknown field": b'{"owner": "root"}',
    "the id": b'{"id": "ses_%s"}' % MISSING.encode(),
    "very many values": b'{"metadata": {"a": [%b1]}}' % (b"1," * (MAX_VALUES + 1)),
}
BAD_MESSAGES: dict[str, bytes] = {
    "no message": b"{}",
    "empty": b'{"message": ""}',
    "only whitespace": '{"message": " \\t\\n\u00a0\u3000"}'.encode(),
    "32,001 characters": orjson.dumps({"message": "x" * 32_001}),
    "32,001 emoji": orjson.dumps({"message": "🦊" * 32_001}),
    "NUL": rb'{"message": "a\u0000b"}',
    "null": b'{"message": null}',
    "a number": b'{"message": 1}',
    "a list": b'{"message": ["x"]}',
    "a flag that is a text": b'{"message": "x", "force_web_search": "yes"}',
    "a flag that is a number": b'{"message": "x", "force_web_search": 1}',
    "an unknown field": b'{"message": "x", "role": "system"}',
}
ODD_MESSAGES = (
    "x" * 32_000,
    "🦊" * 32_000,
    "a\r\n\t\x1b[31m\u202e\ufeff\u200b\x7fb",
    "e\u0301 \U0010ffff \ufffe",
    "{{x}} {y} %s ${z} \\u0000",
)
BAD_IDS = {
    "a star": "*",
    "a colon": "a:b",
    "up": "..%2Fsessions",
    "far up": "..%2F..%2Fetc%2Fpasswd",
    "NUL": "%00",
    "NUL at the end": f"ses_{MISSING}%00",
    "a line end at the end": f"ses_{MISSING}%0A",
    "not UTF-8": "%FF%FE",
    "10 kB": "x" * 10_000,
    "the right form of 10 kB": "ses_" + "0" * 10_000,
    "a quote": "'%20OR%201=1--",
    "capitals": "SES_" + MISSING,
    "Arabic digits": "ses_" + "%D9%A0" * 26,
    "another prefix": "turn_" + MISSING,
    "missing": "ses_" + MISSING,
}
SESSION_ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("PATCH", "", {"title": "x"}),
    ("DELETE", "", None),
    ("GET", "/messages", None),
    ("GET", "/memory", None),
    ("GET", "/tool-results", None),
    ("POST", "/chat", {"message": "x"}),
)
BAD_LIMITS = ("0", "-1", "201", str(2**63), "1.5", "", "x")


def problem(response: httpx2.Response) -> tuple[int, str]:
    """The status and code of a problem; for the code of anything else its beginning, to be looked at."""
    if response.headers.get("content-type") != "application/problem+json":
        return response.status_code, response.text[:100]
    return response.status_code, response.json()["code"]


def cursor(position: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


async def assert_goes_on(client: Client, provider: Provider, session: str) -> None:
    provider.will(says("at your service"))
    assert (await client.chat(session, "still there?"))["message"]["content"] == "at your service"
    assert [row["content"] for row in await client.messages(session)] == ["still there?", "at your service"]


async def test_bodies_that_make_no_session_are_refused_and_change_none(client: Client, provider: Provider) -> None:
    session = await client.new_session(title="mine", metadata={"a": 1})
    before = await client.get(f"/sessions/{session}")
    bodies = NOT_JSON | NO_OBJECT | BAD_SESSIONS
    for method, path in (("POST", "/sessions"), ("PATCH", f"/sessions/{session}")):
        sent = {name: body for name, body in bodies.items() if (method, name) != ("POST", "nothing")}  # which is enough
        answers = {
            name: problem(await client.http.request(method, path, content=body, headers=JSON))
            for name, body in sent.items()
        }
        assert answers == dict.fromkeys(sent, (422, "invalid_request")), method
    assert (await client.get("/sessions"))["items"] == [before]
    await assert_goes_on(client, provider, session)


async def test_bodies_that_are_no_message_are_refused_and_leave_no_trace(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    bodies = NOT_JSON | NO_OBJECT | BAD_MESSAGES
    answers = {
        name: problem(await client.http.post(f"/sessions/{session}/chat", content=body, headers=JSON))
        for name, body in bodies.items()
    }
    assert answers == dict.fromkeys(bodies, (422, "invalid_request"))
    await assert_goes_on(client, provider, session)


# What an earlier message of a history may have: our own doors sent it, or it was typed.
IN_HISTORIES: dict[str, bytes] = {
    "a number over 64 bits": b"100000000000000000000",
    "a number no integer holds": b"1e300",
    "no number": b"NaN",
    "a high surrogate alone": rb'"cut \ud83d"',
    "NUL": rb'"a\u0000b"',
    "a raw NUL": b'"a\x00b"',
    "lists too deep to answer with": nested(100).encode(),
}
USE_CHAT = (
    b'{"id": "c", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "x"}]}, '
    b'{"id": "t1", "role": "assistant", "parts": [{"type": "tool-look", "toolCallId": "x", '
    b'"state": "output-available", "input": {}, "output": {"found": %b}}]}, '
    b'{"id": "m2", "role": "user", "parts": [{"type": "text", "text": "still there?"}]}]}'
)
COMPLETIONS = (
    b'{"model": "segue", "messages": [{"role": "user", "content": "x"}, '
    b'{"role": "assistant", "content": "y", "z": %b}, {"role": "user", "content": "still there?"}]}'
)
DOORS = {"/api/chat": USE_CHAT, "/v1/chat/completions": COMPLETIONS}


@pytest.mark.parametrize("path", DOORS)
async def test_a_history_that_has_what_no_row_takes_is_answered(client: Client, provider: Provider, path: str) -> None:
    for number, (name, value) in enumerate(IN_HISTORIES.items()):
        provider.will(says("at your service"))
        body = (DOORS[path] % value).replace(b"m2", b"n%d" % number)
        response = await client.http.post(path, content=body, headers=JSON)
        assert response.status_code == 200, (name, response.text)
        assert len(provider.requests) == number + 1, name
        assert provider.messages(role="user")[-1]["content"] == "still there?", name


@pytest.mark.parametrize("path", DOORS)
async def test_what_was_said_with_half_a_character_or_a_nul_is_read_without_them(
    client: Client, provider: Provider, path: str
) -> None:
    provider.will(says("at your service"))
    body = (DOORS[path] % b"1").replace(b"still there?", rb"still\u0000 th\ud83dere?")
    assert (await client.http.post(path, content=body, headers=JSON)).status_code == 200
    assert provider.messages(role="user")[-1]["content"] == "still th\ufffdere?"


@pytest.mark.parametrize("path", DOORS)
async def test_a_history_that_is_no_json_or_has_very_many_values_is_refused(client: Client, path: str) -> None:
    broken = {
        "nothing": b"",
        "cut short": DOORS[path].partition(b"%b")[0],
        "two documents": DOORS[path] % b"1" * 2,
        "too deep for any stack": DOORS[path] % nested(100_000).encode(),
        "very many values": DOORS[path] % (b"[%b1]" % (b"1," * MAX_VALUES)),
    }
    for name, body in broken.items():
        response = await client.http.post(path, content=body, headers=JSON)
        assert response.status_code == 422, name
        assert "invalid_request" in response.text, name
    assert (await client.get("/sessions"))["items"] == []


async def test_metadata_as_deep_as_allowed_is_kept(client: Client) -> None:
    deep = orjson.loads(nested(MAX_DEPTH - 2))
    session = await client.new_session(metadata={"a": deep})
    [listed] = (await client.get("/sessions"))["items"]
    assert listed["id"] == session
    assert listed["metadata"] == {"a": deep}


async def test_odd_messages_within_the_bounds_reach_the_model_and_read_back_unchanged(
    client: Client, provider: Provider
) -> None:
    for message in ODD_MESSAGES:
        provider.will(says("ok"))
        session = await client.new_session()
        await client.chat(session, message)
        assert provider.messages(role="user")[-1]["content"] == message
        assert (await client.messages(session))[0]["content"] == message


async def test_ids_that_cannot_be_a_session_look_like_a_missing_one(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    answers = {name: problem(await client.http.get(f"/sessions/{bad}")) for name, bad in BAD_IDS.items()}
    assert answers.pop("far up") == answers.pop("up") == (404, "not_found")
    assert answers == dict.fromkeys(answers, (404, "session_not_found"))
    for method, route, body in SESSION_ROUTES:
        for name in ("a star", "NUL", "missing"):
            path = f"/sessions/{BAD_IDS[name]}{route}"
            assert problem(await client.http.request(method, path, json=body)) == (404, "session_not_found"), path
    missing_call = await client.http.get(f"/sessions/ses_{MISSING}/tool-results/call_{MISSING}")
    assert problem(missing_call) == (404, "tool_result_not_found")
    await assert_goes_on(client, provider, session)


@pytest.mark.sweep
async def test_ids_that_cannot_be_a_tool_call_look_like_a_missing_one(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    answers = {
        name: problem(await client.http.get(f"/sessions/{session}/tool-results/{bad.replace('ses_', 'call_')}"))
        for name, bad in BAD_IDS.items()
    }
    assert answers.pop("far up") == answers.pop("up") == (404, "not_found")
    assert answers == dict.fromkeys(answers, (404, "tool_result_not_found"))
    await assert_goes_on(client, provider, session)


async def test_forged_cursors_are_refused_by_every_list(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    call, now = f"call_{MISSING}", "2026-01-01T00:00:00+00:00"
    anywhere = (
        *("x", "%00", "é", "====", "*", "../", cursor(None), cursor(True), cursor(1.5), cursor("x"), cursor([])),
        *(cursor({}), base64.urlsafe_b64encode(b"\xff\xfe").decode(), base64.urlsafe_b64encode(b"[" * 300).decode()),
        cursor([[]] * 100),
    )
    forged: dict[str, tuple[str, ...]] = {
        "/sessions": (
            *(
                cursor(1),
                cursor(call),
                cursor([now]),
                cursor([now, session, 1]),
                cursor([1, session]),
                cursor([now, "*"]),
            ),
            *(
                cursor([time, session])
                for time in ("x", "", "2026-01-01", "2026-01-01T00:00:00", "0001-01-01T00:00+23:59")
            ),
            cursor(["9999-12-31T23:59-23:59", session]),
        ),
        f"/sessions/{session}/messages": (
            *map(cursor, (-1, 2**63, "1", call, [1])),
            "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
        ),
        f"/sessions/{session}/tool-results": tuple(
            map(cursor, (1, [call], "call_", f"{call}\n", f"{call}\0", session))
        ),
    }
    for path, own in forged.items():
        answers = {text: problem(await client.http.get(path, params={"cursor": text})) for text in (*anywhere, *own)}
        assert answers == dict.fromkeys(answers, (422, "invalid_cursor")), path
        too_long = await client.http.get(path, params={"cursor": "A" * 501})
        assert problem(too_long) == (422, "invalid_request")
    await assert_goes_on(client, provider, session)


@pytest.mark.sweep
async def test_a_cursor_beyond_the_end_is_an_empty_page(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    for path, position in (
        ("/sessions", ["0001-01-01T00:00:00+00:00", session]),
        (f"/sessions/{session}/messages", 2**63 - 1),
        (f"/sessions/{session}/tool-results", f"call_{MISSING}"),
    ):
        page = await client.get(path, cursor=cursor(position))
        assert (page.pop("items"), set(page.values())) == ([], {None})
    await assert_goes_on(client, provider, session)


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_list_goes_on_behind_an_item_that_has_been_deleted(client: Client, *, by_id: bool) -> None:
    """As a client does that deletes each page before it asks for the next, also by a cursor of the release before."""
    files = f"/sessions/{await client.new_session()}/attachments"
    schedule = {"message": "Report", "new_session": True, "cron": "0 3 * * *"}
    for path, new in (
        ("/schedules", {"json": schedule}),
        ("/mandates", {"json": {"tool": "current_time", "scope": "user"}}),
        ("/memories", None),
        (files, {"files": {"file": ("a.txt", b"a")}}),
    ):
        given = [new or {"json": {"content": f"Fact {number}"}} for number in range(5)]
        made = [(await client.http.post(path, **each)).json()["id"] for each in given]
        seen: list[str] = []
        behind: dict[str, str] | None = {}
        while behind is not None:
            page = await client.get(path, limit=2, **behind)
            seen += [each["id"] for each in page["items"]]
            following = page["next_cursor"]
            behind = {"cursor": cursor(seen[-1]) if by_id else following} if following else None
            for each in page["items"]:
                assert (await client.http.delete(f"{path}/{each['id']}")).status_code == 204
        assert seen == made[::-1], path


async def test_limits_out_of_range_are_refused_by_every_list(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    for path in ("/sessions", f"/sessions/{session}/messages", f"/sessions/{session}/tool-results"):
        answers = {limit: problem(await client.http.get(path, params={"limit": limit})) for limit in BAD_LIMITS}
        assert answers == dict.fromkeys(BAD_LIMITS, (422, "invalid_request")), path
        assert (await client.http.get(path, params={"limit": 200})).status_code == 200
    await assert_goes_on(client, provider, session)


@pytest.mark.sweep
async def test_filters_of_tool_results_match_nothing_or_are_refused(client: Client) -> None:
    path = f"/sessions/{await client.new_session()}/tool-results"
    for query in ("tool=%25", "tool=%FF", "turn_id=*", "tool=" + "x" * 200, "turn_id='%20OR%20''='"):
        assert (await client.http.get(f"{path}?{query}")).json() == {"items": [], "next_cursor": None}, query
    for query in ("tool=%00", "turn_id=a%00b", "tool=" + "x" * 201, "status=done", "status="):
        assert problem(await client.http.get(f"{path}?{query}")) == (422, "invalid_request"), query


@pytest.mark.sweep
async def test_pages_of_a_result_out_of_range_are_refused(client: Client, provider: Provider) -> None:
    path = await _stored_result(client, provider)
    for query in ("offset=-1", f"offset={2**63}", "limit=0", "limit=-1", f"limit={2**63}", "path=" + "a" * 1001):
        assert problem(await client.http.get(f"{path}?{query}")) == (422, "invalid_request"), query
    assert (await client.http.get(f"{path}?offset={2**53}")).status_code == 200


HOSTILE_PATHS = (
    *("((((", "[" * 1000, "(" * 1000, "!" * 1000, "&foo", "[&foo]", "to_array(&a)", "not_null(&a)", "\x00"),
    *(
        r'`"\ud800"`',
        f"`{nested(300)}`",
        "`" + "[" * 900,
        "`" + "1" * 990 + "`",
        "nope(@)",
        "abs('x')",
        "sort_by(@, &a)",
    ),
)


@pytest.mark.sweep  # test_results_api.py refuses paths in CI
async def test_paths_into_a_result_that_make_no_sense_are_refused(client: Client, provider: Provider) -> None:
    path = await _stored_result(client, provider)
    answers = {text: await client.http.get(path, params={"path": text}) for text in HOSTILE_PATHS}
    assert {text[:20]: answer.text[:100] for text, answer in answers.items() if answer.status_code >= 500} == {}


async def _stored_result(client: Client, provider: Provider) -> str:
    provider.will(calls(("current_time", {})), says("noon"))
    session = await client.new_session()
    answer = await client.chat(session, "what time is it?")
    return f"/sessions/{session}/tool-results/{answer['tool_calls'][0]['tool_call_id']}"


async def test_numbers_the_model_makes_up_neither_fail_the_turn_nor_the_memory_of_it(
    client: Client, provider: Provider
) -> None:
    for number in ("1e22", "-1e300", "1e400", "NaN", str(2**64), "9" * 5000):
        provider.will(calls_raw(("current_time", f'{{"timezone": {number}}}')), says("sorry"))
        session = await client.new_session()
        answer = await client.chat(session, "what time is it?")
        assert [call["status"] for call in answer["tool_calls"]] == ["failed"], number
        for path in ("messages", "memory", "tool-results"):
            assert await client.get(f"/sessions/{session}/{path}"), number
