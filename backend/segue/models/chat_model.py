"""The chat model and its limits: one deadline, one layer of retries, answers that are whole or an error
(`model_unavailable`, `model_timeout`). Knows no provider: it gets a ProviderModel.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Final, TypedDict, TypeVar, Unpack

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from segue.domain.agent import OFFLINE, provider_and_id
from segue.domain.errors import AppError
from segue.domain.identity import Charge
from segue.domain.telemetry import Attribute, ModelCalled, ModelCharged, ModelRetried, Observe, OpenSpan, Span
from segue.domain.tool import ToolSpec
from segue.log import log
from segue.models import amended_requests, normal_form, refusals, traced_call
from segue.models.calls_in_text import ADVICE, read_calls
from segue.models.model_settings import ModelSettings
from segue.models.reply import AnswerSchema, ProviderModel, Reply, RequestOptions, ToolChoiceMode, estimated_input
from segue.models.streamed_answer import Listener, StreamedAnswer, within_pauses
from segue.models.tool_schemas import Bounds, BoundTools, ToolBindings, as_shown_calls, meant_call
from segue.secret_files import LiveKeys
from segue.users.prices import Tariff
from segue.users.usage import Account


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request of one call of the model."""

    bound: BoundTools
    messages: list[BaseMessage]
    options: RequestOptions
    parts: amended_requests.RequestParts
    account: Account | None

    def at_most(self, tariff: Tariff) -> Charge:
        """Returns the call's charge if its answer is as long as can be."""
        return tariff.at_most(estimated_input(self.messages, self.parts.tools))

    def counted(self, reply: Reply) -> Reply:
        """Returns the reply with the tokens of its request, if the endpoint counted none, or the answer's only."""
        count = reply.input_tokens or estimated_input(self.messages, self.parts.tools)
        return replace(reply, input_tokens=count, estimated=reply.estimated or not reply.input_tokens)

    def in_own_terms(self, reply: Reply) -> Reply:
        """Returns the reply with our names and ids in its calls."""
        sent = normal_form.sent_ids(self.parts.messages if reply.calls else (), self.parts.form)
        ids = {sent_id: call_id for call_id, sent_id in sent.items()}
        own = (replace(call, name=self.bound.own_name(call.name)) for call in reply.calls)
        if self.bound.calls_others:
            own = (replace(call, name=self.bound.own_name(call.name)) for call in map(meant_call, own))
        calls = tuple(replace(call, args=normal_form.own_ids(call.args, ids)) for call in own)
        return replace(reply, calls=calls, left_out=self.parts.left_out, opaque_is_dead=self.parts.without_opaque)

    def new_answer(self, listener: Listener | None, *, begins_inside: bool) -> StreamedAnswer:
        """Returns the answer before any of it comes. Its calls are emitted under our names."""
        if listener is not None:
            listener.on_asked()
            tell, own_name = listener.on_call, self.bound.own_name
            listener = replace(listener, on_call=lambda piece: tell(replace(piece, name=own_name(piece.name))))
        read = partial(read_calls, tools=self.parts.tools, names=self.bound.names, messages=self.messages)
        may_call = self.parts.tools and self.parts.tool_choice != "none"
        return StreamedAnswer(listener, begins_inside=begins_inside, read_calls=read if may_call else None)


PROBE_TOOL = ToolSpec("current_time", "Returns the time.", {"type": "object", "properties": {}}, source="builtin")
MAX_EMPTY_ANSWERS = 2
# How long a key is left out after a refusal, by its cause, unless the provider says when to come back.
KEY_LEFT_OUT_S: Final = {"key": 300.0, "quota": 300.0, "rate_limit": 30.0}
MAX_KEY_LEFT_OUT_S: Final = 3600.0

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Retries:
    """How often the model may still be asked again. A turn shares one count between all its calls."""

    left: int


class ReplyOptions(TypedDict, total=False):
    """A caller's wishes for the reply."""

    tool_choice: ToolChoiceMode
    schema: AnswerSchema | None  # the shape of the answer, to which not every endpoint holds the model
    sampling: Mapping[str, Any] | None  # what the client names, as far as the endpoint takes it
    empty_tries: int  # how many empty answers end the call


@dataclass(eq=False, repr=False)
class ChatModel:
    """A provider's model behind a deadline. `name` is what answers report as `model`, `setting` where it was set.

    `made_by` says whose opaque parts go back to it: its own and its fallback's. `tariff` says what its calls are
    charged. A refused one of the `keys` is left out for a while. `server` is what a span says of its address. It is
    shown of MEDIA what it `takes`. `chance` spreads the waits before retries.
    """

    model: ProviderModel
    _: KW_ONLY
    name: str
    settings: ModelSettings
    observe: Observe
    span: OpenSpan
    tariff: Tariff
    setting: str = "LLM_MODEL"
    keys: LiveKeys | None = None
    server: Mapping[str, Attribute] = field(default_factory=dict)
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self.provider, self.id = provider_and_id(self.name)
        self.traced_as = "segue" if self.name == OFFLINE else self.provider.traced_as
        self.made_by = self.model.made_by
        self._form = normal_form.form_of(self.name)
        self.takes = normal_form.media_of(self.name) - {"file"}
        self._too_long: int | None = None  # the size of the smallest conversation that was refused
        self._limits = amended_requests.NO_LIMITS  # what it has said that the model takes
        bounds = Bounds(self.settings.llm_tool_description_chars, describes_all=self._form.describes_parameters)
        self._tools = ToolBindings(bounds)
        self._begins_inside = normal_form.begins_inside(self.name)
        self._has_told_of_calls_in_text = False
        self._timeout_s = self._whole_s = self._longest_wait_s = self.settings.llm_timeout_s

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models without a price that may answer."""
        return () if self.tariff.price else (self.name,)

    async def complete(
        self, instructions: str, text: str, *, schema: AnswerSchema | None = None, account: Account | None = None
    ) -> str:
        """Returns the text of a reply to one message, outside of any turn. Raises as `reply` does."""
        messages = [SystemMessage(instructions), HumanMessage(text)]
        return (await self.reply(messages, schema=schema, account=account)).text

    async def probe(self) -> None:
        """Asks the smallest question there is, the way a turn asks. Raises as `reply` does."""
        messages = [SystemMessage("Answer with the one word: ok"), HumanMessage("Are you there?")]
        await self.reply(messages, [PROBE_TOOL], listener=Listener(lambda _: None, lambda: None))

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        listener: Listener | None = None,
        retries: Retries | None = None,
        account: Account | None = None,
        **options: Unpack[ReplyOptions],
    ) -> Reply:
        """Returns the model's whole reply, which says or calls something; `listener` is given its words as they come.
        `retries` are those the caller has left. The `account` is charged, also if no answer comes. Raises AppError
        `model_timeout` (504), `model_unavailable` (502), and `rate_limited` if a cap leaves no room.
        """
        options.setdefault("empty_tries", MAX_EMPTY_ANSWERS)
        parts = amended_requests.RequestParts(messages, tuple(tools), self._form, limits=self._limits, **options)
        if self._too_long is not None and amended_requests.size_of(messages) >= self._too_long:
            parts = replace(parts, messages=amended_requests.shortened(messages, self._too_long // 2))
        request = self._request(parts, account)
        started, outcome = time.monotonic(), "internal_error"
        with self.span("model", model=self.id, provider=self.traced_as) as span:
            session = {"session_id": account.session_id} if account else {}
            form = {"gen_ai.output.type": "json"} if parts.schema else {}
            span.set_attributes(**self.server, **session, **form, **{"gen_ai.request.stream": listener is not None})
            if span.content:
                span.set_attributes(**traced_call.input_messages(request.messages))
            try:
                reply = await self._in_time(request, retries or Retries(self.settings.llm_max_retries), listener, span)
                outcome = "answered"
            except AppError as error:
                outcome = refusals.outcome_of(error)
                advice = refusals.what_to_mend(error, self.setting, self.provider)
                log.warning("model_failed", outcome=outcome, reason=error.detail, advice=advice, **error.extra)
                raise
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            finally:
                self.observe(ModelCalled(outcome, time.monotonic() - started))
        if account is not None:
            await account.settle()
        return replace(reply, model=self.name)

    def _request(self, parts: amended_requests.RequestParts, account: Account | None) -> ModelRequest:
        """Messages and tools pass here, and nowhere else, before they are sent."""
        if parts.limits.window is not None:
            parts = amended_requests.within_window(parts, parts.limits.window)
        model, bound, sampling = self.model, self._tools.of(parts.tools), parts.sampling
        options = RequestOptions(
            bound.offered,
            parts.tool_choice,
            schema=parts.schema if model.takes_schemas else None,
            sampling=self._bounded(sampling) if sampling and model.takes_sampling else {},
            most_output=parts.limits.output,
            # What begins alike then goes where its beginning is in the cache.
            cache_key=account.session_id if account is not None and model.takes_cache_keys else None,
        )
        if bound.calls_others:
            parts = replace(parts, messages=as_shown_calls(parts.messages, bound.names.values()))
        shown = normal_form.normal_form(parts.messages, parts.form, media=self.takes | parts.without_media)
        if parts.without_media:
            shown = normal_form.without_media(shown, parts.without_media)
        return ModelRequest(bound, shown, options, parts, account)

    def _bounded(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a client's parameters, within the bounds of the settings."""
        at_most, requested = self.settings.answer_tokens, sampling.get("max_tokens")
        return {**sampling, "max_tokens": min(requested, at_most)} if requested and at_most else dict(sampling)

    async def _in_time(self, request: ModelRequest, retries: Retries, listener: Listener | None, span: Span) -> Reply:
        deadline_s = self._whole_s if listener is None else self._timeout_s
        try:
            async with asyncio.timeout(deadline_s):
                return await self._retried(request, retries, listener, span)
        except refusals.NothingCame as error:
            raise refusals.timeout(error.seconds, error.setting) from error
        except TimeoutError as error:
            raise refusals.timeout(deadline_s) from error

    async def _retried(self, request: ModelRequest, retries: Retries, listener: Listener | None, span: Span) -> Reply:
        attempt, empty_answers, began = 0, 0, time.monotonic()
        while True:
            if request.account is not None:
                await request.account.reserve(partial(request.at_most, self.tariff))
            answer = request.new_answer(listener, begins_inside=self._begins_inside)
            ask = partial(self._ask, request, answer, span, is_streamed=listener is not None)
            try:
                reply = await with_a_key(self.keys, ask, answer)
            except Exception as error:  # noqa: BLE001 (a provider's library has its own; any other is raised again)
                failure = self._failure(error, attempt, has_begun=answer.has_begun)
                if not answer.has_begun and (instead := await self._instead(request, error)) is not None:
                    if instead.tool_choice == "required" and not instead.tools:
                        return Reply("", (), 0, 0, left_out=instead.left_out)
                    request = self._request(instead, request.account)
                    continue
            else:
                if not reply.is_empty:
                    self._too_long = min(filter(None, (request.parts.too_long, self._too_long)), default=None)
                    self._limits = request.parts.limits
                    self._form = request.parts.form if request.parts.form.opaque_too else self._form
                    return request.in_own_terms(reply)
                empty_answers += 1
                log.warning("model_answer_empty", reasoning_chars=len(reply.reasoning))
                if empty_answers < request.parts.empty_tries:
                    continue
                again = ", and another when it was asked again" if empty_answers > 1 else ""
                failure = refusals.Failure(refusals.unavailable(f"The model gave an empty answer{again}."))
                break
            # Words that a listener has heard cannot be taken back, so a stream is retried only before its first.
            is_last = attempt == self.settings.llm_max_retries or retries.left == 0
            is_last = is_last or time.monotonic() + failure.delay_s > began + self.settings.llm_timeout_s
            if answer.has_begun or is_last or not failure.error.retryable or failure.delay_s > self._longest_wait_s:
                break
            attempt += 1
            retries.left -= 1
            self.observe(ModelRetried())
            span.add_event("retry", attempt=attempt, delay_s=failure.delay_s, reason=refusals.outcome_of(failure.error))
            log.warning("model_retry", attempt=attempt, delay_s=failure.delay_s, reason=failure.error.detail)
            await asyncio.sleep(failure.delay_s)
        raise failure.error

    async def _instead(self, request: ModelRequest, error: Exception) -> amended_requests.RequestParts | None:
        """Returns the request to send instead after a refusal, None if nothing helps."""
        if isinstance(error, refusals.NotAnAnswer) and error.is_filtered:
            return amended_requests.without_earlier_turns(request.parts)
        if not isinstance(error, refusals.ProviderRefusal):
            return None
        if refused := amended_requests.media_refused(error, normal_form.media_in(request.messages)):
            kind, extent = refused
            self.takes -= {kind} if extent == "all" else set()
            log.warning("model_media_left_out", media=kind, of=extent, reason=error.message, status=error.status)
            return replace(request.parts, without_media=request.parts.without_media | {kind})
        instead = amended_requests.amended(request.parts, error, list(request.bound.names))
        if instead is None and error.cause.name in ("content_filter", "refused"):
            instead = amended_requests.without_earlier_turns(request.parts)
        if instead is not None:
            left_out = sorted(instead.left_out.keys() - request.parts.left_out.keys())
            log.warning("model_request_amended", reason=error.message, status=error.status, tools_left_out=left_out)
        return instead

    async def _ask(self, request: ModelRequest, answer: StreamedAnswer, span: Span, *, is_streamed: bool) -> Reply:
        try:
            parts = self.model.answer(request.messages, request.options, is_streamed=is_streamed)
            if is_streamed:
                first_s, idle_s = self.settings.llm_first_token_timeout_s, self.settings.llm_idle_timeout_s
                parts = within_pauses(parts, first_token_s=first_s, idle_s=idle_s)
            async with aclosing(parts) as awaited:
                async for part in awaited:
                    answer.add(part)
            try:
                reply = request.counted(answer.reply())
            finally:
                self._begins_inside = answer.begins_inside
            if answer.called_in_text and not self._has_told_of_calls_in_text:
                self._has_told_of_calls_in_text = True
                log.warning("model_calls_in_text", model=self.name, advice=ADVICE)
        except BaseException as error:
            # Else the provider refused the request, or was not reached.
            if answer.has_come or isinstance(error, (asyncio.CancelledError, TimeoutError)):
                self._book(request.counted(answer.so_far()), request.account, span)
            raise
        self._book(reply, request.account, span)
        return reply

    def _book(self, reply: Reply, account: Account | None, span: Span) -> None:
        tokens = reply.input_tokens, reply.cached_tokens, reply.output_tokens, reply.reasoning_tokens
        charge = self.tariff.priced(Charge(self.tariff.model, 1, *tokens, reply.estimated), reply.written_tokens)
        self.observe(ModelCharged(charge, account.agent if account else ""))
        if span.trace_id:
            span.set_attributes(**traced_call.response(reply, charge))
        if span.content:
            span.set_attributes(**traced_call.output_messages(reply))
        if account is not None:
            account.add(charge)

    def _failure(self, error: Exception, attempt: int, *, has_begun: bool) -> refusals.Failure:
        """Raises the error itself if it is none of a provider's."""
        if not isinstance(error, (refusals.ModelFailure, *refusals.MALFORMED)):
            raise error
        known = refusals.NotAnAnswer() if has_begun and isinstance(error, refusals.MALFORMED) else error
        setting, chance = self.setting, self.chance()
        failure = refusals.failure_of(known, attempt=attempt, chance=chance, setting=setting, provider=self.provider)
        failure.error.__cause__ = error
        return failure


async def with_a_key(
    keys: LiveKeys | None, ask: Callable[[], Awaitable[_Answer]], begun: StreamedAnswer | None = None
) -> _Answer:
    """Returns the answer under the first of the keys that is not refused, each tried once. Raises as `ask` does, and at
    once if any of the answer has `begun` to come: that is paid for.
    """
    if keys is None:
        return await ask()
    tried = set[str]()
    while True:
        tried.add(key := keys.value)
        before = keys.refusals.get(key)
        try:
            answer = await ask()
        except refusals.ProviderRefusal as refusal:
            cause = refusal.cause.name
            if (begun is not None and begun.has_come) or cause not in KEY_LEFT_OUT_S:
                raise
            seconds = min(max(refusal.retry_after_s or KEY_LEFT_OUT_S[cause], 1.0), MAX_KEY_LEFT_OUT_S)
            place = await keys.refused(key, cause, seconds)
            if keys.value in tried:
                raise
            log.warning("model_key_left_out", setting=keys.name, key=place, cause=cause, for_s=seconds)
        else:
            if keys.refusals.get(key) == before:  # else an older answer says nothing of a later refusal
                keys.refusals.pop(key, None)
            return answer
