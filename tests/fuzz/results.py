"""What tools answer: stored, described, paged; and the plans that models write."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Final

import orjson

from segue.domain.plan import MAX_STEPS as MOST_STEPS
from segue.domain.redaction import without_secret_texts, without_secrets
from segue.models.untrusted import CLOSE, fenced, neutralised, unfenced
from segue.plans.plan_parser import MAX_DESCRIPTION_CHARS, REFERENCE, find_json, parse_plan, referred_to
from segue.tools.normalize import clean, described, make_payload
from segue.tools.paging import MAX_STEPS, InvalidPath, PageSpec, TooManySteps, page_here
from segue.tools.run import credentials_refused, reported_error
from segue.tools.summaries import MAX_IDENTIFIERS, MAX_SUMMARY_CHARS, identifiers, preview, summarise, summarise_call
from tests.fuzz.draw import Draw, as_text

TOOLS: Final = ("search_mail", "read_mail", "mcp_delete_all", "web_search")
WORDS_OF_RESULTS: Final = (
    "id", "items", "content", "text", "error", "success", "message", "data", "mime_type",
    "image/png", "files", "total",
    "subject", "name", "url", "https://a.example/x?y=1", "inv-7f3a9", "password", "token",
    "a\tb\n1\t2", "a,b\n1,2\n3,4",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "encoding", "base64", "</untrusted>",
    "HTTP 401", "invalid api key", "sk-0123456789abcdef01", "Bearer abc123def456",
    "|a|b|\n|-|-|\n|1|2|", "report.pdf",
)  # fmt: skip
WORDS_OF_PLANS: Final = (
    "steps", "id", "description", "tool", "args", "requires_confirmation", REFERENCE, "path", "1",
    *TOOLS, "none", "status",
    "Read it", "null", '{"a": 1}', "```json\n", "\n```", "search-mail",
)  # fmt: skip
PATHS: Final = (
    "a", "items[0].id", "items[*].name", "[*]", "[0]", "*.id", "items[?id=='x']", "a.b.c", "[1:3]",
    "items[].id | [0]",
    "@", "length(@)", "sort_by(items, &id)", "{a: id}", "[", "a[", "`[1", "a||b", "", " ", "&a", "*", "[::-1]",
)  # fmt: skip
PLANS: Final = (
    b'[{"id":1,"description":"Find","tool":"read_mail"},{"id":2,"description":"x","tool":"a","args":{"id":{"$from":1}}}]',
    b'Sure! ```json\n{"steps": [{"description": "x", "tool": null,},]}\n``` {"a": "}"}',
    b'[{"description": "a", "tool": "mail", "args": "{\\"q\\": 1}"}]',
    b"{[{[",
)
RESULTS: Final = (
    b'{"items":[{"id":"m1","subject":"Hi"},{"id":"m2","subject":"Ho"}],"total":9}',
    b'[1,2,3,"a","b"]',
    b'{"content":"line\\nline\\nline","path":"a.txt"}',
    b'{"error":"HTTP 401 unauthorized"}',
    b'{"mime_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"}',
)


def plans(data: bytes) -> None:
    draw = Draw(data)
    done = draw.number(MOST_STEPS + 1)
    match draw.number(3):
        case 0:
            text = as_text(draw.rest())
        case 1:
            text = draw.words(WORDS_OF_PLANS)
        case _:
            said = draw.json(WORDS_OF_PLANS)
            text = orjson.dumps(clean(said)).decode()
    for value in find_json(text):
        assert isinstance(value, dict | list)
    steps = parse_plan(text, tools=TOOLS, done=done)
    assert [step.id for step in steps] == list(range(done + 1, done + 1 + len(steps)))
    assert done + len(steps) <= MOST_STEPS
    for step in steps:
        assert step.status == "pending"
        assert step.tool is None or step.tool in TOOLS
        assert (step.args is None) or step.tool is not None
        assert len(step.description) <= MAX_DESCRIPTION_CHARS
        assert all(0 < each < step.id for each in referred_to(step.args))
    if steps and all(step.description for step in steps):
        written = {"steps": [asdict(step) for step in steps]}
        assert parse_plan(orjson.dumps(written).decode(), tools=TOOLS, done=done) == steps, written


def stored(data: bytes) -> None:
    draw = Draw(data)
    value = draw.json(WORDS_OF_RESULTS)
    max_bytes = draw.number(2000) or 10_000
    payload = make_payload(value, max_bytes=max_bytes)
    assert payload.text == payload.value if payload.kind == "text" else orjson.loads(payload.text) == payload.value
    assert clean(payload.value) == payload.value
    assert payload.cut_from is not None or payload.size_bytes <= max_bytes
    assert make_payload(payload.value, max_bytes=2**31).text == payload.text
    assert len(identifiers(payload.shown)) <= MAX_IDENTIFIERS
    assert len(summarise(payload.shown)) <= MAX_SUMMARY_CHARS
    schema = {"required": ["id"], "properties": {"id": {}}}
    args = payload.value if isinstance(payload.value, dict) else {}
    assert len(summarise_call("readMail_now", args, schema, payload.shown)) <= MAX_SUMMARY_CHARS + 100
    assert len(preview(payload.shown_text, max_chars=100)) <= 100
    credentials_refused(reported_error(payload.value) or "")
    redacted = without_secrets(payload.value)
    assert without_secrets(redacted) == redacted, redacted
    without_secret_texts(payload.value)
    for part in payload.parts:
        part.content()
    assert not described(payload.shown)[1], payload.shown
    text = fenced(payload.text)
    assert text.count(CLOSE) == 1
    assert neutralised(unfenced(text)) == unfenced(text)


def paging(data: bytes) -> None:
    draw = Draw(data)
    path: str | None = draw.one_of(PATHS) + draw.one_of(("", ".id", "[0]", "[*].a", " | [0]", "[?a]", "[]"))
    path = (path if draw.number(8) else draw.text(20)) if draw.number(4) else None
    limit, max_bytes = 1 + draw.number(20), draw.one_of((10_000, 100, 20))
    value = clean(draw.json(WORDS_OF_RESULTS))
    content = orjson.dumps(value).decode()
    page: Callable[..., PageSpec] = partial(PageSpec, path, limit=limit, max_bytes=max_bytes)
    with suppress(InvalidPath, TooManySteps):
        first = page_here(content, PageSpec(path), MAX_STEPS)
        whole, joined = first.result, None
        offset: int | None = 0
        while offset is not None and first.result_total is not None and first.result_total <= 60:
            part = page_here(content, page(offset=offset), MAX_STEPS)
            assert part.result_total == first.result_total
            joined = part.result if joined is None else joined + part.result
            assert part.next_offset is None or part.next_offset > offset
            offset = part.next_offset
        assert joined is None or joined == whole, (path, whole, joined)
