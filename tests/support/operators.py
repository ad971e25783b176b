"""Turns as an operator finds them: one that hangs in a tool, and what its process says of it."""

from typing import Any

from tests.support.health import MOODY, QUESTION
from tests.support.logs import until
from tests.support.provider import Provider, calls
from tests.support.service import Client
from tests.support.shelf import Shelf

CANARY = "zitronenfalter"  # what a user says, which no operator sees


async def hanging_turn(ada: Client, provider: Provider, shelf: Shelf) -> tuple[str, str]:
    """A session and its turn, in which a tool does not answer."""
    shelf.open.clear()
    provider.will(calls((MOODY, {"word": CANARY})))
    session = await ada.new_session(title=CANARY)
    turn = (await ada.send(session, f"{QUESTION} {CANARY}", background=True)).json()["turn_id"]
    await shelf.wait_for_effects(1)
    return session, turn


async def seen_running(ops: Client, turn: str, kind: str) -> dict[str, Any]:
    """The turn, once its process has said what it does."""

    async def found() -> dict[str, Any]:
        turns = (await ops.get("/ops/turns"))["items"]
        kinds = {each["turn_id"]: {one["kind"] for one in each["running"]} for each in turns if each["node"]}
        return next((each for each in turns if each["turn_id"] == turn and kind in kinds.get(turn, ())), {})

    return await until(found)
