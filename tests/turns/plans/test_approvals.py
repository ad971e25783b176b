"""Others decide: a rule of the agent says who, the asker's own yes does nothing, and one decision counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from segue import tool
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import Identity, current_user
from segue.turns.approvals import get_approval
from tests.support.identity import new_key, speaking
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import looking_into, urls_of

RULES = """
[[agents.segue.approvals]]
tool = "refund"
args = {euros = {above = 5000}}
who = "two"
group = "board"
shows = "conversation"

[[agents.segue.approvals]]
tool = "refund"
args = {euros = {above = 500}}
who = "other"
group = "finance"
escalate_after_s = 3600
escalate_to = "board"
expires_after_s = 7200
may_change_args = true

[[agents.segue.approvals]]
tool = "close_*"
who = "approver"
group = "approver"

[[agents.segue.approvals]]
tool = "void"
who = "other"
group = "finance"
"""
# By name their groups and roles.
PEOPLE: dict[str, tuple[list[str], list[str]]] = {
    "clerk": (["finance"], []),
    "sara": (["finance"], ["approver"]),
    "tom": (["finance", "board"], []),
    "ann": (["board"], []),
    "eve": (["sales"], []),
}


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def tools(done: list[str]) -> list[object]:
    @tool(effect="destructive")
    async def refund(euros: int) -> str:
        """Pays money back."""
        done.append(f"refund {euros}")
        return "refunded"

    @tool(effect="write")
    async def close_ticket(number: int) -> str:
        """Closes a ticket."""
        done.append(f"close {number}")
        return "closed"

    @tool(effect="destructive")
    async def void(invoice: int) -> str:
        """Voids an invoice."""
        done.append(f"void {invoice}")
        return "voided"

    return [refund, close_ticket, void]


@pytest.fixture
def guarded(settings: Settings) -> Settings:
    path = settings.mcp_config.with_name("agents.toml")
    path.write_text(f"[agents.segue]\n{RULES}")
    return settings.model_copy(update={"agents_config": path, "auth": "api_key"})


People = dict[str, Client]


@pytest.fixture
async def people(guarded: Settings, tools: list[object], clock: Frozen) -> AsyncIterator[People]:
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(guarded, clock=clock, tools=tools))
        keys = {
            name: await new_key(guarded, name, groups=groups, roles=roles) for name, (groups, roles) in PEOPLE.items()
        }
        keys["root"] = await new_key(guarded, "root", ["ops", "ops:content"])
        yield {name: await stack.enter_async_context(speaking(service, key)) for name, key in keys.items()}


async def asks(
    people: People, provider: Provider, euros: int, *, who: str = "clerk", session: str | None = None
) -> tuple[str, dict[str, Any]]:
    """A session in which a refund waits, and the answer that says so."""
    provider.will(calls(("refund", {"euros": euros})))
    session = session or await people[who].new_session()
    answer = await people[who].chat(session, f"Refund {euros} euros to Bianchi")
    assert answer["plan"]["status"] == "waiting"
    return session, answer


async def inbox(client: Client, status: str = "waiting") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/approvals", status=status))["items"]
    return items


async def decide(client: Client, of: dict[str, Any], decision: str = "confirm", **more: Any) -> httpx2.Response:
    body = {"decision": decision, "version": of["version"], **more}
    return await client.http.post(f"/approvals/{of.get('plan_id') or of['id']}/decision", json=body)


async def ended(client: Client, session: str, turns: int = 2) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.ended(session, turns))[-1]["answer"]
    return answer


async def test_a_small_refund_runs_with_the_clerks_yes_and_a_large_one_waits_for_finance(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    session, asked = await asks(people, provider, 80)
    assert asked["plan"]["steps"][0]["waits_for"] == "self"
    assert (await inbox(sara), await inbox(clerk, "asked")) == ([], [])
    provider.will(says("Done."))
    await clerk.chat(session, "yes")
    assert done == ["refund 80"]

    session, asked = await asks(people, provider, 800)
    [step] = asked["plan"]["steps"]
    assert (step["waits_for"]["group"], step["waits_for"]["who"]) == ("finance", "other")
    assert asked["message"]["content"].endswith("This waits for finance: your own yes does not run it.")
    told = await clerk.chat(session, "yes")
    assert (told["plan"]["version"], told["plan"]["steps"]) == (asked["plan"]["version"], asked["plan"]["steps"])
    assert "waits for finance" in told["message"]["content"]
    assert await inbox(clerk) == []
    [waiting], [own] = await inbox(sara), await inbox(clerk, "asked")
    assert waiting == own
    assert (waiting["asker"], waiting["step"]["args"], waiting["step"]["args_origin"]["euros"][:8]) == (
        "clerk", {"euros": 800}, "message:",
    )  # fmt: skip
    assert [each["content"] for each in waiting["messages"]] == ["Refund 800 euros to Bianchi"]
    assert "waits for finance" in waiting["told"]
    assert done == ["refund 80"]

    provider.will(says("Refunded."))
    decided = await decide(sara, waiting)
    assert (decided.status_code, decided.json()["step"]["others"]["yes_by"]) == (200, ["sara"])
    answer = await ended(clerk, session, 3)
    assert (answer["plan"]["status"], done) == ("completed", ["refund 80", "refund 800"])
    said = {each["content"]: each["metadata"] for each in await clerk.messages(session) if each["role"] == "user"}
    assert (said["👍"]["decision"], said["👍"]["by"]) == ("confirm", "sara")
    [seen] = await inbox(sara, "decided")
    assert (seen["status"], seen["step"]["others"]["yes_by"], await inbox(sara)) == ("completed", ["sara"], [])
    late = [(await decide(people[name], waiting)).status_code for name in ("tom", "eve")]
    assert late == [409, 404]


async def test_the_turn_that_others_let_run_counts_as_its_users(
    guarded: Settings, provider: Provider, tools: list[object]
) -> None:
    users: list[str] = []

    @tool(effect="destructive")
    async def refund(euros: int) -> str:
        """Pays money back."""
        users.append(f"{current_user.get()}: {euros}")
        return "refunded"

    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(guarded, tools=[refund, *tools[1:]]))
        keys = {name: await new_key(guarded, name, groups=PEOPLE[name][0]) for name in ("clerk", "sara")}
        both = {name: await stack.enter_async_context(speaking(service, key)) for name, key in keys.items()}
        session, answer = await asks(both, provider, 800)
        provider.will(says("Done."))
        await decide(both["sara"], answer["plan"])
        await ended(both["clerk"], session)
    assert users == ["clerk: 800"]


async def test_no_button_of_the_asker_stands_in_for_those_who_decide(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk = people["clerk"]
    session, asked = await asks(people, provider, 800)
    press, version = f"/sessions/{session}/plan/decision", asked["plan"]["version"]
    for more in ({}, {"remember": "session"}, {"args": {"euros": 700}}):
        refused = await clerk.http.post(press, json={"decision": "confirm", "version": version, **more})
        assert (refused.status_code, refused.json()["code"]) == (403, "waits_for_others")
    several = {"items": [{"session_id": session, "decision": "confirm", "version": version}]}
    assert (await clerk.http.post("/approvals/decisions", json=several)).json()["code"] == "waits_for_others"
    own = await decide(clerk, asked["plan"])
    assert (own.status_code, own.json()["code"]) == (403, "not_yours_to_decide")
    foreign = await decide(people["eve"], asked["plan"])
    assert (foreign.status_code, foreign.json()["code"]) == (404, "approval_not_found")
    assert [len(await inbox(people[name])) for name in ("sara", "tom", "ann", "eve", "root")] == [1, 1, 0, 0, 0]
    taken_back = await clerk.http.post(press, json={"decision": "reject", "version": version})
    assert (taken_back.json()["plan"]["status"], done, await inbox(people["sara"])) == ("cancelled", [], [])


async def test_a_mandate_does_not_run_what_a_rule_asks_others_about(
    people: People, provider: Provider, done: list[str]
) -> None:
    given = {"tool": "refund", "scope": "user", "args": {"euros": {"origin": "any", "max": 9000}}}
    assert (await people["clerk"].http.post("/mandates", json=given)).status_code == 201
    await asks(people, provider, 800)
    provider.will(calls(("refund", {"euros": 80})), says("Done."))
    await people["clerk"].chat(await people["clerk"].new_session(), "Refund 80 euros")
    assert done == ["refund 80"]


async def test_words_that_change_a_small_call_into_a_large_one_do_not_run_it(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk = people["clerk"]
    session, asked = await asks(people, provider, 80)
    body = {"decision": "confirm", "version": asked["plan"]["version"], "args": {"euros": 800}}
    changed = (await clerk.http.post(f"/sessions/{session}/plan/decision", json=body)).json()
    assert (changed["plan"]["status"], changed["plan"]["steps"][0]["waits_for"]["group"]) == ("waiting", "finance")
    amended = {"steps": [{"id": 1, "description": "Refund", "tool": "refund", "args": {"euros": 6000}}]}
    provider.will(says(json.dumps(amended)))
    said = {"decision": "amend", "version": changed["plan"]["version"], "message": "Yes, but 6000 euros"}
    larger = (await clerk.http.post(f"/sessions/{session}/plan/decision", json=said)).json()
    assert (larger["plan"]["status"], larger["plan"]["steps"][0]["waits_for"]["group"]) == ("waiting", "board")
    assert done == []


async def test_a_no_with_its_reason_is_what_the_asker_and_the_model_read(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    session, asked = await asks(people, provider, 800)
    answered = await decide(sara, asked["plan"], "reject", reason="Ask for the `receipt` first")
    assert answered.json()["status"] == "cancelled"
    answer = await ended(clerk, session)
    assert answer["message"]["content"] == "✗ sara (finance) said no: ``Ask for the `receipt` first``"
    assert answer["plan"]["steps"][0]["others"]["reason"] == "Ask for the `receipt` first"
    provider.will(says("They want the receipt."))
    await clerk.chat(session, "Why?")
    assert "Ask for the" in json.dumps(provider.requests[-1]["messages"])
    assert done == []


async def test_two_different_ones_have_to_say_yes_and_a_no_of_one_is_enough(
    people: People, provider: Provider, done: list[str]
) -> None:
    tom, ann = people["tom"], people["ann"]
    session, asked = await asks(people, provider, 9000, who="tom")
    assert "This waits for board × 2" in asked["message"]["content"]
    first = await decide(tom, asked["plan"])
    assert (first.status_code, first.json()["status"], done) == (200, "waiting", [])
    again = await decide(tom, first.json())
    assert (again.status_code, again.json()["code"]) == (403, "not_yours_to_decide")
    assert [len(await inbox(each)) for each in (tom, ann)] == [0, 1]
    late = await decide(ann, asked["plan"])
    assert (late.status_code, late.json()["code"], late.json()["decided_by"]) == (409, "plan_changed", "tom")
    [waiting] = await inbox(ann)
    assert len(waiting["messages"]) == 2
    provider.will(says("Done."))
    assert (await decide(ann, waiting)).json()["step"]["others"]["yes_by"] == ["tom", "ann"]
    assert ((await ended(tom, session))["plan"]["status"], done) == ("completed", ["refund 9000"])

    session, asked = await asks(people, provider, 9000)
    assert (await decide(tom, asked["plan"])).status_code == 200
    [waiting] = await inbox(ann)
    assert (await decide(ann, waiting, "reject")).json()["status"] == "cancelled"
    assert done == ["refund 9000"]


async def test_an_approver_may_be_who_asks(people: People, provider: Provider, done: list[str]) -> None:
    sara = people["sara"]
    provider.will(calls(("close_ticket", {"number": 7})))
    session = await sara.new_session()
    asked = await sara.chat(session, "Close ticket 7")
    assert asked["plan"]["steps"][0]["waits_for"]["group"] == "approver"
    assert (await sara.chat(session, "yes"))["plan"]["status"] == "waiting"
    provider.will(says("Done."))
    [waiting] = await inbox(sara)
    assert (await decide(sara, waiting)).status_code == 200
    assert ((await ended(sara, session, 3))["plan"]["status"], done) == ("completed", ["close 7"])


async def test_changed_arguments_run_where_the_rule_lets_them_and_are_asked_about_where_others_decide(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk, sara, tom, ann = (people[name] for name in ("clerk", "sara", "tom", "ann"))
    session, asked = await asks(people, provider, 800)
    provider.will(says("Done."))
    assert (await decide(sara, asked["plan"], args={"euros": 600})).status_code == 200
    assert ((await ended(clerk, session))["plan"]["status"], done) == ("completed", ["refund 600"])

    session, asked = await asks(people, provider, 800)
    assert (await decide(sara, asked["plan"], args={"euros": 9000})).status_code == 200
    answer = await ended(clerk, session)
    assert (answer["plan"]["status"], answer["plan"]["steps"][0]["waits_for"]["group"]) == ("waiting", "board")
    [waiting] = await inbox(ann)
    refused = await decide(tom, waiting, args={"euros": 1})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert (await decide(sara, waiting)).status_code == 404
    assert done == ["refund 600"]


async def test_a_question_goes_to_another_group_after_its_time_and_expires_by_its_rule(
    people: People, provider: Provider, done: list[str], clock: Frozen
) -> None:
    clerk, sara, ann = people["clerk"], people["sara"], people["ann"]
    _, asked = await asks(people, provider, 800)
    assert (await decide(ann, asked["plan"])).status_code == 404
    clock.now += timedelta(seconds=3600)
    assert [len(await inbox(each)) for each in (sara, ann)] == [1, 1]
    clock.now += timedelta(seconds=3600)
    assert [len(await inbox(each)) for each in (sara, ann)] == [0, 0]
    late = await decide(sara, asked["plan"])
    assert (late.status_code, late.json()["code"], done) == (409, "plan_expired", [])
    session, asked = await asks(people, provider, 800)
    clock.now += timedelta(seconds=3600)
    provider.will(says("Done."))
    assert (await decide(ann, asked["plan"])).status_code == 200
    assert ((await ended(clerk, session))["plan"]["status"], done) == ("completed", ["refund 800"])


async def test_a_first_yes_of_two_that_comes_too_late_is_neither_stored_nor_in_the_audit(
    people: People, provider: Provider, clock: Frozen
) -> None:
    _, asked = await asks(people, provider, 9000)
    clock.now += timedelta(days=2)
    late = await decide(people["tom"], asked["plan"])
    assert (late.status_code, late.json()["code"]) == (409, "plan_expired")
    assert (await people["root"].get("/ops/audit", action="decide_approval"))["items"] == []
    assert await inbox(people["tom"], "decided") == []


async def test_those_who_decide_see_nothing_of_a_conversation_that_its_user_has_taken_back(
    people: People, provider: Provider
) -> None:
    clerk = people["clerk"]
    session = await clerk.new_session()
    provider.will(says("I see."), says("Hello."))
    await clerk.chat(session, "My PIN is one two three")
    [said, _] = await clerk.messages(session)
    edited = await clerk.http.post(f"/sessions/{session}/messages/{said['id']}/edit", json={"message": "Hi"})
    assert edited.status_code == 200
    await asks(people, provider, 9000, session=session)
    [waiting] = await inbox(people["tom"])
    assert [each["content"] for each in waiting["messages"]][:3] == ["Hi", "Hello.", "Refund 9000 euros to Bianchi"]


async def test_calls_of_one_reply_wait_together_as_far_as_the_same_people_decide(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    wanted = [("refund", {"euros": 800}), ("refund", {"euros": 900}), ("refund", {"euros": 80})]
    provider.will(calls(*wanted))
    session = await clerk.new_session()
    asked = await clerk.chat(session, "Refund 800, 900 and 80 euros")
    assert [step["status"] for step in asked["plan"]["steps"]] == ["waiting", "waiting", "pending"]
    assert "A yes is for all" not in asked["message"]["content"]
    [waiting] = await inbox(sara)
    assert [step["args"]["euros"] for step in waiting["steps"]] == [800, 900]
    await decide(sara, waiting)
    answer = await ended(clerk, session)
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "complete", "waiting"]
    assert (answer["plan"]["steps"][2]["waits_for"], done) == ("self", ["refund 800", "refund 900"])
    provider.will(says("All done."))
    assert (await clerk.chat(session, "yes"))["plan"]["status"] == "completed"
    assert done == ["refund 800", "refund 900", "refund 80"]


async def test_calls_that_go_to_different_people_after_their_time_are_two_questions(
    people: People, provider: Provider, done: list[str], clock: Frozen
) -> None:
    clerk, ann = people["clerk"], people["ann"]
    provider.will(calls(("refund", {"euros": 800}), ("void", {"invoice": 7})))
    session = await clerk.new_session()
    asked = await clerk.chat(session, "Refund 800 euros and void invoice 7")
    assert [step["status"] for step in asked["plan"]["steps"]] == ["waiting", "pending"]
    clock.now += timedelta(seconds=3600)
    assert (await decide(ann, asked["plan"])).status_code == 200
    answer = await ended(clerk, session)
    assert ([step["status"] for step in answer["plan"]["steps"]], done) == (["complete", "waiting"], ["refund 800"])
    clock.now += timedelta(seconds=3600)
    refused = await decide(ann, answer["plan"])
    assert (refused.status_code, refused.json()["code"], await inbox(ann)) == (404, "approval_not_found", [])
    assert [each["step"]["tool"] for each in await inbox(people["sara"])] == ["void"]


async def test_each_question_of_a_plan_has_its_own_time(
    people: People, guarded: Settings, provider: Provider, done: list[str], clock: Frozen
) -> None:
    clerk, of_rule = people["clerk"], timedelta(seconds=7200)
    of_plan = timedelta(seconds=guarded.plan_ttl_s)

    async def asks_for(*euros: int) -> tuple[str, dict[str, Any], datetime]:
        provider.will(calls(*(("refund", {"euros": each}) for each in euros)))
        session = await clerk.new_session()
        answer = await clerk.chat(session, "Refund Bianchi and Rossi")
        until = datetime.fromisoformat(answer["plan"]["expires_at"])
        clock.now = until - timedelta(seconds=100)
        return session, answer, until

    begun = clock.now
    session, asked, until = await asks_for(800, 80)
    assert until == begun + of_rule
    assert (await decide(people["sara"], asked["plan"])).status_code == 200
    answer = await ended(clerk, session)
    assert datetime.fromisoformat(answer["plan"]["expires_at"]) == clock.now + of_plan
    clock.now += timedelta(seconds=200)
    provider.will(says("Done."))
    await clerk.chat(session, "yes")
    assert done == ["refund 800", "refund 80"]

    begun = clock.now
    session, asked, until = await asks_for(80, 800)
    assert until == begun + of_plan
    answer = await clerk.chat(session, "yes")
    assert datetime.fromisoformat(answer["plan"]["expires_at"]) == clock.now + of_rule


async def test_those_who_decide_read_what_was_asked_and_no_answer_that_the_asker_has_had_since(
    people: People, provider: Provider
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    session, asked = await asks(people, provider, 800)
    provider.will(says("It shows nothing unusual."))
    await clerk.chat(session, "This stays between us: what did the lab write about my blood test of last Monday?")
    await clerk.chat(session, "yes")
    [waiting] = await inbox(sara)
    assert waiting["told"] == asked["message"]["content"]
    assert [each["content"] for each in waiting["messages"]] == ["Refund 800 euros to Bianchi"]


async def test_those_who_have_decided_see_nothing_of_what_the_asker_is_asked_after_that(
    people: People, provider: Provider
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    provider.will(calls(("refund", {"euros": 800}), ("refund", {"euros": 80})))
    session = await clerk.new_session()
    await clerk.chat(session, "Refund Bianchi and Rossi")
    [waiting] = await inbox(sara)
    assert (await decide(sara, waiting)).status_code == 200
    answer = await ended(clerk, session)
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]
    [listed] = await inbox(sara, "decided")
    assert ([step["args"] for step in listed["steps"]], listed["told"]) == ([{"euros": 800}], None)
    [own] = await inbox(clerk)
    assert [step["args"] for step in own["steps"]] == [{"euros": 80}]


async def test_those_who_have_decided_see_neither_what_others_are_asked_after_that_nor_their_conversation(
    people: People, provider: Provider
) -> None:
    clerk, sara = people["clerk"], people["sara"]
    provider.will(calls(("refund", {"euros": 800}), ("refund", {"euros": 9000})))
    session = await clerk.new_session()
    await clerk.chat(session, "Refund Bianchi and Rossi")
    [waiting] = await inbox(sara)
    decided = await decide(sara, waiting)
    answer = await ended(clerk, session)
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]
    [listed] = await inbox(sara, "decided")
    for seen in (decided.json(), listed):
        assert ([step["args"] for step in seen["steps"]], seen["told"]) == ([{"euros": 800}], None)
        assert [each["content"] for each in seen["messages"]] == ["Refund Bianchi and Rossi"]
    for name in ("ann", "tom"):
        [asked] = await inbox(people[name])
        assert [step["args"] for step in asked["steps"]] == [{"euros": 9000}]
        provider.will(*([says("Done.")] if name == "tom" else []))
        await decide(people[name], asked)
    await ended(clerk, session, 3)
    [listed] = await inbox(sara, "decided")
    assert [step["args"] for step in listed["steps"]] == [{"euros": 800}]


async def test_those_who_were_shown_a_conversation_read_no_more_of_it_once_they_have_decided(
    people: People, provider: Provider, done: list[str]
) -> None:
    clerk, tom, ann = people["clerk"], people["tom"], people["ann"]
    session, _ = await asks(people, provider, 9000)
    [waiting] = await inbox(tom)
    await decide(tom, waiting)
    [waiting] = await inbox(ann)
    provider.will(says("Done."))
    await decide(ann, waiting)
    await ended(clerk, session)
    assert done == ["refund 9000"]
    provider.will(says("It shows nothing unusual."))
    await clerk.chat(session, "What did the lab write about my blood test?")
    for each in (tom, ann):
        [listed] = await inbox(each, "decided")
        assert [message["content"] for message in listed["messages"]] == ["Refund 9000 euros to Bianchi"]


async def test_a_decision_is_answered_with_what_was_decided_though_the_asker_is_asked_already(
    people: People, guarded: Settings, provider: Provider, clock: Frozen
) -> None:
    clerk = people["clerk"]
    provider.will(calls(("refund", {"euros": 800}), ("refund", {"euros": 80})))
    session = await clerk.new_session()
    asked = await clerk.chat(session, "Refund Bianchi and Rossi")
    assert (await decide(people["sara"], asked["plan"])).status_code == 200
    await ended(clerk, session)
    database, sara = Database(urls_of(guarded)["DATABASE_URL"]), Identity("sara", groups=frozenset(["finance"]))
    found = await database.read(get_approval, sara, asked["plan"]["id"], now=clock.now)
    await database.close()
    assert ([step.args for step in found.steps], found.told) == ([{"euros": 800}], None)


async def test_every_decision_is_in_the_audit_with_its_rule_and_what_was_shown(
    people: People, provider: Provider
) -> None:
    session, asked = await asks(people, provider, 800)
    await decide(people["sara"], asked["plan"], "reject")
    await decide(people["tom"], asked["plan"])
    acts = (await people["root"].get("/ops/audit", action="decide_approval"))["items"]
    [act] = acts
    assert (act["actor"], act["session_id"], act["tool"]) == ("sara", session, "refund")
    told = act["details"]
    assert (told["rule"], told["group"], told["decision"], told["channel"]) == (
        "segue, rule 2", "finance", "reject", "button",
    )  # fmt: skip
    assert len(told["shown"]) == 64
    assert act["request_id"]


@pytest.mark.sweep
async def test_of_five_who_decide_at_once_over_two_instances_one_counts_and_the_others_are_told_whose(
    people: People, guarded: Settings, tools: list[object], clock: Frozen, provider: Provider, done: list[str]
) -> None:
    keys = [await new_key(guarded, f"lead-{number}", groups=["finance"]) for number in range(5)]
    session, asked = await asks(people, provider, 800)
    provider.always("Refund", says("Done."))
    async with running(guarded, clock=clock, tools=tools) as other, AsyncExitStack() as stack:
        here = Client(people["clerk"].http)
        leads = [
            await stack.enter_async_context(speaking(each, key))
            for key, each in zip(keys, [here, other, here, other, here], strict=True)
        ]
        answers = await asyncio.gather(*(decide(each, asked["plan"]) for each in leads))
        assert sorted(each.status_code for each in answers) == [200, 409, 409, 409, 409]
        winner = next(each.json()["step"]["others"]["yes_by"] for each in answers if each.status_code == 200)
        assert {each.json()["decided_by"] for each in answers if each.status_code == 409} == set(winner)
        assert (await ended(people["clerk"], session))["plan"]["status"] == "completed"
    assert done == ["refund 800"]
    assert len((await people["root"].get("/ops/audit", action="decide_approval"))["items"]) == 1


async def test_what_waits_is_decided_as_it_was_asked_though_the_rules_have_changed_since(
    people: People, guarded: Settings, provider: Provider, done: list[str]
) -> None:
    clerk, root = people["clerk"], people["root"]
    session, asked = await asks(people, provider, 800)
    guarded.agents_config.write_text("[agents.segue]\n" + RULES.replace('"finance"', '"sales"'))
    assert (await root.http.post("/agents/reload")).status_code == 200
    assert (await decide(people["eve"], asked["plan"])).status_code == 404
    provider.will(says("Done."))
    assert (await decide(people["sara"], asked["plan"])).status_code == 200
    assert ((await ended(clerk, session))["plan"]["status"], done) == ("completed", ["refund 800"])


async def test_a_plan_that_waited_before_there_were_rules_waits_for_its_user_as_it_did(
    people: People, guarded: Settings, provider: Provider, done: list[str]
) -> None:
    clerk = people["clerk"]
    session, asked = await asks(people, provider, 80)
    async with looking_into(guarded) as stores:
        await stores.database.execute(
            "UPDATE plans SET steps = (SELECT jsonb_agg(step - 'waits_for' - 'others') FROM jsonb_array_elements(steps)"
            " AS step)"
        )
    [own] = await inbox(clerk)
    assert (own["plan_id"], own["step"]["waits_for"], own["told"]) == (asked["plan"]["id"], "self", None)
    provider.will(says("Done."))
    assert (await decide(clerk, own)).json()["status"] in ("active", "completed")
    assert ((await ended(clerk, session))["plan"]["status"], done) == ("completed", ["refund 80"])
