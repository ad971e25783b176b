"""Receipts: what they say, whose they are, and that no change of them goes unseen."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter

from segue.config import Settings
from segue.domain.identity import Scope
from segue.domain.receipt import ChainHead, Receipt, faults_in
from tests.support.commands import segue
from tests.support.identity import new_key, speaking
from tests.support.plans import press
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into

KEY = base64.b64encode(bytes(range(32))).decode()
READ = TypeAdapter(tuple[list[Receipt], ChainHead | None])
CANARY = "zitronenfalter"


@pytest.fixture
def signing(settings: Settings, shelf: Shelf) -> Settings:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    return settings.model_copy(update={"receipt_key": SecretStr(KEY), "auth": "api_key"})


@pytest.fixture
async def service(signing: Settings) -> AsyncIterator[Client]:
    async with running(signing) as served:
        yield served


@pytest.fixture
async def ada(service: Client, signing: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(signing, "ada")) as client:
        yield client


def delete(*numbers: int) -> Any:
    return calls(*(("mcp_delete_item", {"item_id": f"itm-{number}"}) for number in numbers))


async def several(client: Client, provider: Provider) -> str:
    """A session with three calls that run at once, and one that the user agrees to."""
    session = await client.new_session()
    aside = (("mcp_set_aside", {"item_id": f"{CANARY}-{number}"}) for number in range(3))
    provider.will(calls(*aside), delete(1), says("It is gone."))
    await client.chat(session, f"Tidy the {CANARY} up, please")
    await client.chat(session, "yes, go on")
    return session


async def chain(client: Client, session: str) -> dict[str, Any]:
    return await client.get(f"/sessions/{session}/receipts")


def faults(page: dict[str, Any], *keys: str) -> list[str]:
    receipts, head = READ.validate_python((page["items"], page["head"]))
    return faults_in(receipts, head, keys=keys)


async def test_a_receipt_says_what_was_shown_who_said_yes_in_which_words_and_what_came_of_it(
    ada: Client, provider: Provider
) -> None:
    session = await ada.new_session()
    provider.will(delete(1), says("It is gone."))
    asked = await ada.chat(session, "Delete itm-1")
    answer = await ada.chat(session, "sì, grazie")
    [effect], [said] = (
        answer["effects"],
        [each for each in await ada.messages(session) if each["content"] == "sì, grazie"],
    )
    receipt = await ada.get(f"/receipts/{effect['tool_call_id']}")
    told = receipt["content"]
    [step], [tool] = (
        asked["plan"]["steps"],
        [each for each in (await ada.get("/tools"))["items"] if each["name"] == effect["tool"]],
    )
    assert told["shown"]["question"] == asked["message"]["content"]
    assert told["shown"]["args"] == told["args"] == {"item_id": "itm-1"}
    assert told["origins"] == step["args_origin"]
    assert told["approval"] == {
        "how": "words",
        "by": "ada",
        "message_id": said["id"],
        "words": "sì, grazie",
        "at": told["approval"]["at"],
    }
    assert (told["outcome"], told["tool"], told["effect"]) == ("done", tool["name"], "destructive")
    assert re.fullmatch("[0-9a-f]{32}", told["definition"])
    assert (await chain(ada, session))["items"] == [receipt]


async def test_a_button_and_a_call_that_nobody_was_asked_about_have_receipts_that_say_so(
    ada: Client, provider: Provider
) -> None:
    session = await ada.new_session()
    provider.will(delete(1), says("It is gone."))
    asked = await ada.chat(session, "Delete itm-1")
    assert (await press(ada, session, asked)).status_code == 200
    provider.will(calls(("mcp_set_aside", {"item_id": "itm-2"}), ("mcp_get_item", {"item_id": "itm-2"})), says("Done."))
    await ada.chat(session, "Put itm-2 aside")
    pressed, unasked = [each["content"] for each in (await chain(ada, session))["items"]]
    assert (pressed["approval"]["how"], pressed["approval"]["words"]) == ("button", "👍")
    assert (unasked["tool"], unasked["approval"], unasked["shown"]) == ("mcp_set_aside", None, None)


def changes(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The page with one value changed, for every value in it; left out are those that say nothing."""

    def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in inside:
            yield from paths(each, (*path, key))
        if not isinstance(value, dict | list):
            yield path

    for path in paths({name: page[name] for name in ("items", "head")}):
        changed = deepcopy(page)
        place: Any = changed
        for key in path[:-1]:
            place = place[key]
        match place[path[-1]]:
            case str(text):
                place[path[-1]] = text[:-1] + ("B" if text.endswith("A") else "A") if text else "x"
            case int(number):
                place[path[-1]] = number + 1
            case None:
                place[path[-1]] = "something"
        yield changed


async def test_every_changed_value_a_gap_another_order_and_a_cut_are_found(
    ada: Client, provider: Provider, tmp_path: Path
) -> None:
    page = await chain(ada, await several(ada, provider))
    assert [each["number"] for each in page["items"]] == [1, 2, 3, 4]
    assert faults(page) == faults(page, page["head"]["signed_by"]) == []
    tried = 0
    for changed in changes(page):
        tried += 1
        assert faults(changed), [
            each for each in zip(changed["items"], page["items"], strict=True) if each[0] != each[1]
        ]
    assert tried > 90
    first, second, third, last = page["items"]
    assert faults(page | {"items": [first, third, last]})
    assert faults(page | {"items": [second, first, third, last]})
    assert faults(page | {"items": [first, second, third]})
    assert faults(page | {"items": []})
    assert faults({"items": [], "head": None}) == []
    cut = {name: third[name] for name in ("number", "hash", "signature", "signed_by")}
    assert faults(page | {"items": [first, second, third], "head": cut})
    assert faults(page | {"items": [{**last, "signature": None, "signed_by": None}]})
    (file := tmp_path / "receipts.json").write_text(json.dumps(page), "utf-8")
    code, said = await asyncio.to_thread(segue, "receipts", "verify", str(file), "--key", page["head"]["signed_by"])
    assert (code, "4 receipts, unbroken" in said, "as --key says" in said) == (0, True, True), said
    code, said = await asyncio.to_thread(segue, "receipts", "verify", str(file), "--key", KEY)
    assert (code, said.count("no signature that holds")) == (1, 5), said


async def test_what_has_not_answered_has_a_receipt_that_says_so(ada: Client, provider: Provider, shelf: Shelf) -> None:
    session = await ada.new_session()
    provider.will(calls(("mcp_stamp_item", {"item_id": "itm-1"})))
    await ada.chat(session, "Stamp itm-1")
    stuck = asyncio.create_task(ada.send(session, "yes"))
    await shelf.wait_for("stamp itm-1")
    [*_, turn] = await ada.turns(session)
    await ada.http.post(f"/sessions/{session}/turns/{turn['turn_id']}/cancel")
    await stuck
    page = await chain(ada, session)
    assert [each["content"]["outcome"] for each in page["items"]] == ["unknown"]
    assert faults(page) == []
    shelf.go.set()


async def test_the_words_of_an_erased_user_are_gone_and_their_chain_still_holds(
    ada: Client, provider: Provider, service: Client, signing: Settings
) -> None:
    session, deleted = await several(ada, provider), await several(ada, provider)
    before = await chain(ada, session)
    assert CANARY in json.dumps(before)
    assert (await ada.http.delete(f"/sessions/{deleted}")).status_code == 204
    async with speaking(service, await new_key(signing, "root", ["ops"])) as operator, looking_into(signing) as stores:
        assert (await operator.http.delete("/ops/users/ada", params={"confirm": "ada"})).status_code == 200
        left = await chain(operator, session)
        assert (await operator.http.get(f"/sessions/{deleted}/receipts")).status_code == 404
        rows = [str(dict(row)) for row in await stores.database.fetch("SELECT * FROM receipts")]
        assert await stores.database.fetchval("SELECT count(*) FROM receipt_contents") == 0
    assert len(rows) == 4
    assert not [row for row in rows if CANARY in row or "'ada'" in row]  # a hash may hold these letters
    assert [each["content"] for each in left["items"]] == [each["salt"] for each in left["items"]] == [None] * 4
    assert faults(left, left["head"]["signed_by"]) == []
    assert [each["hash"] for each in left["items"]] == [each["hash"] for each in before["items"]]


async def test_another_users_receipt_is_not_there_and_operators_read_it_with_the_scope_for_words(
    ada: Client, provider: Provider, service: Client, signing: Settings
) -> None:
    session = await several(ada, provider)
    call = (await chain(ada, session))["items"][0]["tool_call_id"]
    seen = {}
    users: dict[str, list[Scope]] = {"mallory": [], "ops": ["ops"], "root": ["ops", "ops:content"]}
    for user, scopes in users.items():
        async with speaking(service, await new_key(signing, user, scopes)) as other:
            answers = [await other.http.get(path) for path in (f"/sessions/{session}/receipts", f"/receipts/{call}")]
            seen[user] = [answer.json().get("code", answer.status_code) for answer in answers]
            acts = (await other.http.get("/ops/audit")).json().get("items", [])
            assert [act["action"] for act in acts].count("read_session") == (2 if user == "root" else 0)
    assert seen == {
        "mallory": ["session_not_found", "receipt_not_found"],
        "ops": ["forbidden", "forbidden"],
        "root": [200, 200],
    }


@pytest.mark.sweep
async def test_a_fork_begins_a_chain_of_its_own_and_pages_of_a_chain_are_one(ada: Client, provider: Provider) -> None:
    session = await several(ada, provider)
    last = (await ada.messages(session))[-1]
    fork = (await ada.http.post(f"/sessions/{session}/fork", json={"message_id": last["id"]})).json()["id"]
    assert await chain(ada, fork) == {"items": [], "next_cursor": None, "head": None}
    provider.will(calls(("mcp_set_aside", {"item_id": "itm-9"})), says("Done."))
    await ada.chat(fork, "Put itm-9 aside")
    assert [each["number"] for each in (await chain(ada, fork))["items"]] == [1]
    first = await ada.get(f"/sessions/{session}/receipts", limit=3)
    rest = await ada.get(f"/sessions/{session}/receipts", limit=3, cursor=first["next_cursor"])
    assert faults(rest | {"items": first["items"] + rest["items"]}) == []
