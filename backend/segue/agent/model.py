"""The chat model and its limits: one deadline, one layer of retries, answers that are whole or an error.

Everything a provider gets wrong becomes `model_unavailable` or `model_timeout`. Knows no provider: it is given one of
LangChain's chat models.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import structlog
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable

from segue.agent.answer_schemas import Schema
from segue.agent.model_errors import (
    BROKE_OFF,
    MALFORMED,
    Failure,
    ModelFailure,
    NotAnAnswer,
    NothingCame,
    ProviderRefusal,
    failure_of,
    from_library,
    timeout,
    unavailable,
)
from segue.agent.normal_form import form_of, normal_form, own_ids, takes_images, without_images
from segue.agent.offered_tools import ToolOffers, chosen_tools
from segue.agent.reply import SCHEMA, Reply
from segue.agent.request_tokens import estimated_input
from segue.agent.streamed_answer import Listener, StreamedAnswer, within_pauses
from segue.agent.thinking import begins_inside
from segue.agent.tool_schemas import BOUNDS, Bounds
from segue.domain.errors import AppError
from segue.domain.telemetry import ModelCalled, ModelCharged, ModelRetried, Observe, OpenSpan
from segue.domain.tool import ToolSpec
from segue.usage.account import Account
from segue.usage.prices import Tariff

MAX_BOUND_SETS = 64
MAX_EMPTY_ANSWERS = 2

_Bound = tuple[Runnable[LanguageModelInput, AIMessage], Mapping[str, str]]

log = structlog.get_logger()


@dataclass(slots=True)
class Retries:
    """How often the model may still be asked again. A turn shares one count between all its calls."""

    left: int


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Seconds for a whole call, until a stream's first sign of life, and for a pause in it; tries after the first."""

    timeout_s: float
    first_token_s: float
    idle_s: float
    max_retries: int
    tool_bounds: Bounds = BOUNDS


@dataclass(frozen=True, slots=True)
class _ModelRequest:
    """What one call of the model sends, in every attempt the same."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    messages: list[BaseMessage]
    tools: Sequence[ToolSpec]
    account: Account | None

    def counted(self, reply: Reply) -> Reply:
        """Returns the reply with the tokens of its request, if the endpoint counted none."""
        return replace(reply, input_tokens=self.estimated_input()) if reply.estimated else reply

    def estimated_input(self) -> int:
        return estimated_input(self.messages, self.tools)


class ChatModel:
    """A LangChain chat model behind a deadline. `name` is what answers report as `model`, `setting` where it was set.

    `made_by` says whose opaque parts it takes back: those that its own answers come with.
    `tariff` says what its calls are charged; without one they have no price.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        name: str,
        limits: ModelLimits,
        observe: Observe,
        span: OpenSpan,
        setting: str = "LLM_MODEL",
        tariff: Tariff | None = None,
    ) -> None:
        self.name = name
        self._setting = setting
        self._takes_schemas: bool = getattr(model, "takes_schemas", False)
        self.tariff = tariff or Tariff(name)
        self._form = form_of(name)
        self._takes_images = takes_images(name)
        self._model = model
        self._limits = limits
        self._observe = observe
        self._span = span
        self._offers = ToolOffers(limits.tool_bounds)
        self._bound: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], _Bound]] = {}
        self._begins_inside = begins_inside(name)

    @property
    def made_by(self) -> str:
        made_by: str = getattr(self._model, "made_by", "")
        return made_by

    async def complete(
        self, instructions: str, text: str, *, schema: Schema | None = None, account: Account | None = None
    ) -> str:
        """Returns the text of a reply to one message, outside of any turn. Raises as `reply` does."""
        return (
            await self.reply([SystemMessage(instructions), HumanMessage(text)], schema=schema, account=account)
        ).text

    async def probe(self) -> None:
        """Asks the smallest question there is, the way a turn asks. Raises as `reply` does."""
        await self.complete("Answer with the one word: ok", "Are you there?")

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        must_call: bool = False,
        retries: Retries | None = None,
        listener: Listener | None = None,
        schema: Schema | None = None,
        account: Account | None = None,
    ) -> Reply:
        """Returns the model's whole reply, which says or calls something; `listener` is given its words as they come.

        `must_call` leaves the model no choice but to call a tool. `retries` is what the caller has left of them.
        `schema` is the shape of the answer, which not every endpoint holds the model to. What is asked is charged to
        the `account`, also if no answer comes of it.
        Raises AppError `model_timeout` (504), `model_unavailable` (502), and `rate_limited` if a cap leaves no room.
        """
        # Messages and tools pass here, and nowhere else, before they are sent.
        runnable, names = self._with_tools(chosen_tools(tools, messages), must_call=must_call)
        if schema is not None and self._takes_schemas:
            runnable = runnable.bind(**{SCHEMA: schema})
        shown = normal_form(messages, self._form, with_images=self._takes_images)
        request = _ModelRequest(runnable, shown, tools, account)
        started, outcome = time.monotonic(), "internal_error"
        deadline_s = self._deadline_s(is_streamed=listener is not None)
        with self._span("model", model=self.name) as span:
            try:
                async with asyncio.timeout(deadline_s):
                    reply = await self._with_retries(request, retries or Retries(self._limits.max_retries), listener)
                outcome = "answered"
                span.set_attributes(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
            except TimeoutError as error:
                outcome = "model_timeout"
                raise timeout(error.seconds if isinstance(error, NothingCame) else deadline_s) from error
            except AppError as error:
                outcome = error.code
                raise
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            finally:
                self._observe(ModelCalled(outcome, time.monotonic() - started))
        if account is not None:
            await account.settle()
        own = (
            replace(call, name=names.get(call.name, call.name), args=own_ids(call.args, messages))
            for call in reply.calls
        )
        return replace(reply, calls=tuple(own), model=self.name)

    async def _with_retries(self, request: _ModelRequest, retries: Retries, listener: Listener | None) -> Reply:
        attempt = 0
        empty_answers = 0
        while True:
            if request.account is not None:
                await request.account.reserve(lambda: self.tariff.at_most(request.estimated_input()))
            answer = StreamedAnswer(listener, begins_inside=self._begins_inside)
            try:
                reply = await self._ask_with_images(request, answer, is_streamed=listener is not None)
            except Exception as error:  # noqa: BLE001 (a provider's library has its own; any other is raised again)
                failure = self._failure(error, attempt, has_begun=answer.has_begun)
            else:
                if not reply.is_empty:
                    return reply
                empty_answers += 1
                log.warning("model_answer_empty", reasoning_chars=len(reply.reasoning))
                if empty_answers < MAX_EMPTY_ANSWERS:
                    continue
                failure = Failure(unavailable("The model gave an empty answer, and another when it was asked again."))
                break
            # Words that a listener has heard cannot be taken back, so a stream is retried only before its first.
            if (
                answer.has_begun
                or attempt == self._limits.max_retries
                or retries.left == 0
                or not self._may_wait(failure)
            ):
                break
            attempt += 1
            retries.left -= 1
            self._observe(ModelRetried())
            log.warning("model_retry", attempt=attempt, delay_s=failure.delay_s, reason=failure.error.detail)
            await asyncio.sleep(failure.delay_s)
        log.warning("model_failed", reason=failure.error.detail, **failure.error.extra)
        raise failure.error

    async def _ask_with_images(self, request: _ModelRequest, answer: StreamedAnswer, *, is_streamed: bool) -> Reply:
        """Asks again without the images if these are refused, and from then on without any if all are."""
        try:
            return await self._ask(request, answer, is_streamed=is_streamed)
        except ProviderRefusal as refusal:
            shown = without_images(request.messages) if refusal.of_images else None
            if shown is None:
                raise
            self._takes_images = refusal.of_images == "these"
            log.warning("model_images_left_out", reason=refusal.message, status=refusal.status)
        return await self._ask(replace(request, messages=shown), answer, is_streamed=is_streamed)

    async def _ask(self, request: _ModelRequest, answer: StreamedAnswer, *, is_streamed: bool) -> Reply:
        try:
            if is_streamed:
                chunks = request.runnable.astream(request.messages)
                pauses = within_pauses(chunks, first_token_s=self._limits.first_token_s, idle_s=self._limits.idle_s)
                async with aclosing(pauses) as awaited:
                    async for chunk in awaited:
                        answer.add(chunk)
            else:
                answer.add(await request.runnable.ainvoke(request.messages))
            try:
                reply = request.counted(answer.reply())
            finally:
                self._begins_inside = answer.begins_inside
        except BaseException as error:
            # Else the provider refused the request, or was not reached.
            if answer.has_come or isinstance(error, (asyncio.CancelledError, TimeoutError)):
                self._book(request.counted(answer.so_far()), request.account)
            raise
        self._book(reply, request.account)
        return reply

    def _book(self, reply: Reply, account: Account | None) -> None:
        charge = self.tariff.charge(
            input_tokens=reply.input_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.output_tokens,
            reasoning_tokens=reply.reasoning_tokens,
            estimated=reply.estimated,
        )
        self._observe(ModelCharged(charge))
        if account is not None:
            account.add(charge)

    def _failure(self, error: Exception, attempt: int, *, has_begun: bool) -> Failure:
        """Raises the error itself if it is none of a provider's."""
        known = error if isinstance(error, (ModelFailure, *MALFORMED)) else from_library(error)
        if has_begun and isinstance(error, MALFORMED):
            known = NotAnAnswer(BROKE_OFF)
        if known is None or isinstance(known, TimeoutError):
            raise known or error
        failure = failure_of(known, attempt=attempt, setting=self._setting)
        failure.error.__cause__ = error
        return failure

    def _deadline_s(self, *, is_streamed: bool) -> float:  # noqa: ARG002 (for a model that has a fallback)
        return self._limits.timeout_s

    def _may_wait(self, failure: Failure) -> bool:
        return failure.error.retryable and failure.delay_s <= self._limits.timeout_s

    def _with_tools(self, tools: tuple[ToolSpec, ...], *, must_call: bool) -> _Bound:
        """Returns the model with these tools, and their own names by those they are offered under."""
        # Schemas are converted once for each distinct set of tools.
        if not tools:
            return self._model, {}
        key = (must_call, *(tool.name for tool in tools))
        known = self._bound.get(key)
        if known is not None and known[0] == tools:
            return known[1]
        if len(self._bound) >= MAX_BOUND_SETS:
            self._bound.clear()
        offered = self._offers.of(tools)
        runnable = self._model.bind_tools(offered.functions, **({"tool_choice": "required"} if must_call else {}))
        self._bound[key] = (tools, (runnable, offered.names))
        return runnable, offered.names
