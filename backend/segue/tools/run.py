"""The one way a tool runs: validate, time limit, run, clean, classify, summarise. `results.py` records the outcome.

Never raises but for the caller's own cancellation: whatever a tool does is an outcome the model can act on.
"""

import asyncio
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import anyio.to_thread
import jsonschema
import orjson
import structlog
from jsonschema.protocols import Validator
from referencing import Registry

from segue.domain.redaction import without, without_secret_texts
from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolLost, ToolRetry, ToolSpec, ToolUnauthorized
from segue.tools import credentials
from segue.tools.normalize import Payload, clean_text, make_payload, no_payload
from segue.tools.summaries import MAX_SUMMARY_CHARS, identifiers, one_line, summarise

MAX_ERROR_CHARS = 1000
STOP_GRACE_S = 1.0
NO_REMOTE: Registry[Any] = Registry()  # a schema may not make us fetch another one

Fault = Literal["tool", "unauthorized", "arguments", "refused"]

log = structlog.get_logger()


class _LeftBehind(Exception):
    """The tool did not answer in time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call. A failed call may have a payload too: what the tool said when it failed.

    `unknown` is a call that was left behind and may or may not have changed the world. `fault` says whose a failure is:
    only the tool's own and refused credentials count against its health. `summary` and `identifiers` are the payload's.
    """

    status: Literal["succeeded", "failed", "unknown"]
    payload: Payload
    error: str | None
    duration_ms: int
    fault: Fault | None = None
    summary: str = ""
    identifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is kept of what a tool said."""

    payload: Payload = field(default_factory=no_payload)
    error: str | None = None
    summary: str = ""
    identifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunLimits:
    timeout_s: float
    max_result_bytes: int


async def run_tool(tool: Tool, args: dict[str, Any], context: ToolContext, *, limits: RunLimits) -> Outcome:
    started = time.monotonic()
    timeout_s = tool.spec.timeout_s or limits.timeout_s
    status: Literal["failed", "unknown"] = "failed"
    fault: Fault = "tool"
    try:
        check_args(tool, args)
        output = await _within(timeout_s, tool, args, context)
        # Megabytes take a while to read; not on asyncio's own threads, which names that do not resolve may hold up.
        answer = await anyio.to_thread.run_sync(_read, tool, args, output, limits.max_result_bytes)
    except asyncio.CancelledError:
        if _being_cancelled():
            raise
        answer = _Answer(error=f"{tool.spec.name} was cut off.")
    except _LeftBehind:
        status = "failed" if tool.spec.may_repeat else "unknown"
        answer = _Answer(error=_left_behind(tool.spec, timeout_s))
    except (ToolRetry, ToolFailed) as failure:
        status = "unknown" if isinstance(failure, ToolLost) and not tool.spec.may_repeat else "failed"
        answer = _Answer(error=clean_text(str(failure)) or f"{tool.spec.name} failed.")
        fault = _fault_of(failure)
    except Exception as raised:  # a tool may raise anything; it must not end the turn
        log.warning("tool_raised", tool=tool.spec.name, error=type(raised).__name__, exc_info=raised)
        answer = _Answer(error=clean_text(f"{tool.spec.name} failed: {_described(raised)}"))
    return _outcome(tool, status, answer, fault, duration_ms=round((time.monotonic() - started) * 1000))


def _outcome(
    tool: Tool, status: Literal["failed", "unknown"], answer: _Answer, fault: Fault, *, duration_ms: int
) -> Outcome:
    error = answer.error and without_secret_texts(without(answer.error, tool.secrets))[:MAX_ERROR_CHARS]
    if error and fault == "tool" and credentials.are_refused(error):
        fault = "unauthorized"
    return Outcome(
        status if error else "succeeded",
        answer.payload,
        error,
        duration_ms,
        fault if error else None,
        answer.summary,
        answer.identifiers,
    )


def failed(message: str) -> Outcome:
    """The outcome of a call that never reached a tool."""
    return Outcome("failed", no_payload(), clean_text(message)[:MAX_ERROR_CHARS], 0, "refused")


def lost(name: str) -> Outcome:
    """The outcome of a call whose process died before it was recorded."""
    said = f"{name} was interrupted before its outcome was recorded. Whether it took effect is unknown"
    return Outcome("unknown", no_payload(), f"{said}; do not repeat it unasked.", 0)


def check_args(tool: Tool, args: dict[str, Any]) -> None:
    """Raises ToolRetry naming the arguments that are wrong, ToolFailed where the schema itself cannot be used."""
    try:
        validator = _validator(orjson.dumps(tool.spec.input_schema))
        faults = sorted(validator.iter_errors(args), key=lambda fault: fault.json_path)
    except Exception as broken:
        raise ToolFailed(f"The input schema of {tool.spec.name} cannot be used: {_described(broken)}") from broken
    if faults:
        said = "; ".join(f"{fault.json_path}: {fault.message[:200]}" for fault in faults[:5])
        raise ToolRetry(f"Invalid arguments for {tool.spec.name}: {said}. Correct them and call again.")


def accepts(tool: Tool, args: dict[str, Any]) -> bool:
    """Whether a call with these arguments would reach the tool."""
    try:
        check_args(tool, args)
    except (ToolRetry, ToolFailed):
        return False
    return True


def _fault_of(failure: ToolRetry | ToolFailed) -> Fault:
    match failure:
        case ToolRetry():
            return "arguments"
        case ToolUnauthorized():
            return "unauthorized"
        case _:
            return "tool"


def _read(tool: Tool, args: dict[str, Any], output: object, max_bytes: int) -> _Answer:
    payload = _untold(_storable(output, max_bytes=max_bytes), tool.secrets, max_bytes=max_bytes)
    summary = _summary(tool, args, payload)
    return _Answer(payload, _said_failure(payload.value), summary, identifiers(payload.value))


def _summary(tool: Tool, args: dict[str, Any], payload: Payload) -> str:
    if payload.cut_from is not None:
        return one_line(f"cut at the size limit: {summarise(payload.value)}", MAX_SUMMARY_CHARS)
    said = tool.summarise(args, payload.value) if tool.summarise else None
    return one_line(said, MAX_SUMMARY_CHARS) if said else summarise(payload.value)


def _said_failure(value: Any) -> str | None:
    """The error an answer reports of itself: a top-level `error`, or `success: false`."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error:
        return (error if isinstance(error, str) else orjson.dumps(error).decode())[:MAX_ERROR_CHARS]
    if value.get("success") is False:
        return str(value.get("message") or "The tool answered success: false.")
    return None


async def _within(timeout_s: float, tool: Tool, args: dict[str, Any], context: ToolContext) -> object:
    """A tool that will not stop when told to is left behind; whatever it answers later is dropped."""
    task = asyncio.ensure_future(_contained(tool, args, context))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if done:
        return task.result()
    await _stop(task)
    raise _LeftBehind


def _left_behind(spec: ToolSpec, timeout_s: float) -> str:
    late = f"{spec.name} did not answer within {timeout_s:g} s."
    return late if spec.may_repeat else f"{late} Whether it took effect is unknown; do not repeat it unasked."


async def _contained(tool: Tool, args: dict[str, Any], context: ToolContext) -> object:
    """A task that raises SystemExit stops the whole event loop; here it is one more way for a tool to fail."""
    try:
        return await tool.run(args, context)
    except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as fault:
        raise ToolFailed(f"{tool.spec.name} failed: {_described(fault)}") from fault


async def _stop(task: asyncio.Future[object]) -> None:
    task.add_done_callback(_drop)
    task.cancel()
    await asyncio.wait({task}, timeout=STOP_GRACE_S)


def _drop(task: asyncio.Future[object]) -> None:
    """Looks at what nobody waits for any more, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()


def _storable(output: object, *, max_bytes: int) -> Payload:
    """A value whose own code raises when it is read must not turn an effect that happened into a failure."""
    try:
        return make_payload(output, max_bytes=max_bytes)
    except Exception as fault:  # noqa: BLE001 (see above)
        said = f"[the tool answered with a value that cannot be kept: {_described(fault)[:MAX_ERROR_CHARS]}]"
        return make_payload(said, max_bytes=max_bytes)


def _untold(payload: Payload, secrets: frozenset[str], *, max_bytes: int) -> Payload:
    """Looked for in the stored text first: reading megabytes again for what is hardly ever there takes a while."""
    if not any(secret in payload.text or orjson.dumps(secret).decode()[1:-1] in payload.text for secret in secrets):
        return payload
    return replace(make_payload(without(payload.value, secrets), max_bytes=max_bytes), cut_from=payload.cut_from)


def _described(fault: BaseException) -> str:
    try:
        return f"{type(fault).__name__}: {fault}"
    except Exception:  # noqa: BLE001 (its message is code of its own)
        return type(fault).__name__


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> Validator:
    parsed = orjson.loads(schema)
    return jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)(
        parsed, registry=NO_REMOTE
    )
