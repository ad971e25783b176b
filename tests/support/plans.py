"""Plans as tests write them: steps on the shelf of `shelf.py`, and a conversation up to the question."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2

from segue.domain.plan import Plan, Step
from tests.support.provider import Provider, says
from tests.support.service import Client

THREE_STEPS = [
    {"id": 1, "description": "Cerca", "tool": "mcp_find_items", "args": {"query": "Rossi"}},
    {"id": 2, "description": "Leggi", "tool": "mcp_get_item", "args": {"item_id": {"$from": 1, "path": "items[0].id"}}},
    {
        "id": 3,
        "description": "Cancella",
        "tool": "mcp_delete_item",
        "args": {"item_id": {"$from": 1, "path": "items[0].id"}},
    },
]
ASK = "Cerca le cose di Rossi, poi leggi la prima e infine cancellala"


def new_plan(plan_id: str, *, goal: str, origin: str, steps: Sequence[Step], at: datetime) -> Plan:
    """A plan whose time is up at once."""
    return Plan(
        id=plan_id,
        version=1,
        goal=goal,
        status="active",
        current_step=1,
        origin_message_id=origin,
        expires_at=at,
        created_at=at,
        steps=tuple(steps),
    )


def planned(steps: list[dict[str, Any]]) -> Any:
    return says(json.dumps({"steps": steps}))


def reads(verdict: str) -> Any:
    """How a model reads a reply."""
    return says(json.dumps({"verdict": verdict}))


def deletion(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "description": f"Delete {number}",
        "tool": "mcp_delete_item",
        "args": {"item_id": f"itm-{number}"},
    }


class Frozen:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


async def offered(
    client: Client, provider: Provider, steps: list[dict[str, Any]], message: str = ASK
) -> tuple[str, dict[str, Any]]:
    """A session whose plan waits, and the answer that asks."""
    provider.will(planned(steps))
    session = await client.new_session()
    answer = await client.chat(session, message)
    assert answer["plan"]["status"] == "waiting"
    return session, answer


async def press(client: Client, session: str, asked: dict[str, Any], **more: Any) -> httpx2.Response:
    """The answer to the button that approves what was asked, and remembers it for the session."""
    body = {"decision": "confirm", "version": asked["plan"]["version"], "remember": "session", **more}
    return await client.http.post(f"/sessions/{session}/plan/decision", json=body)
