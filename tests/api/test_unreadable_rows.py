"""A row that cannot be read (garbage, or what a newer release wrote) harms its own session at most.

A session with everything in it is copied once for each way to spoil it. `make sweep-rows` spoils every column of JSON
in every way; CI spoils each in two ways, many together in a session.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import JSON

from segue.around.doctor.examine import examine
from segue.config import Settings
from segue.db.models import metadata
from segue.domain.ids import utc_now
from tests.support.copies import TABLES, copied
from tests.support.facts import tell
from tests.support.metrics import scraped
from tests.support.plans import ASK, planned
from tests.support.provider import Provider, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into

CHECKS = {"turns": "status", "messages": "role", "plans": "status", "tool_calls": "status", "tool_results": "kind",
          "memories": "kind"}  # fmt: skip
DEEP = '{"a":' * 900 + "1" + "}" * 900
HUGE = "1" + "0" * 400
GARBAGE = (
    "null", "7", '"NaN"', "[]", "{}", "[7]", '{"x": 1}', '[{"x": 1}]', '[["a", "b"], null]', HUGE, f'{{"x": {HUGE}}}',
    DEEP, f"[{DEEP}]", "[" * 2000 + "]" * 2000,
)  # fmt: skip
COLUMNS = [
    (t.name, c.name) for t in metadata.sorted_tables if t.name in TABLES for c in t.c if isinstance(c.type, JSON)
]
BATCH = 50
TOGETHER = 4  # so many sessions hold all that a newer release may write

LATER = {
    "a step's status": """UPDATE plans SET steps = jsonb_set(steps, '{0,status}', '"paused"') WHERE session_id = $1""",
    "a plan's status": "UPDATE plans SET status = 'paused' WHERE session_id = $1",
    "a step's status in a report": """UPDATE turns SET report = jsonb_set(report, '{plan,steps,0,status}', '"paused"')
        WHERE session_id = $1""",
    "a turn's status": "UPDATE turns SET status = 'paused' WHERE session_id = $1",
    "an error's member": """UPDATE turns SET status = 'failed', report = NULL, error = '{"code": "x", "later": 1}'
        WHERE session_id = $1""",
    "a role": "UPDATE messages SET role = 'system' WHERE session_id = $1 AND role = 'user'",
    "a reference": """UPDATE messages SET content = '{"later": 1}' WHERE session_id = $1 AND role = 'tool'""",
    "a reference that is no JSON": "UPDATE messages SET content = 'later' WHERE session_id = $1 AND role = 'tool'",
    "a call's status": "UPDATE tool_calls SET status = 'paused' WHERE session_id = $1",
    "a result's kind": "UPDATE tool_results SET kind = 'later' WHERE session_id = $1",
    "a result that is no JSON": """UPDATE tool_results SET payload = '{"x"' WHERE session_id = $1""",
    "a deep result": f"UPDATE tool_results SET payload = '{DEEP}' WHERE session_id = $1",  # noqa: S608 (our own)
    "a tool's status": "UPDATE tool_states SET status = 'paused' WHERE session_id = $1",
    "a change of a tool": "UPDATE tool_state_changes SET after = 'paused' WHERE session_id = $1",
}
ROUTES = ("", "/messages", "/memory", "/turns", "/plan", "/plans", "/tool-results", "/tool-states",
          "/tool-states/history", "/export")  # fmt: skip
EXAMINED = {"a step's status", "an error's member"}
TIMELESS = ("", "/messages", "/turns", "/plan", "/plans", "/tool-results", "/export")
MARKED = {
    "a step's status": ("/plans", "unreadable", True),
    "a plan's status": ("/plans", "unreadable", True),
    "a step's status in a report": ("/turns", "code", "unreadable"),
    "a turn's status": ("/turns", "code", "unreadable"),
    "an error's member": ("/turns", "code", "unreadable"),
    "a role": ("/messages", "unreadable", True),
    "a reference": ("/messages", "unreadable", True),
    "a call's status": ("/tool-results", "unreadable", True),
    "a change of a tool": ("/tool-states/history", "reason_code", "state_unreadable"),
}


CUT_OFF = """
WITH turn AS (UPDATE turns SET epoch = 1, attempts = 1 WHERE session_id = $1 RETURNING id, seq),
    said AS (
        INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, tool_calls, created_at)
        SELECT 'msg_1', $1, 2, id, seq, 'assistant', '', '[{"id": "call_1", "name": "current_time", "args": {}}]', now()
        FROM turn RETURNING id, turn_id),
    moved AS (UPDATE sessions SET next_seq = 3 WHERE id = $1)
INSERT INTO tool_calls (id, session_id, turn_id, message_id, tool_name, args, status, started_at)
    SELECT 'call_1', $1, turn_id, id, 'current_time', '{}', 'running', now() FROM said"""
TWICE: list[dict[str, Any]] = [
    {"id": number, "description": "Tell the time", "tool": "current_time", "args": {}} for number in (1, 2)
]


def spoiling() -> list[dict[str, str]]:
    """Returns for each session to spoil the statements that do it, by what they spoil."""
    if os.environ.get("SWEEP"):
        later = [{how: statement} for how, statement in LATER.items()]
        return [*later, *({f"{at} is {some[:20]}": _fill(at, some)} for at in COLUMNS for some in GARBAGE)]
    later = [dict(list(LATER.items())[start::TOGETHER]) for start in range(TOGETHER)]
    return later + [{str(at): _fill(at, some) for at in COLUMNS} for some in GARBAGE[-2:]]


def _fill(at: tuple[str, str], garbage: str) -> str:
    table, column = at
    key = "id" if table == "sessions" else "session_id"
    return f"UPDATE {table} SET {column} = '{garbage}' WHERE {key} = $1"  # noqa: S608 (names of our own)


@asynccontextmanager
async def as_a_newer_release_migrates(stores: Stores) -> AsyncIterator[None]:
    """Without the constraints that a newer release has widened."""
    checks = {f"{table}_{column}_check": table for table, column in CHECKS.items()}
    definition = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1"
    rules = {name: await stores.database.fetchval(definition, name) for name in checks}
    for name, table in checks.items():
        await stores.database.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    try:
        yield
    finally:
        await stores.database.execute("DELETE FROM memories")
        await stores.database.execute("DELETE FROM sessions")
        for name, table in checks.items():
            await stores.database.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {rules[name]}")


WAYS = spoiling()


@pytest.mark.parametrize("start", range(0, len(WAYS), BATCH))
async def test_every_way_to_spoil_a_row_harms_its_own_session_at_most(
    start: int, settings: Settings, provider: Provider
) -> None:
    ways = WAYS[start : start + BATCH]
    provider.always("Hello there.", says("Hi."))
    async with looking_into(settings) as stores, as_a_newer_release_migrates(stores), running(settings) as client:
        kept, *sessions = await copied(stores, len(ways) + 1)
        before = [await found(client, kept, route) for route in TIMELESS]
        for session, statements in zip(sessions, ways, strict=True):
            for how, statement in statements.items():
                assert await stores.database.execute(statement, session) != "UPDATE 0", how
        listed = (await client.get("/sessions", limit=200))["items"]
        assert {item["id"] for item in listed} == {kept, *sessions}
        assert [await found(client, kept, route) for route in TIMELESS] == before
        assert (await client.get("/tool-states"))["tools"]
        assert "items" in await client.get("/ops/approvals")
        assert (await client.get("/ops/overview", window="day"))["figures"]["total"]["accepted"]
        for session, spoiled in zip(sessions, ways, strict=True):
            await visit(client, settings, session, spoiled)
        assert [await found(client, kept, route) for route in TIMELESS] == before


async def visit(client: Client, settings: Settings, session: str, spoiled: dict[str, str]) -> None:
    """Reads all of a session, talks in it, examines and deletes it."""
    read = {route: await found(client, session, route) for route in ROUTES}
    for how, (route, name, mark) in MARKED.items():
        assert how not in spoiled or f'"{name}":{json.dumps(mark)}' in read[route], how
    [turn, *_] = await client.turns(session)
    assert (await client.get(f"/sessions/{session}/turns/{turn['turn_id']}")) == turn
    assert (await client.get(f"/ops/turns/{turn['turn_id']}/timeline"))["turn"]["session_id"] == session
    for call in (await client.get(f"/sessions/{session}/tool-results"))["items"]:
        await client.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}")
    assert (await client.chat(session, "Hello there."))["message"]["content"].startswith("Hi."), spoiled
    if spoiled.keys() & EXAMINED:
        assert (await examine(settings, session)).json_text(utc_now())
    assert (await client.http.delete(f"/sessions/{session}")).status_code == 204, spoiled


async def found(client: Client, session: str, route: str) -> str:
    response = await client.http.get(f"/sessions/{session}{route}")
    assert response.status_code == 200 or response.json()["code"] == "no_open_plan", (route, response.text)
    return response.text


async def test_a_plan_that_cannot_be_read_waits_for_no_yes_and_is_replaced_by_the_next(
    client: Client, settings: Settings, provider: Provider
) -> None:
    async with looking_into(settings) as stores:
        [session] = await copied(stores, 1)
        await stores.database.execute(LATER["a step's status"], session)
        plan = await client.get(f"/sessions/{session}/plan")
        assert (plan["status"], plan["steps"], plan["unreadable"]) == ("waiting", [], True)
        assert (await scraped(client))("segue_unreadable_total", table="plans") > 0
        decision = {"decision": "confirm", "version": plan["version"]}
        refused = await client.http.post(f"/sessions/{session}/plan/decision", json=decision)
        assert (refused.status_code, refused.json()["code"]) == (409, "unreadable")
        assert "another message" in refused.json()["detail"]
        provider.will_to("sì", says("Che cosa?"))
        answer = await client.chat(session, "sì, grazie")
        assert (answer["acknowledgement"]["plan_id"], answer["plan"], answer["tool_calls"]) == (None, None, [])
        provider.will_to(ASK, planned(TWICE), says("Ecco."))
        assert (await client.chat(session, ASK))["plan"]["status"] == "completed"
        row = await stores.database.fetchrow("SELECT status, steps->0->>'status' FROM plans WHERE id = $1", plan["id"])
        assert tuple(row) == ("superseded", "paused")


async def test_a_plan_that_cannot_be_read_expires_with_the_others(settings: Settings) -> None:
    async with looking_into(settings) as stores:
        spoiled, other = await copied(stores, 2)
        await stores.database.execute(LATER["a step's status"], spoiled)
        await stores.database.execute("UPDATE plans SET expires_at = now()")
        async with running(settings.model_copy(update={"turn_lease_s": 1.0})):  # as often it looks
            await stores.until("SELECT count(*) = 2 FROM plans WHERE status = 'expired'")
        steps = "SELECT steps->0->>'status' FROM plans WHERE session_id = $1"
        assert [await stores.database.fetchval(steps, each) for each in (spoiled, other)] == ["paused", "complete"]


async def test_a_turn_whose_request_cannot_be_read_fails_and_the_next_one_runs(
    settings: Settings, provider: Provider
) -> None:
    provider.will_to("Still there?", says("Yes."))
    async with running(settings, takes_turns=False) as accepting, looking_into(settings) as stores:
        session = await accepting.new_session()
        await accepting.send(session, "Hello there.", background=True)
        await stores.database.execute("""UPDATE turns SET request = '{"later": 1}', left_s = 'NaN'""")
        async with running(settings) as client:
            [failed] = await client.ended(session)
            assert (failed["status"], failed["error"]["code"]) == ("failed", "unreadable")
            assert (await client.chat(session, "Still there?"))["message"]["content"] == "Yes."


async def test_a_call_that_was_cut_off_and_cannot_be_read_is_not_run_again(
    settings: Settings, provider: Provider
) -> None:
    provider.will_to("What time is it?", says("I do not know."))
    async with running(settings, takes_turns=False) as accepting, looking_into(settings) as stores:
        session = await accepting.new_session()
        accepted = await accepting.send(session, "What time is it?", background=True)
        await stores.database.execute(CUT_OFF.replace("$1", f"'{session}'"))
        await stores.database.execute(_fill(("tool_calls", "args"), f"[{DEEP}]"), session)
        async with running(settings) as client:
            [turn] = await client.ended(session)
    [call] = turn["answer"]["tool_calls"]
    assert (turn["turn_id"], call["status"]) == (accepted.json()["turn_id"], "unknown")
    assert "do not repeat it unasked" in str(provider.about("What time is it?")[-1]["messages"])


@pytest.mark.usefixtures("long_leases")
async def test_a_summary_goes_on_behind_a_turn_that_cannot_be_read(settings: Settings, provider: Provider) -> None:
    provider.summary = says("They looked for things.")
    soon = settings.model_copy(update={"turn_lease_s": 0.5})
    async with looking_into(settings) as stores, as_a_newer_release_migrates(stores), running(soon):
        sessions = await copied(stores, 2)
        await stores.database.execute(LATER["a role"], sessions[0])
        await stores.database.execute("UPDATE sessions SET summary_until = 9, summary_due_at = now()")
        await stores.until("SELECT count(*) = 2 FROM sessions WHERE summary_seq > 0 AND summary_due_at IS NULL")


async def test_facts_and_costs_that_cannot_be_read_hide_no_others(client: Client, settings: Settings) -> None:
    spent = """INSERT INTO usage (owner, day, model, calls, input_tokens, cached_tokens, output_tokens,
        reasoning_tokens, estimated, cost) SELECT owner, current_date, $1, 1, 1, 0, 1, 0, false, $2 FROM memories"""
    async with looking_into(settings) as stores, as_a_newer_release_migrates(stores):
        await tell(client, "Likes green tea")
        for model, cost in (("one", "NaN"), ("two", "0.5")):
            await stores.database.execute(spent, model, Decimal(cost))
        await stores.database.execute("UPDATE memories SET kind = 'dream'")
        await tell(client, "Likes black tea")
        for query in ({}, {"query": "tea"}):
            listed = {memory["content"]: memory for memory in (await client.get("/memories", **query))["items"]}
            assert [listed[f"Likes {tea} tea"].get("unreadable") for tea in ("green", "black")] == [True, None]
        used = (await client.get("/usage", group="model"))["items"]
        assert [(total["key"], total["cost"]) for total in used] == [("one", None), ("two", 0.5)]
