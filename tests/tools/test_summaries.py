from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.tools.normalize import clean, clean_text
from segue.tools.summaries import (
    MAX_IDENTIFIER_CHARS,
    MAX_IDENTIFIERS,
    MAX_IDENTIFIERS_CHARS,
    MAX_SUMMARY_CHARS,
    identifiers,
    preview,
    summarise,
    summarise_call,
    summarise_failure,
)

MAILS = [
    {
        "id": f"eml-{number:06x}",
        "from": f"{name}@rossi.test",
        "subject": f"Fattura {number}",
        "thread_id": f"thr-{name}",
    }
    for number, name in enumerate("abcdefghij")
]


def ids(value: object) -> list[str]:
    return list(identifiers(value))


@pytest.mark.parametrize(
    ("value", "summary"),
    [
        ({"emails": MAILS[:2], "total": 2}, "2 emails: Fattura 0, Fattura 1"),
        ({"emails": MAILS, "total": 27}, "10 of 27 emails: Fattura 0, Fattura 1, Fattura 2, Fattura 3, Fattura 4, …"),
        ({"emails": [], "total": 0}, "no emails"),
        ([{"title": "One"}, {"name": " Two\n "}, {"id": 3}, {"title": ""}], "4 items: One, Two, 3, …"),
        (["a", "b"], "2 items: a, b"),
        ([{"date": 1, "amount": 2}] * 12, "12 items with date, amount"),
        ([["date", "amount"], [1, 2]], "2 items with date, amount"),
        ([[1, 2], [3, 4]], "2 items"),
        ([["date", "amount"], [1]], "2 items"),
        ('id,name\n1,Anna\n2,"Bruno, detto B."\n', "table of 2 rows: id, name"),
        ("编号\t标题\n1\t好\n2\t见", "table of 2 rows: 编号, 标题"),
        ("nome;città\nAnna;Roma\nBruno;Bari\nCarla;Como", "table of 3 rows: nome, città"),
        ("| الاسم | id |\n|---|:--|\n| منى | 7 |", "table of 1 rows: الاسم, id"),
        ("Dear Anna,\nthank you, all is well,\nyours", "40 characters in 3 lines: Dear Anna,"),
        ("a,a\n1,2\n3,4", "11 characters in 3 lines: a,a"),
        ({"rows": [1, 2], "columns": ["a"]}, "2 rows, 1 columns"),
        ([{}], "1 items"),
        ({"id": "eml-1", "subject": "Consegna", "from": "Anna", "body": "… " * 99}, "Consegna — from: Anna"),
        ({"id": "eml-1", "deleted": True}, "eml-1 — deleted"),
        ({"exit_code": 1, "stdout": "a\nb\n3 failed\n", "stderr": ""}, "exit code: 1, stdout: 3 failed"),
        ({"status": "sent", "id": "msg-7", "to": ["Anna", "Luca"]}, "msg-7 — sent, 2 to"),
        ({"ok": False, "body": {"of": "letters"}}, "not ok"),
        ({"utc": 1, "local": 2.5, "dst": True}, "utc: 1, local: 2.5, dst"),
        ({"name": {"first": "Anna"}, "age": 3}, "age: 3"),
        ({}, "empty object"),
        ("one line", "one line"),
        ("first line\nsecond\n", "17 characters in 2 lines: first line"),
        ("word " * 200, "999 characters: " + "word " * 36 + "wor…"),
        (" \n\t ", "no content"),
        ("", "no content"),
        (None, "no content"),
        (42, "42"),
        (True, "True"),
    ],
)
def test_a_summary_says_how_much_there_is_and_what_it_is_called(value: object, summary: str) -> None:
    assert summarise(value) == summary


def wants(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {} for key in required} | properties, "required": list(required)}


@pytest.mark.parametrize(
    ("name", "args", "schema", "value", "summary"),
    [
        (
            "read_file",
            {"encoding": "utf-8", "path": "src/main.py"},
            wants("path"),
            "import os\n" * 342,
            "Read file: src/main.py (342 lines)",
        ),
        (
            "readFile",
            {"path": "a.py"},
            wants("path"),
            {"content": "one\n\ntwo", "path": "a.py", "size": 9},
            "Read file: a.py (3 lines)",
        ),
        (
            "search_emails",
            {"query": "Rossi", "limit": 10},
            wants("query"),
            {"emails": MAILS[:2], "total": 9},
            "Search emails: Rossi — 2 of 9 emails: Fattura 0, Fattura 1",
        ),
        (
            "list-files",
            {"folder": "src"},
            wants(folder={}),
            {"files": ["src/a.py", "src/b.md"]},
            "List files: src — 2 files: src/a.py, src/b.md",
        ),
        (
            "get_order",
            {"order_id": 118},
            wants("order_id"),
            {"id": 118, "paid": True},
            "Get order: 118 — paid",
        ),
        (
            "move_file",
            {"source": "a", "destination": "b", "note": "c"},
            wants("source", "destination", "note"),
            None,
            "Move file: a, b — no content",
        ),
        (
            "read_files",
            {"paths": ["a.md", "b.md", "c.md"]},
            wants("paths"),
            ["x", "y"],
            "Read files: a.md, b.md, … — 2 items: x, y",
        ),
        ("搜索", {"query": "发票"}, wants("query"), [], "搜索: 发票 — no items"),
        ("convert", {"unit": "km", "value": 3}, wants("unit", unit={"enum": ["km"]}), 4.8, "4.8"),
        ("log_in", {"password": "hunter22"}, wants("password"), "ok", "ok"),
        ("page", {"limit": 10}, {}, ["a"], "1 items: a"),
        ("find", {"text": "x" * 500}, wants("text"), [], "Find: " + "x" * 59 + "… — no items"),
    ],
)
def test_a_summary_of_a_call_says_what_was_done_and_to_what(
    name: str, args: dict[str, Any], schema: dict[str, Any], value: object, summary: str
) -> None:
    assert summarise_call(name, args, schema, value) == summary


@pytest.mark.parametrize(
    ("value", "summary"),
    [
        ([{"path": "src/a.py", "size": 1}, {"path": "b.md", "size": 2}], "2 items: src/a.py, b.md"),
        ([{"order_id": 7, "status": "paid"}, {"order_id": 8}], "2 items: 7, 8"),
        ({"mime_type": "image/png", "part": 0, "size_bytes": 70}, "image/png, 70 bytes"),
        ({"name": "a.pdf", "media_type": "application/pdf", "size_bytes": 9}, "a.pdf — application/pdf, 9 bytes"),
        ({"content": "one\ntwo", "path": "a"}, "7 characters in 2 lines: one"),
    ],
)
def test_a_list_names_its_first_identifiers_and_a_file_its_type(value: object, summary: str) -> None:
    assert summarise(value) == summary


def test_file_names_are_identifiers_and_addresses_of_people_and_numbers_are_none() -> None:
    assert ids(["src/main.py", "README.md", "12.50", "anna@rossi.test", "Ciao."]) == ["src/main.py", "README.md"]
    assert ids({"entries": ["a b.txt", "notes.txt"], "file": "report"}) == ["report", "notes.txt"]


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        ("No such mail.", "get_email failed: No such mail."),
        ("get_email did not answer within 30 s.", "get_email did not answer within 30 s."),
        ("two\nlines " + "x" * 500, "get_email failed: two lines " + "x" * 171 + "…"),
    ],
)
def test_the_summary_of_a_failure_is_its_reason_and_names_the_tool_once(error: str, summary: str) -> None:
    assert summarise_failure("get_email", error) == summary


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("exactly 20 chars....", "exactly 20 chars...."),
        ("one line\ntwo line\nthree line", "one line\ntwo line…"),
        ("eighteen chars....\n\nand more", "eighteen chars....…"),
        ("nineteen chars.....\nand more", "nineteen chars.....…"),
        ("x" * 10_000, "x" * 19 + "…"),
        ("a\n" + "x" * 10_000, "a\n" + "x" * 17 + "…"),
        ("好" * 30, "好" * 19 + "…"),
    ],
)
def test_a_preview_is_whole_lines_where_lines_allow_and_never_longer_than_its_bound(text: str, shown: str) -> None:
    assert preview(text, max_chars=20) == shown


def test_the_ids_a_search_found_come_first_and_in_its_order() -> None:
    found = ids({"total": 10, "emails": MAILS})
    assert found[:10] == [mail["id"] for mail in MAILS]
    assert found[10:] == [mail["thread_id"] for mail in MAILS]


def test_ids_are_not_crowded_out_by_the_links_around_them() -> None:
    issue = {
        "url": "https://a.test/1",
        "labels_url": "https://a.test/2",
        "node_id": "n",
        "user": {"avatar_url": "https://a.test/3"},
    }
    found = ids([{**issue, "number": 4100 + count, "title": "x"} for count in range(20)])
    assert found == [str(4100 + count) for count in range(20)]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"id": 7, "ok": True, "size": 12}, ["7"]),
        ({"id": True, "ids": [1, False, "b", None, 2.5]}, ["1", "b"]),
        ({"messageId": "m-1", "UUID": "u-1", "order_number": 118, "Message-ID": "m-2"}, ["u-1", "m-1", "118", "m-2"]),
        ({"sha": "9fceb02", "iCalUID": "a@b", "reference": "X1", "id_cliente": 5}, ["9fceb02", "X1", "a@b", "5"]),
        ({"editable": [{"编号": "甲一"}, {"رقم": 44}], "next_cursor": "eyJv"}, ["甲一", "44", "eyJv"]),
        ({"api_key": "sk-abc123def", "id_token": "abc1", "id": 5}, ["5"]),
        ({"next_page_token": "CAUQAA", "nextToken": "p2", "access_token": "abc1", "token": "x"}, ["CAUQAA", "p2"]),
        ({"identity": "x", "valid": "y", "paid": 3, "keyboard": "z"}, []),
        (
            {"html_url": "https://a.test/b", "path": "/home/a.txt", "id": "last"},
            ["last", "https://a.test/b", "/home/a.txt"],
        ),
        ({"link": {"href": "https://a.test"}}, ["https://a.test"]),
        ({"ref": "eml-1a2b3c", "note": "see eml-ffffff", "state": "well-known"}, ["eml-1a2b3c"]),
        ([["eml-1a2b3c"], {"deep": [{"deeper": {"id": "x"}}]}], ["x", "eml-1a2b3c"]),
        ({"id": "", "uuid": "x" * (MAX_IDENTIFIER_CHARS + 1)}, []),
        ([{"id": "same"}, {"id": "same"}], ["same"]),
        (
            "Found eml-1a2b3c (see https://a.test/x?y=1). Then ord_991!",
            ["eml-1a2b3c", "https://a.test/x?y=1", "ord_991"],
        ),
        ("见 https://a.test/极光。编号 6F9619FF-8B86-D011-B42D-00C04FC964FF", None),
        (["first block: eml-1a2b3c", "second: eml-4d5e6f"], ["eml-1a2b3c", "eml-4d5e6f"]),
        ("/var/log/app-2026 is no id, nor is x-1", []),
        ("编号eml-1a2b3c的邮件，见ord_991。", ["eml-1a2b3c", "ord_991"]),
        ("رقم الرسالة:eml-1a2b3cوالطلب ord_991؛ https://a.test/x؟", ["eml-1a2b3c", "ord_991", "https://a.test/x"]),
        (
            {"邮件": [{"编号": "eml-1a2b3c", "标题": "发票"}], "رابط": "https://a.test"},
            ["eml-1a2b3c", "https://a.test"],
        ),
        ({"标题 id": "标题-1"}, ["标题-1"]),
        ({"order": "ORD-77", "rows": ["INV-2026-118"]}, ["ORD-77", "INV-2026-118"]),
        ("ORD-77 of UTF-8, row INV-2026-118", ["ORD-77", "INV-2026-118"]),
        ("plain words only", []),
        (None, []),
    ],
)
def test_identifiers_are_what_a_next_call_may_need(value: object, found: list[str] | None) -> None:
    expected = ["https://a.test/极光", "6F9619FF-8B86-D011-B42D-00C04FC964FF"] if found is None else found
    assert ids(value) == expected


def test_identifiers_stay_within_their_bounds_and_keep_the_first() -> None:
    assert ids([{"id": number} for number in range(100)]) == [str(number) for number in range(MAX_IDENTIFIERS)]
    urls = [{"url": f"https://a.test/{number}/" + "x" * 200} for number in range(20)]
    assert ids(urls) == [url["url"] for url in urls[:3]]


def test_the_ids_of_a_large_result_are_found_without_reading_all_of_it() -> None:
    value = {"id": "first", "rows": [1] * 1_000_000, "last_id": "unread"}
    assert identifiers(value) == ("first",)


keys = st.sampled_from(["id", "url", "thread_id", "title", "subject", "emails", "total", "x"]) | st.text()
tables = st.lists(st.text(alphabet='ab,|;\t- "\n\r', max_size=40), max_size=8).map("\n".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400) | st.just("eml-1a2b3c") | tables,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=30,
).map(clean)


@settings(max_examples=40)
@given(json_values, st.text(max_size=2000).map(clean_text))
def test_a_summary_is_always_one_line_of_valid_text_within_its_bound(value: Any, error: str) -> None:
    for summary in (summarise(value), summarise_failure("tool", error)):
        assert 0 < len(summary.encode().decode()) <= MAX_SUMMARY_CHARS
        assert summary == " ".join(summary.split())


@given(st.text(alphabet=st.sampled_from("ab 好\n\r\t😀"), max_size=300), st.integers(1, 120))
def test_a_preview_always_holds_its_bound_and_begins_as_the_text_does(text: str, max_chars: int) -> None:
    shown = preview(text, max_chars=max_chars)
    assert len(shown) <= max_chars
    if len(text) <= max_chars:
        assert shown == text
    else:
        assert text.startswith(shown.removesuffix("…"))
        assert shown.endswith("…")


@given(json_values)
def test_identifiers_always_hold_their_bounds_and_occur_in_the_result(value: Any) -> None:
    stored = orjson.dumps(value).decode()
    found = identifiers(value)
    assert len(found) == len(set(found)) <= MAX_IDENTIFIERS
    assert sum(map(len, found)) <= MAX_IDENTIFIERS_CHARS
    for text in found:
        assert 0 < len(text) <= MAX_IDENTIFIER_CHARS
        assert orjson.dumps(text).decode().strip('"') in stored or text in stored


@given(st.lists(st.text(min_size=1, max_size=30).map(clean_text).filter(bool), unique=True, max_size=40), st.booleans())
def test_identifiers_keep_the_order_of_what_they_name(names: list[str], listed: bool) -> None:  # noqa: FBT001 (drawn)
    found = ids({"ids": names} if listed else [{"size": 1, "id": name} for name in names])
    assert found == names[: len(found)]
    one_more = sum(map(len, names[: len(found) + 1]))
    assert len(found) == min(len(names), MAX_IDENTIFIERS) or one_more > MAX_IDENTIFIERS_CHARS
