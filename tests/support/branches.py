"""Conversations that branch: said again, tried again, and read back."""

from typing import Any

import httpx2

from segue import tool
from tests.support.provider import Provider, says
from tests.support.service import Client


@tool(effect="destructive")
async def burn(item: str) -> str:
    """Burns an item."""
    return f"burnt {item}"


async def retry(client: Client, session: str, turn: str, **headers: str) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/turns/{turn}/retry", headers=headers)


async def edit(client: Client, session: str, message: str, text: str, **options: Any) -> httpx2.Response:
    path = f"/sessions/{session}/messages/{message}/edit"
    headers = {"Idempotency-Key": key} if (key := options.pop("key", None)) else {}
    return await client.http.post(path, json={"message": text, **options}, headers=headers)


async def regenerate(client: Client, session: str, message: str) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/messages/{message}/regenerate")


async def branches(client: Client, session: str, **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"/sessions/{session}/branches", **params))["items"]
    return items


def code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in messages]


async def talk(client: Client, provider: Provider, *said: str) -> tuple[str, list[dict[str, Any]]]:
    """A session in which each of these got itself, in capitals, for an answer; and its messages."""
    session = await client.new_session()
    for each in said:
        provider.will(says(each.upper()))
        await client.chat(session, each)
    return session, await client.messages(session)
