"""Questions of an MCP server to the user in the middle of a call (elicitation).

No connection waits for a user: the call raises ToolAsks, and made again it gives each answer once. Over HTTP a question
comes with its call's response. Over stdio it is the only running call's, unless one that was cut off may still run.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import UrlElicitationRequiredError
from pydantic import ValidationError
from pydantic_core import to_json

from segue.domain.redaction import without
from segue.domain.tool import ToolLost
from segue.domain.user_request import ToolAsks, UserAnswer, UserRequest
from segue.log import log
from segue.tools.normalize import clean
from segue.tools.user_requests import MAX_MESSAGE_CHARS, UnfitRequest, checked_schema, checked_url, faults_of_answer

MAX_ROUNDS: Final = 10  # of one call, in which the server wants something
MAX_STATE_BYTES: Final = 64_000
_ENDED_FIRST_S: Final = 1.0
_IN_DOUBT_S: Final = 60.0


class _AskingCall:
    """A call that runs. `asks` is its question that has no answer yet."""

    def __init__(self, answers: Sequence[UserAnswer]) -> None:
        self.scope = anyio.CancelScope()
        self.asks: ToolAsks | None = None
        self.answers = answers
        self.unused = list(answers)

    def take_answer(self, request: UserRequest) -> mcp_types.ElicitResult | None:
        """Returns the user's answer to a question, once; None if there is none that fits."""
        answer = next((each for each in self.unused if each.to == request.key), None)
        if answer is None:
            return None
        self.unused.remove(answer)
        if answer.action == "accept" and request.mode == "form":
            content = answer.content or {}
            fits = not faults_of_answer(request, content)
            return mcp_types.ElicitResult(action="accept", content=content) if fits else None
        return mcp_types.ElicitResult(action=answer.action or "decline")

    def ask(self, request: UserRequest) -> None:
        self.asks = self.asks or ToolAsks(request)
        self.scope.cancel()


_Result = mcp_types.CallToolResult | mcp_types.InputRequiredResult
_Send = Callable[..., Awaitable[_Result]]
_CALL: ContextVar[_AskingCall | None] = ContextVar("asking_call", default=None)


class Questions:
    """The questions of one server. `secrets` are texts that none may show."""

    def __init__(self, server: str, secrets: frozenset[str]) -> None:
        self._server = server
        self._secrets = secrets
        self._running: list[_AskingCall] = []
        self._one_at_a_time = False
        self._turn = asyncio.Lock()
        self._in_doubt_until = 0.0

    async def call(
        self, client: Client, name: str, arguments: dict[str, Any], heard: ProgressFnT, answers: Sequence[UserAnswer]
    ) -> mcp_types.CallToolResult:
        """Returns a tool's result. Raises ToolAsks, ToolLost, MCPError, and the other errors of the SDK."""
        send = partial(client.session.call_tool, name, arguments, None, heard, allow_input_required=True)
        async with self._running_call(answers) as call:
            with call.scope:
                try:
                    return await self._rounds(client, send, call)
                except MCPError as error:
                    if error.code != mcp_types.URL_ELICITATION_REQUIRED:
                        raise
                    call.asks = self._asks_of(error)
            raise call.asks or MCPError(mcp_types.INVALID_PARAMS, "The call was ended.")

    async def on_elicitation(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """Answers the server as the user did before. Else it ends the call in which it asks, and then says `cancel`: a
        tool that went on for a `cancel` would take effect once more when the user has answered.
        """
        del context
        call = self._call_meant()
        if call is None:
            return mcp_types.ElicitResult(action="cancel")
        try:
            request = self._request(params)
        except UnfitRequest as unfit:
            return self._refused(unfit)
        if (answer := call.take_answer(request)) is not None:
            return answer
        if call is not _CALL.get() and anyio.current_time() < self._in_doubt_until:
            log.warning("mcp_question_after_a_call_was_cut_off", server=self._server)
            return mcp_types.ElicitResult(action="cancel")
        call.ask(request)
        await anyio.sleep(_ENDED_FIRST_S)
        return mcp_types.ElicitResult(action="cancel")

    @asynccontextmanager
    async def _running_call(self, answers: Sequence[UserAnswer]) -> AsyncIterator[_AskingCall]:
        async with self._turn if self._one_at_a_time else nullcontext():
            call = _AskingCall(answers)
            _CALL.set(call)
            self._running.append(call)
            try:
                yield call
            except asyncio.CancelledError:
                self._in_doubt_until = anyio.current_time() + _IN_DOUBT_S
                raise
            finally:
                self._running.remove(call)

    def _call_meant(self) -> _AskingCall | None:
        if (call := _CALL.get()) in self._running:
            return call
        if len(self._running) == 1:
            return self._running[0]
        if self._running and not self._one_at_a_time:
            # Whose question it is cannot be told, and another user must not see it. From now on it can.
            self._one_at_a_time = True
            log.warning("mcp_question_of_one_of_several_calls", server=self._server, calls=len(self._running))
        return None

    async def _rounds(self, client: Client, send: _Send, call: _AskingCall) -> mcp_types.CallToolResult:
        """A server of 2026-07-28 ends the call itself, with the input it needs and the state to go on from."""
        left = _left_off(call.answers)
        try:
            result: _Result = left or await send()
        except MCPError as error:
            if error.code != mcp_types.HEADER_MISMATCH:
                raise
            await client.session.list_tools()  # its schema says which arguments go into headers
            result = await send()
        rounds = 0
        while isinstance(result, mcp_types.InputRequiredResult):
            rounds += bool(result.input_requests)  # else it wants time, which the call's deadline bounds
            if rounds > MAX_ROUNDS:
                raise ToolLost(f"It wanted something {MAX_ROUNDS} times: whether the call took effect is unknown.")
            asked = (result.input_requests or {}).items()
            responses = {key: await self._response(client, call, result, each) for key, each in asked} or None
            if not asked:
                await anyio.sleep(0.2)
            try:
                result = await send(input_responses=responses, request_state=result.request_state)
            except MCPError as error:
                if left is None or error.code != mcp_types.INVALID_PARAMS:
                    raise
                call.unused = list(call.answers)  # the server does not know its state any more: from the beginning
                left, result = None, await send()
        return result

    async def _response(
        self, client: Client, call: _AskingCall, result: mcp_types.InputRequiredResult, question: mcp_types.InputRequest
    ) -> mcp_types.InputResponse:
        if not isinstance(question, mcp_types.ElicitRequest):
            context = ClientRequestContext(session=client.session, request_id="")
            response = await client.session.dispatch_input_request(context, question)
            if isinstance(response, mcp_types.ErrorData):
                raise MCPError.from_error_data(response)
            return response
        try:
            request = self._request(question.params)
        except UnfitRequest as unfit:
            raise MCPError.from_error_data(self._refused(unfit)) from None
        if (answer := call.take_answer(request)) is None:
            state = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            # One that is too large is not kept: the call is made from its beginning then.
            raise ToolAsks(request, state=state if len(to_json(state)) <= MAX_STATE_BYTES else None)
        return answer

    def _request(self, params: mcp_types.ElicitRequestParams) -> UserRequest:
        """Raises UnfitRequest."""
        message = str(without(clean(params.message), self._secrets)).strip()[:MAX_MESSAGE_CHARS]
        if not message:
            raise UnfitRequest("it says nothing")
        if isinstance(params, mcp_types.ElicitRequestFormParams):
            schema = without(clean(params.requested_schema), self._secrets)
            return UserRequest("form", message, schema=checked_schema(schema))
        return UserRequest("url", message, url=checked_url(params.url))

    def _asks_of(self, error: MCPError) -> ToolAsks:
        """Returns the first thing that has to be done before the call can be made."""
        try:
            return ToolAsks(self._request(UrlElicitationRequiredError.from_error(error.error).elicitations[0]))
        except (ValueError, IndexError, UnfitRequest):
            why = "It wants something done at a link that cannot be shown."
            raise MCPError(mcp_types.INVALID_PARAMS, why) from None

    def _refused(self, unfit: UnfitRequest) -> mcp_types.ErrorData:
        log.warning("mcp_question_refused", server=self._server, reason=str(unfit))
        message = f"The question cannot be put to the user: {unfit}."
        return mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=message)


def _left_off(answers: Sequence[UserAnswer]) -> mcp_types.InputRequiredResult | None:
    """Returns where the call left off when it asked the question that was answered last."""
    with suppress(ValidationError, IndexError):
        return mcp_types.InputRequiredResult.model_validate(answers[-1].state)
    return None
