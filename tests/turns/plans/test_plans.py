"""Plans from the outside: made, waiting, approved once, amended, cancelled, expired, and what they did in the world."""

import asyncio
import json
from datetime import timedelta

import pytest

from segue.config import Settings
from segue.language.shown_call import translate
from tests.support.plans import ASK, THREE_STEPS, Frozen, deletion, offered, planned, reads
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf


async def test_a_plan_runs_to_the_step_that_needs_a_yes_and_shows_its_exact_arguments(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    _, answer = await offered(client, provider, THREE_STEPS)
    plan = answer["plan"]
    assert [step["status"] for step in plan["steps"]] == ["complete", "complete", "waiting"]
    assert plan["steps"][2]["args"] == {"item_id": "itm-1"}
    assert plan["current_step"] == 3
    assert "itm-1" in answer["message"]["content"]
    assert "mcp_delete_item" in answer["message"]["content"]
    assert effects == ["get itm-1"]


async def test_a_yes_runs_the_waiting_step_once_and_the_answer_is_a_synthesis(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, first = await offered(client, provider, THREE_STEPS)
    provider.will(says("Ho cancellato itm-1."))
    answer = await client.chat(session, "va bene, grazie")
    assert answer["acknowledgement"]["verdict"] == "confirm"
    assert answer["acknowledgement"]["plan_id"] == first["plan"]["id"]
    assert answer["acknowledgement"]["plan_version"] == first["plan"]["version"]
    assert answer["plan"]["status"] == "completed"
    assert answer["plan"]["origin_message_id"] == (await client.messages(session))[0]["id"]
    assert answer["message"]["content"] == "Ho cancellato itm-1."
    assert effects == ["get itm-1", "delete itm-1"]
    [call] = answer["tool_calls"]
    assert (call["plan_id"], call["step_id"]) == (answer["plan"]["id"], 3)


async def test_one_ok_runs_exactly_one_of_two_steps_that_each_need_a_yes(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    answer = await client.chat(session, "ok")
    assert effects == ["delete itm-1"]
    assert answer["plan"]["status"] == "waiting"
    provider.will(says("Both are gone."))
    await client.chat(session, "ok")
    assert effects == ["delete itm-1", "delete itm-2"]


async def test_five_decisions_at_once_have_one_effect_and_four_conflicts(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, answer = await offered(client, provider, [deletion(1), deletion(2)])
    decision = {"decision": "confirm", "version": answer["plan"]["version"]}
    responses = await asyncio.gather(
        *(client.http.post(f"/sessions/{session}/plan/decision", json=decision) for _ in range(5))
    )
    assert sorted(response.status_code for response in responses) == [200, 409, 409, 409, 409]
    assert {response.json()["code"] for response in responses if response.status_code == 409} == {"plan_changed"}
    assert effects == ["delete itm-1"]
    assert [row["role"] for row in await client.messages(session)] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_no_cancels_and_says_so(client: Client, provider: Provider, effects: list[str]) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    answer = await client.chat(session, "no, lascia stare")
    assert answer["plan"]["status"] == "cancelled"
    assert (await client.get(f"/sessions/{session}"))["pending_plan"] is None
    assert effects == []


async def test_thanks_alone_approves_nothing(client: Client, provider: Provider, effects: list[str]) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(says("Prego."))
    answer = await client.chat(session, "grazie")
    assert answer["acknowledgement"]["verdict"] == "none"
    assert "aspetta ancora il tuo sì" in answer["message"]["content"]
    assert effects == []


async def test_an_amendment_makes_a_new_version_that_asks_again(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, first = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(reads("amend"), planned([deletion(2)]))
    answer = await client.chat(session, "sì, ma solo la seconda")
    assert answer["acknowledgement"]["verdict"] == "amend"
    assert answer["plan"]["id"] == first["plan"]["id"]
    assert answer["plan"]["version"] > first["plan"]["version"]
    assert answer["plan"]["status"] == "waiting"
    assert [step["args"] for step in answer["plan"]["steps"]] == [{"item_id": "itm-2"}]
    assert effects == []


async def test_an_unrelated_message_is_answered_and_reminded_of_the_plan_once(
    client: Client, provider: Provider
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(says("Twelve."), says("Thirteen."))
    question = "How many items would you say there are altogether on the shelf in the hall downstairs?"
    first = await client.chat(session, question)
    second = await client.chat(session, question + " And now?")
    assert first["message"]["content"].startswith("Twelve.\n\n")
    assert second["message"]["content"] == "Thirteen."
    assert (await client.get(f"/sessions/{session}/plan"))["status"] == "waiting"


async def test_a_new_plan_supersedes_the_one_that_waits(client: Client, provider: Provider) -> None:
    session, first = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(planned([deletion(3), deletion(1)]))
    answer = await client.chat(
        session, "Find everything about Bianchi, then read the third one and finally delete item number 3, please"
    )
    assert answer["plan"]["id"] != first["plan"]["id"]
    plans = (await client.get(f"/sessions/{session}/plans"))["items"]
    assert [plan["status"] for plan in plans] == ["waiting", "superseded"]


async def test_a_yes_after_the_plan_has_expired_runs_nothing_and_says_so(
    client: Client, provider: Provider, effects: list[str], clock: Frozen
) -> None:
    session, first = await offered(client, provider, [deletion(1), deletion(2)])
    clock.now += timedelta(days=2)
    decision = {"decision": "confirm", "version": first["plan"]["version"]}
    refused = await client.http.post(f"/sessions/{session}/plan/decision", json=decision)
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_expired")
    assert effects == []
    assert (await client.http.get(f"/sessions/{session}/plan")).json()["code"] == "no_open_plan"


async def test_a_spoken_yes_after_the_plan_has_expired_runs_nothing_and_says_so(
    client: Client, provider: Provider, effects: list[str], clock: Frozen
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    clock.now += timedelta(days=2)
    answer = await client.chat(session, "sì")
    assert answer["plan"]["status"] == "expired"
    assert effects == []


async def test_a_step_that_fails_ends_the_plan_skips_the_rest_and_the_next_message_is_answered(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    steps = [{"id": 1, "description": "Open", "tool": "mcp_broken", "args": {"item_id": "itm-1"}}, deletion(2)]
    provider.will(planned(steps), says("The shelf is closed."), says("Hello."))
    session = await client.new_session()
    answer = await client.chat(session, ASK)
    assert answer["plan"]["status"] == "failed"
    assert [step["status"] for step in answer["plan"]["steps"]] == ["failed", "skipped"]
    assert "closed" in answer["plan"]["steps"][0]["error"]
    assert (await client.chat(session, "Good morning to you"))["message"]["content"] == "Hello."
    assert effects == []


async def test_a_destructive_call_outside_a_plan_waits_as_a_plan_of_one_step(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-7"})))
    session = await client.new_session()
    answer = await client.chat(session, "Delete item 7")
    assert answer["plan"]["status"] == "waiting"
    assert "itm-7" in answer["message"]["content"]
    assert answer["tool_calls"] == []
    assert effects == []
    provider.will(says("Deleted."))
    await client.chat(session, "yes please")
    assert effects == ["delete itm-7"]


@pytest.mark.sweep
@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("mode", "tool", "status"),
    [
        ("never", "mcp_set_aside", "completed"),
        ("never", "mcp_delete_item", "completed"),
        ("destructive", "mcp_set_aside", "completed"),
        ("destructive", "mcp_delete_item", "waiting"),
        ("always", "mcp_set_aside", "waiting"),
    ],
)
async def test_a_step_waits_if_its_call_would_outside_a_plan_or_the_user_wants_to_be_asked_about_it(
    mode: str, tool: str, status: str, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    steps = [{**deletion(number), "tool": tool} for number in (1, 2)]
    replies = [says("Done.")] if status == "completed" else []
    statuses = []
    async with running(settings.model_copy(update={"confirm": mode})) as client:
        provider.will(planned(steps), *replies)
        statuses.append((await client.chat(await client.new_session(), ASK))["plan"]["status"])
        provider.will(calls(*((tool, step["args"]) for step in steps)), *replies)
        plan = (await client.chat(await client.new_session(), "itm-1 and itm-2, please"))["plan"]
        statuses.append(plan["status"] if plan else "completed")
        assert statuses == [status] * 2
        assert len(shelf.effects) == 4 * len(replies)
        _, asked = await offered(
            client, provider, [{**steps[0], "requires_confirmation": True}, steps[1]], f"{ASK}. Ask me before that."
        )
    assert [step["status"] for step in asked["plan"]["steps"]] == ["waiting", "pending"]
    told = (
        '"requires_confirmation" is true only for a step that the user wants to be asked about: the service itself asks'
    )
    assert told in provider.instruction()


@pytest.mark.sweep
async def test_a_step_without_a_tool_gives_its_text_and_the_plan_goes_on(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    steps = [
        {"id": 1, "description": "Write a note", "tool": None},
        {"id": 2, "description": "Send it", "tool": "mcp_send_note", "args": {"to": "Ada"}},
    ]
    provider.will(
        planned(steps),
        says("Dear Ada, all is well."),
        calls(("mcp_send_note", {"to": "Eve", "text": "Dear Ada, all is well."})),
    )
    session = await client.new_session()
    answer = await client.chat(session, "Write a note to Ada, then send it")
    assert answer["plan"]["steps"][1]["args"] == {"to": "Ada", "text": "Dear Ada, all is well."}
    assert provider.requests[-1]["tool_choice"] == "required"
    provider.will(says("Sent."))
    await client.chat(session, "yes")
    assert effects == ["send Ada: Dear Ada, all is well."]


async def test_a_step_in_which_the_model_writes_nothing_fails_and_gives_no_text_to_the_next(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    """Some servers do not heed that no tool is to be called."""
    steps = [
        {"id": 1, "description": "Write a label", "tool": None},
        {"id": 2, "description": "Put it aside", "tool": "mcp_set_aside", "args": {"item_id": {"$from": 1}}},
    ]
    provider.will(planned(steps), calls(("mcp_set_aside", {"item_id": "itm-1"})), says("I could not write it."))
    answer = await client.chat(await client.new_session(), "Write a label, then put it aside")
    assert effects == []
    assert [step["status"] for step in answer["plan"]["steps"]] == ["failed", "skipped"]
    assert answer["plan"]["steps"][0]["error"] == "the model wrote nothing"
    assert answer["message"]["content"] == "I could not write it."


async def test_equal_calls_of_one_answer_run_once(client: Client, provider: Provider, effects: list[str]) -> None:
    provider.will(calls(*[("mcp_get_item", {"item_id": "itm-1"})] * 3), says("Read."))
    answer = await client.chat(await client.new_session(), "Read item 1")
    assert len(answer["tool_calls"]) == 1
    assert effects == ["get itm-1"]
    assert len(provider.messages(role="tool")) == 3


async def test_a_step_that_was_left_behind_is_unknown_and_is_not_repeated(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    provider.will(calls(("mcp_burn_item", {"item_id": "itm-1"})), says("I do not know whether it burnt."))
    async with running(settings.model_copy(update={"tool_timeout_s": 0.3})) as client:
        session = await client.new_session()
        await client.chat(session, "Burn item 1")
        answer = await client.chat(session, "yes")
    assert answer["plan"]["steps"][0]["status"] == "unknown"
    assert answer["tool_calls"][0]["status"] == "unknown"
    assert shelf.effects == ["burn itm-1"]


async def test_an_unusable_plan_is_no_plan_and_the_answer_goes_on_without_it(
    client: Client, provider: Provider
) -> None:
    provider.will(says("I would start by thinking about it."), says("Done without a plan."))
    session = await client.new_session()
    answer = await client.chat(session, ASK)
    assert answer["plan"] is None
    assert answer["message"]["content"] == "Done without a plan."


async def test_an_identical_request_is_planned_from_the_cache(client: Client, provider: Provider) -> None:
    await offered(client, provider, [deletion(1), deletion(2)])
    session = await client.new_session()
    answer = await client.chat(session, ASK)
    assert answer["plan"]["status"] == "waiting"
    assert answer["usage"]["llm_calls"] == 0


async def test_what_the_steps_did_is_told_even_if_the_model_cannot_be_reached_for_the_synthesis(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, THREE_STEPS)
    provider.will(fails(500), fails(500))
    answer = await client.chat(session, "sì")
    assert answer["plan"]["status"] == "completed"
    assert "Cancella" in answer["message"]["content"]
    assert answer["message"]["content"].count("✓") == 3
    assert answer["message"]["metadata"]["written_by"] == "service"
    assert effects[-1] == "delete itm-1"


async def test_a_step_that_the_model_does_not_answer_after_others_ran_waits_and_what_ran_is_told(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    read = THREE_STEPS[1] | {"id": 1, "args": {"item_id": "itm-1"}}
    steps = [read, {"id": 2, "description": "Think", "tool": None}, THREE_STEPS[0] | {"id": 3}]
    provider.will(planned(steps), fails(500))
    session = await client.new_session()
    answer = await client.chat(session, ASK)
    metadata, told = answer["message"]["metadata"], answer["message"]["content"]
    assert metadata.items() >= {"written_by": "service", "problem": "model_unavailable"}.items()
    assert told.startswith(translate("no_words", "it"))
    assert told.index("✓ Leggi") < told.index(translate("ask_step", "it", description="Think")) < told.index("Procedo?")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting", "pending"]
    provider.will(says("Thought."), says("Done."))
    assert (await client.chat(session, "sì"))["plan"]["status"] == "completed"
    assert effects == ["get itm-1"]


async def test_a_turn_that_dies_between_two_steps_leaves_a_plan_that_asks_before_it_goes_on(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    provider.will(
        planned([{"id": 1, "description": "Think", "tool": None}, THREE_STEPS[0] | {"id": 2}, deletion(3)]), fails(500)
    )
    session = await client.new_session()
    assert (await client.send(session, ASK)).status_code == 502
    provider.will(says("Thought."))
    answer = await client.chat(session, "sì, continua")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "complete", "waiting"]
    assert effects == []


async def test_equal_destructive_calls_of_one_reply_are_one_step(
    client: Client,
    provider: Provider,
) -> None:
    provider.will(calls(*[("mcp_delete_item", {"item_id": "itm-1"})] * 3))
    answer = await client.chat(await client.new_session(), "Delete item 1")
    assert len(answer["plan"]["steps"]) == 1
