"""Plays recordings against a service over HTTP, as its user, and compares what happens with what was recorded. The
first turn of every recording comes first, then the second of every one: a restart falls between turns of them all.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import httpx2

from segue.around.replay.fake_servers import CannotPlay, FakeServers, ReplayConfig, TurnPlayback
from segue.domain.recording import RecordedCall, RecordedPlan, RecordedTurn, RecordedUsage, Recording
from segue.domain.tool import canonical_args

READY_TIMEOUT_S = 90.0  # an MCP server that was not there at first is tried again every 30 s
PAUSE_S = 0.1
ASK_S = 5.0  # of one look whether it is ready: between two it is seen whether it has stopped
TURN_TIMEOUT_S = 930.0
SHOWN_CHARS = 500
LINE_CHARS = 300
_USAGE = RecordedUsage.model_fields.keys()


@dataclass(slots=True)
class Playback:
    """The state of one recording. `usage` is what each turn took, as recorded and as a real model played it."""

    name: str
    recording: Recording
    session_id: str = ""
    sent: list[str] = field(default_factory=list)
    plans: dict[int, RecordedPlan] = field(default_factory=dict)  # the recorded ones, by number
    results: dict[str, str] = field(default_factory=dict)  # ids of calls by tool and arguments, newest last
    differences: list["Difference"] = field(default_factory=list)
    usage: list[tuple[RecordedUsage | None, RecordedUsage | None]] = field(default_factory=list)
    rehearsed: list["Rehearsed"] = field(default_factory=list)
    calls: int = 0
    arrived: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Player:
    """Plays through `client`, against a service that uses `servers`. Each method raises CannotPlay."""

    client: httpx2.AsyncClient
    servers: FakeServers
    config: ReplayConfig

    async def play(self, playbacks: list[Playback], *, restart: Callable[[], Awaitable[None]] | None = None) -> None:
        for playback in playbacks:
            opening = playback.recording.model_dump(include={"title", "language", "time_zone", "metadata"})
            if self.config.trial and self.config.trial.agents and playback.recording.agent:
                opening["agent"] = playback.recording.agent
            playback.session_id = (await _json(self.client.post("/sessions", json=opening)))["id"]
        play_turn = self._play_turn if self.config.model is None else self._ask_model
        for index in range(max(len(playback.recording.turns) for playback in playbacks)):
            if index and restart is not None:
                await restart()
            for playback in playbacks:
                if index < len(playback.recording.turns):
                    await play_turn(playback, playback.recording.turns[index], index + 1)

    async def wait_until_ready(self, check: Callable[[], None]) -> None:
        """Waits until the service offers the recorded tools. `check` raises if the service has stopped."""
        missing: list[str] | None = None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while missing is None or missing:
                    check()
                    try:
                        offered = (await _json(self.client.get("/tools", timeout=ASK_S)))["items"]
                        served = {tool["name"] for tool in offered if tool["source"] != "builtin"}
                        missing = sorted(tool.name for tool in self.config.tools if tool.name not in served)
                    except httpx2.TransportError:
                        missing = None
                    if missing is None or missing:
                        await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            if missing is None:
                raise CannotPlay(f"Nothing answers at {self.client.base_url}.") from None
            raise CannotPlay(f"The service does not take these tools from the replay: {', '.join(missing)}.") from None

    async def _play_turn(self, playback: Playback, turn: RecordedTurn, number: int) -> None:
        before = playback.plans.get(turn.plan.number) if turn.plan else None
        playback.sent.append(turn.message.strip())
        earlier = tuple(playback.results.values())[-self.config.results_in_view :]

        async def say(text: str) -> None:
            body = {"message": text, "on_busy": "steer", "background": True}
            await _json(self.client.post(f"/sessions/{playback.session_id}/chat", json=body))

        self.servers.turn = playing = TurnPlayback(turn, before, tuple(playback.sent), earlier, say)
        played = await self._played(playback.session_id, turn)
        self.servers.turn = None
        playback.sent[:] = playing.sent
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

    async def _ask_model(self, playback: Playback, turn: RecordedTurn, number: int) -> None:
        """Plays a turn with a real model. In a rehearsal, what the user said while it ran is said after it. Calls of
        other turns have their results too, the nearest earlier one first.
        """
        turns = playback.recording.turns
        others = (*turns[: number - 1][::-1], *turns[number:])  # a model may look earlier than the recorded one did
        self.servers.known, self.servers.arrived = turn.calls, []
        self.servers.elsewhere = tuple(call for other in others for call in other.calls)
        steers = [RecordedTurn(message=text, approves=turn.approves) for _, text in turn.steers if self.config.trial]
        played, *later = [await self._played(playback.session_id, each) for each in (turn, *steers)]
        playback.rehearsed.append(Rehearsed(number, turn, [played, *later], self.servers.arrived))
        playback.differences += differences(number, turn, played, in_words=False)
        playback.usage.append((turn.usage, played.usage))
        playback.calls += len(played.calls)
        playback.requests += played.usage.llm_calls if played.usage else 0

    async def _played(self, session_id: str, turn: RecordedTurn) -> "Played":
        response = await self._send(session_id, turn)
        if "json" not in response.headers.get("Content-Type", ""):
            raise _unexpected(response)
        answer, model = response.json(), self.config.model_name
        if answer.get("model", model) != model and self.config.trial is None:  # an agent may have a model of its own
            raise CannotPlay(f"The service asks the model {answer['model']}, not {model}: see the settings above.")
        if "turn_id" not in answer:
            return Played(f"refused ({answer.get('code', response.status_code)})")
        of_turn = {"turn_id": answer["turn_id"], "limit": 200}
        calls = (await _json(self.client.get(f"/sessions/{session_id}/tool-results", params=of_turn)))["items"][::-1]
        if response.status_code != httpx2.codes.OK:
            return Played(f"failed ({answer['code']}: {answer['detail']})", calls=calls)
        usage = RecordedUsage(**{name: value for name, value in answer["usage"].items() if name in _USAGE})
        return Played("completed", answer["message"]["content"], calls, answer["plan"], usage)

    async def _send(self, session_id: str, turn: RecordedTurn) -> httpx2.Response:
        """Sends the message, or presses the button for the version that waits now."""
        path = f"/sessions/{session_id}"
        if turn.decision is None:
            body = {"message": turn.message, "force_web_search": turn.force_web_search, "approves": turn.approves}
            return await self.client.post(f"{path}/chat", json=body)
        pending = (await _json(self.client.get(path)))["pending_plan"]
        decision = {
            "decision": turn.decision,
            "version": pending["version"] if pending else 1,
            "message": turn.message if turn.decision == "amend" else None,
            "args": turn.args,
            "remember": turn.remember,
        }
        given = {name: value for name, value in decision.items() if value is not None}
        return await self.client.post(f"{path}/plan/decision", json=given)


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


# --- what differs ---


@dataclass(frozen=True, slots=True)
class Difference:
    """`turn` counts from 1. `recorded` is None if it was not recorded, `played` is None if it did not happen."""

    turn: int
    what: str
    recorded: str | None
    played: str | None

    def __str__(self) -> str:
        lines = [f"turn {self.turn}: {self.what}"]
        for name, text in (("recorded: ", self.recorded), ("played:   ", self.played)):
            if text is not None:
                line = text.replace("\n", "\\n")
                lines.append(f"    {name}{line[:LINE_CHARS]}{'…' * (len(line) > LINE_CHARS)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Played:
    """A turn as the API returns it. `usage` is None if it ended without an answer."""

    status: str
    answer: str | None = None
    calls: Sequence[Mapping[str, Any]] = ()
    plan: Mapping[str, Any] | None = None
    usage: RecordedUsage | None = None


class Rehearsed(NamedTuple):
    """A recorded turn, what came of it in a rehearsal, message by message, and the calls that arrived at tools."""

    number: int
    recorded: RecordedTurn
    played: Sequence[Played]
    arrived: Sequence[RecordedCall]


def differences(number: int, turn: RecordedTurn, played: Played, *, in_words: bool = True) -> Iterable[Difference]:
    """Another answer counts `in_words`: no two models say the same."""
    if (turn.status == "completed") != (played.status == "completed"):
        yield Difference(number, "it ended otherwise", turn.status, played.status)
    elif in_words and turn.answer != played.answer:
        yield Difference(number, "another answer", turn.answer or "", played.answer or "")
    recorded = [_call_line(call.tool, call.args, call.status) for call in turn.calls]
    happened = [_call_line(call["tool_name"], call["args"], call["status"]) for call in played.calls]
    for tag, start, end, begin, until in difflib.SequenceMatcher(None, recorded, happened, False).get_opcodes():
        for before, after in zip_longest(recorded[start:end], happened[begin:until]) if tag != "equal" else ():
            extra = "a call that was not recorded" if before is None else "another call"
            yield Difference(number, "a call is missing" if after is None else extra, before, after)
    if turn.status == "completed" and played.status == "completed":
        stood, stands = _plan_lines(turn.plan), _plan_lines(played.plan)
        if stood != stands:
            yield Difference(number, "the plan stands otherwise", stood, stands)


def usage_line(usage: RecordedUsage | None) -> str:
    if usage is None:
        return "not known"
    cost = "" if usage.cost is None else f", ${usage.cost:.6f}"
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    return f"{usage.llm_calls} calls, {usage.input_tokens} tokens in{cached}, {usage.output_tokens} out{cost}"


def _call_line(tool: str, args: Mapping[str, Any], status: str) -> str:
    """An interrupted call cannot be interrupted again, so it counts as failed."""
    return f"{tool} {canonical_args(args)} {'succeeded' if status == 'succeeded' else 'failed'}"


def _plan_lines(plan: RecordedPlan | Mapping[str, Any] | None) -> str | None:
    if plan is None:
        return None
    shown = plan.model_dump() if isinstance(plan, RecordedPlan) else plan
    steps = (
        f"{step['tool']} {canonical_args(step['args'] or {})} {step['status'].replace('unknown', 'failed')}"
        for step in shown["steps"]
    )
    return "; ".join([shown["status"], *steps])
