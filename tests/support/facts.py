"""Facts as tests write and await them: what the scripted model notes, and when what was told has been taken in."""

import json
from typing import Any

from starlette.responses import Response

from segue.config import Settings
from tests.support.provider import says
from tests.support.service import Client
from tests.support.stores import looking_into


def notes(*facts: dict[str, Any]) -> Response:
    return says(json.dumps({"facts": facts}))


def fact(content: str, kind: str = "fact", **more: Any) -> dict[str, Any]:
    return {"content": content, "kind": kind, "importance": 3, **more}


async def all_taken_in(settings: Settings) -> None:
    """Returns once no turn waits to be read for facts."""
    async with looking_into(settings) as stores:
        await stores.until("SELECT count(*) = 0 FROM turns WHERE facts_due_at IS NOT NULL")


async def known(client: Client, **params: Any) -> list[str]:
    """What is known of the caller, newest first, or what a query finds."""
    return [memory["content"] for memory in (await client.get("/memories", **params))["items"]]


async def tell(client: Client, content: str, kind: str = "fact") -> str:
    """Adds a fact by hand and gives its id."""
    response = await client.http.post("/memories", json={"content": content, "kind": kind})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])
