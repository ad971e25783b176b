"""A yes is for the question that stood when it was sent."""

import asyncio
from typing import Any

from tests.support.plans import ASK, deletion, offered, planned
from tests.support.provider import Provider, says
from tests.support.service import Client


async def test_two_spoken_yeses_at_once_approve_one_step(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    both = await asyncio.gather(client.chat(session, "ok"), client.chat(session, "ok"))
    assert effects == ["delete itm-1"]
    assert {answer["plan"]["status"] for answer in both} == {"waiting"}
    provider.will(says("Both are gone."))
    await client.chat(session, "ok")
    assert effects == ["delete itm-1", "delete itm-2"]


async def test_a_yes_sent_before_the_question_approves_nothing(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    session, go = await client.new_session(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return planned([deletion(1), deletion(2)])

    provider.will(held)
    asking = asyncio.create_task(client.chat(session, ASK))
    await provider.wait_for_requests(1)
    yes = asyncio.create_task(client.chat(session, "ok"))
    while (await client.get(f"/sessions/{session}"))["message_count"] < 2:
        pass
    go.set()
    await asking
    assert (await yes)["plan"]["status"] == "waiting"
    assert effects == []


async def test_a_second_yes_to_a_plan_that_is_over_is_no_order_to_do_it_again(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    session, _ = await offered(client, provider, [deletion(1), {"id": 2, "description": "Tell", "tool": None}])
    provider.will(says("told"), says("Gone."), says("It is gone already."))
    await asyncio.gather(client.chat(session, "ok"), client.chat(session, "ok"))
    assert effects == ["delete itm-1"]
    assert "Do now what you last proposed" not in provider.messages(role="system")[0]["content"]
