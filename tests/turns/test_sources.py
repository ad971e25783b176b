"""What an answer rests on comes with it: pages, files and results, numbered as the text has them, at every door."""

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from segue.config import Settings
from segue.tools.summaries import MAX_LEAVES, named_objects, place_of
from tests.support.openai_client import openai_client
from tests.support.provider import Provider, calls, says
from tests.support.results import loaded, use_toolbox
from tests.support.service import Client, running

ROME = {"title": "Rome by bus", "url": "https://example.org/rome"}
MILAN = {"title": "The trams of Milan", "url": "https://example.org/rome/milan"}
MAIL = {"id": "eml-1a2b3c", "subject": "Invoice of the plumber"}
FOUND = ("echo", {"text": "x", "results": [ROME, MILAN], "mails": [MAIL]})
CITED = "The bus takes an hour [1](https://example.org/rome/milan)."


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    use_toolbox(settings)
    async with running(settings) as served:
        yield served


def shown(answer: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(each["id"], each["title"], each["url"]) for each in answer["sources"]]


async def test_an_answer_has_the_pages_and_parts_that_it_names_in_the_order_of_its_text(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(calls(FOUND), says(f"{CITED} See the invoice of the PLUMBER."), says("Nothing to add."))
    answer = await client.chat(session, "How long is it?")
    assert shown(answer) == [("1", *MILAN.values()), ("2", MAIL["subject"], None)]
    [call] = answer["tool_calls"]
    assert [each["part"] for each in answer["sources"]] == ["results[1]", "mails[0]"]
    for source, whole in zip(answer["sources"], (MILAN, MAIL), strict=True):
        assert source["tool_call_id"] == call["tool_call_id"]
        assert (await loaded(client, session, source, path=source["part"]))["result"] == whole
    assert (await client.chat(session, "And else?"))["sources"] == []
    said = [each["sources"] for each in await client.messages(session) if each["role"] == "assistant"]
    assert said == [[], answer["sources"], []]


async def test_an_answer_that_names_what_an_earlier_turn_found_has_that_as_its_source(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(calls(FOUND), says("Done."), says(f"{CITED} I mean eml-1a2b3c."), says("Not eml-1a2b3c4."))
    [call] = (await client.chat(session, "Look it up"))["tool_calls"]
    answer = await client.chat(session, "Which one?")
    assert [each["url"] for each in answer["sources"]] == [MILAN["url"]]
    assert answer["sources"][0]["tool_call_id"] == call["tool_call_id"]
    assert (await client.chat(session, "And now?"))["sources"] == []


async def test_a_page_that_was_read_for_an_answer_that_names_none_and_files_of_the_message_are_its_sources(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    file = {"file": ("costs.csv", b"name,costs\nlamp,12\n")}
    added = (await client.http.post(f"/sessions/{session}/attachments", files=file)).json()
    provider.will(calls(("echo", {"text": "x", **ROME})), says("It is cheap."))
    answer = await client.chat(session, "Is it cheap?", attachments=[added["id"]])
    assert shown(answer) == [("1", "costs.csv", None), ("2", *ROME.values())]
    assert answer["sources"][0]["tool_call_id"] == answer["tool_calls"][0]["tool_call_id"]


async def test_each_door_has_them_in_its_own_form(client: Client, provider: Provider) -> None:
    provider.will(*[calls(FOUND), says(CITED)] * 4)
    async with openai_client(client) as ai:
        streamed: list[Any] = [
            event async for event in await ai.responses.create(model="segue", input="how?", stream=True)
        ]
        completion = await ai.chat.completions.create(
            model="segue", messages=[{"role": "user", "content": "how long?"}]
        )
    noted: Any
    annotation: Any
    [noted] = [each for each in streamed if each.type == "response.output_text.annotation.added"]
    [annotation] = streamed[-1].response.output[-1].content[0].annotations
    assert noted.annotation.model_dump() == annotation.model_dump()
    of_completion = (completion.choices[0].message.annotations or [])[0].url_citation
    for each in (annotation, of_completion):
        assert (each.title, each.url) == tuple(MILAN.values())
        assert CITED[each.start_index : each.end_index] == "[1](https://example.org/rome/milan)"
    ui = {"id": "c1", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "how long?"}]}]}
    lines = (await client.http.post("/api/chat", json=ui)).text.splitlines()
    chunks = [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    [chunk] = [each for each in chunks if each["type"].startswith("source")]
    assert chunk == {"type": "source-url", "sourceId": chunk["sourceId"], **MILAN}
    [_, later] = (await client.get("/api/chat/c1/messages"))["items"]
    assert later["parts"][-1] == chunk
    body = {"model": "segue", "stream": True, "messages": [{"role": "user", "content": "how long is it?"}]}
    sent = (await client.http.post("/v1/chat/completions", json=body, headers={"X-OpenWebUI-Chat-Id": "c2"})).text
    events = [json.loads(line[6:]).get("event") for line in sent.splitlines() if line.startswith("data: {")]
    [source] = [each["data"] for each in events if each and each["type"] == "source"]
    assert source["source"] == {"id": MILAN["url"], "name": MILAN["title"], "url": MILAN["url"]}


def test_what_a_result_can_be_cited_for_is_found_within_a_bound() -> None:
    found = list(named_objects({"odd key": [{"name": "x"}], "bad": {"url": "javascript:alert(1)"}}))
    assert found == [('"odd key"[0]', "x", None)]
    large = [[0] * MAX_LEAVES, {"title": "behind the bound"}]
    assert list(named_objects(large)) == [("[1]", "behind the bound", None)]
    assert list(named_objects([0] * MAX_LEAVES + [{"title": "behind the bound"}])) == []


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("(https://a.it/x)", True),
        ("https://a.it/x.", True),
        ("https://a.it/x/", True),
        ("https://a.it/x?y=1", False),
        ("https://a.it/x/y", False),
        ("https://a.it/x.html", False),
    ],
)
def test_an_address_is_no_part_of_a_longer_one(text: str, stands: bool) -> None:  # noqa: FBT001
    assert (place_of("https://a.it/x", text) is not None) is stands
