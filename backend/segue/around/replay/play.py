"""Plays recordings against a service over HTTP, as its user, and collects the differences.

The first turn of every recording is played, then the second of every one: a restart falls between turns of them all.

What a service needs to play recordings: the tools of all of them and the settings that they share. Pure.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from segue.around.replay.fakes import FakeModel, FakeServers, TurnPlayback
from segue.around.replay.requests import Difference, Played, differences
from segue.domain.recording import RecordedPlan, RecordedSettings, RecordedTool, RecordedTurn, RecordedUsage, Recording
from segue.domain.tool import canonical_args
from segue.mcp.packing import MAX_TOOLS

RESULTS_IN_VIEW = 5  # of the newest; how many more there is room for depends on their size
MANY = 10**6
OUTSIDE = ("web_fetch", "remember")  # built-in tools with effects that a recording cannot stand in for


class CannotPlay(Exception):
    """These recordings cannot be played, or not here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model that is asked in place of the recording, and the settings that lead to it."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The model must be shown the newest `results_in_view` results of earlier turns; equal calls count once."""

    tools: tuple[RecordedTool, ...]
    settings: RecordedSettings
    model: RealModel | None = None
    results_in_view: int = RESULTS_IN_VIEW

    @property
    def model_name(self) -> str:
        return self.model.name if self.model else "replay"

    def environment(self, base_url: str) -> dict[str, str]:
        """Returns settings with which a service uses only this model and these tools."""
        disabled = [tool.name for tool in self.tools if tool.source == "builtin"]
        asked: Mapping[str, str] = {"OPENAI_BASE_URL": f"{base_url}/v1", "LLM_MAX_RETRIES": "0"}
        if self.model is not None:
            asked, disabled = self.model.settings, [*disabled, *OUTSIDE]
        return {
            **asked,
            "LLM_MODEL": self.model_name,
            "PLANNING": self.settings.planning,
            "CONFIRM": self.settings.confirm,
            "CONFIRM_WORDS": self.settings.confirm_words,
            "WEB_SEARCH_PROVIDER": "none",
            "DISABLED_TOOLS": ",".join(disabled),
            "TOOL_FLEET_THRESHOLD": str(MANY),  # a failure in one conversation must not reach the others
        }

    def mcp_config(self, base_url: str) -> str:
        """Returns the text of mcp.json. Recorded names are complete, so there is no prefix."""
        server = {
            "url": f"{base_url}/mcp",
            "prefix": "",
            "confirm": {tool.name: tool.confirm for tool in self.tools if tool.confirm},
            "depends_on": {
                tool.name: [{"type": group.type, "tools": group.tools, "optional": group.optional} for group in groups]
                for tool in self.tools
                if (groups := tool.depends_on)
            },
        }
        return json.dumps({"mcpServers": {"replay": server}})


def replay_config(recordings: Mapping[str, Recording], model: RealModel | None = None) -> ReplayConfig:
    """Takes recordings by file name. Raises CannotPlay if their settings or tools contradict each other."""
    settings = {name: recording.settings for name, recording in recordings.items()}
    (first, shared), *others = settings.items()
    if other := next((name for name, own in others if own != shared), None):
        raise CannotPlay(f"{first} and {other} were recorded under different settings: replay them apart.")
    tools: dict[str, tuple[str, RecordedTool]] = {}
    for name, recording in recordings.items():
        for tool in recording.tools:
            origin, known = tools.setdefault(tool.name, (name, tool))
            if known != tool:
                raise CannotPlay(f"{tool.name} is another tool in {name} than in {origin}: replay them apart.")
    if len(tools) > MAX_TOOLS:
        raise CannotPlay(f"There are {len(tools)} tools in these recordings, over {MAX_TOOLS}: replay them apart.")
    return ReplayConfig(tuple(tool for _, tool in tools.values()), shared, model)


def tools_missing(config: ReplayConfig, offered: Iterable[Mapping[str, str]]) -> list[str]:
    """Returns the recorded tools that are not among the MCP tools which GET /tools offered."""
    served = {tool["name"] for tool in offered if tool["source"] != "builtin"}
    return sorted(tool.name for tool in config.tools if tool.name not in served)


READY_TIMEOUT_S = 90.0  # an MCP server that was not there at first is tried again every 30 s
PAUSE_S = 0.1
ASK_S = 5.0  # of one look whether it is ready: between two it is seen whether it has stopped
TURN_TIMEOUT_S = 930.0
SHOWN_CHARS = 500

_USAGE = RecordedUsage.model_fields.keys()

Restart = Callable[[], Awaitable[None]]
Check = Callable[[], None]


@dataclass(slots=True)
class Playback:
    """The state of one recording. `plans` are the recorded plans by number; `results` are ids of calls by tool and
    arguments, newest last; `usage` is what each turn took when it was recorded and when a real model played it.
    """

    name: str
    recording: Recording
    session_id: str = ""
    sent: list[str] = field(default_factory=list)
    plans: dict[int, RecordedPlan] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    usage: list[tuple[RecordedUsage | None, RecordedUsage | None]] = field(default_factory=list)
    calls: int = 0
    arrived: int = 0
    requests: int = 0


async def play(
    client: httpx2.AsyncClient,
    servers: FakeServers,
    playbacks: list[Playback],
    config: ReplayConfig,
    *,
    restart: Restart | None = None,
) -> None:
    """Raises CannotPlay if the service does not use the fake servers."""
    for playback in playbacks:
        recording = playback.recording
        opening = recording.model_dump(include={"title", "language", "time_zone", "metadata"})
        playback.session_id = (await _json(client.post("/sessions", json=opening)))["id"]
    for index in range(max(len(playback.recording.turns) for playback in playbacks)):
        if index and restart is not None:
            await restart()
        for playback in playbacks:
            if index < len(playback.recording.turns):
                await _play_turn(client, servers, playback, config, index)


async def wait_until_ready(client: httpx2.AsyncClient, config: ReplayConfig, check: Check) -> None:
    """Waits until the service offers the recorded tools. `check` raises if the service has stopped."""
    missing: list[str] | None = None
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while missing is None or missing:
                check()
                try:
                    missing = tools_missing(config, (await _json(client.get("/tools", timeout=ASK_S)))["items"])
                except httpx2.TransportError:
                    missing = None
                if missing is None or missing:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        if missing is None:
            raise CannotPlay(f"Nothing answers at {client.base_url}.") from None
        raise CannotPlay(f"The service does not take these tools from the replay: {', '.join(missing)}.") from None


async def delete_sessions(client: httpx2.AsyncClient, playbacks: list[Playback]) -> None:
    """Deletes the sessions without differences; the others stay for a look."""
    for playback in playbacks:
        if not playback.differences:
            await client.delete(f"/sessions/{playback.session_id}")


async def _play_turn(
    client: httpx2.AsyncClient,
    servers: FakeServers,
    playback: Playback,
    config: ReplayConfig,
    index: int,
) -> None:
    turn = playback.recording.turns[index]
    if config.model is not None:
        await _play_with(config.model, client, servers, playback, index)
        return
    before = playback.plans.get(turn.plan.number) if turn.plan else None
    playback.sent.append(turn.message.strip())
    earlier = tuple(playback.results.values())[-config.results_in_view :]

    async def say(text: str) -> None:
        body = {"message": text, "on_busy": "steer", "background": True}
        await _json(client.post(f"/sessions/{playback.session_id}/chat", json=body))

    servers.turn = playing = TurnPlayback(FakeModel(turn, before), tuple(playback.sent), earlier, say)
    played = await _played(client, playback.session_id, turn, config.model_name)
    servers.turn = None
    playback.sent[:] = playing.sent
    number = index + 1
    playback.differences += [Difference(number, fault, None, None) for fault in playing.faults]
    playback.differences += differences(number, turn, played)
    playback.requests += playing.requests
    playback.calls += len(played.calls)
    playback.arrived += len(turn.calls) - len(playing.calls)
    for call in played.calls:
        called = f"{call['tool_name']} {canonical_args(call['args'])}"
        playback.results.pop(called, None)
        playback.results[called] = call["tool_call_id"]
    if turn.plan is not None:
        playback.plans[turn.plan.number] = turn.plan


async def _play_with(
    model: RealModel, client: httpx2.AsyncClient, servers: FakeServers, playback: Playback, index: int
) -> None:
    """Plays a turn with a real model. A call of another turn has its result too: a model may look earlier."""
    turn = playback.recording.turns[index]
    others = (call for other in playback.recording.turns if other is not turn for call in other.calls)
    servers.known = (*turn.calls, *others)
    played = await _played(client, playback.session_id, turn, model.name)
    servers.known = ()
    playback.differences += differences(index + 1, turn, played, in_words=False)
    playback.usage.append((turn.usage, played.usage))
    playback.calls += len(played.calls)
    playback.requests += played.usage.llm_calls if played.usage else 0


async def _played(client: httpx2.AsyncClient, session_id: str, turn: RecordedTurn, model: str) -> Played:
    response = await _send(client, session_id, turn)
    if "json" not in response.headers.get("Content-Type", ""):
        raise _unexpected(response)
    answer = response.json()
    if answer.get("model", model) != model:
        raise CannotPlay(f"The service asks the model {answer['model']}, not {model}: see the settings above.")
    if "turn_id" not in answer:
        return Played(f"refused ({answer.get('code', response.status_code)})")
    listed = await _json(
        client.get(f"/sessions/{session_id}/tool-results", params={"turn_id": answer["turn_id"], "limit": 200})
    )
    calls = listed["items"][::-1]
    if response.status_code != httpx2.codes.OK:
        return Played(f"failed ({answer['code']}: {answer['detail']})", calls=calls)
    usage = RecordedUsage(**{name: value for name, value in answer["usage"].items() if name in _USAGE})
    return Played("completed", answer["message"]["content"], calls, answer["plan"], usage)


async def _send(client: httpx2.AsyncClient, session_id: str, turn: RecordedTurn) -> httpx2.Response:
    """The message; or the button, for the version that waits now."""
    if turn.decision is None:
        body = {"message": turn.message, "force_web_search": turn.force_web_search, "approves": turn.approves}
        return await client.post(f"/sessions/{session_id}/chat", json=body)
    pending = (await _json(client.get(f"/sessions/{session_id}")))["pending_plan"]
    decision: dict[str, Any] = {"decision": turn.decision, "version": pending["version"] if pending else 1}
    if turn.decision == "amend":
        decision["message"] = turn.message
    if turn.args is not None:
        decision["args"] = turn.args
    if turn.remember is not None:
        decision["remember"] = turn.remember
    return await client.post(f"/sessions/{session_id}/plan/decision", json=decision)


async def _json(request: Awaitable[httpx2.Response]) -> Mapping[str, Any]:
    """Raises CannotPlay if the request fails."""
    response = await request
    if not response.is_success:
        raise _unexpected(response)
    found: Mapping[str, Any] = response.json()
    return found


def _unexpected(response: httpx2.Response) -> CannotPlay:
    hint = " Set SEGUE_API_KEY to a key it knows." if response.status_code == httpx2.codes.UNAUTHORIZED else ""
    text = f"{response.request.method} {response.url} answered {response.status_code}: {response.text[:SHOWN_CHARS]}"
    return CannotPlay(f"{text}{hint}")
