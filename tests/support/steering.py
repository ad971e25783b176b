"""A model whose user sends more while it thinks, and what it then was given."""

from typing import Any

import httpx2
from starlette.responses import Response

from tests.support.provider import Reply, says
from tests.support.service import Client

TIME: tuple[str, dict[str, Any]] = ("current_time", {})


def after(client: Client, session: str, reply: Reply, *texts: str) -> Any:
    """A model whose user sends these to the turn before it answers."""

    async def answer(_: dict[str, Any]) -> Response:
        for text in texts:
            response = await steer(client, session, text, background=True)
            assert (response.status_code, response.json()["status"]) == (202, "queued"), response.text
        assert isinstance(reply, Response)
        return reply

    return answer


def stopped(client: Client, session: str) -> Any:
    """A model whose user stops the turn before it answers."""

    async def answer(_: dict[str, Any]) -> Response:
        [running] = [turn["turn_id"] for turn in await client.turns(session) if turn["status"] == "running"]
        await client.http.post(f"/sessions/{session}/turns/{running}/cancel")
        return says("too late")

    return answer


def told(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["role"], "" if each["role"] == "tool" else each["content"]) for each in messages]


async def steer(client: Client, session: str, text: str, *, key: str | None = None, **options: Any) -> httpx2.Response:
    headers = {"Idempotency-Key": key} if key is not None else {}
    body = {"message": text, "on_busy": "steer", **options}
    return await client.http.post(f"/sessions/{session}/chat", json=body, headers=headers)
