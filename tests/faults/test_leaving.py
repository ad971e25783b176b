"""A client that goes away, in every phase of its turn: the turn goes on, and its answer is stored."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from starlette.responses import Response

from tests.support.patience import PATIENCE_S
from tests.support.provider import calls, says, streams
from tests.support.service import Client
from tests.support.site import Site
from tests.support.streams import chatting

PHASES = ("queued", "asking", "in a tool")
CASES = [(phase, stream) for phase in PHASES for stream in (False, True)] + [("hearing words", True)]


@pytest.mark.sweep
@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("phase", "stream"), CASES)
async def test_the_answer_to_a_client_that_left_is_stored(
    site: Site, here: Client, there: Client, phase: str, *, stream: bool
) -> None:
    go_on, word = asyncio.Event(), f"{phase}, {'followed' if stream else 'awaited'}"

    async def held(_: dict[str, Any]) -> Response:
        await go_on.wait()
        return says("The answer.")

    session = await here.new_session()
    match phase:
        case "queued":
            site.provider.will_to("earlier", held)
            site.provider.will_to(word, says("The answer."))
            await there.send(session, "Something earlier", background=True)
        case "asking":
            site.provider.will_to(word, held)
        case "in a tool":
            site.provider.will_to(word, calls(("mcp_stamp_item", {"item_id": word})), says("The answer."))
        case _:
            site.provider.will_to(word, streams("The ", go_on, "answer."))
    await left(here, session, f"What is {word}?", reached(site, session, phase, word), stream=stream)
    go_on.set()
    site.shelf.go.set()
    turn = (await there.ended(session))[-1]
    site.shelf.go.clear()
    assert (turn["status"], turn["attempts"]) == ("completed", 1)
    assert turn["answer"]["message"]["content"] == "The answer."
    await site.is_unharmed(here, session)
    assert "The answer." in [message["content"] for message in site.provider.messages(role="assistant")]


async def left(client: Client, session: str, message: str, reached: Any, *, stream: bool) -> None:
    """Sends a message and goes away as soon as its turn has got to where it is to be left."""

    async def wait() -> None:
        if stream:
            async with chatting(client, session, message) as events:
                await events.rest()
        else:
            await client.send(session, message)

    waiting = asyncio.create_task(wait())
    async with asyncio.timeout(PATIENCE_S):
        await reached
    assert not waiting.done()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


async def reached(site: Site, session: str, phase: str, word: str) -> None:
    if phase == "queued":
        async with site.stores() as stores:
            await stores.until_messages(session, 2)
    elif phase == "in a tool":
        await site.shelf.wait_for(f"stamp {word}")
    else:
        await site.provider.wait_for_request_about(word)
