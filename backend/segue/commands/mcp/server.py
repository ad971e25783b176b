"""Segue's agents as an MCP server: the tools that an editor or another agent sees, each a few requests to the service.

Who calls is a model, so nothing it says approves a step that waits: the person at the client is asked by a form, and
a client without forms only decides where the operator has allowed it.
"""

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote
from uuid import uuid4

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ElicitRequest, ElicitResult, InputRequiredResult, TextContent, ToolAnnotations
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

from segue.commands.chat.api import Refused, waiting_step
from segue.commands.mcp.calls import BEAT_S, Calls, McpContext
from segue.commands.mcp.question import decision, fills_in, form, question
from segue.commands.mcp.service import CalledTurn, Service
from segue.version import VERSION

INSTRUCTIONS: Final = (
    "Segue is a service of agents with tools, plans and a memory. start_session begins a conversation, send_message "
    "says something in it and returns the agent's answer. A step that changes something waits until a person has "
    "approved it; your own message cannot approve it."
)
READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS: Final = ToolAnnotations(destructive_hint=False, open_world_hint=False)
ACTS: Final = ToolAnnotations(destructive_hint=True, open_world_hint=True)
ASKED: Final = "decision"  # the form, among what a client of the newer protocol answers

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


ToolAnswer = Annotated[CallToolResult, CalledAnswer] | InputRequiredResult


def server_for(service_of: Callable[[McpContext], Service], *, may_decide: bool, beat_s: float = BEAT_S) -> MCPServer:
    """`service_of` gives the service as the caller of a tool may use it."""
    calls = Calls(beat_s)
    tools = Tools(service_of, calls, may_decide=may_decide)
    server = MCPServer(
        "segue",
        title="Segue",
        version=VERSION,
        instructions=INSTRUCTIONS,
        log_level="ERROR",
        subscriptions=False,
        middleware=[calls.cancel_turn],
    )
    for tool in (tools.list_agents, tools.list_sessions, tools.get_messages, tools.get_plan):
        server.add_tool(_told(tool), annotations=READS)
    server.add_tool(_told(tools.start_session), annotations=ADDS)
    server.add_tool(_told(tools.send_message), annotations=ACTS)
    decide = tools.decide_plan_itself if may_decide else tools.decide_plan
    server.add_tool(_told(decide), name="decide_plan", annotations=ACTS)
    return server


def _told(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(tool)
    async def call(*args: Any, **given: Any) -> Any:
        try:
            return await tool(*args, **given)
        except Refused as refusal:
            raise ToolError(str(refusal)) from refusal

    return call


class Tools:
    """What the tools do. A decision has its plan's version as its key, so that sent again it is the same one."""

    def __init__(self, service_of: Callable[[McpContext], Service], calls: Calls, *, may_decide: bool) -> None:
        self._service_of = service_of
        self._calls = calls
        self._may_decide = may_decide

    async def list_agents(self, ctx: McpContext) -> list[dict[str, Any]]:
        """List the agents that a session may have."""
        found = (await self._service_of(ctx).get("/agents"))["items"]
        return [{name: agent[name] for name in ("id", "name", "description")} for agent in found]

    async def list_sessions(
        self, ctx: McpContext, limit: Annotated[int, Field(ge=1, le=100, description="At most so many.")] = 20
    ) -> list[dict[str, Any]]:
        """List the sessions (conversations), newest activity first. `waits` says that a plan waits for a person."""
        found = (await self._service_of(ctx).get("/sessions", limit=limit))["items"]
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
        session = await self._service_of(ctx).post("/sessions", given)
        return {"session_id": session["id"], "agent": session["agent"]}

    async def get_messages(
        self,
        session_id: SessionArgument,
        ctx: McpContext,
        limit: Annotated[int, Field(ge=1, le=100, description="The last ones.")] = 20,
    ) -> list[dict[str, Any]]:
        """Read the last messages of a session, oldest first. Of a tool's result there is a summary."""
        page = await self._service_of(ctx).get(f"{_path(session_id)}/messages", order="desc", limit=limit)
        return [_message(each) for each in page["items"][::-1]]

    async def get_plan(self, session_id: SessionArgument, ctx: McpContext) -> dict[str, Any]:
        """Read the plan that is open in a session, with its steps; null if there is none."""
        return {"plan": (await self._service_of(ctx).get(_path(session_id)))["pending_plan"]}

    async def send_message(
        self,
        session_id: SessionArgument,
        message: Annotated[str, Field(min_length=1, max_length=32_000, description="What to say to the agent.")],
        ctx: McpContext,
        message_id: Annotated[
            str | None,
            Field(pattern=r"^[\x21-\x7e]{1,100}$", description="Yours: sent again with it, it is the same message."),
        ] = None,
    ) -> ToolAnswer:
        """Say something to the agent, and get its answer once it has it. The agent may call tools. A step that needs
        an approval waits for a person: a yes in your message does not count as one.
        """
        if ctx.request_state is not None:
            return await self._resumed(ctx, session_id, ctx.request_state)
        approves = self._may_decide and not can_ask(ctx)
        body = {"message": message, "stream": True, "approves": approves}
        return await self._settled(ctx, await self._sent(ctx, session_id, "chat", body, message_id or str(uuid4())))

    async def decide_plan(self, session_id: SessionArgument, ctx: McpContext) -> ToolAnswer:
        """Ask the person at this client about the step that waits, and carry their decision out. You cannot decide."""
        if ctx.request_state is not None:
            return await self._resumed(ctx, session_id, ctx.request_state)
        plan = (await self._service_of(ctx).get(_path(session_id)))["pending_plan"]
        if waiting_step(plan) is None:
            raise ToolError("Nothing waits for a decision in this session.")
        if not can_ask(ctx):
            raise ToolError(
                "This client cannot show a form to its user (elicitation), and you must not decide yourself. Tell the "
                f"user to decide in the console at {self._service_of(ctx).url}/ or with `segue chat`."
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
        turn = CalledTurn(self._service_of(ctx), session_id, f"{_path(session_id)}/{action}", body, f"mcp:{key}")
        return await self._calls.answer(ctx, turn)

    async def _settled(self, ctx: McpContext, answer: dict[str, Any]) -> ToolAnswer:
        """Asks the person at the client about what waits, as long as something does."""
        session_id, whole = answer["session_id"], self._whole(ctx, answer["session_id"])
        while waiting_step(plan := answer["plan"]) is not None and can_ask(ctx):
            asked = form(plan, whole)
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                state = json.dumps([answer["turn_id"], plan["id"], plan["version"], fills_in(plan)])
                return InputRequiredResult(input_requests={ASKED: ElicitRequest(params=asked)}, request_state=state)
            said = await ctx.session.elicit_form(asked.message, asked.requested_schema, ctx.request_id)
            if (body := decision(said, plan["version"], filled_in=fills_in(plan))) is None:
                break
            answer = await self._sent(ctx, session_id, "plan/decision", body, f"{plan['id']}:{plan['version']}")
        return self._shown(ctx, answer)

    async def _resumed(self, ctx: McpContext, session_id: str, state: str) -> ToolAnswer:
        """Goes on with what the person has said to the question of the round before."""
        turn_id, plan_id, version, filled_in = json.loads(state)
        said = (ctx.input_responses or {}).get(ASKED)
        body = decision(said, version, filled_in=filled_in) if isinstance(said, ElicitResult) else None
        if body is not None:
            key = f"{plan_id}:{version}"
            return await self._settled(ctx, await self._sent(ctx, session_id, "plan/decision", body, key))
        if turn_id is not None:
            return self._shown(ctx, (await self._service_of(ctx).get(f"{_path(session_id)}/turns/{turn_id}"))["answer"])
        plan = (await self._service_of(ctx).get(_path(session_id)))["pending_plan"]
        return self._shown(ctx, {"session_id": session_id, "turn_id": None, "plan": plan})

    def _shown(self, ctx: McpContext, answer: dict[str, Any]) -> CallToolResult:
        plan, waits = answer["plan"], None
        said = answer["message"]["content"] if "message" in answer else "The user has not decided."
        text = said
        if waiting_step(plan) is not None:
            waits = Waits(
                plan_id=plan["id"],
                version=plan["version"],
                question=question(plan, self._whole(ctx, answer["session_id"])),
            )
            text += (
                f"\n\nThis waits for a person's decision (decide_plan), until {plan['expires_at']}:\n{waits.question}"
            )
        shown = CalledAnswer(session_id=answer["session_id"], turn_id=answer["turn_id"], answer=said, waits=waits)
        return CallToolResult(content=[TextContent(text=text)], structured_content=shown.model_dump())

    def _whole(self, ctx: McpContext, session_id: str) -> str:
        return f"{self._service_of(ctx).url}{_path(session_id)}/plan"


def can_ask(ctx: McpContext) -> bool:
    """Whether the client shows forms to a person. A bare `elicitation` is of clients from before there were kinds."""
    declared = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if declared is None or (declared.form is None and declared.url is not None):
        return False
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or ctx.session.can_send_request


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    text = content if isinstance(content, str) else f"{content.get('tool_name')}: {content.get('summary')}"
    return {"role": message["role"], "content": text, "created_at": message["created_at"]}


def _path(session_id: str) -> str:
    return f"/sessions/{quote(session_id, safe='')}"
