"""Plays recordings against a service as its user would, over HTTP, and keeps what came out otherwise.

Turn by turn: the first turn of every recording, then the second of every one, so that one restart of the service falls
between two turns of all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from segue.domain.recording import RecordedPlan, RecordedTurn, Recording
from segue.domain.tool import canonical_args
from segue.replay.config import CannotPlay, Cast, tools_missing
from segue.replay.differences import Difference, Played, differences
from segue.replay.fake_model import Script
from segue.replay.fake_servers import Scene, Stage

READY_TIMEOUT_S = 90.0  # an MCP server that was not there at first is tried again every 30 s
PAUSE_S = 0.1
TURN_TIMEOUT_S = 330.0
SHOWN_CHARS = 500
RESULTS_IN_VIEW = 5  # of the newest; how many more there is room for depends on their size

Restart = Callable[[], Awaitable[None]]
Check = Callable[[], None]


@dataclass(slots=True)
class Performance:
    """A recording on its way. `plans` are as the recorded turns left them, `results` the calls of this session by what
    was called, newest last.
    """

    name: str
    recording: Recording
    session_id: str = ""
    sent: list[str] = field(default_factory=list)
    plans: dict[int, RecordedPlan] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    calls: int = 0
    arrived: int = 0
    requests: int = 0


async def play(
    client: httpx2.AsyncClient,
    stage: Stage,
    performances: list[Performance],
    *,
    restart: Restart | None = None,
    results_in_view: int = RESULTS_IN_VIEW,
) -> None:
    """The model has to be shown the newest `results_in_view` of what earlier turns gave, called alike counted once.

    Raises CannotPlay where the service is not one that plays these recordings.
    """
    for performance in performances:
        opening = {"title": performance.recording.title, "metadata": performance.recording.metadata}
        performance.session_id = (await _json(client.post("/sessions", json=opening)))["id"]
    for index in range(max(len(performance.recording.turns) for performance in performances)):
        if index and restart is not None:
            await restart()
        for performance in performances:
            if index < len(performance.recording.turns):
                await _play_turn(client, stage, performance, index, results_in_view)


async def come_to_serve(client: httpx2.AsyncClient, cast: Cast, check: Check) -> None:
    """Waits until the service offers the recorded tools. `check` raises where waiting is in vain."""
    missing: list[str] | None = None
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while missing is None or missing:
                check()
                try:
                    missing = tools_missing(cast, (await _json(client.get("/tools")))["items"])
                except httpx2.TransportError:
                    missing = None
                if missing is None or missing:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        if missing is None:
            raise CannotPlay(f"Nothing answers at {client.base_url}.") from None
        raise CannotPlay(f"The service does not take these tools from the replay: {', '.join(missing)}.") from None


async def clear_away(client: httpx2.AsyncClient, performances: list[Performance]) -> None:
    """The sessions of what went as recorded; the others stay to be looked at."""
    for performance in performances:
        if not performance.differences:
            await client.delete(f"/sessions/{performance.session_id}")


async def _play_turn(
    client: httpx2.AsyncClient, stage: Stage, performance: Performance, index: int, results_in_view: int
) -> None:
    turn = performance.recording.turns[index]
    before = performance.plans.get(turn.plan.number) if turn.plan else None
    performance.sent.append(turn.message.strip())
    earlier = tuple(performance.results.values())[-results_in_view:]
    stage.scene = scene = Scene(Script(turn, before), tuple(performance.sent), earlier)
    played = await _played(client, performance.session_id, turn)
    stage.scene = None
    number = index + 1
    performance.differences += [Difference(number, fault, None, None) for fault in scene.faults]
    performance.differences += differences(number, turn, played)
    performance.requests += scene.requests
    performance.calls += len(played.calls)
    performance.arrived += len(turn.calls) - len(scene.calls)
    for call in played.calls:
        called = f"{call['tool_name']} {canonical_args(call['args'])}"
        performance.results.pop(called, None)
        performance.results[called] = call["tool_call_id"]
    if turn.plan is not None:
        performance.plans[turn.plan.number] = turn.plan


async def _played(client: httpx2.AsyncClient, session_id: str, turn: RecordedTurn) -> Played:
    response = await _send(client, session_id, turn)
    if "json" not in response.headers.get("Content-Type", ""):
        raise _unexpected(response)
    said = response.json()
    if said.get("model", "replay") != "replay":
        raise CannotPlay(f"The service asks the model {said['model']}, not the recording: see the settings above.")
    if "turn_id" not in said:
        return Played(f"refused ({said.get('code', response.status_code)})")
    listed = await _json(
        client.get(f"/sessions/{session_id}/tool-results", params={"turn_id": said["turn_id"], "limit": 200})
    )
    calls = listed["items"][::-1]
    if response.status_code != httpx2.codes.OK:
        return Played("failed", calls=calls)
    return Played("completed", said["message"]["content"], calls, said["plan"])


async def _send(client: httpx2.AsyncClient, session_id: str, turn: RecordedTurn) -> httpx2.Response:
    """The message; or the button, for the version that waits now."""
    if turn.decision is None:
        body = {"message": turn.message, "force_web_search": turn.force_web_search}
        return await client.post(f"/sessions/{session_id}/chat", json=body)
    pending = (await _json(client.get(f"/sessions/{session_id}")))["pending_plan"]
    decision = {"decision": turn.decision, "version": pending["version"] if pending else 1}
    return await client.post(f"/sessions/{session_id}/plan/decision", json=decision)


async def _json(request: Awaitable[httpx2.Response]) -> Mapping[str, Any]:
    """Raises CannotPlay for anything but a success."""
    response = await request
    if not response.is_success:
        raise _unexpected(response)
    found: Mapping[str, Any] = response.json()
    return found


def _unexpected(response: httpx2.Response) -> CannotPlay:
    hint = " Set SEGUE_API_KEY to a key it knows." if response.status_code == httpx2.codes.UNAUTHORIZED else ""
    said = f"{response.request.method} {response.url} answered {response.status_code}: {response.text[:SHOWN_CHARS]}"
    return CannotPlay(f"{said}{hint}")
