"""The chat model and its limits: one deadline, one layer of retries, answers that are whole or an error.

Everything a provider gets wrong becomes `model_unavailable` or `model_timeout`; its own words never reach a client.
"""

import asyncio
import math
import re
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import openai
import structlog
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable

from segue.agent.normal_form import form_of, normal_form, own_ids
from segue.agent.streamed_answer import OnText, StreamedAnswer, StreamIdle, within_idle
from segue.domain.errors import AppError
from segue.domain.telemetry import ModelCalled, ModelRetried, Observe, OpenSpan
from segue.domain.tool import ToolSpec
from segue.tools.normalize import clean_text

FIRST_DELAY_S = 0.5
MAX_BOUND_SETS = 64
RESERVED_CALLS = 2
MAX_TOKENS = 10**9  # more in one reply is a provider's mistake
_CUT_OFF = frozenset({None, "", "length", "content_filter"})
_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS = 64

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call the model asks for. `args` is None if they were no JSON object."""

    name: str
    args: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    calls: tuple[ModelCall, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """What one turn may ask of the model, all its calls together."""

    max_calls: int = 40
    max_tokens: int = 1_000_000
    max_retries: int = 6


@dataclass(slots=True)
class Retries:
    """How often the model may still be asked again. A turn shares one count between all its calls."""

    left: int


class ChatModel:
    """A LangChain chat model behind a deadline. `name` is what answers report as `model`."""

    def __init__(
        self,
        model: BaseChatModel,
        *,
        name: str,
        timeout_s: float,
        idle_s: float,
        max_retries: int,
        observe: Observe,
        span: OpenSpan,
    ) -> None:
        self.name = name
        self._form = form_of(name)
        self._model = model
        self._timeout_s = timeout_s
        self._idle_s = min(timeout_s, idle_s)
        self._max_retries = max_retries
        self._observe = observe
        self._span = span
        self._bound: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], Runnable[LanguageModelInput, AIMessage]]] = {}

    async def complete(self, instructions: str, text: str) -> str:
        """Returns the text of a reply to one message, outside of any turn. Raises as `reply` does."""
        return (await self.reply([SystemMessage(instructions), HumanMessage(text)])).text

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
        on_text: OnText | None = None,
    ) -> Reply:
        """Returns the model's whole reply; `on_text` is given its words as they come.

        `must_call` leaves the model no choice but to call a tool. `retries` is what the caller has left of them.
        Raises AppError `model_timeout` (504) and `model_unavailable` (502).
        """
        runnable = self._with_tools(tuple(tools), must_call=must_call)
        retries = retries or Retries(self._max_retries)
        started, outcome, tokens = time.monotonic(), "internal_error", (0, 0)
        with self._span("model", model=self.name) as span:
            try:
                async with asyncio.timeout(self._timeout_s):
                    reply = await self._with_retries(runnable, normal_form(messages, self._form), retries, on_text)
                outcome, tokens = "answered", (reply.input_tokens, reply.output_tokens)
                span.set_attributes(input_tokens=tokens[0], output_tokens=tokens[1])
            except (TimeoutError, openai.APITimeoutError) as error:
                outcome = "model_timeout"
                raise _timeout(self._timeout_s) from error
            except AppError as error:
                outcome = error.code
                raise
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            finally:
                self._observe(ModelCalled(outcome, time.monotonic() - started, *tokens))
        return replace(reply, calls=tuple(replace(call, args=own_ids(call.args, messages)) for call in reply.calls))

    async def _with_retries(
        self,
        runnable: Runnable[LanguageModelInput, AIMessage],
        messages: list[BaseMessage],
        retries: Retries,
        on_text: OnText | None,
    ) -> Reply:
        for attempt in range(self._max_retries + 1):
            answer = StreamedAnswer(on_text) if on_text else None
            try:
                if answer is None:
                    return read_reply(await runnable.ainvoke(messages))
                async with aclosing(within_idle(runnable.astream(messages), self._idle_s)) as chunks:
                    async for chunk in chunks:
                        answer.add(chunk)
                return read_reply(answer.message())
            except openai.APITimeoutError:
                raise
            except (StreamIdle, openai.OpenAIError, *_MALFORMED) as error:
                failure, delay = self._failure(error, attempt)
                failure.__cause__ = error
            # Words that a follower has seen cannot be taken back, so a stream is retried only before its first.
            has_begun = answer is not None and answer.has_begun
            is_last = attempt == self._max_retries or retries.left == 0
            if is_last or has_begun or delay > self._timeout_s or not failure.retryable:
                break
            retries.left -= 1
            self._observe(ModelRetried())
            log.warning("model_retry", attempt=attempt + 1, delay_s=delay, reason=failure.detail)
            await asyncio.sleep(delay)
        raise failure

    def _failure(self, error: Exception, attempt: int) -> tuple[AppError, float]:
        """Returns what the caller is told if this was the last attempt, and the seconds to wait before another."""
        match error:
            case StreamIdle():
                return _timeout(self._idle_s), FIRST_DELAY_S
            case openai.APIConnectionError():
                return unavailable("The model provider cannot be reached."), FIRST_DELAY_S * 2**attempt
            case openai.APIStatusError():
                return _refused(error), _retry_delay(error, attempt)
            case _:
                return unavailable("The model provider sent something that is no answer."), FIRST_DELAY_S

    def _with_tools(self, tools: tuple[ToolSpec, ...], *, must_call: bool) -> Runnable[LanguageModelInput, AIMessage]:
        # Schemas are converted once for each distinct set of tools.
        if not tools:
            return self._model
        key = (must_call, *(tool.name for tool in tools))
        known = self._bound.get(key)
        if known is not None and known[0] == tools:
            return known[1]
        if len(self._bound) >= MAX_BOUND_SETS:
            self._bound.clear()
        functions = [_as_function(tool) for tool in tools]
        runnable = self._model.bind_tools(functions, **({"tool_choice": "required"} if must_call else {}))
        self._bound[key] = (tools, runnable)
        return runnable


class MeteredModel:
    """The model as one turn uses it: counts and bounds what its calls cost. `seconds` is the time spent waiting."""

    def __init__(self, model: ChatModel, budget: ModelBudget) -> None:
        self._model = model
        self._budget = budget
        self._retries = Retries(budget.max_retries)
        self.name = model.name
        self.llm_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.seconds = 0.0

    @property
    def retried(self) -> int:
        return self._budget.max_retries - self._retries.left

    @property
    def nearly_spent(self) -> bool:
        """Whether only enough is left for a last answer."""
        budget, tokens = self._budget, self.input_tokens + self.output_tokens
        return self.llm_calls >= budget.max_calls - RESERVED_CALLS or tokens >= budget.max_tokens // 2

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        must_call: bool = False,
        on_text: OnText | None = None,
    ) -> Reply:
        """Returns what `ChatModel.reply` does. Raises AppError `turn_budget_spent` (502) beside what that raises."""
        tokens = self.input_tokens + self.output_tokens
        if self.llm_calls >= self._budget.max_calls or tokens >= self._budget.max_tokens:
            raise _budget_spent()
        self.llm_calls += 1
        started = time.monotonic()
        try:
            reply = await self._model.reply(
                messages, tools, must_call=must_call, retries=self._retries, on_text=on_text
            )
        finally:
            self.seconds += time.monotonic() - started
        self.input_tokens += reply.input_tokens
        self.output_tokens += reply.output_tokens
        return reply


def read_reply(message: AIMessage) -> Reply:
    """Returns a provider's answer in our own types; text that the length limit cut off still counts as an answer.

    Raises ValueError if it is empty or was cut off otherwise.
    """
    reason = message.response_metadata.get("finish_reason")
    text = clean_text(message.text).strip()
    calls = [ModelCall(_sendable(call["name"]), call["args"]) for call in message.tool_calls]
    calls += [ModelCall(_sendable(call["name"] or ""), None) for call in message.invalid_tool_calls]
    if reason in _CUT_OFF and not (reason == "length" and text and not calls):
        raise ValueError(f"finish_reason is {reason!r}")
    if not text and not calls:
        raise ValueError("the answer is empty")
    usage = message.usage_metadata
    tokens = (usage["input_tokens"], usage["output_tokens"]) if usage else (0, 0)
    return Reply(text, tuple(calls), *(min(max(count, 0), MAX_TOKENS) for count in tokens))


def _sendable(name: str) -> str:
    # Providers refuse a history with other characters in a tool's name, and a model may make up any name.
    return _NOT_IN_A_NAME.sub("_", name)[:_MAX_NAME_CHARS] or "unnamed"


def unavailable(detail: str, *, retryable: bool = True) -> AppError:
    return AppError(
        "model_unavailable", status=502, title="The model is unavailable", detail=detail, retryable=retryable
    )


def _budget_spent() -> AppError:
    detail = (
        "The turn has used all the model calls or tokens one turn may. The message is kept; ask for less at a time."
    )
    return AppError("turn_budget_spent", status=502, title="The turn asked too much of the model", detail=detail)


def _timeout(seconds: float) -> AppError:
    detail = f"The model did not answer within {seconds:g} s. The message is kept; send another to go on."
    return AppError("model_timeout", status=504, title="The model took too long", detail=detail, retryable=True)


def _refused(error: openai.APIStatusError) -> AppError:
    status = error.status_code
    retryable = status >= 500 or status in (408, 409, 429)  # noqa: PLR2004 (HTTP)
    hint = {401: " Check OPENAI_API_KEY.", 403: " Check OPENAI_API_KEY.", 404: " Check LLM_MODEL."}.get(status, "")
    return unavailable(f"The model provider answered HTTP {status}.{hint}", retryable=retryable)


def _retry_delay(error: openai.APIStatusError, attempt: int) -> float:
    """Returns the provider's Retry-After if it is a number, else a delay that doubles, in seconds."""
    try:
        delay = float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        delay = math.nan
    return FIRST_DELAY_S * 2.0**attempt if math.isnan(delay) else max(delay, 0.0)


def _as_function(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.input_schema),
        },
    }
