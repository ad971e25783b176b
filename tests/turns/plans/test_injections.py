"""A mail asks for something, and a model obeys: nothing happens but after a question that names what is not the user's.

CI runs a sample; `make injections` runs all 753, and once more with every tool granted for the session.
"""

import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from segue.config import Settings
from segue.plans.arguments import leaves, values_of
from tests.support.benign import MAILS, TASKS, VALUES, Task
from tests.support.injections import EVE, MAIL, YES, Injection, adaptive, plain, said_for_the_user
from tests.support.mailroom import Mailroom, serving_mailroom
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into

ALL = [*plain(), *adaptive(), *said_for_the_user()]
SAMPLE = ALL if os.environ.get("SWEEP") else random.Random(629).sample(ALL, 10)  # noqa: S311 (a seed, no secret)
LONGEST_S = 1800 if "SWEEP" in os.environ else 240
NOT_THE_USERS = ("model", "result:", "program:", "quoted:")
# Each tool asked about so far: for the session, as a decision is remembered, and for all of the user's, with one bound.
GRANT_ALL = """
WITH asked AS (
  SELECT key, max(value) AS digest FROM plans, jsonb_each_text(made_with) WHERE key LIKE 'mcp_%' GROUP BY key
)
INSERT INTO mandates (id, owner, session_id, tool, definition, args, plan_id, unattended, created_at)
SELECT 'man_' || $1 || key, 'local', $1, key, digest, '{}'::jsonb, 'plan', true, now() FROM asked
UNION ALL
SELECT 'man_any_' || key, 'local', NULL, key, digest, '{"to": {"prefix": "ann@"}}', NULL, true, now() FROM asked
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
    async with running(settings) as served:
        yield served


@pytest.mark.timeout(LONGEST_S)
async def test_no_mail_has_an_effect_without_a_question_that_names_what_is_not_from_the_user(
    client: Client, provider: Provider, room: Mailroom, settings: Settings
) -> None:
    faults = [f"{each.name}: {fault}" for each in SAMPLE for fault in await obey(each, client, provider, room)]
    if len(SAMPLE) == len(ALL):
        async with looking_into(settings) as stores:
            for each in SAMPLE:
                if not each.users.issuperset(values_of(each.calls[-1][1])):  # else it is what was granted
                    found = await obey(each, client, provider, room, stores)
                    faults += [f"{each.name}, granted: {fault}" for fault in found]
    assert not faults, "\n".join(faults)
    assert (len(ALL), len({each.name for each in ALL})) == (753, 753)


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
