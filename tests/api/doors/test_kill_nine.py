"""What a client of a door sees of kill -9: the same conversation goes on, and what was done is done once."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.openai_client import openai_client
from tests.support.patience import PATIENCE_S
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, says
from tests.support.proxy import proxied
from tests.support.service import Client, process
from tests.support.shelf import serving_shelf

OTHER_STEPS = json.loads(json.dumps(THREE_STEPS).replace("Rossi", "Bianchi").replace("items[0]", "items[1]"))
OTHER_ASK = ASK.replace("Rossi", "Bianchi")
YES = "sì, grazie"
RETRIES = 50  # of the client's own, until the service is back


def message(number: int, text: str) -> dict[str, object]:
    return {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": text}]}


async def test_what_was_found_is_read_and_deleted_once_after_a_yes_at_every_door_through_kill_nine(
    settings: Settings, provider: Provider
) -> None:
    goes_on = asyncio.Event()

    async def told_late(_: object) -> Response:
        await goes_on.wait()
        return says("It is gone.")

    for about, steps in (("Rossi", THREE_STEPS), ("Bianchi", OTHER_STEPS)):
        provider.will_to(about, planned(steps))
        provider.always(about, told_late)

    async def chat(*messages: Any) -> str:
        completion = await ai.with_options(max_retries=RETRIES).chat.completions.create(
            model="segue", messages=list(messages)
        )
        return completion.choices[0].message.content or ""

    async def page(number: int, text: str) -> str:
        response = await http.post("/api/chat", json={"id": "a chat", "messages": [message(number, text)]})
        return response.text

    async with (
        serving_shelf() as shelf,
        proxied(0) as door,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{door.port}", timeout=PATIENCE_S) as http,
        openai_client(Client(http)) as ai,
    ):
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with process(settings) as (first, service):
            door.lead_to(service.http.base_url.port or 0)
            asked = [
                {"role": "user", "content": ASK},
                {"role": "assistant", "content": await chat({"role": "user", "content": ASK})},
            ]
            assert '"waiting"' in await page(1, OTHER_ASK)
            chatting = asyncio.create_task(chat(*asked, {"role": "user", "content": YES}))
            looking = asyncio.create_task(page(2, YES))
            await shelf.wait_for("delete itm-1", "delete itm-2")
            await provider.wait_for_requests(4)
            first.kill()
            with pytest.raises(httpx2.RemoteProtocolError):
                await looking
        async with process(settings) as (_, service):
            door.lead_to(service.http.base_url.port or 0)
            async with http.stream("GET", "/api/chat/a chat/stream") as resumed:
                assert resumed.status_code == 200
                goes_on.set()
                rest = (await resumed.aread()).decode()
            assert await chatting == "It is gone."
            again = await page(2, YES)
            assert [rest.count("gone."), again.count("gone.")] == [1, 1]
            sessions = [each["id"] for each in (await service.get("/sessions"))["items"]]
            turns = [turn["status"] for each in sessions for turn in await service.turns(each)]
        assert turns == ["completed"] * 4
        assert sorted(shelf.effects) == ["delete itm-1", "delete itm-2", "get itm-1", "get itm-2"]
