"""A rule of the operator's own rules over every call, on every way that leads to one."""

import asyncio
from typing import Any

import pytest

from segue import Deny, ProposedCall, ToolContext, ToolFailed, tool
from segue.config import Settings
from segue.domain.ids import new_id, utc_now
from segue.domain.session import RequestedCall
from segue.domain.tool import ToolLost
from segue.memory.history import NewMessage
from segue.turns.call_starts import start_calls
from tests.support.left_turns import abandoned
from tests.support.plans import planned, reads
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running

PAID: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


@tool(effect="write", idempotent=True)
async def pay(euros: int, to: str) -> dict[str, int | str]:
    """Pays an amount to somebody."""
    PAID.append((to, euros))
    return {"paid": euros, "to": to}


class Budget:
    """Asks above 100 euros, denies above `most`, and keeps what it was asked about."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.asked: list[tuple[ProposedCall, ToolContext]] = []

    def __call__(self, call: ProposedCall, context: ToolContext) -> str | Deny:
        self.asked.append((call, context))
        if call.args["euros"] > self.most:
            return Deny("Over  the limit\nof the month.")
        return "ask" if call.args["euros"] > 100 else "allow"


async def says_of(client: Client, provider: Provider, *wanted: dict[str, Any]) -> dict[str, Any]:
    """The answer to a message for which the model makes these payments."""
    provider.will(calls(*(("pay", each) for each in wanted)), says("That is that."))
    return await client.chat(await client.new_session(), "The invoice of Anna is here")


async def test_above_a_hundred_euros_it_asks_and_what_was_approved_can_still_be_denied(
    settings: Settings, provider: Provider
) -> None:
    budget, never = Budget(), settings.model_copy(update={"confirm": "never"})
    async with running(never, tools=[pay], before_call=budget) as client:
        await says_of(client, provider, {"euros": 100, "to": "Anna"})
        small = list(PAID)
        session = await client.new_session()
        provider.will(calls(("pay", {"euros": 101, "to": "Anna"})))
        asked = await client.chat(session, "The invoice of Anna is here")
        unpaid = list(PAID)
        provider.will(says("Paid."))
        await client.chat(session, "yes, please")
        large = list(PAID)
        provider.will(calls(("pay", {"euros": 102, "to": "Anna"})))
        await client.chat(session, "And one more")
        budget.most = 100
        provider.will(says("It was denied."))
        denied = await client.chat(session, "yes, please")
    assert (small, unpaid) == ([("Anna", 100)], [("Anna", 100)])
    assert asked["plan"]["status"] == "waiting"
    assert "101" in asked["message"]["content"]
    assert large == PAID == [("Anna", 100), ("Anna", 101)]
    [step] = denied["plan"]["steps"]
    assert (step["status"], "(Over the limit of the month.)" in step["error"]) == ("failed", True)
    assert [(call.args["euros"], call.effect, call.source) for call, _ in budget.asked] == [
        (euros, "write", "native") for euros in (100, 101, 101, 102, 102)
    ]
    asked_for = {(context.owner, context.session_id, context.agent) for _, context in budget.asked[1:]}
    assert asked_for == {("local", session, "segue")}


async def test_a_rule_that_denies_fails_hangs_or_says_nothing_it_knows_lets_nothing_run(
    settings: Settings, provider: Provider
) -> None:
    said: dict[str, Any] = {"Deny": Deny(""), "deny": "deny", "none": None, "yes": "yes", "true": True}

    async def rule(call: ProposedCall, _: ToolContext) -> object:
        match call.args["to"]:
            case "raises":
                raise LookupError("of a secret")
            case "exits":
                raise SystemExit(1)
            case "hangs":
                await asyncio.Event().wait()
        call.args["euros"] = 1  # type: ignore[index]  # which changes nothing
        return said.get(call.args["to"], "allow")

    short = settings.model_copy(update={"tool_timeout_s": 0.1})
    async with running(short, tools=[pay], before_call=rule) as client:
        wanted = [{"euros": 5, "to": to} for to in (*said, "raises", "exits", "hangs", "Anna")]
        answer = await says_of(client, provider, *wanted, {"euros": "many", "to": "Anna"})
        states = await client.get(f"/sessions/{answer['session_id']}/tool-states")
    by_name = {call["args"]["to"]: call for call in answer["tool_calls"][:-1]}
    assert [call["status"] for call in answer["tool_calls"]] == [*["failed"] * 8, "succeeded", "failed"]
    assert all("rules of this service deny it" in by_name[each["to"]]["error"] for each in wanted[:-1])
    assert "secret" not in str(answer["tool_calls"])
    assert "Invalid arguments" in answer["tool_calls"][-1]["error"]
    assert PAID == [("Anna", 5)]
    assert "Tell the user so" in str(provider.messages(role="tool"))
    assert states["tool_states"]["pay"]["consecutive_failures"] == 0


@pytest.mark.sweep
async def test_it_rules_over_the_steps_of_a_plan_and_of_a_changed_one(settings: Settings, provider: Provider) -> None:
    async with running(settings, tools=[pay], before_call=Budget(500)) as client:
        session = await client.new_session()
        steps = [
            {"id": n, "description": "Pay", "tool": "pay", "args": {"euros": n * 90, "to": "Anna"}} for n in (1, 2)
        ]
        provider.will(planned(steps))
        asked = await client.chat(session, "Pay the first invoice of Anna, then find the second and pay it")
        changed = {"id": 2, "description": "Pay", "tool": "pay", "args": {"euros": 600, "to": "Bruno"}}
        provider.will(reads("amend"), planned([changed]), says("It was denied."))
        denied = await client.chat(session, "yes, but pay Bruno")
    assert [step["status"] for step in asked["plan"]["steps"]] == ["complete", "waiting"]
    assert [step["status"] for step in denied["plan"]["steps"]] == ["complete", "failed"]
    assert PAID == [("Anna", 90)]


async def test_a_call_whose_process_died_runs_again_only_as_far_as_the_rule_allows(
    settings: Settings, provider: Provider
) -> None:
    amounts = {90: "succeeded", 101: "unknown", 600: "failed"}
    async with running(settings, takes_turns=False) as client:
        sessions = {euros: await client.new_session() for euros in amounts}
    for euros, session in sessions.items():
        async with abandoned(settings, session) as (database, claim):
            now = utc_now()
            call = RequestedCall(new_id("call", now), "pay", {"euros": euros, "to": "Anna"})
            await start_calls(database, claim, NewMessage("assistant", "", now, tool_calls=[call]))
    provider.will(*(says("That is that.") for _ in amounts))
    async with running(settings, tools=[pay], before_call=Budget(500)) as client:
        turns = {euros: (await client.ended(session))[0] for euros, session in sessions.items()}
    assert {euros: turn["answer"]["tool_calls"][0]["status"] for euros, turn in turns.items()} == amounts
    assert PAID == [("Anna", 90)]


@tool(effect="write", title="Send a parcel")
async def send_parcel(to: str) -> str:
    """Sends a parcel to somebody."""
    if to == "Bob":
        raise ToolLost("The courier did not answer.")
    raise ToolFailed("*no* parcels <today>")


async def test_an_account_of_the_services_tells_what_failed_what_is_unknown_and_what_was_denied(
    settings: Settings, provider: Provider
) -> None:
    payment, to_ada, to_bob = {"euros": 5000, "to": "Anna"}, {"to": "Ada"}, {"to": "Bob"}
    provider.will(calls(("pay", payment), ("send_parcel", to_ada), ("send_parcel", to_bob)), fails(503), fails(503))
    never = settings.model_copy(update={"confirm": "never"})

    def rule(call: ProposedCall, context: ToolContext) -> str | Deny:
        return Budget()(call, context) if call.name == "pay" else "allow"

    async with running(never, tools=[pay, send_parcel], before_call=rule) as client:
        answer = await client.chat(await client.new_session(), "The invoice of Anna is here, and so are the parcels")
    assert answer["message"]["content"].splitlines()[2:] == [
        "✗ pay was not run, because a rule of this service denies it: Over the limit of the month.",
        "✗ Send a parcel — `*no* parcels <today>`",
        "? Send a parcel: it is unknown whether this took effect. Please check before repeating it.",
    ]
    assert PAID == []
