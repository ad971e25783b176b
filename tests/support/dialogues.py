"""Recorded dialogues played through `segue serve`: a model and tools that answer as recorded, and the customer.

A row is `{task, trial, messages: [{role, content?, calls?: [{name, args}]}]}`, a tool `{name, description, parameters,
effect}`. The customer says the recorded words, and "Yes." to each question that the service asks besides.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import httpx2
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from starlette.responses import Response

from segue.agent.prompts import TEXTS, in_own_words
from segue.domain.tool import canonical_args
from segue.models.normal_form import PLACEHOLDERS
from tests.support.provider import calls_raw, says, scripted_provider
from tests.support.server import serving
from tests.support.service import Process

MODEL, SMALL_MODEL = "recorded", "recorded-small"
STOP = "###STOP###"
YES = "Yes."
YESES = 8  # to questions about one recorded message
DONE = "Done."  # what the model says if the recording has nothing more
ERROR = "Error"  # a result that begins so is that of a call without an effect
NOT_RECORDED = f"{ERROR}: this call was not recorded, or not this often."
TURN_TIMEOUT_S = 120
KILLS_OF_A_TURN = 2

Call = tuple[str, str]  # the tool's name, the canonical text of its arguments
Boundary = Callable[["Playing", tuple[object, ...]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of the recorded assistant: words, calls, or both."""

    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What the customer said, and what the assistant did until they spoke again."""

    said: str
    replies: tuple[Reply, ...]

    @property
    def calls(self) -> list[Call]:
        return [call for reply in self.replies for call in reply.calls]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """`results` are those of equal calls, in order."""

    name: str
    parts: tuple[Part, ...]
    results: Mapping[Call, Sequence[str]]


def dialogue_of(row: Mapping[str, Any]) -> Dialogue:
    parts: list[tuple[str, list[Reply]]] = []
    results: dict[Call, list[str]] = defaultdict(list)
    waiting: list[Call] = []
    for message in row["messages"]:
        match message["role"]:
            case "user":
                parts.append((message["content"].strip(), []))
            case "assistant":
                waiting = [(call["name"], canonical_args(call["args"])) for call in message.get("calls") or ()]
                parts[-1][1].append(Reply(message.get("content") or "", tuple(waiting)))
            case "tool":
                results[waiting.pop(0)].append(message["content"])
    played = tuple(Part(said, tuple(replies)) for said, replies in parts if STOP not in said)
    return Dialogue(f"{row['task']}.{row['trial']}", played, results)


def read_dialogues(path: Path) -> list[Dialogue]:
    return [dialogue_of(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


@dataclass(slots=True)
class Playing:
    """A dialogue while it is played. `arrived` are the calls that the tools answered, with the results; `doubled` those
    that change something and came more often than recorded; `asked` each question of the service's own, with the number
    of its part; `failed` the turns without an answer.
    """

    dialogue: Dialogue
    changing: frozenset[str]
    at: int = 0
    yeses: int = 0
    sent: list[str] = field(default_factory=list)
    issued: set[Call] = field(default_factory=set)
    arrived: list[tuple[Call, str]] = field(default_factory=list)
    doubled: list[Call] = field(default_factory=list)
    asked: list[tuple[int, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def recorded(self) -> list[tuple[Call, str]]:
        """The calls that should change something, with their results."""
        calls = [call for part in self.dialogue.parts for call in part.calls if call[0] in self.changing]
        return [(call, self.dialogue.results[call][calls[:at].count(call)]) for at, call in enumerate(calls)]

    @property
    def made(self) -> list[tuple[Call, str]]:
        """Those of them that arrived."""
        return [(call, result) for call, result in self.arrived if call[0] in self.changing]

    @property
    def agreements(self) -> list[int]:
        """The parts in which the assistant changed something, so that the customer had agreed to it."""
        parts = self.dialogue.parts
        return [number for number, part in enumerate(parts) if any(call[0] in self.changing for call in part.calls)]

    @property
    def is_right(self) -> bool:
        """Whether all that had an effect has happened once, in order, and nothing else."""
        return _effects(self.made) == _effects(self.recorded) and not self.doubled and not self.failed

    def next_reply(self, body: Mapping[str, Any]) -> Reply:
        """Returns the first recorded reply that the conversation does not hold yet."""
        messages = body["messages"]
        since = said_in(messages)[-1 - self.yeses][0]
        made, told = _made_in(messages[since:])
        may_call = bool(body.get("tools")) and body.get("tool_choice") != "none"
        for reply in self.dialogue.parts[self.at].replies:
            left = tuple(call for call in reply.calls if not _taken(made, call))
            if left:
                return Reply(reply.text, left) if may_call else Reply(DONE, ())
            if not reply.calls and not any(reply.text in text for text in told):
                return reply
        return Reply(DONE, ())


def _effects(calls: Iterable[tuple[Call, str]]) -> list[Call]:
    return [call for call, result in calls if not result.startswith(ERROR)]


def said_in(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Returns the user's own words, each with the index of its message."""
    texts = ((at, str(each["content"])) for at, each in enumerate(messages) if each["role"] == "user")
    said = ((at, in_own_words(text).strip()) for at, text in texts if text not in PLACEHOLDERS)
    return [(at, text) for at, text in said if text]


def _made_in(messages: Sequence[Mapping[str, Any]]) -> tuple[Counter[Call], list[str]]:
    """Returns the calls that have a result, and what the assistant said."""
    answered = {each["tool_call_id"] for each in messages if each["role"] == "tool"}
    functions = [
        call["function"] for each in messages for call in each.get("tool_calls") or () if call["id"] in answered
    ]
    made = Counter((each["name"], canonical_args(json.loads(each["arguments"]))) for each in functions)
    return made, [str(each["content"]) for each in messages if each["role"] == "assistant"]


def _taken(made: Counter[Call], call: Call) -> bool:
    made[call] -= 1
    return made[call] >= 0


async def _undisturbed(_: Playing, __: tuple[object, ...]) -> bool:
    return False


@dataclass(slots=True)
class Desk:
    """The model and the tools of all dialogues that are played. `verdict` is what the small model reads in a reply,
    `foreign` are changing calls that no dialogue holds. `boundary` is told of each tool boundary, and returns whether
    the service was killed there.
    """

    tools: Sequence[Mapping[str, Any]]
    verdict: str = "none"
    boundary: Boundary = _undisturbed
    playing: list[Playing] = field(default_factory=list)
    foreign: list[Call] = field(default_factory=list)
    model_url: str = ""
    tools_url: str = ""

    @property
    def changing(self) -> frozenset[str]:
        return frozenset(tool["name"] for tool in self.tools if tool["effect"] == "destructive")

    async def answer(self, body: dict[str, Any]) -> Response:
        if body["model"] == SMALL_MODEL:
            return says(self._aside(str(body["messages"])))
        words = [text for _, text in said_in(body["messages"])]
        answering = [each for each in self.playing if each.sent[-1:] == words[-1:]]
        playing = max(answering, key=lambda each: len({*words} & {*each.sent}))
        reply = playing.next_reply(body)
        if playing.dialogue.parts[playing.at].calls:
            await self.boundary(playing, ("asked", playing.at, reply))
        playing.issued.update(reply.calls)
        return calls_raw(*reply.calls, text=reply.text) if reply.calls else says(reply.text)

    def _aside(self, asked: str) -> str:
        known = {
            TEXTS["claim_reader"]: {"verdict": "none"},
            '"verdict"': {"verdict": self.verdict},
            '"steps"': {"steps": []},
            '"facts"': {"facts": []},
        }
        return json.dumps(next((answer for part, answer in known.items() if part in asked), {}))

    async def list_tools(self, *_: object) -> ListToolsResult:
        return ListToolsResult(tools=[_definition(tool) for tool in self.tools])

    async def call_tool(self, _: object, params: CallToolRequestParams) -> CallToolResult:
        call = params.name, canonical_args(params.arguments or {})
        callers = [each for each in self.playing if call in each.dialogue.results]
        playing = max(callers, key=lambda each: call in each.issued, default=None)
        if playing is None:
            self.foreign.append(call)
            return _result(NOT_RECORDED)
        results, before = playing.dialogue.results[call], [each for each, _ in playing.arrived].count(call)
        if call[0] in self.changing and before >= len(results):
            playing.doubled.append(call)
            return _result(NOT_RECORDED)
        if call[0] not in self.changing and await self.boundary(playing, ("called", playing.at, call, before)):
            return _result("too late")
        result = results[min(before, len(results) - 1)]
        playing.arrived.append((call, result))
        return _result(result)

    async def play(self, service: "Service", dialogue: Dialogue) -> Playing:
        """Plays the customer to the end."""
        session = (await service.post("/sessions", {})).json()["id"]
        playing = Playing(dialogue, self.changing)
        self.playing.append(playing)
        for playing.at, part in enumerate(dialogue.parts):
            playing.yeses = 0
            question = await self._says(service, session, playing, part.said)
            while question is not None and playing.yeses < YESES:
                playing.asked.append((playing.at, question))
                await self.boundary(playing, ("waits", playing.at, playing.yeses))
                playing.yeses += 1
                question = await self._says(service, session, playing, YES)
        self.playing.remove(playing)
        return playing

    async def _says(self, service: "Service", session: str, playing: Playing, text: str) -> str | None:
        """Returns the question with which the turn ends, if a plan waits for a yes."""
        playing.sent.append(text)
        key = f"{playing.dialogue.name}-{len(playing.sent)}"
        response = await service.post(f"/sessions/{session}/chat", {"message": text}, key=key)
        answer = response.json()
        if not response.is_success:
            playing.failed.append(f"{response.status_code} {answer.get('code')}: {answer.get('detail')}")
            return None
        plan = answer["plan"]
        return str(answer["message"]["content"]) if plan and plan["status"] == "waiting" else None


def _definition(tool: Mapping[str, Any]) -> Tool:
    reads, destroys = tool["effect"] == "read_only", tool["effect"] == "destructive"
    return Tool(
        name=tool["name"],
        description=tool["description"],
        input_schema=tool["parameters"],
        annotations=ToolAnnotations(read_only_hint=reads, destructive_hint=destroys),
    )


def _result(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


@asynccontextmanager
async def serving_desk(tools: Sequence[Mapping[str, Any]], *, verdict: str = "none") -> AsyncIterator[Desk]:
    """Raises AssertionError at the end if a request to the model was invalid."""
    desk = Desk(tools, verdict)
    server = Server("desk", on_list_tools=desk.list_tools, on_call_tool=desk.call_tool)
    app = server.streamable_http_app(stateless_http=True, json_response=True, host="127.0.0.1")
    async with scripted_provider() as provider, serving(app) as url:

        async def answer(body: dict[str, Any]) -> Response:
            provider.requests.clear()  # there are thousands
            return await desk.answer(body)

        provider.habits[""] = provider.summary = provider.title = answer
        desk.model_url, desk.tools_url = provider.base_url, f"{url}/mcp"
        yield desk


class Service:
    """`segue serve`, once or more often on the same stores, asked in turn. A request goes on after a restart."""

    def __init__(self, environments: Iterable[dict[str, str]]) -> None:
        self._processes = [Process(each) for each in environments]
        self._urls: list[str] = []
        self._up = asyncio.Event()
        self._restarting = asyncio.Lock()  # each of several instances may come to a boundary
        self._turns = cycle(range(len(self._processes)))
        self._http = httpx2.AsyncClient(timeout=TURN_TIMEOUT_S)
        self.kills = 0

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        self._kill()

    async def restart(self) -> None:
        """kill -9 of every process, and a start."""
        async with self._restarting:
            self._up.clear()
            self.kills += 1
            await asyncio.to_thread(self._kill)
            await self._start()

    async def post(self, path: str, body: Mapping[str, Any], *, key: str | None = None) -> httpx2.Response:
        """Sends it again after a kill. Raises httpx2.TransportError if the service ended otherwise."""
        headers = {} if key is None else {"Idempotency-Key": key}
        kills = self.kills
        while True:
            await self._up.wait()
            try:
                return await self._http.post(f"{self._urls[next(self._turns)]}{path}", json=body, headers=headers)
            except httpx2.TransportError:
                if kills == self.kills:
                    raise
                kills = self.kills

    async def _start(self) -> None:
        self._urls = [await asyncio.to_thread(self._started, each) for each in self._processes]
        self._up.set()

    def _started(self, process: Process) -> str:
        url = process.start()
        process.wait_for("mcp_server_ready", times=self.kills + 1)
        return url

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


@dataclass(slots=True)
class Kills:
    """Kills the service once at each boundary of a dialogue, over as many plays as it takes: a turn whose process died
    three times is given up.
    """

    service: Service
    been: set[tuple[object, ...]] = field(default_factory=set)
    in_turn: Counter[int] = field(default_factory=Counter)
    left: bool = True

    async def boundary(self, playing: Playing, place: tuple[object, ...]) -> bool:
        turn = len(playing.sent)
        if place in self.been:
            return False
        if self.in_turn[turn] == KILLS_OF_A_TURN:
            self.left = True
            return False
        self.been.add(place)
        self.in_turn[turn] += 1
        await self.service.restart()
        return True

    async def plays(self, desk: Desk, dialogue: Dialogue) -> AsyncIterator[Playing]:
        desk.boundary = self.boundary
        while self.left:
            self.left = False
            self.in_turn.clear()
            yield await desk.play(self.service, dialogue)


def environment(desk: Desk, folder: Path, *, database_url: str, redis_url: str, **settings: str) -> dict[str, str]:
    """What a service needs that plays these dialogues. Writes its mcp.json into the folder."""
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": {"url": desk.tools_url, "prefix": ""}}}))
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "OPENAI_BASE_URL": desk.model_url,
        "LLM_MODEL": MODEL,
        "LLM_SMALL_MODEL": SMALL_MODEL,
        "LLM_MAX_RETRIES": "0",
        "MCP_CONFIG": str(folder / "mcp.json"),
        "WEB_SEARCH_PROVIDER": "none",
        "TURN_LEASE_S": "3",
        **settings,
    }
