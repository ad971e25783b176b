"""The one way a tool runs. Each layer adds one policy and calls the next:

run_tool       validates the arguments; whatever happens becomes a CallOutcome
└ _within      limits the time, which progress renews up to a ceiling
  └ _contained keeps SystemExit from the event loop
    └ tool.run
_read          cleans, caps, redacts and summarises what came back

Progress is bounded and told to clients. `results.py` stores outcomes, `tool_health.py` counts them.
"""

import asyncio
import math
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import anyio.to_thread
import orjson

from segue.domain.redaction import without, without_secret_texts
from segue.domain.tool import Reporter, Tool, ToolContext, ToolFailed, ToolLost, ToolRetry, ToolSpec, ToolUnauthorized
from segue.domain.user_request import MAX_QUESTIONS, ToolAsks
from segue.log import log
from segue.tools.child_process import LARGE, READ_S, TooMuch, in_child_process
from segue.tools.input_schema import check_args
from segue.tools.normalize import Payload, Unread, clean_text, make_payload, no_payload, without_value
from segue.tools.summaries import identifiers, shown_line, summarise, summarise_call, summary_line, text_in
from segue.tools.tool_settings import ToolSettings

MAX_ERROR_CHARS: Final = 1000

Fault = Literal["tool", "unauthorized", "arguments", "refused", "asks"]

# Only what HTTP clients and the usual APIs write: a bare 401 may count mails, a parser complains of an invalid token.
_CREDENTIALS_REFUSED: Final = re.compile(
    r"""
      \b (?:HTTP(?:/[\d.]+)? | status(?:[ _]code)? | error[ _]code) [\s:="']* 401 \b
    | \b 401 \W+ (?:client[ ]error\W+)? unauthori[sz]ed \b
    | \A \W* unauthori[sz]ed \W* (?: \Z | [:.,] )
    | \b (?:unauthenticated | invalid_token | invalid_api_key | authentication_error) \b
    | \b (?:invalid|expired|missing|incorrect|bad|revoked|no[ ]valid)[ ]
         (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token | (?:\w+[ ])?credentials ) \b
    | \b (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token )[ ]
         (?:(?:is|was|has|has[ ]been)[ ])? (?:not[ ]valid|invalid|expired|revoked) \b
    | \b authentication[ ](?:failed|required|error) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)

LONGEST: Final = 10  # times its timeout: the ceiling of a call, unless its tool has one of its own
INTERVAL_S: Final = 0.5
SHOWN_PER_SLOWDOWN: Final = 20  # after as many the interval grows by INTERVAL_S
MAX_MESSAGE_CHARS: Final = 200
_READ_CHARS: Final = 2000  # of a message, before it is cleaned


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call."""

    status: Literal["succeeded", "failed", "unknown"]  # `unknown`: it may or may not have changed the world
    payload: Payload  # a failed call may have one too: what the tool returned when it failed
    error: str | None
    duration_ms: int
    fault: Fault | None = None  # only `tool` and `unauthorized` (refused credentials) count against the tool's health
    summary: str = ""  # the gist, and what was done to get it
    identifiers: tuple[str, ...] = ()  # those in the payload
    gist: str = ""  # what the payload is
    asks: ToolAsks | None = None  # what the tool needs of the user before it is called again
    settled_by: str | None = None  # the id of the call that found out what became of this one


def failed(message: str) -> CallOutcome:
    """The outcome of a call that never reached a tool."""
    return CallOutcome("failed", no_payload(), clean_text(message)[:MAX_ERROR_CHARS], 0, "refused")


def asking(asks: ToolAsks, name: str, duration_ms: int) -> CallOutcome:
    """The outcome of a call whose tool needs something of the user first. It has none of the tool's words."""
    note = f"{name} asks the user something first, and is called again with the answer. Do not call it again yourself."
    return CallOutcome("failed", no_payload(), note, duration_ms, "asks", asks=asks)


def lost(name: str) -> CallOutcome:
    """The outcome of a call whose process died before it was recorded."""
    interrupted = f"{name} was interrupted before its outcome was recorded. Whether it took effect is unknown"
    return CallOutcome("unknown", no_payload(), f"{interrupted}; do not repeat it unasked.", 0)


def reported_error(value: Any) -> str | None:
    """Returns the error that an answer reports of itself: a top-level `error`, or `success: false`."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error:
        return (error if isinstance(error, str) else orjson.dumps(error).decode())[:MAX_ERROR_CHARS]
    if value.get("success") is False:
        return str(value.get("message") or "The tool answered success: false.")
    return None


def credentials_refused(error: str) -> bool:
    """Whether an error says that the tool's own credentials were refused, which trying again cannot mend."""
    return _CREDENTIALS_REFUSED.search(error) is not None


class Deadline:
    """The time by which a call has to end, by the event loop's clock."""

    def __init__(self, timeout_s: float, longest_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._began = self._loop.time()
        self._last = self._began + (longest_s or LONGEST * timeout_s)
        self.at = min(self._began + timeout_s, self._last)

    @property
    def left_s(self) -> float:
        return self.at - self._loop.time()

    @property
    def allowed_s(self) -> float:
        """Returns the time from the beginning of the call to its deadline."""
        return self.at - self._began

    def extend(self) -> None:
        self.at = min(self._loop.time() + self._timeout_s, self._last)


class ToolProgress:
    """Passes on what one call reports, cleaned and bounded. Only in the event loop's thread."""

    def __init__(self, tool: Tool, deadline: Deadline, tell: Reporter) -> None:
        self._tool = tool
        self._deadline = deadline
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._latest: tuple[float, float | None, str | None] | None = None
        self._shown_count = 0
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._closed or not math.isfinite(progress):
            return
        self._deadline.extend()
        self._latest = progress, total if total is None or math.isfinite(total) else None, message
        if self._timer is None:
            self._timer = self._loop.call_later(max(self._next_at - self._loop.time(), 0), self._show_latest)

    def close(self) -> None:
        """Drops later reports: the call has ended."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _show_latest(self) -> None:
        self._timer = None
        if self._latest is None:
            return
        (progress, total, message), self._latest = self._latest, None
        self._shown_count += 1
        self._next_at = self._loop.time() + INTERVAL_S * (1 + self._shown_count // SHOWN_PER_SLOWDOWN)
        text = without_secret_texts(without(clean_text((message or "")[:_READ_CHARS]), self._tool.secrets))
        self._tell(progress, total, shown_line(text, MAX_MESSAGE_CHARS) if message else None)


class _TimedOut(Exception):
    """The tool did not answer in time."""


async def run_tool(tool: Tool, args: dict[str, Any], context: ToolContext, *, settings: ToolSettings) -> CallOutcome:
    """Returns the outcome of one call; raises CancelledError if the caller is cancelled, and nothing else."""
    started = time.monotonic()
    try:
        check_args(tool, args)
        deadline = Deadline(tool.spec.timeout_s or settings.tool_timeout_s, tool.spec.max_timeout_s)
        output = await _within(deadline, tool, args, context)
        answer = await _read_aside(tool, args, output, settings.tool_result_max_bytes)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling() > 0:
            raise
        answer = _failed(f"{tool.spec.name} was cut off.")
    except ToolAsks as asks:
        if len(context.answers) < MAX_QUESTIONS:
            return asking(asks, tool.spec.name, round((time.monotonic() - started) * 1000))
        answer = _failed(f"{tool.spec.name} asked the user more than {MAX_QUESTIONS} times, and was ended.")
    except Exception as raised:  # noqa: BLE001 (a tool may raise anything; it must not end the turn)
        answer = _failure(tool.spec, raised)
    duration_ms = round((time.monotonic() - started) * 1000)
    if not answer.error:
        return replace(answer, duration_ms=duration_ms)
    error = without_secret_texts(without(answer.error, tool.secrets))[:MAX_ERROR_CHARS]
    fault = "unauthorized" if answer.fault == "tool" and credentials_refused(error) else answer.fault
    return replace(answer, error=error, fault=fault, duration_ms=duration_ms)


async def _within(deadline: Deadline, tool: Tool, args: dict[str, Any], context: ToolContext) -> object:
    """A tool that does not stop when it is cancelled is left behind; its later answer is dropped."""
    progress = ToolProgress(tool, deadline, context.report)
    task = asyncio.ensure_future(_contained(tool, args, replace(context, report=progress.report)))
    try:
        while not task.done() and (left_s := deadline.left_s) > 0:
            await asyncio.wait({task}, timeout=left_s)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    finally:
        progress.close()
    if task.done():
        return task.result()
    await _stop(task)
    raise _TimedOut(f"{tool.spec.name} did not answer within {deadline.allowed_s:g} s.")


async def _contained(tool: Tool, args: dict[str, Any], context: ToolContext) -> object:
    """A task that raises SystemExit or KeyboardInterrupt stops the event loop; here it is one more way to fail."""
    try:
        return await tool.run(args, context)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as fault:
        raise ToolFailed(f"{tool.spec.name} failed: {_described(fault)}") from fault


def _failed(error: str, fault: Fault = "tool", status: Literal["failed", "unknown"] = "failed") -> CallOutcome:
    return CallOutcome(status, no_payload(), error, 0, fault)


def _failure(spec: ToolSpec, raised: Exception) -> CallOutcome:
    match raised:
        case _TimedOut() if spec.may_repeat:
            return _failed(str(raised))
        case _TimedOut():
            return _failed(f"{raised} Whether it took effect is unknown; do not repeat it unasked.", status="unknown")
        case ToolRetry():
            fault: Fault = "arguments"
        case ToolFailed():
            fault = "unauthorized" if isinstance(raised, ToolUnauthorized) else "tool"
        case _:
            log.warning("tool_raised", tool=spec.name, error=type(raised).__name__, exc_info=raised)
            return _failed(clean_text(f"{spec.name} failed: {_described(raised)}"))
    is_unknown = isinstance(raised, ToolLost) and not spec.may_repeat
    return _failed(clean_text(str(raised)) or f"{spec.name} failed.", fault, "unknown" if is_unknown else "failed")


async def _read_aside(tool: Tool, args: dict[str, Any], output: object, max_bytes: int) -> CallOutcome:
    """Megabytes of text, or of what an MCP server answered, are read in another process; a text that takes too long
    there, and all else, in a thread: not one of asyncio's own, which names that do not resolve may hold up.
    """
    unread = output if isinstance(output, Unread) else None
    try:
        if unread or (tool.summarise is None and isinstance(output, str) and len(output) > LARGE):
            needs = unread.read if unread else None
            try:
                return await in_child_process(
                    _read_large, replace(tool, run=not_called), args, output, max_bytes, deadline_s=READ_S, needs=needs
                )
            except TooMuch as fault:
                log.warning("tool_result_not_read", tool=tool.spec.name, reason=str(fault))
                output = _not_kept(f"to read it {fault}") if unread else output
        return await anyio.to_thread.run_sync(_read, tool, args, output, max_bytes)
    except Exception as fault:  # noqa: BLE001 (code of a value's own must not turn an effect that happened into a failure)
        return _read(replace(tool, summarise=None), args, _not_kept(_described(fault)), max_bytes)


async def not_called(*_: object, **__: object) -> object:
    """Stands for a tool's function where that is not: in another process, or without a user's connection."""
    raise TypeError("this stands for the function of a tool")


def _read_large(tool: Tool, args: dict[str, Any], output: object, max_bytes: int) -> CallOutcome:
    """Runs in a child process. Leaves there values that are slow to hand over."""
    answer = _read(tool, args, output.read(output.text) if isinstance(output, Unread) else output, max_bytes)
    return replace(answer, payload=without_value(replace(answer.payload, shown=text_in(answer.payload.shown))))


def _read(tool: Tool, args: dict[str, Any], output: object, max_bytes: int) -> CallOutcome:
    payload = make_payload(output, max_bytes=max_bytes)
    # Only if the stored text has one: to read megabytes again for what is hardly ever there takes a while.
    if any(secret in payload.text or orjson.dumps(secret).decode()[1:-1] in payload.text for secret in tool.secrets):
        redacted = make_payload(without(payload.value, tool.secrets), max_bytes=max_bytes)
        payload = replace(redacted, cut_from=payload.cut_from)
    if payload.cut_from is not None:
        gist = summary_line(f"cut at the size limit: {summarise(payload.shown)}")
    else:
        own = tool.summarise(args, payload.shown) if tool.summarise else None
        gist = summary_line(own) if own else summarise(payload.shown)
    name = tool.spec.original_name or tool.spec.name
    whole = tool.summarise is None and payload.cut_from is None
    summary = summarise_call(name, args, tool.spec.input_schema, payload.shown) if whole else gist
    found = identifiers(payload.shown)
    if error := reported_error(payload.value):
        return CallOutcome("failed", payload, error, 0, "tool", summary, found)
    return CallOutcome("succeeded", payload, None, 0, None, summary, found, gist)


def _not_kept(why: str) -> str:
    return f"[the tool answered with a value that cannot be kept: {why[:MAX_ERROR_CHARS]}]"


async def _stop(task: asyncio.Future[object]) -> None:
    # Retrieves the error of a task that is left behind, or asyncio logs that it was never retrieved.
    task.add_done_callback(lambda left: None if left.cancelled() else left.exception())
    task.cancel()
    await asyncio.wait({task}, timeout=1.0)


def _described(fault: BaseException) -> str:
    try:
        return f"{type(fault).__name__}: {fault}"
    except Exception:  # noqa: BLE001 (its message is code of its own)
        return type(fault).__name__
