"""The routes of what is known of a user."""

from typing import Any

import pytest

from segue.config import Settings
from tests.support.facts import known, tell
from tests.support.service import Client
from tests.support.stores import looking_into


async def test_a_fact_is_added_listed_and_taken_back(client: Client) -> None:
    response = await client.http.post("/memories", json={"content": "  I prefer\n tea ", "kind": "preference"})
    assert response.status_code == 201
    added = response.json()
    assert (added["kind"], added["content"], added["last_used_at"]) == ("preference", "I prefer tea", None)
    assert await client.get("/memories") == {"items": [added], "next_cursor": None}
    assert (await client.get(f"/sessions/{await client.new_session()}/memory"))["long_term"] == [added]
    gone = await client.http.delete(f"/memories/{added['id']}")
    assert (gone.status_code, gone.content, "content-type" in gone.headers) == (204, b"", False)
    assert await known(client) == []
    assert (await client.http.delete(f"/memories/{added['id']}")).json()["code"] == "memory_not_found"


@pytest.mark.sweep
async def test_the_list_is_newest_first_and_paged(client: Client) -> None:
    for number in range(5):
        await tell(client, f"fact {number}")
    pages: list[list[str]] = []
    params: dict[str, Any] = {"limit": 2}
    while params.get("cursor", "") is not None:
        page = await client.get("/memories", **params)
        pages.append([memory["content"] for memory in page["items"]])
        params["cursor"] = page["next_cursor"]
    assert pages == [["fact 4", "fact 3"], ["fact 2", "fact 1"], ["fact 0"]]


async def test_a_query_gives_what_it_finds_best_first_and_nothing_else(client: Client) -> None:
    for content in (
        "The dog is called Rex",
        "The cat is called Tom and hates the dog next door a lot",
        "I live in Rome",
    ):
        await tell(client, content, "personal_info")
    assert await known(client, query="Where is the dog?") == [
        "The dog is called Rex",
        "The cat is called Tom and hates the dog next door a lot",
    ]
    assert await known(client, query="dog", limit=1) == ["The dog is called Rex"]
    assert await known(client, query="aeroplane") == []
    assert await known(client, query="the is and") == []


async def test_what_is_no_id_of_a_session_has_no_facts(client: Client) -> None:
    await tell(client, "I prefer tea")
    for odd in ("\0", "x", "ses_\0", ""):
        assert await client.get("/memories", session_id=odd) == {"items": [], "next_cursor": None}
        gone = await client.http.delete("/memories", params={"session_id": odd})
        assert (gone.status_code, gone.content) == (204, b"")
    assert await known(client) == ["I prefer tea"]


async def test_the_same_fact_twice_is_one(client: Client) -> None:
    assert await tell(client, "I prefer tea") == await tell(client, "i prefer TEA!")
    assert await known(client) == ["I prefer tea"]


SAME = [
    ("I live in Perché", "i live in PERCHE"),
    ("My e-mail is short, always", "My e mail is short: always!"),
    ("«I like tea» (green)", "I like tea - green."),
    ("L’ora è tarda", "l'ora è tarda"),
]
SIGNED = [
    ("My blood type is A+", "My blood type is A-"),
    ("I program in C", "I program in C++", "I program in C#"),
    ("The mark is 5", "The mark is -5", "The mark is +5", "The mark is 5%"),
    ("I am called ada_b", "I am called ada-b", "I am called ada@b"),
    ("More than 3: >3", "More than 3: <3"),
]


async def test_facts_whose_words_differ_only_in_signs_are_not_one_and_those_in_how_they_are_written_are(
    client: Client,
) -> None:
    for one, other in SAME:
        assert await tell(client, one) == await tell(client, other), other
    assert len(await known(client)) == len(SAME)
    for facts in SIGNED:
        assert len({await tell(client, each) for each in facts}) == len(facts), facts


async def test_a_fact_is_changed_and_found_by_its_new_words(client: Client) -> None:
    memory_id = await tell(client, "I prefer tea")
    path = f"/memories/{memory_id}"
    changed = await client.http.patch(path, json={"content": " I prefer  coffee "})
    assert (changed.status_code, changed.json()["content"], changed.json()["kind"]) == (200, "I prefer coffee", "fact")
    assert (await client.http.patch(path, json={"kind": "preference"})).json()["kind"] == "preference"
    assert (await client.http.patch(path, json={})).json()["id"] == memory_id
    assert await known(client, query="coffee") == ["I prefer coffee"]
    assert await known(client, query="tea") == []


async def test_a_fact_cannot_be_made_another_that_is_known(client: Client) -> None:
    await tell(client, "I prefer tea")
    other = await tell(client, "I prefer coffee")
    refused = await client.http.patch(f"/memories/{other}", json={"content": "I prefer TEA"})
    assert (refused.status_code, refused.json()["code"]) == (409, "memory_exists")
    assert await known(client) == ["I prefer coffee", "I prefer tea"]


async def test_a_foreign_fact_looks_like_a_missing_one(client: Client, settings: Settings) -> None:
    memory_id = await tell(client, "I prefer tea")
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE memories SET owner = 'somebody else'")
        path = f"/memories/{memory_id}"
        assert (await client.http.delete(path)).json()["code"] == "memory_not_found"
        assert (await client.http.patch(path, json={"content": "x"})).json()["code"] == "memory_not_found"
        assert await known(client) == await known(client, query="tea") == []
        assert await stores.database.fetchval("SELECT count(*) FROM memories") == 1
    assert await tell(client, "I prefer tea") != memory_id


NO_FACTS: tuple[dict[str, Any], ...] = (
    {},
    {"content": "", "kind": "fact"},
    {"content": "   ", "kind": "fact"},
    {"content": "x" * 10_000, "kind": "fact"},
    {"content": "nul \x00", "kind": "fact"},
    {"content": "x", "kind": "secret"},
    {"content": "x", "kind": "fact", "owner": "somebody else"},
    {"content": ["x"], "kind": "fact"},
)


async def test_what_is_no_fact_is_refused(client: Client) -> None:
    for body in NO_FACTS:
        assert (await client.http.post("/memories", json=body)).status_code == 422, body
    assert await known(client) == []


@pytest.mark.sweep
async def test_half_a_character_is_refused(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    refused = await client.http.post("/memories", content=b'{"content": "\\ud800", "kind": "fact"}', headers=headers)
    assert refused.status_code == 422


@pytest.mark.sweep
async def test_an_id_that_is_none_is_a_missing_one(client: Client) -> None:
    for memory_id in ("*", "mem_1", "ses_01m7wf7b3b006ps1yk9q4v39z2", "a:b", "%00", "x" * 10_000):
        assert (await client.http.delete(f"/memories/{memory_id}")).status_code == 404, memory_id


ODD: tuple[tuple[dict[str, Any], int], ...] = (
    ({"query": "\x00 & | ! ( ) : * '"}, 200),
    ({"query": "' OR 1=1 --"}, 200),
    ({"query": "😀"}, 200),
    ({"query": "x" * 10_000}, 422),
    ({"limit": 0}, 422),
    ({"cursor": "abc"}, 422),
    ({"cursor": "Im1lbV8wMW03d2Y3YjNiMDA2cHMxeWs5cTR2Mzl6MiI=", "query": "tea"}, 422),
)


@pytest.mark.sweep
async def test_odd_parameters_break_nothing(client: Client) -> None:
    await tell(client, "I prefer tea")
    for params, status in ODD:
        assert (await client.http.get("/memories", params=params)).status_code == status, params
