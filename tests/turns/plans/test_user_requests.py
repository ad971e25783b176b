"""Tools that need something of the user: the question waits as a step, and the call is made again with the answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from segue.config import Settings
from segue.domain.tool import ToolContext
from segue.domain.user_request import ToolAsks, UserRequest
from segue.tools.native import tool
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running

SCHEMA = {
    "type": "object",
    "properties": {
        "address": {"type": "string", "title": "Address"},
        "guests": {"type": "integer", "minimum": 1},
        "seat": {"type": "string", "enum": ["inside", "outside"]},
    },
    "required": ["address", "guests"],
}
FORM = UserRequest("form", "Where to, and for how many?", schema=SCHEMA)
ADDRESS = {"address": "via Roma 3", "guests": 2}

given: list[list[Any]] = []


@tool(effect="write")
async def deliver(what: str, context: ToolContext) -> dict[str, Any]:
    """Deliver something."""
    given.append([(each.action, each.content, each.state) for each in context.answers])
    if not context.answers:
        raise ToolAsks(FORM, state={"asked": 1})
    return {"delivered": what}


@tool(effect="write")
async def wrap() -> None:
    """Wrap what is ordered."""
    fields = {"copies": {"type": "integer"}, "gift": {"type": "boolean"}, "colour": {"type": "string"}}
    raise ToolAsks(UserRequest("form", "How?", schema={"type": "object", "properties": fields, "required": [*fields]}))


@tool(effect="read_only")
async def balance(context: ToolContext) -> dict[str, Any]:
    """Read the balance."""
    given.append([each.action for each in context.answers])
    if not context.answers:
        raise ToolAsks(UserRequest("url", "Log in first.", url="https://bank.example/login?x=1"))
    return {"balance": 7 if context.answers[0].action == "accept" else None}


@tool(effect="read_only")
async def nags() -> None:
    """Ask for ever."""
    given.append([])
    raise ToolAsks(UserRequest("form", "Again?", schema={"type": "object", "properties": {}}))


@tool(effect="write")
async def set_aside(amount: int) -> dict[str, Any]:
    """Set money aside."""
    given.append([amount])
    return {"set_aside": amount}


@pytest.fixture
async def client(settings: Settings, clock: Frozen) -> AsyncIterator[Client]:
    given.clear()
    async with running(settings, clock=clock, tools=[deliver, wrap, balance, nags, set_aside]) as served:
        yield served


async def asked(
    client: Client, provider: Provider, name: str, message: str = "Portami una pizza a casa, per favore"
) -> tuple[str, dict[str, Any]]:
    provider.will(calls((name, {"what": "pizza"} if name == "deliver" else {})))
    session = await client.new_session()
    return session, await client.chat(session, message)


async def decide(client: Client, session: str, version: int, decision: str = "confirm", **more: Any) -> Any:
    body = {"decision": decision, "version": version, **more}
    return await client.http.post(f"/sessions/{session}/plan/decision", json=body)


def reads(reading: str, **values: Any) -> Any:
    return says(json.dumps({"reading": reading, "values": json.dumps(values)}))


async def test_a_call_that_asks_becomes_a_step_that_waits_and_counts_neither_as_failure_nor_as_success(
    client: Client, provider: Provider
) -> None:
    session, answer = await asked(client, provider, "deliver")
    [step] = answer["plan"]["steps"]
    assert (answer["plan"]["status"], step["status"], step["tool_call_id"]) == ("waiting", "waiting", None)
    assert step["asks"] == {
        "mode": "form",
        "message": FORM.message,
        "source": "native",
        "schema": SCHEMA,
        "fields": ["address", "guests", "seat"],
        "url": None,
        "given": None,
    }
    text = answer["message"]["content"]
    assert "│ Where to, and for how many?" in text
    assert "1. inside, 2. outside" in text
    state = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]["deliver"]
    assert (state["status"], state["consecutive_failures"], state["last_success_time"]) == ("available", 0, None)
    [waiting] = (await client.get("/approvals"))["items"]
    assert waiting["step"] == step


async def test_the_answer_of_a_button_is_checked_and_given_to_the_call_once(client: Client, provider: Provider) -> None:
    session, answer = await asked(client, provider, "deliver")
    version = answer["plan"]["version"]
    wrongs: list[dict[str, Any]] = [{}, {"answer": {**ADDRESS, "guests": 0}}, {"answer": {**ADDRESS, "more": 1}}]
    for wrong in wrongs:
        refused = await decide(client, session, version, **wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_answer")
    provider.will(says("Fatto."))
    done = await decide(client, session, version, answer=ADDRESS)
    assert done.status_code == 200, done.text
    assert done.json()["plan"]["status"] == "completed"
    assert given == [[], [("accept", ADDRESS, {"asked": 1})]]


@pytest.mark.parametrize(
    ("said", "copied"),
    [("sì, l'indirizzo è via Roma 3, siamo in due", "via Roma 3"), ("好的，罗马路3号，两个人", "罗马路3号")],
)
async def test_the_next_message_answers(client: Client, provider: Provider, said: str, copied: str) -> None:
    session, _ = await asked(client, provider, "deliver")
    provider.will(reads("answer", address=copied, guests=2), says("Fatto."))
    answer = await client.chat(session, said)
    assert answer["plan"]["status"] == "completed"
    assert given[1:] == [[("accept", {"address": copied, "guests": 2}, {"asked": 1})]]


async def test_what_is_missing_is_asked_again_and_what_the_user_did_not_say_is_missing(
    client: Client, provider: Provider
) -> None:
    session, _ = await asked(client, provider, "deliver")
    provider.will(reads("answer", address="via Mafia 1", guests=2))
    answer = await client.chat(session, "siamo in due")
    [step] = answer["plan"]["steps"]
    assert (step["status"], step["asks"]["given"]) == ("waiting", {"guests": 2})
    assert "Manca ancora: address" in answer["message"]["content"]
    provider.will(reads("answer", address="via Roma 3"), says("Fatto."))
    answer = await client.chat(session, "via Roma 3")
    assert given[1:] == [[("accept", {"address": "via Roma 3", "guests": 2}, {"asked": 1})]]


async def test_a_zero_and_a_no_that_the_user_has_given_are_shown_while_more_is_asked(
    client: Client, provider: Provider
) -> None:
    session, _ = await asked(client, provider, "wrap")
    provider.will(reads("answer", copies=0, gift=False))
    answer = await client.chat(session, "zero copie, e non è un regalo")
    assert answer["plan"]["steps"][0]["asks"]["given"] == {"copies": 0, "gift": False}
    assert "- copies*: 0\n- gift*: False\n- colour*\n" in answer["message"]["content"]


async def test_a_no_runs_nothing_that_changes_the_world_and_is_told_to_what_only_reads(
    client: Client, provider: Provider
) -> None:
    session, _ = await asked(client, provider, "deliver")
    assert (await client.chat(session, "no grazie"))["plan"]["status"] == "cancelled"
    session, _ = await asked(client, provider, "balance")
    provider.will(says("Peccato."))
    assert (await client.chat(session, "no"))["plan"]["status"] == "completed"
    assert given == [[], [], ["decline"]]


async def test_a_link_is_shown_with_its_host_and_the_call_goes_on_when_the_user_is_done(
    client: Client, provider: Provider
) -> None:
    session, answer = await asked(client, provider, "balance")
    assert "https://bank.example/login?x=1" in answer["message"]["content"]
    refused = await decide(client, session, answer["plan"]["version"], answer={})
    assert refused.json()["code"] == "invalid_answer"
    provider.will(says('{"verdict": "confirm"}'), says("Sette."))
    assert (await client.chat(session, "fatto, sono entrato"))["plan"]["status"] == "completed"
    assert given == [[], ["accept"]]


async def test_a_message_about_something_else_leaves_the_question_waiting(client: Client, provider: Provider) -> None:
    session, before = await asked(client, provider, "deliver")
    provider.will(reads("other"), says("Rome."))
    answer = await client.chat(session, "What is the capital of Italy?")
    assert answer["message"]["content"].startswith("Rome.")
    assert await client.get(f"/sessions/{session}/plan") == before["plan"]


async def test_a_tool_that_asks_for_ever_is_ended(client: Client, provider: Provider) -> None:
    session, answer = await asked(client, provider, "nags")
    provider.will(says("It asked too often."))
    for _ in range(5):
        answer = (await decide(client, session, answer["plan"]["version"], answer={})).json()
    assert answer["plan"]["status"] == "failed"
    assert len(given) == 6


async def test_two_calls_of_a_round_that_ask_are_asked_about_one_after_the_other(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("deliver", {"what": "pizza"}), ("deliver", {"what": "beer"})))
    session = await client.new_session()
    answer = await client.chat(session, "Pizza e birra")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["waiting", "pending"]
    answer = (await decide(client, session, answer["plan"]["version"], answer=ADDRESS)).json()
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]
    provider.will(says("Fatto."))
    answer = (await decide(client, session, answer["plan"]["version"], answer=ADDRESS)).json()
    assert answer["plan"]["status"] == "completed"
    assert [len(each) for each in given] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("way", ["button", "words"])
async def test_the_answer_to_a_call_that_asks_goes_on_with_what_the_same_yes_was_for(
    settings: Settings, provider: Provider, way: str
) -> None:
    given.clear()
    async with running(settings.model_copy(update={"confirm": "always"}), tools=[deliver, set_aside]) as client:
        provider.will(calls(("deliver", {"what": "pizza"}), ("set_aside", {"amount": 50})))
        session = await client.new_session()
        await client.chat(session, "Pizza, please, and 50 for the party")
        answer = await client.chat(session, "yes, both")
        assert ([step["status"] for step in answer["plan"]["steps"]], given) == (["waiting", "waiting"], [[]])
        if way == "words":
            provider.will(reads("answer", **ADDRESS), says("Done."))
            answer = await client.chat(session, "to via Roma 3, for 2")
        else:
            provider.will(says("Done."))
            answer = (await decide(client, session, answer["plan"]["version"], answer=ADDRESS)).json()
    assert (answer["plan"]["status"], given) == ("completed", [[], [("accept", ADDRESS, {"asked": 1})], [50]])


async def test_a_call_that_asks_behind_another_of_the_same_yes_waits_and_goes_on_with_the_rest(
    settings: Settings, provider: Provider
) -> None:
    given.clear()
    async with running(settings.model_copy(update={"confirm": "always"}), tools=[deliver, set_aside]) as client:
        provider.will(
            calls(("set_aside", {"amount": 50}), ("deliver", {"what": "pizza"}), ("set_aside", {"amount": 9}))
        )
        session = await client.new_session()
        await client.chat(session, "50 for the party, pizza, please, and 9 for a tip")
        answer = await client.chat(session, "yes, all three")
        statuses = [step["status"] for step in answer["plan"]["steps"]]
        assert (statuses, given) == (["complete", "waiting", "waiting"], [[50], []])
        provider.will(says("Done."))
        answer = (await decide(client, session, answer["plan"]["version"], answer=ADDRESS)).json()
    assert (answer["plan"]["status"], given[2:]) == ("completed", [[("accept", ADDRESS, {"asked": 1})], [9]])


async def test_a_call_that_a_weak_yes_holds_is_asked_about_after_what_another_call_of_the_round_asks(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(says("Metto da parte 50 euro?"), calls(("balance", {}), ("set_aside", {"amount": 50})))
    await client.chat(session, "Vorrei risparmiare")
    answer = await client.chat(session, "ottimo")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["waiting", "pending"]
    answer = await client.chat(session, "sì")
    assert (answer["plan"]["status"], given) == ("waiting", [[], ["accept"]])
    assert "amount: 50" in answer["message"]["content"]
    provider.will(says("Fatto."))
    assert (await client.chat(session, "sì"))["plan"]["status"] == "completed"
    assert given[2:] == [[50]]
