"""A reply that says what is wanted instead, asks back or wants more than it approves: no word of it is lost."""

from typing import Any

import pytest

from tests.support.plans import THREE_STEPS, deletion, planned, reads
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client
from tests.support.steering import stopped

ASK_IN = {"en": "Delete the first thing", "it": "Elimina la prima cosa", "zh": "删除第一个", "ar": "احذف الأول"}
FIRST = ("mcp_delete_item", {"item_id": "itm-1"})


async def waiting(client: Client, provider: Provider, language: str) -> tuple[str, dict[str, Any]]:
    session = await client.new_session()
    provider.will(calls(FIRST))
    return session, await client.chat(session, ASK_IN[language])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("language", "wait"),
    [
        ("en", "wait, the second one"),
        ("en", "hold on, make it the other"),
        ("it", "aspetta, meglio la seconda"),
        ("it", "no, aspetta, il secondo"),
        ("zh", "等等，第二个"),
        ("ar", "انتظر، الثاني"),
    ],
)
async def test_a_wait_that_says_what_is_wanted_instead_changes_what_the_next_yes_runs(
    client: Client, provider: Provider, effects: list[str], language: str, wait: str
) -> None:
    session, _ = await waiting(client, provider, language)
    provider.will(reads("amend"), planned([deletion(2)]))
    asked = await client.chat(session, wait)
    assert (asked["plan"]["status"], effects) == ("waiting", [])
    provider.will(says("ok"))
    await client.chat(session, "ok")
    assert effects == ["delete itm-2"]


async def test_a_wait_that_changes_nothing_leaves_the_plan_waiting(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await waiting(client, provider, "it")
    provider.will(reads("none"))
    answer = await client.chat(session, "aspetta, chiedo a Luca")
    assert (answer["plan"]["status"], effects) == ("waiting", [])
    provider.will(says("Fatto."))
    await client.chat(session, "sì")
    assert effects == ["delete itm-1"]


@pytest.mark.parametrize(
    ("change", "ends", "status"),
    [("yes, but keep itm-2", "fails", 502), ("no wait, itm-2 instead", "is stopped", 409)],
)
async def test_after_a_change_that_came_to_nothing_a_yes_is_asked_for_what_stood_before(
    client: Client, provider: Provider, effects: list[str], change: str, ends: str, status: int
) -> None:
    session, _ = await waiting(client, provider, "en")
    provider.always(change, fails(400) if ends == "fails" else stopped(client, session))
    assert (await client.send(session, change)).status_code == status
    provider.habits.clear()
    answer = await client.chat(session, "yes")
    assert (answer["plan"]["status"], effects) == ("waiting", [])
    assert "item_id: itm-1" in answer["message"]["content"]
    provider.will(says("Gone."))
    await client.chat(session, "yes")
    assert effects == ["delete itm-1"]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("language", "question"),
    [
        ("en", "isn't that the one I need?"),
        ("en", "no?"),
        ("it", "non è questa?"),
        ("zh", "这不是发票吗？"),
        ("zh", "不是发票吗？"),
        ("ar", "ما هذه الرسالة؟"),
        ("ar", "ما هذا"),
    ],
)
async def test_a_question_with_a_no_in_it_cancels_nothing(
    client: Client, provider: Provider, effects: list[str], language: str, question: str
) -> None:
    session, _ = await waiting(client, provider, language)
    provider.will(reads("question"), says("It is the first."))
    answer = await client.chat(session, question)
    assert answer["message"]["content"].startswith("It is the first.")
    assert ((await client.get(f"/sessions/{session}/plan"))["status"], effects) == ("waiting", [])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("language", "no"),
    [
        ("en", "no thanks, show me the other ones first"),
        ("it", "no grazie, piuttosto cancella la terza"),
        ("zh", "不，发给王伟"),
        ("it", "no, avevo detto la 1!"),
    ],
)
async def test_a_no_that_says_what_is_wanted_instead_is_answered(
    client: Client, provider: Provider, effects: list[str], language: str, no: str
) -> None:
    session, refused = await waiting(client, provider, language)
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-3"})))
    answer = await client.chat(session, no)
    assert answer["plan"]["id"] != refused["plan"]["id"]
    assert [step["args"] for step in answer["plan"]["steps"]] == [{"item_id": "itm-3"}]
    assert "If they say what they want instead" in str(provider.requests[-1]["messages"][-1])
    plans = (await client.get(f"/sessions/{session}/plans"))["items"]
    assert [plan["status"] for plan in plans] == ["waiting", "cancelled"]
    assert effects == []


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("language", "no"), [("en", "no, don't"), ("it", "no grazie"), ("zh", "不用了，谢谢"), ("ar", "لا شكرا")]
)
async def test_a_no_alone_costs_no_call(client: Client, provider: Provider, language: str, no: str) -> None:
    session, _ = await waiting(client, provider, language)
    requests = len(provider.requests)
    assert (await client.chat(session, no))["plan"]["status"] == "cancelled"
    assert len(provider.requests) == requests


async def test_what_a_yes_adds_behind_the_question_does_not_take_the_yes_back(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await waiting(client, provider, "it")
    note = {"id": 2, "description": "Scrivi ad Ada", "tool": "mcp_send_note", "args": {"to": "Ada", "text": "fatto"}}
    provider.will(reads("amend"), planned([deletion(1), note]))
    answer = await client.chat(session, "sì, e poi avvisa Ada")
    assert effects == ["delete itm-1"]
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]


async def test_what_comes_before_what_was_asked_takes_a_yes_of_its_own(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await waiting(client, provider, "it")
    provider.will(reads("amend"), planned([deletion(2), deletion(1)]))
    answer = await client.chat(session, "sì, e anche la seconda")
    assert ([step["status"] for step in answer["plan"]["steps"]], effects) == (["waiting", "pending"], [])


async def test_the_next_question_says_what_came_of_the_yes_and_is_about_what_was_wanted(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, first = await waiting(client, provider, "it")
    provider.will(calls(("mcp_send_note", {"to": "Ada", "text": "fatto"})))
    answer = await client.chat(session, "sì, grazie")
    said, plan = answer["message"]["content"], answer["plan"]
    assert effects == ["delete itm-1"]
    assert said.index("✓ ") < said.index("mcp_send_note")
    assert (plan["goal"], plan["origin_message_id"]) == (ASK_IN["it"], first["plan"]["origin_message_id"])


async def test_a_plan_whose_calls_are_asked_about_again_is_not_said_to_be_given_up(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await waiting(client, provider, "it")
    provider.will(calls(FIRST, ("mcp_delete_item", {"item_id": "itm-2"})))
    more = "E per piacere guarda se ci sono altre cose di Rossi che non servono più, così facciamo ordine in una volta"
    answer = await client.chat(session, more)
    assert "sostituito" not in answer["message"]["content"]
    provider.will(says("Fatto."))
    await client.chat(session, "sì, tutte e due")
    assert effects == ["delete itm-1", "delete itm-2"]


async def test_what_the_model_would_only_write_last_is_the_answer_and_no_step(
    client: Client, provider: Provider
) -> None:
    steps: list[dict[str, Any]] = [*THREE_STEPS[:2], {"id": 3, "description": "Riassumi", "tool": None}]
    provider.will(planned(steps), says("Il riassunto."))
    answer = await client.chat(await client.new_session(), "Cerca le cose di Rossi, poi leggi la prima e riassumila")
    assert [step["description"] for step in answer["plan"]["steps"]] == ["Cerca", "Leggi"]
    assert answer["message"]["content"] == "Il riassunto."
