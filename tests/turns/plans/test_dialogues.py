"""Recorded dialogues of a library's desk, played through the service: what is changed and what is asked besides."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialogues import Desk, Kills, Service, dialogue_of, environment, serving_desk


def takes(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}


TOOLS = [
    {
        "name": "get_loans",
        "description": "What a reader has borrowed.",
        "parameters": takes("card"),
        "effect": "read_only",
    },
    {
        "name": "renew_loan",
        "description": "Renew a loan.",
        "parameters": takes("loan_id", "until"),
        "effect": "destructive",
    },
    {"name": "cancel_hold", "description": "Cancel a hold.", "parameters": takes("hold_id"), "effect": "destructive"},
]
LOANS = '{"loans": [{"id": "L-31", "title": "Emma", "due": "2026-03-02"}, {"id": "L-32", "title": "Persuasion"}]}'


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def says(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said}


def made(name: str, result: str, **args: str) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "calls": [{"name": name, "args": args}]},
        {"role": "tool", "name": name, "content": result},
    ]


RENEWED = [
    user("Can I keep Emma for longer? My card is C-77."),
    *made("get_loans", LOANS, card="C-77"),
    says("I can renew Emma (L-31) until 2026-03-30. Shall I?"),
    user("Yes, please renew it."),
    *made("renew_loan", "Error: somebody waits for it", loan_id="L-31", until="2026-03-30"),
    says("I am sorry, somebody waits for it. I can renew it until 2026-03-09. Shall I do that?"),
    user("Yes, please do."),
    *made("renew_loan", "renewed", loan_id="L-31", until="2026-03-09"),
    says("It is yours until 9 March."),
    user("Thank you! ###STOP###"),
]
AT_ONCE = [
    user("Cancel my holds H-1 and H-2, please."),
    {
        "role": "assistant",
        "content": "I cancel both.",
        "calls": [{"name": "cancel_hold", "args": {"hold_id": hold}} for hold in ("H-1", "H-2")],
    },
    {"role": "tool", "name": "cancel_hold", "content": "cancelled"},
    {"role": "tool", "name": "cancel_hold", "content": "cancelled"},
    says("Both are cancelled."),
    user("###STOP###"),
]
BOTH = [
    user("Cancel my holds H-1 and H-2."),
    says("I will cancel H-1 and H-2. Shall I?"),
    user("Yes, cancel both."),
    *made("cancel_hold", "cancelled", hold_id="H-1"),
    *made("cancel_hold", "cancelled", hold_id="H-2"),
    says("Both are cancelled."),
]
CANCELLED = [
    user("Cancel my hold H-3."),
    *made("cancel_hold", "cancelled", hold_id="H-3"),
    says("It is cancelled."),
]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with serving_desk(TOOLS) as served:
        yield served


@pytest.fixture
async def service(desk: Desk, database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    settings = environment(desk, tmp_path, database_url=database_url, redis_url=redis_url, MIGRATE_ON_START="false")
    async with Service([settings]) as started:
        yield started


@pytest.mark.sweep  # the next test holds it too, and kills
async def test_every_recorded_change_is_made_once_and_in_order_and_nothing_else(desk: Desk, service: Service) -> None:
    for messages, questions in ((RENEWED, 0), (AT_ONCE, 1), (BOTH, 0)):
        playing = await desk.play(service, dialogue_of({"task": 0, "trial": 0, "messages": messages}))
        assert playing.made == playing.recorded
        assert len(playing.asked) == questions
        assert (playing.doubled, playing.failed, desk.foreign) == ([], [], [])


@pytest.mark.sweep
async def test_a_change_is_made_once_although_the_service_is_killed_at_each_boundary(
    desk: Desk, service: Service
) -> None:
    kills = Kills(service)
    dialogue = dialogue_of({"task": 0, "trial": 0, "messages": CANCELLED})
    played = [playing async for playing in kills.plays(desk, dialogue)]
    assert {place[0] for place in kills.been} == {"asked", "waits"}
    assert [(playing.made, len(playing.asked)) for playing in played] == [(playing.recorded, 1) for playing in played]
    assert (all(playing.is_right for playing in played), desk.foreign) == (True, [])
