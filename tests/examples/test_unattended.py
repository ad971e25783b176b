"""The stories of docs/unattended.md, with the bodies that stand there: a Monday under a mandate, and a promise that is
kept.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from segue.agent.prompts import TEXTS
from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.health import connect
from tests.support.mailroom import Mailroom, serving_mailroom
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf
from tests.support.stores import Stores
from tests.support.streams import listening

pytestmark = pytest.mark.usefixtures("long_leases")

PAGE = (ROOT / "docs/unattended.md").read_text("utf-8")
REPORT, THREE_A_DAY = (json.loads(each) for each in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PEOPLE = ("ann", "ben", "cem", "dora")
MONDAY = datetime(2027, 1, 4, 8, tzinfo=UTC)
DUE = """
UPDATE schedules SET next_at = now() - $1::text::interval, look_at = now(),
  at = CASE WHEN at IS NOT NULL THEN now() - $1::text::interval END
"""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Processes look for what is due ten times a second."""
    return settings.model_copy(update={"turn_lease_s": 3})


@pytest.fixture
async def room(settings: Settings) -> AsyncIterator[Mailroom]:
    async with serving_mailroom() as served:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"mail": {"url": served.url}}}))
        yield served


def mail(name: str) -> Any:
    return calls(("mcp_send_mail", {"to": f"{name}@acme.example", "text": "All is well."}))


async def given(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.http.post(path, json=body)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def asked(client: Client, receiver: Receiver, name: str) -> dict[str, Any]:
    """The one plan that waits: for a mail to this person, of which the webhook has told."""
    posts = await receiver.until(lambda posts: any(post.type == "approval.requested" for post in posts))
    told = [post.data["plan_id"] for post in posts if post.type == "approval.requested"]
    [waiting] = (await client.get("/approvals"))["items"]
    assert (told, waiting["step"]["args"]["to"]) == ([waiting["plan_id"]], f"{name}@acme.example")
    receiver.posts.clear()
    found: dict[str, Any] = waiting
    return found


async def test_a_monday_under_a_mandate_the_fourth_mail_waits_till_tuesday_and_revoked_it_asks(
    settings: Settings, provider: Provider, stores: Stores, room: Mailroom
) -> None:
    clock = Frozen()
    clock.now = MONDAY
    sent = [f"send {name}@acme.example All is well." for name in PEOPLE]
    async with receiving() as receiver:
        hook = {"webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET)}
        told = settings.model_copy(update=hook)
        async with running(told, clock=clock) as client, listening(client, "/events") as feed:
            await client.connected("mail")
            mandate = await given(client, "/mandates", THREE_A_DAY)
            await given(client, "/schedules", REPORT)
            provider.will(*map(mail, PEOPLE))
            await stores.database.execute(DUE, "1 second")
            heard = (await feed.until("approval_asked"))[-1].event
            waiting = await asked(client, receiver, "dora")
            assert (heard["plan_id"], room.effects) == (waiting["plan_id"], sent[:3])
            assert await used(client) == ({"total": 3, "today": 3, "sum": 0}, False)
        clock.now += timedelta(hours=23, minutes=30)
        async with running(told, clock=clock) as client:
            await client.connected("mail")
            provider.will(says("Dora has it too."))
            yes = {"decision": "confirm", "version": waiting["version"]}
            answer = await client.http.post(f"/sessions/{waiting['session_id']}/plan/decision", json=yes)
            assert (answer.status_code, room.effects) == (200, sent)
            assert await used(client) == ({"total": 3, "today": 0, "sum": 0}, True)

            async def revoking(_: dict[str, Any]) -> Any:
                assert (await client.http.delete(f"/mandates/{mandate['id']}")).status_code == 204
                return mail("ben")

            clock.now = MONDAY + timedelta(days=7)
            provider.will(mail("ann"), revoking)
            await stores.database.execute(DUE, "1 second")
            await asked(client, receiver, "ben")
            assert room.effects == [*sent, sent[0]]


async def used(client: Client) -> tuple[dict[str, Any], bool]:
    [mandate] = (await client.get("/mandates"))["items"]
    return mandate["used"], mandate["in_force"]


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.sweep)])
async def test_a_promise_is_made_once_and_kept_once_though_the_service_is_killed_while_it_makes_and_keeps_it(
    settings: Settings, provider: Provider, stores: Stores, shelf: Shelf, kills: int
) -> None:
    connect(settings, shelf)
    never = asyncio.Event()

    async def hangs(_: dict[str, Any]) -> Any:
        await never.wait()

    wanted = {"what": "call Rossi", "at": "2099-01-05T09:00"}
    provider.will(calls(("promise", wanted)), hangs, says("⏰ I will."), *[hangs] * (kills - 1), says("Call Rossi!"))
    async with process(settings) as (served, client):
        session = await client.new_session()
        await client.send(session, "Remind me to call Rossi on 5 January at nine", background=True)
        await provider.wait_for_requests(2)
        served.kill()  # it is promised, and nobody was told
    assert await stores.database.fetchval("SELECT count(*) FROM schedules") == 1
    await stores.database.execute(DUE, "1 hour")  # and due while nothing runs
    if kills > 1:
        async with process(settings) as (served, client):
            await provider.wait_for_requests(4)
            served.kill()  # it is being kept
    async with running(settings) as client:
        turns = await client.ended(session, 2)
        [promise] = (await client.get("/schedules"))["items"]
        await stores.database.execute("UPDATE schedules SET look_at = now() WHERE look_at IS NOT NULL")
        await stores.until("SELECT count(*) = 1 FROM schedules WHERE tries_left IS NULL AND look_at IS NULL")
    never.set()
    assert [turn["answer"]["message"]["content"] for turn in turns] == ["⏰ I will.", "Call Rossi!"]
    assert (promise["status"], promise["last"]["turn_id"]) == ("ended", turns[1]["turn_id"])
    assert TEXTS["promised"].format(promise=promise["id"]) in provider.notes()
    assert await stores.database.fetchval("SELECT count(*) FROM turns") == 2
