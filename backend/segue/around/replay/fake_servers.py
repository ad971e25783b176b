"""The servers that a replayed service uses, and the settings that lead it to them.

An OpenAI-compatible model and an MCP server answer from a recording, turn by turn. It holds outcomes and no requests
(docs/replay.md), so the kind of a request decides; one that it cannot answer gets an error, kept as a fault.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue.agent.prompts import in_own_words
from segue.around.replay.request_rules import invalid_history, invalid_tools, kind_of_request
from segue.domain import recording as domain
from segue.domain.recording import RecordedCall, RecordedStep, RecordedTool, Round
from segue.domain.tool import canonical_args
from segue.mcp.large_messages import MAX_TOOLS
from segue.mcp.mcp_config import McpServerConfig
from segue.models.normal_form import CARRY_ON, short_id
from segue.tools.native import native_tools

NOT_STARTED = frozenset({"pending", "skipped"})
STARTED = frozenset({"running", "complete", "failed", "unknown"})
RESULTS_SHOWN = 5  # of the newest; how many more there is room for depends on their size
MANY = 10**6
# What no recording can stand in for.
OUTSIDE = ("web_fetch", "remember", "forget", "promise", "propose_mandate", "end_mandates")
NOT_RECORDED = "This call was not recorded, so that it has no result."
HEAD = {"id": "chatcmpl-replay", "created": 0, "model": "replay"}
NOTHING = Round(text="{}")
USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


# --- what a service needs ---


class CannotPlay(Exception):
    """These recordings cannot be played, or not here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a rehearsal tries in place of what was recorded, if not None: a file of agents, and servers of mcp.json."""

    agents: Path | None = None
    servers: Mapping[str, McpServerConfig] | None = None

    def tools(self, recorded: Iterable[RecordedTool]) -> Iterator[RecordedTool]:
        """Yields the recorded tools there are here, with the `confirm` of their server's entry. Raises CannotPlay."""
        for tool in recorded:
            kind, _, name = tool.source.partition(":")
            if self.servers is None or kind != "mcp":
                yield tool
            elif (server := self.servers.get(name)) is not None and not server.off:
                if not tool.name.startswith(server.prefix):
                    fault = f"{tool.name} was recorded under another prefix than {server.prefix!r} of {name}"
                    raise CannotPlay(f"{fault}: keep the prefix, then what is called can be compared.")
                if server.offers(own := tool.name.removeprefix(server.prefix)):
                    groups = tool.depends_on if own in server.depends_on else ()
                    yield tool.model_copy(update={"confirm": server.confirm.get(own), "depends_on": groups})


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """What a replayed service is to do, and with what."""

    tools: tuple[RecordedTool, ...]
    settings: domain.RecordedSettings
    model: Mapping[str, str] | None = None  # settings of a model asked in place of the recording, LLM_MODEL among them
    trial: Trial | None = None
    results_in_view: int = RESULTS_SHOWN  # newest results of earlier turns it must be shown; equal calls count once

    @property
    def model_name(self) -> str:
        return self.model["LLM_MODEL"] if self.model else "replay"

    def environment(self, base_url: str) -> dict[str, str]:
        """Returns settings with which a service uses only this model and these tools."""
        disabled = [tool.name for tool in self.tools if tool.source == "builtin"]
        disabled += [tool.spec.name for tool in native_tools()]  # those of installed packages act on the world
        provider: Mapping[str, str] = {"OPENAI_BASE_URL": f"{base_url}/v1", "LLM_MAX_RETRIES": "0"}
        if self.model is not None:
            provider, disabled = self.model, [*disabled, *OUTSIDE]
        agents = self.trial.agents if self.trial else None
        return {
            **provider,
            **({"AGENTS_CONFIG": str(agents.absolute())} if agents else {}),
            "LLM_MODEL": self.model_name,
            **{name.upper(): str(value) for name, value in self.settings.model_dump().items()},
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
            "depends_on": {tool.name: list(map(asdict, tool.depends_on)) for tool in self.tools if tool.depends_on},
        }
        return json.dumps({"mcpServers": {"replay": server}})


def replay_config(
    recordings: Mapping[str, domain.Recording], model: Mapping[str, str] | None = None, trial: Trial | None = None
) -> ReplayConfig:
    """Takes recordings by file name. Raises CannotPlay if their settings or tools contradict each other."""
    (first, shared), *others = ((name, recording.settings) for name, recording in recordings.items())
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
    of_all = tuple(tool for _, tool in tools.values())
    return ReplayConfig(tuple(trial.tools(of_all)) if trial else of_all, shared, model, trial)


# --- one turn ---


@dataclass(slots=True)
class TurnPlayback:
    """A turn while it is played."""

    turn: domain.RecordedTurn
    before: domain.RecordedPlan | None  # at its start, None if the turn made the plan
    sent: tuple[str, ...]  # the user's messages so far
    earlier: tuple[str, ...]  # ids of calls whose results the model must see
    say: Callable[[str], Awaitable[None]] | None = None  # sends the turn a message
    calls: list[RecordedCall] = field(init=False)
    steers: list[tuple[int, str]] = field(init=False)
    faults: list[str] = field(default_factory=list)
    requests: int = 0
    _rounds: list[Round] = field(init=False)
    _texts: list[str] = field(init=False)
    _filled: set[int] = field(default_factory=set)
    _plan_given: bool = False

    def __post_init__(self) -> None:
        self.calls, self.steers = list(self.turn.calls), list(self.turn.steers)
        self._rounds = [each for each in self.turn.rounds if each.by == "model"]
        self._texts = [each.text for each in self.turn.rounds if each.by == "plan" and not each.calls]

    async def steer(self) -> None:
        """Sends what the user said by now. The turn reads it at its next boundary: it has to be about to reach one."""
        made = len(self.turn.calls) - len(self.calls)
        while self.say and self.steers and self.steers[0][0] <= made:
            _, text = self.steers.pop(0)
            self.sent += (text.strip(),)
            await self.say(text)

    def answer(self, request: Mapping[str, Any]) -> Round | None:  # noqa: PLR0911 (one for each kind)
        """Returns what the model says; None if the recording holds no answer."""
        match kind_of_request(request):
            case "plan":
                return self._plan()
            case "amendment":
                return _steps(self._amended())
            case "reading":
                return Round(text=orjson.dumps({"verdict": self.turn.reading or "none"}).decode())
            case "arguments":
                return self._arguments(request["tools"][0]["function"]["name"])
            case "step":
                return Round(text=self._texts.pop(0)) if self._texts else None
            case "loop":
                return self._next_round()
            case "other":
                return NOTHING

    @property
    def _made(self) -> tuple[RecordedStep, ...]:
        """The steps of the plan that this turn has made."""
        plan = self.turn.plan
        return plan.steps if plan and (self.before is None or self.before.number != plan.number) else ()

    def _plan(self) -> Round:
        """A plan of calls that had to wait came from the loop; `_next_round` makes it again."""
        first = next((each.by for each in self.turn.rounds if each.by != "search"), None)
        self._plan_given = bool(self._made) and not (bool(self.turn.said) or first in ("model", "user"))
        return _steps(self._made if self._plan_given else ())

    def _amended(self) -> tuple[RecordedStep, ...]:
        plan = self.turn.plan
        if plan is None or self.before is None or plan.version == self.before.version:
            return ()
        return plan.steps[sum(step.status in STARTED for step in self.before.steps) :]

    def _arguments(self, tool: str) -> Round | None:
        """Those of the first step with this tool that this turn has started."""
        earlier = {step.id for step in self.before.steps if step.status in STARTED} if self.before else set()
        for step in self.turn.plan.steps if self.turn.plan else ():
            starts = step.status not in NOT_STARTED and step.id not in earlier | self._filled
            if step.tool == tool and step.args is not None and starts:
                self._filled.add(step.id)
                return Round(calls=(RecordedCall(tool=tool, args=step.args),))
        return None

    def _next_round(self) -> Round | None:
        if self._rounds:
            return self._rounds.pop(0)
        if self._made and not self._plan_given:
            self._plan_given = True
            calls = tuple(RecordedCall(tool=step.tool or "", args=step.args or {}) for step in self._made)
            return Round(text=self.turn.said or "", calls=calls)
        text = self.turn.answer if self.turn.said is None else self.turn.said
        return Round(text=text) if text else None


def _steps(steps: tuple[RecordedStep, ...]) -> Round:
    shown = {"id", "description", "tool", "args", "requires_confirmation"}
    return Round(text=orjson.dumps({"steps": [step.model_dump(include=shown) for step in steps]}).decode())


# --- the servers ---


@dataclass(slots=True)
class FakeServers:
    """For a real model there is no `turn`: its calls are answered from those that are `known` and from `elsewhere`."""

    tools: tuple[RecordedTool, ...]
    turn: TurnPlayback | None = None
    known: tuple[RecordedCall, ...] = ()  # the calls of the turn
    elsewhere: tuple[RecordedCall, ...] = ()  # those of other turns
    arrived: list[RecordedCall] = field(default_factory=list)  # the real model's calls
    stands_in: bool = False  # an effect with other arguments has the result of the recorded one most like it

    def app(self, host: str) -> Starlette:
        """Serves `/v1/chat/completions` and `/mcp`, stateless: a killed service leaves nothing behind."""
        server = Server("replay", on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        model = Route("/v1/chat/completions", self._complete, methods=["POST"])
        return server.streamable_http_app(
            stateless_http=True, json_response=True, host=host, custom_starlette_routes=[model]
        )

    async def _complete(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        kind = kind_of_request(body)
        playback = self.turn
        if playback is None or kind == "other":
            return _completion(NOTHING, stream=bool(body.get("stream")))
        playback.requests += 1
        playback.faults += _faults(body, playback)
        reply = playback.answer(body)
        if reply is not None:
            if reply.calls or kind == "step":
                await playback.steer()
            return _completion(reply, stream=bool(body.get("stream")))
        if playback.turn.status == "completed":
            playback.faults.append(f"the model was asked for more than was recorded ({kind})")
        return Response('{"error": {"message": "nothing is recorded"}}', 401, media_type="application/json")

    async def _list_tools(self, *_: object) -> ListToolsResult:
        defined = [
            Tool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema={"type": "object", "properties": {"result": {}}, "x-fastmcp-wrap-result": True},
                annotations=ToolAnnotations(
                    read_only_hint=tool.effect == "read_only",
                    destructive_hint=tool.effect == "destructive",
                    idempotent_hint=tool.idempotent,
                ),
            )
            for tool in self.tools
        ]
        return ListToolsResult(tools=defined)

    async def _call_tool(self, _: object, params: CallToolRequestParams) -> CallToolResult:
        playback, args = self.turn, canonical_args(params.arguments or {})
        if playback is None:
            called = RecordedCall(tool=params.name, args=params.arguments or {})
            answer = self.from_record(called)
            self.arrived.append(called)
            return _error(NOT_RECORDED) if answer is None else _result(answer)
        calls = playback.calls
        call = next((each for each in calls if (each.tool, canonical_args(each.args)) == (params.name, args)), None)
        if call is None:
            playback.faults.append(f"{params.name} was called with {args}, which is not recorded for this turn")
            return _error(NOT_RECORDED)
        playback.calls.remove(call)
        await playback.steer()
        return _result(call)

    def from_record(self, called: RecordedCall) -> RecordedCall | None:
        """Returns the recorded call that answers a real model's: the second of two for the second time."""
        args = canonical_args(called.args)

        def same(calls: Iterable[RecordedCall]) -> list[RecordedCall]:
            return [each for each in calls if (each.tool, canonical_args(each.args)) == (called.tool, args)]

        if found := same(self.known) or same(self.elsewhere)[:1]:
            return found[min(len(same(self.arrived)), len(found) - 1)]
        if not self.stands_in or any(each.name == called.tool and each.effect == "read_only" for each in self.tools):
            return None
        alike = (each for each in (*self.known, *self.elsewhere) if each.tool == called.tool)
        return max(alike, key=lambda each: in_common(each.args, called.args), default=None)


def in_common(args: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    return sum(name in others and others[name] == value for name, value in args.items())


def _faults(body: dict[str, Any], playback: TurnPlayback) -> Iterable[str]:
    messages = body["messages"]
    if invalid := invalid_history(messages) or invalid_tools(body.get("tools", ())):
        yield f"an invalid request: {invalid}"
    said = (each["content"] for each in messages if each["role"] == "user" and each["content"] != CARRY_ON)
    users = tuple(filter(None, map(in_own_words, said)))
    if users != playback.sent[-len(users) :]:
        yield "the user's messages in the request are not the last ones sent, each once"
    text = orjson.dumps(messages).decode()
    if missing := [call_id for call_id in playback.earlier if call_id not in text and short_id(call_id) not in text]:
        yield f"results of earlier turns the model cannot see: {', '.join(missing)}"


def _result(call: RecordedCall) -> CallToolResult:
    """A failure that stood in the tool's result is returned as that result, where the service finds it again."""
    if call.status != "succeeded" and call.result is None:
        return _error(call.error or f"{call.tool} failed.")
    return CallToolResult(content=[], structured_content={"result": call.result})


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _completion(reply: Round, *, stream: bool) -> Response:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    for index, call in enumerate(reply.calls):
        called = {"name": call.tool, "arguments": orjson.dumps(call.args).decode()}
        named = {"index": index, "id": f"call_{index}", "type": "function"}
        message.setdefault("tool_calls", []).append({**named, "function": called})
    reason = "tool_calls" if reply.calls else "stop"
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
        return Response(orjson.dumps(body), media_type="application/json")
    pieces: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": USAGE},
    ]
    shown = [orjson.dumps({**HEAD, "object": "chat.completion.chunk", **piece}).decode() for piece in pieces]
    return Response("".join(f"data: {each}\n\n" for each in [*shown, "[DONE]"]), media_type="text/event-stream")
