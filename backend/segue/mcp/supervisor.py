"""Keeps one MCP server of `mcp.json` connected, and runs the calls of its tools. One task holds the connection; a
caller only awaits a future, so a server that dies, hangs or lies takes down its own tools and nothing else.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import anyio
import httpx2
import mcp_types
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.subscriptions import event_to_notification
from mcp_types import Tool as McpTool

from segue.domain.ids import utc_now
from segue.domain.tool import Reporter, Tool, ToolContext, ToolFailed, ToolLost, ToolRetry, ToolSpec, definition_of
from segue.domain.user_request import ToolAsks
from segue.log import log
from segue.mcp.budget import Budget, McpServerGone, MustWait
from segue.mcp.call_failures import CallDelivery, CannotAsk, Lost, NotSent, as_tool_error, current_delivery, reason_of
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.questions import Questions
from segue.mcp.resources_and_prompts import Offers, Returned
from segue.mcp.server_connection import is_alive, list_tools, must_listen, open_client
from segue.mcp.status import STDERR_SHOWN, LeftOut, McpServerStatus
from segue.mcp.stdio import Stderr
from segue.mcp.tool_mapping import tools_of, value_of
from segue.tools.run import LONGEST, Deadline
from segue.tools.tool_health import ServerAway

_OF_TOOLS: Final = ("confirm", "disabled", "idempotency_arg", "tool_groups", "verify")  # keys of mcp.json
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LIST_PAUSE_S: Final = 0.2
_CLOSE_S: Final = 2.0
_AGAIN_S: Final = 5.0  # how long a call that has to wait for the next connection, or for its server, does so
_QUIET_S: Final = 30.0  # between two signs of life: nothing tells that a server hangs, or that one over HTTP is gone


@dataclass(eq=False, repr=False)
class Supervisor:
    """One server. `state` is `connecting`, `ready` or `failed: <why>`, `since` when; `tools` stay while it reconnects.
    `is_away` says that it could not be connected again at once. `accept` returns the server's tools that may be
    offered. `tried` is set after the first attempt to connect. `listed` is what the server listed last.
    """

    name: str
    config: McpServerConfig
    _: KW_ONLY
    timeout_s: float
    handshake_timeout_s: float
    accept: Callable[["Supervisor", list[Tool]], tuple[Tool, ...]]
    auth: httpx2.Auth | None = None

    def __post_init__(self) -> None:
        self.state, self.since = "connecting", utc_now()
        self.tools: tuple[Tool, ...] = ()
        self.tried = asyncio.Event()
        self.is_away = False
        secrets = self.config.never_logged | {each.get_secret_value() for each in self.config.env.values()}
        self._stderr = Stderr(secrets)
        self._last_error: tuple[str, datetime] | None = None
        self._questions = Questions(self.name, secrets)
        self.listed: list[McpTool] | None = None
        self.unknown: list[str] = []  # tools that mcp.json names and the server does not
        self._left_out: list[LeftOut] = []
        self._connection: tuple[Client, TaskGroup] | None = None
        self._in_doubt = asyncio.Event()
        self._news = asyncio.Event()  # whether it answers; a new one each time
        self._budget = Budget()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = asyncio.Event()  # no reconnection is under way
        self._settled.set()
        self._retired = ""
        self._as_before = False  # whether it is connected as before 2026-07-28
        self.offers = Offers(self.name, self.ask)
        self._calls = 0
        self._idle = asyncio.Event()
        self._ready_at = math.inf
        self._scope: anyio.CancelScope | None = None

    @property
    def status(self) -> McpServerStatus:
        error, at = self._last_error or (None, None)
        names = [tool.spec.name for tool in self.tools]
        stderr = self._stderr.lines()
        return McpServerStatus(self.name, self.state, self.since, names, self._left_out, error, at, stderr)

    def tools_of(self, _: str) -> tuple[Tool, ...]:
        return self.tools

    @property
    def rest(self) -> ServerAway | None:
        """Until when no call is sent: the server has asked to be left alone for longer than a call waits for it."""
        return self._budget.rest if self._budget.rest_s > min(_AGAIN_S, self.timeout_s / 2) else None

    def away(self, _: str) -> ServerAway | None:
        if self.rest or not self.is_away:
            return self.rest
        return f"Its MCP server is not connected ({self.state}).", None

    def reconnect(self) -> None:
        """Connects anew at once, behind the calls that run; new ones wait. Does nothing if that is under way."""
        if self._settled.is_set():
            log.info("mcp_server_reconnects", server=self.name, calls=self._calls)
            self._settled.clear()
            self._hurry.set()
            self._in_doubt.set()

    async def run(self) -> None:
        """Connects, and connects again with growing pauses when a connection ends, until `stop`."""
        pause = _FIRST_PAUSE_S
        with anyio.CancelScope() as self._scope:
            while not self._stopping.is_set():
                try:
                    await self._hold_connection()
                except Exception as error:  # noqa: BLE001 (a connection may end in anything; the next one is tried)
                    if anyio.current_time() - self._ready_at > _LONGEST_PAUSE_S:
                        pause = _FIRST_PAUSE_S
                    pause = max(pause, self._budget.rest_s)
                    self._set_failed(reason_of(error, self._budget.came), pause)
                with anyio.move_on_after(pause):
                    await self._hurry.wait()
                pause = _FIRST_PAUSE_S if self._hurry.is_set() else min(pause * 2, _LONGEST_PAUSE_S)
                self._hurry.clear()

    def stop(self) -> None:
        """Closes the connection within two seconds, or gives up at once if there is none yet."""
        self._stopping.set()
        self._hurry.set()
        self._in_doubt.set()
        if self._scope is None:
            return
        if self._connection is None:
            self._scope.cancel()
        else:
            self._scope.deadline = anyio.current_time() + _CLOSE_S

    async def retire(self, why: str = "mcp.json has changed") -> None:
        """Refuses new calls and says why, lets those that run end, and closes."""
        self._retired = why
        await self._calls_ended(self.config.max_timeout_s or LONGEST * self.timeout_s)
        self.stop()

    def check(self, spec: ToolSpec) -> None:
        """Raises ToolRetry if a tool is another one by now, unless it only reads: a yes is for one definition."""
        now = next((tool.spec for tool in self.tools if tool.spec.name == spec.name), spec)
        if now.effect != "read_only" and definition_of(now) != definition_of(spec):
            why = f"Nothing was run: {self.name} has changed {spec.name}. It can be called from the next message on."
            raise ToolRetry(why)

    async def call(self, spec: ToolSpec, args: dict[str, Any], *, wrapped: bool, context: ToolContext) -> object:
        """Returns what a tool returned. Raises ToolRetry, also for what `check` refuses once there is a connection,
        ToolFailed, ToolAsks; cancelling it cancels the remote call. Progress is passed on and gives the call its time
        again. The answers of `context` are to what ToolAsks was for. A call that did not run for want of a connection
        or session, or came too soon, is made once more, and one that was lost if its tool may repeat. So is one that
        could not ask, over a connection of before 2026-07-28, as all are from then on.
        """
        name, was_as_before = spec.original_name, self._as_before

        async def request(client: Client, heard: ProgressFnT) -> mcp_types.CallToolResult:
            self.check(spec)
            return await self._questions.call(client, name, args, heard, context.answers)

        try:
            result = await self._ask(name, request, context.report)
        except (NotSent, MustWait, Lost, CannotAsk) as failed:
            repeats = any(tool.spec.may_repeat for tool in self.tools if tool.spec.original_name == name)
            has_run = isinstance(failed, CannotAsk) or (isinstance(failed, Lost) and not repeats)
            if isinstance(failed, CannotAsk) and not was_as_before:
                if not self._as_before:  # a call beside this one may have been quicker
                    self._as_before = True
                    self.reconnect()
            elif has_run or not await self._answers_again():
                raise
            log.info("mcp_call_repeated", server=self.name, tool=name)
            result = await self._ask(name, request, context.report)
        self.offers.note_links(context.session_id, result)
        return value_of(result, wrapped=wrapped)

    async def ask(self, what: str, request: Callable[[Client], Awaitable[Returned]]) -> Returned:
        """Returns the result of a request of the protocol. Raises as `call` does."""
        return await self._ask(what, lambda client, _: request(client), lambda *_: None)

    async def _ask(
        self, what: str, request: Callable[[Client, ProgressFnT], Awaitable[Returned]], report: Reporter
    ) -> Returned:
        if not self._settled.is_set():
            with anyio.move_on_after(self.timeout_s):
                await self._settled.wait()
        if self._retired:
            raise ToolRetry(f"{what} was not run: {self._retired}. Call it again if it is still offered.")
        if rest := self.rest:
            raise MustWait(f"{what} was not run. {rest[0]}")
        await asyncio.sleep(self._budget.rest_s)
        if self._connection is None and not self.is_away:
            await self._answers_again()
        if self._connection is None:
            raise ToolFailed(f"The MCP server {self.name} is not connected ({self.state}); it is being tried again.")
        client, calls = self._connection
        answer: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        scope = anyio.CancelScope()
        deadline = Deadline(self.timeout_s, self.config.max_timeout_s)
        limit = asyncio.timeout_at(deadline.at)

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            if not answer.done():
                deadline.extend()
                limit.reschedule(deadline.at)
                report(progress, total, message)

        self._calls += 1
        calls.start_soon(self._answer, partial(request, client, heard), scope, answer)
        try:
            async with limit:
                return await answer
        except TimeoutError:
            self._in_doubt.set()
            raise ToolLost(f"{what} did not answer within {deadline.allowed_s:g} s.") from None
        finally:
            scope.cancel()
            self._calls -= 1
            self._idle.set()

    async def _answer(
        self, ask: Callable[[], Awaitable[Returned]], scope: anyio.CancelScope, answer: asyncio.Future[Returned]
    ) -> None:
        error: Exception = MCPError(mcp_types.CONNECTION_CLOSED, "Connection closed")
        delivery = CallDelivery()
        current_delivery.set(delivery)  # of this task alone
        try:
            with scope:
                result = await ask()
                if not answer.done():
                    answer.set_result(result)
        except (ToolAsks, ToolLost, ToolRetry) as failure:
            if not answer.done():
                answer.set_exception(failure)
        except Exception as raised:  # noqa: BLE001 (any error of the SDK belongs to this caller, not to the other calls)
            error = raised
            self._in_doubt.set()
        finally:
            if not answer.done():
                answer.set_exception(as_tool_error(self.name, error, delivery))

    async def _answers_again(self) -> bool:
        """Waits until the server has answered anything, or could not be connected. Returns False if it is not there."""
        with anyio.move_on_after(0 if self.rest else self._budget.rest_s + min(_AGAIN_S, self.timeout_s)):
            await self._news.wait()
        return self._connection is not None and not self.rest

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _hold_connection(self) -> None:
        """Holds a connection from the handshake to its end. Returns after `stop` or `reconnect`; another end raises."""
        with anyio.fail_after(self.handshake_timeout_s) as handshake:
            self._budget = budget = Budget()
            parts = self._on_notification, self._stderr, budget, self._questions.on_elicitation, self.auth
            async with open_client(self.name, self.config, *parts, as_before=self._as_before) as client:
                await self._load_tools(client)
                await self.offers.begin(client)
                handshake.deadline = math.inf
                async with anyio.create_task_group() as calls:
                    if must_listen(client):
                        calls.start_soon(self._listen, client)
                    self._set_ready(client, calls)
                    try:
                        await self._watch(client)
                    finally:
                        self._connection = None
                        again = self._stopping.is_set() or not self._settled.is_set()
                        self._set_state("connecting" if again else "failed: the connection ended")
                        calls.cancel_scope.cancel()

    def _set_ready(self, client: Client, calls: TaskGroup) -> None:
        self._connection = (client, calls)
        self._ready_at = anyio.current_time()
        self.is_away = False
        self._set_state("ready")
        self._tell()
        if not self._stopping.is_set():
            self._hurry.clear()
        self.tried.set()
        log.info("mcp_server_ready", server=self.name, protocol=client.protocol_version, tools=len(self.tools))

    def _set_failed(self, reason: str, pause: float) -> None:
        self._set_state(f"failed: {reason}")
        self._last_error = reason, self.since
        if self._ready_at == math.inf or pause > _FIRST_PAUSE_S:  # it is not there again in a moment
            self.is_away = True
            self._tell()
        self._ready_at = math.inf
        self.tried.set()
        lines = self._stderr.of_child(STDERR_SHOWN)
        log.warning("mcp_server_failed", server=self.name, reason=reason, retry_in_s=pause, stderr=lines)

    def _set_state(self, state: str) -> None:
        """A connection that stands or has failed settles a reconnection."""
        if state != self.state:
            self.state, self.since = state, utc_now()
        if state != "connecting":
            self._settled.set()

    async def _calls_ended(self, within_s: float) -> None:
        with anyio.move_on_after(within_s):
            while self._calls:
                self._idle.clear()
                await self._idle.wait()

    async def _watch(self, client: Client) -> None:
        """Lists the tools again after a change and after an error: a server that cannot even list them is gone. The
        pause grows while each listing is followed by the next, and starts anew after a quiet time.
        """
        pause, listed_at = _LIST_PAUSE_S, -math.inf
        while True:
            with anyio.move_on_after(_QUIET_S):
                await self._in_doubt.wait()
            # A server may do one thing at a time: while it runs a call, that call's time limit finds out.
            if not self._in_doubt.is_set() and (self._calls or self._budget.rest_s or await is_alive(client)):
                continue
            with anyio.move_on_after(self._budget.rest_s):
                await self._hurry.wait()
            self._in_doubt.clear()
            pause = _LIST_PAUSE_S if anyio.current_time() - listed_at > 2 * pause else min(2 * pause, _LONGEST_PAUSE_S)
            if not self._settled.is_set():
                await self._calls_ended(self.timeout_s)
                return
            if self._stopping.is_set():
                return
            with anyio.move_on_after(self.timeout_s) as listing:
                await self._load_tools(client)
            if listing.cancelled_caught:
                raise McpServerGone("it stopped answering")
            await self.offers.look(client)
            listed_at = anyio.current_time()
            self._tell()
            with anyio.move_on_after(pause):
                await self._hurry.wait()

    async def _load_tools(self, client: Client) -> None:
        listed = await list_tools(self.name, client)
        if listed == self.listed:
            return
        names = {tool.name for tool in listed}
        named = {setting: {*getattr(self.config, setting)} - names for setting in _OF_TOOLS}
        self.unknown = [f"{tool} ({setting})" for setting, tools in named.items() for tool in sorted(tools)]
        if self.unknown:
            log.warning("mcp_config_unknown_tools", server=self.name, tools=self.unknown)
        # In a thread: two hundred large schemas take seconds.
        source = self.name, self.config, listed, self.call, self.timeout_s
        tools, self._left_out = await asyncio.to_thread(tools_of, *source)
        self.listed = listed
        self.tools = self.accept(self, tools)

    async def _on_notification(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ResourceListChangedNotification | mcp_types.PromptListChangedNotification):
            self.offers.forget()
            self._in_doubt.set()
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._in_doubt.set()

    async def _listen(self, client: Client) -> None:
        """Keeps open the stream of changes that a server of 2026-07-28 offers; its loss is the first sign of an end."""
        while True:
            try:
                async with client.listen(
                    tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
                ) as changes:
                    async for event in changes:
                        await self._on_notification(event_to_notification(event, {}))
            except MCPError:
                if not self._budget.rest_s:
                    return
            except SubscriptionLost:
                log.debug("mcp_listen_lost", server=self.name)
            self._in_doubt.set()
            await anyio.sleep(max(_FIRST_PAUSE_S, self._budget.rest_s))
