"""Segue's agents as an MCP server: the tools that an editor or another agent sees, each a few requests to the service.

Who calls is a model, so nothing it says approves a step that waits: the person at the client is asked by a form, which
the model neither sees nor fills in, and a client without forms only decides where the operator has allowed it.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import wraps
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote
from uuid import uuid4

import anyio
import mcp_types
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

from segue import __version__
from segue.around.service_client import AsyncApi, Refused, TurnStream, turn_problem, waiting_step, waiting_steps
from segue.around.terminal import one_line
from segue.domain.session import LONGEST_MESSAGE
from segue.language.lexicon import load_toml
from segue.language.shown_call import CallView

BEAT_S: Final = 10.0
PAUSE_S: Final = 0.25
SHOWN_CHARS: Final = 200

McpContext = Context[Any, Any]
_TEXTS: Final = load_toml("commands.toml", package="segue.around")["mcp"]
READS: Final = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS: Final = mcp_types.ToolAnnotations(destructive_hint=False, open_world_hint=False)
ACTS: Final = mcp_types.ToolAnnotations(destructive_hint=True, open_world_hint=True)
FORM_ID: Final = "decision"  # the form, among what a client of the newer protocol answers

_OWN_ID_IS: Final = "Yours: sent again with it, it is the same message."
OwnId = Annotated[str | None, Field(pattern=r"^[\x21-\x7e]{1,100}$", description=_OWN_ID_IS)]
SessionArgument = Annotated[str, Field(max_length=200, description="As start_session and list_sessions give it.")]


class Waits(BaseModel):
    """A step that runs only after a person has approved it."""

    plan_id: str
    version: int
    question: str


class CalledAnswer(BaseModel):
    """What came of a message or a decision."""

    session_id: str
    turn_id: str | None
    answer: str
    waits: Waits | None


ToolAnswer = Annotated[mcp_types.CallToolResult, CalledAnswer] | mcp_types.InputRequiredResult


def server_for(api_of: Callable[[McpContext], AsyncApi], *, may_decide: bool) -> MCPServer:
    """Returns the server. `api_of` returns the API as the caller of a tool may use it."""
    calls = Calls()
    tools = Tools(api_of, calls, may_decide=may_decide)
    server = MCPServer(
        "segue",
        title="Segue",
        version=__version__,
        instructions=_TEXTS["instructions"],
        log_level="ERROR",
        subscriptions=False,
        middleware=[calls.cancel_turn],
    )
    for tool in (tools.list_agents, tools.list_sessions, tools.get_messages, tools.get_plan):
        server.add_tool(_with_tool_errors(tool), annotations=READS)
    server.add_tool(_with_tool_errors(tools.start_session), annotations=ADDS)
    server.add_tool(_with_tool_errors(tools.send_message), annotations=ACTS)
    decide = tools.decide_plan_itself if may_decide else tools.decide_plan
    server.add_tool(_with_tool_errors(decide), name="decide_plan", annotations=ACTS)
    return server


def _with_tool_errors(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(tool)
    async def call(*args: Any, **named: Any) -> Any:
        try:
            return await tool(*args, **named)
        except Refused as refusal:
            raise ToolError(str(refusal)) from refusal

    return call


class Tools:
    """What the tools do. A decision has its plan's version as its key, so that sent again it is the same one."""

    def __init__(self, api_of: Callable[[McpContext], AsyncApi], calls: "Calls", *, may_decide: bool) -> None:
        self._api_of = api_of
        self._calls = calls
        self._may_decide = may_decide

    async def list_agents(self, ctx: McpContext) -> list[dict[str, Any]]:
        """List the agents that a session may have."""
        found = (await self._api_of(ctx).get("/agents"))["items"]
        return [{name: agent[name] for name in ("id", "name", "description")} for agent in found]

    async def list_sessions(
        self, ctx: McpContext, limit: Annotated[int, Field(ge=1, le=100, description="At most so many.")] = 20
    ) -> list[dict[str, Any]]:
        """List the sessions (conversations), newest activity first. `waits` says that a plan waits for a person."""
        found = (await self._api_of(ctx).get("/sessions", limit=limit))["items"]
        shown = ("id", "title", "agent", "updated_at", "message_count")
        return [
            {name: session[name] for name in shown} | {"waits": waiting_step(session["pending_plan"]) is not None}
            for session in found
        ]

    async def start_session(
        self,
        ctx: McpContext,
        agent: Annotated[str | None, Field(description="The id of one of list_agents, or the default one.")] = None,
        title: Annotated[str | None, Field(max_length=200, description="For people to read.")] = None,
    ) -> dict[str, Any]:
        """Begin a session: a conversation with an agent, which remembers what was said in it."""
        given = {name: value for name, value in (("agent", agent), ("title", title)) if value is not None}
        session = await self._api_of(ctx).post("/sessions", given)
        return {"session_id": session["id"], "agent": session["agent"]}

    async def get_messages(
        self,
        session_id: SessionArgument,
        ctx: McpContext,
        limit: Annotated[int, Field(ge=1, le=100, description="The last ones.")] = 20,
    ) -> list[dict[str, Any]]:
        """Read the last messages of a session, oldest first. Of a tool's result there is a summary."""
        page = await self._api_of(ctx).get(f"{_path(session_id)}/messages", order="desc", limit=limit)
        shown = []
        for each in page["items"][::-1]:
            content = each["content"]
            text = content if isinstance(content, str) else f"{content.get('tool_name')}: {content.get('summary')}"
            shown.append({"role": each["role"], "content": text, "created_at": each["created_at"]})
        return shown

    async def get_plan(self, session_id: SessionArgument, ctx: McpContext) -> dict[str, Any]:
        """Read the plan that is open in a session, with its steps; null if there is none."""
        return {"plan": (await self._api_of(ctx).get(_path(session_id)))["pending_plan"]}

    async def send_message(
        self,
        session_id: SessionArgument,
        message: Annotated[str, Field(min_length=1, max_length=LONGEST_MESSAGE, description="What to tell the agent.")],
        ctx: McpContext,
        message_id: OwnId = None,
    ) -> ToolAnswer:
        """Say something to the agent, and get its answer once it has it. The agent may call tools. A step that needs
        an approval waits for a person: a yes in your message does not count as one.
        """
        if ctx.request_state is not None:
            return await self._resumed(ctx, session_id, ctx.request_state)
        body = {"message": message, "stream": True, "approves": self._may_decide and not can_ask(ctx)}
        return await self._settled(ctx, await self._sent(ctx, session_id, "chat", body, message_id or str(uuid4())))

    async def decide_plan(self, session_id: SessionArgument, ctx: McpContext) -> ToolAnswer:
        """Ask the person at this client about the step that waits, and carry their decision out. You cannot decide."""
        if ctx.request_state is not None:
            return await self._resumed(ctx, session_id, ctx.request_state)
        plan = (await self._api_of(ctx).get(_path(session_id)))["pending_plan"]
        if waiting_step(plan) is None:
            raise ToolError("Nothing waits for a decision in this session.")
        if not can_ask(ctx):
            raise ToolError(
                "This client cannot show a form to its user (elicitation), and you must not decide yourself. Tell the "
                f"user to decide in the console at {self._api_of(ctx).url}/ or with `segue chat`."
            )
        return await self._settled(ctx, {"session_id": session_id, "turn_id": None, "plan": plan})

    async def decide_plan_itself(
        self,
        session_id: SessionArgument,
        version: Annotated[int, Field(ge=1, description="Of the plan as you know it, from get_plan.")],
        choice: Annotated[Literal["confirm", "reject"], Field(description="confirm runs the step that waits.")],
        ctx: McpContext,
    ) -> ToolAnswer:
        """Decide on the step that waits. It may be destructive: confirm only what your user has told you to confirm. If
        this client can ask its user, the user decides instead.
        """
        if can_ask(ctx):
            return await self.decide_plan(session_id, ctx)
        body = {"decision": choice, "version": version}
        return await self._settled(ctx, await self._sent(ctx, session_id, "plan/decision", body, str(uuid4())))

    # --- decisions ---

    async def _sent(
        self, ctx: McpContext, session_id: str, action: str, body: dict[str, Any], key: str
    ) -> dict[str, Any]:
        """Returns the ChatAnswer to a message or a decision. Raises ToolError, Refused."""
        turn = TurnStream(self._api_of(ctx), _path(session_id), action, body, f"mcp:{key}")
        return await self._calls.answer(ctx, turn)

    async def _settled(self, ctx: McpContext, answer: dict[str, Any]) -> ToolAnswer:
        """Asks the person at the client about what waits, as long as something does."""
        session_id = answer["session_id"]
        whole = self._whole(ctx, session_id)
        while waiting_step(plan := answer["plan"]) is not None and can_ask(ctx):
            shown = form(plan, whole)
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                state = json.dumps([answer["turn_id"], plan["id"], plan["version"], fills_in(plan)])
                requests: mcp_types.InputRequests = {FORM_ID: mcp_types.ElicitRequest(params=shown)}
                return mcp_types.InputRequiredResult(input_requests=requests, request_state=state)
            elicited = await ctx.session.elicit_form(shown.message, shown.requested_schema, ctx.request_id)
            if (body := decision(elicited, plan["version"], filled_in=fills_in(plan))) is None:
                break
            answer = await self._sent(ctx, session_id, "plan/decision", body, f"{plan['id']}:{plan['version']}")
        return self._shown(ctx, answer)

    async def _resumed(self, ctx: McpContext, session_id: str, state: str) -> ToolAnswer:
        """Goes on with what the person has said to the question of the round before."""
        turn_id, plan_id, version, filled_in = json.loads(state)
        answer = (ctx.input_responses or {}).get(FORM_ID)
        body = decision(answer, version, filled_in=filled_in) if isinstance(answer, mcp_types.ElicitResult) else None
        if body is not None:
            key = f"{plan_id}:{version}"
            return await self._settled(ctx, await self._sent(ctx, session_id, "plan/decision", body, key))
        if turn_id is not None:
            return self._shown(ctx, (await self._api_of(ctx).get(f"{_path(session_id)}/turns/{turn_id}"))["answer"])
        plan = (await self._api_of(ctx).get(_path(session_id)))["pending_plan"]
        return self._shown(ctx, {"session_id": session_id, "turn_id": None, "plan": plan})

    def _shown(self, ctx: McpContext, answer: dict[str, Any]) -> mcp_types.CallToolResult:
        plan, waits = answer["plan"], None
        text = words = answer["message"]["content"] if "message" in answer else "The user has not decided."
        if waiting_step(plan) is not None:
            wording = question(plan, self._whole(ctx, answer["session_id"]))
            waits = Waits(plan_id=plan["id"], version=plan["version"], question=wording)
            text += f"\n\nThis waits for a person's decision (decide_plan), until {plan['expires_at']}:\n{wording}"
        shown = CalledAnswer(session_id=answer["session_id"], turn_id=answer["turn_id"], answer=words, waits=waits)
        content = [mcp_types.TextContent(text=text)]
        return mcp_types.CallToolResult(content=content, structured_content=shown.model_dump())

    def _whole(self, ctx: McpContext, session_id: str) -> str:
        return f"{self._api_of(ctx).url}{_path(session_id)}/plan"


def can_ask(ctx: McpContext) -> bool:
    """Whether the client shows forms to a person. Clients from before there were kinds declare a bare `elicitation`."""
    declared = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if declared is None or (declared.form is None and declared.url is not None):
        return False
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or ctx.session.can_send_request


def _path(session_id: str) -> str:
    return f"/sessions/{quote(session_id, safe='')}"


# --- the form about a step that waits, which MCP calls an elicitation ---


def question(plan: Mapping[str, Any], whole: str) -> str:
    """Returns the steps that wait as they would run. `whole` is where all of a long call can be read."""
    lines = [f"Plan: {one_line(plan['goal'])}"]
    for step in waiting_steps(plan):
        lines.append(f"Step {step.get('id')}: {one_line(step.get('description') or '')}")
        if step.get("tool"):
            lines.append(f"Tool: {one_line(step['tool'])}")
            lines += [f"  {line}" for line in CallView("en", whole).lines(step.get("args") or {})]
    if asks := (waiting_step(plan) or {}).get("asks"):
        shown = {"the_tool_says": asks["message"]} | ({"follow_this_link_first": asks["url"]} if asks["url"] else {})
        lines += CallView("en", whole).lines(shown)
    return "\n".join(lines)


def fills_in(plan: Mapping[str, Any]) -> bool:
    """Whether the step waits for values that its tool asks for, instead of a decision."""
    asks = (waiting_step(plan) or {}).get("asks")
    return asks is not None and asks["mode"] == "form"


def form(plan: Mapping[str, Any], whole: str) -> mcp_types.ElicitRequestFormParams:
    """Returns the form. A value that a tool asks for and that the user has said in words is filled in already."""
    step, schema = waiting_step(plan), _TEXTS["form"]
    if step is not None and fills_in(plan):
        shape, given = step["asks"]["schema"], step["asks"]["given"] or {}
        known = {name: {"default": value} for name, value in given.items()}
        fields = {name: {**of, **known.get(name, {})} for name, of in shape["properties"].items()}
        schema = {**shape, "properties": fields}
    return mcp_types.ElicitRequestFormParams(message=question(plan, whole), requested_schema=schema)


def decision(answer: mcp_types.ElicitResult, version: int, *, filled_in: bool) -> dict[str, Any] | None:
    """Returns the body of a decision; None if the person left it open. A yes with a change in it is a change."""
    if filled_in and answer.action == "accept":
        return {"decision": "confirm", "version": version, "answer": answer.content or {}}
    given = answer.content or {} if answer.action == "accept" else {}
    decided = "reject" if answer.action == "decline" else given.get("decision")
    change = str(given.get("change") or "").strip()
    if decided != "reject" and change:
        return {"decision": "amend", "version": version, "message": change}
    return {"decision": decided, "version": version} if decided in ("confirm", "reject") else None


# --- turns that calls wait for ---


class Calls:
    """The turns that calls wait for, by connection and request. Each BEAT_S seconds the client hears of its call."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], TurnStream] = {}

    async def answer(self, ctx: McpContext, turn: TurnStream) -> dict[str, Any]:
        """Returns the ChatAnswer. Raises ToolError if the turn fails, Refused."""
        progress, connection = CallProgress(ctx), _connection(ctx.request_context)
        request = connection or "", ctx.request_id
        if connection is not None:
            self._turns[request] = turn
        beats = asyncio.create_task(progress.beat())
        try:
            async with aclosing(turn.events()) as events:
                async for event in events:
                    await progress.follow(event)
        except asyncio.CancelledError:  # of a call on a connection, `cancel_turn` cancels the turn
            if connection is None:
                with anyio.CancelScope(shield=True):
                    await turn.cancel()
            raise
        finally:
            beats.cancel()
            self._turns.pop(request, None)
        if event["type"] == "RUN_ERROR":
            raise ToolError(turn_problem(event, turn.api.advice))
        return dict(event["result"])

    async def cancel_turn(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware. The turn of a client that only leaves goes on."""
        connection = _connection(ctx)
        if ctx.method == "notifications/cancelled" and connection is not None:
            turn = self._turns.pop((connection, str((ctx.params or {}).get("requestId"))), None)
            if turn is not None:
                await turn.was_sent.wait()  # only then it has an id
                await turn.cancel()
        return await call_next(ctx)


class CallProgress:
    """Reports a turn to a client that asked for progress: calls of tools, and the end of the text so far."""

    def __init__(self, ctx: McpContext) -> None:
        self._ctx = ctx
        self._count = 0
        self._text = ""
        self._reported_at = 0.0

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.report("still working")

    async def report(self, message: str) -> None:
        self._count += 1
        self._reported_at = time.monotonic()
        await self._ctx.report_progress(self._count, None, message)

    async def follow(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"type": "TOOL_CALL_START", "toolCallName": name}:
                await self.report(f"calls {name}")
            case {"type": "TEXT_MESSAGE_START"}:
                self._text = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "delta": words}:
                self._text = (self._text + words)[-SHOWN_CHARS:]
                if time.monotonic() - self._reported_at > PAUSE_S:
                    await self.report(self._text)


def _connection(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """Clients number their requests each from one. Returns None over HTTP since 2026-07-28: there are no connections
    then, and a client cancels a call by closing its stream.
    """
    if ctx.request is None:
        return "stdio"
    session_id: str | None = ctx.request.headers.get("mcp-session-id")
    return None if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else session_id
