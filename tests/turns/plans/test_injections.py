"""A mail or an event asks for something, and a model obeys: nothing happens but after a question that names what is not
the user's.

CI runs a sample; `make injections` runs all 769, and once more under mandates for every tool.
"""

import base64
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from segue.config import Settings
from segue.plans.value_origins import leaves, values_of
from segue.turns.jobs.webhooks import signatures
from tests.support.benign import MAILS, TASKS, VALUES, Task
from tests.support.injections import (
    EVE,
    MAIL,
    YES,
    Injection,
    adaptive,
    plain,
    said_for_the_user,
    sent_to_a_trigger,
)
from tests.support.mailroom import Mailroom, serving_mailroom
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into

MAILS_THAT_ASK, EVENTS = [*plain(), *adaptive(), *said_for_the_user()], [*sent_to_a_trigger()]
ALL = [*MAILS_THAT_ASK, *EVENTS]
SAMPLE = ALL if os.environ.get("SWEEP") else [*random.Random(629).sample(MAILS_THAT_ASK, 10), EVENTS[0]]  # noqa: S311
SEALING = base64.urlsafe_b64encode(bytes(range(32))).decode()
LONGEST_S = 1800 if "SWEEP" in os.environ else 240
NOT_THE_USERS = ("model", "result:", "program:", "quoted:")
# Each tool asked about so far: for the session, as a decision is remembered, and for all of the user's, with one bound,
# and for what a schedule or a trigger brings.
GRANT_ALL = """
WITH asked AS (
  SELECT key, max(value) AS digest FROM plans, jsonb_each_text(made_with) WHERE key LIKE 'mcp_%' GROUP BY key
)
INSERT INTO mandates (id, owner, session_id, tool, definition, args, plan_id, unattended, created_at)
SELECT 'man_' || $1 || key, 'local', $1, key, digest, '{}'::jsonb, 'plan', true, now() FROM asked
UNION ALL
SELECT 'man_any_' || key, 'local', NULL, key, digest, '{"to": {"prefix": "ann@"}}', NULL, true, now() FROM asked
UNION ALL
SELECT 'man_due_' || key, 'local', NULL, key, digest, (
  SELECT jsonb_object_agg(path, '{"origin": "due"}'::jsonb)
  FROM unnest('{to,text,iban,amount,mail_id,people}'::text[]) path
), NULL, true, now() FROM asked
ON CONFLICT (id) DO NOTHING
"""
NOT_FROM_YOU = {"en": "not from you", "it": "non da te", "zh": "不是您说的", "ar": "ليس منك"}


@pytest.fixture
async def room() -> AsyncIterator[Mailroom]:
    async with serving_mailroom() as served:
        yield served


@pytest.fixture
async def client(settings: Settings, room: Mailroom) -> AsyncIterator[Client]:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"mail": {"url": room.url}}}))
    async with running(settings.model_copy(update={"mcp_token_key": SecretStr(SEALING)})) as served:
        yield served


@pytest.mark.timeout(LONGEST_S)
async def test_no_mail_and_no_event_has_an_effect_without_a_question_that_names_what_is_not_from_the_user(
    client: Client, provider: Provider, room: Mailroom, settings: Settings
) -> None:
    faults = [f"{each.name}: {fault}" for each in SAMPLE for fault in await obey(each, client, provider, room)]
    async with looking_into(settings) as stores:
        for each in SAMPLE if len(SAMPLE) == len(ALL) else EVENTS[:1]:
            if not each.users.issuperset(values_of(each.calls[-1][1])):  # else it is what was granted
                found = await obey(each, client, provider, room, stores)
                faults += [f"{each.name}, granted: {fault}" for fault in found]
    assert not faults, "\n".join(faults)
    assert (len(ALL), len({each.name for each in ALL})) == (769, 769)


async def obey(
    injection: Injection, client: Client, provider: Provider, room: Mailroom, grant_in: Stores | None = None
) -> list[str]:
    """What is wrong with the question that the mail leads to, also if each tool asked about so far is granted."""
    room.mails[MAIL] = injection.mail
    tool, args = injection.calls[-1]
    session = await client.new_session()
    if grant_in is not None:
        await grant_in.database.execute(GRANT_ALL, session)
    if injection.program:
        provider.will(says("Noted."))
        await client.chat(session, injection.program, approves=False)
    provider.will(calls(("mcp_read_mail", {"mail_id": MAIL})))
    if injection.says:
        provider.will(says(injection.says))
        await client.chat(session, injection.asked)
    provider.will(*map(calls, injection.calls))
    if injection.event:
        answer = await pull(client, session, injection)
    else:
        answer = await client.chat(session, YES[injection.language] if injection.says else injection.asked)
    waiting = [step for step in (answer["plan"] or {"steps": []})["steps"] if step["status"] == "waiting"]
    faults = ["it had an effect"] if room.effects else []
    room.effects.clear()
    if [(step["tool"], step["args"]) for step in waiting] != [(tool, args)]:
        return [*faults, "it is not the call that waits"]
    named = "\n".join(
        line for line in answer["message"]["content"].split("\n\n") if NOT_FROM_YOU[injection.language] in line
    )
    for path, value in leaves(args):
        if path not in values_of(args) and EVE not in path:
            continue
        shown = f"{path}: " if path.isidentifier() else f"{json.dumps(path)}: "
        if path in injection.users:
            faults += [] if shown not in named else [f"{path} is said not to be from the user"]
            continue
        origin = waiting[0]["args_origin"][path]
        faults += [] if origin.startswith(NOT_THE_USERS) else [f"{path} is said to come from {origin}"]
        faults += [] if shown in named else [f"{path}={value} is not named: {answer['message']['content']}"]
    return faults


async def pull(client: Client, session: str, injection: Injection) -> dict[str, Any]:
    """The answer to an event that comes to a trigger of the session."""
    made = await client.http.post("/triggers", json={"session_id": session, "message": injection.asked})
    trigger, body, at = made.json(), injection.event.encode(), int(time.time())
    signed = signatures([base64.b64decode(trigger["secret"].removeprefix("whsec_"))], "msg_1", at, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signed}
    begun = await client.http.post(f"/hooks/{trigger['id']}", content=body, headers=headers)
    assert begun.status_code == 202, begun.text
    await client.http.delete(f"/triggers/{trigger['id']}")
    [turn] = await client.ended(session)
    answer: dict[str, Any] = turn["answer"]
    return answer


@pytest.mark.skipif("SWEEP" not in os.environ, reason="it measures: make injections")
async def test_a_benign_task_takes_hardly_more_answers_than_one_whose_values_the_user_had_all_said(
    client: Client, provider: Provider, room: Mailroom
) -> None:
    room.mails |= {
        known: {"sender": sender, "subject": what, "text": text} for known, (sender, what, text) in MAILS.items()
    }
    asked, alone = Counter[str](), Counter[str]()
    for task in TASKS:
        asked[task.kind] += await answers(task, client, provider, room)
        alone[task.kind] += await answers(task, client, provider, room, before=f"For later: {VALUES}")
    for kind in asked:
        print(f"| {kind} | {sum(task.kind == kind for task in TASKS)} | {alone[kind]} | {asked[kind]} |")  # noqa: T201
    assert asked.total() <= 1.1 * alone.total(), (asked, alone)


async def answers(task: Task, client: Client, provider: Provider, room: Mailroom, *, before: str = "") -> int:
    """How often the user says yes until it is done. If they have said all values `before`, none of them is named."""
    session = await client.new_session()
    if before:
        provider.will(says("Noted."))
        await client.chat(session, before)
    provider.will(*task.replies)
    for message in task.said:
        await client.chat(session, message)
    count = 0
    while not room.effects and count < 4:
        await client.chat(session, task.yes)
        count += 1
    assert len(room.effects) == 1, (task, room.effects)
    room.effects.clear()
    return count
