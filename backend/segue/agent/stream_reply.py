"""Asks the model for a reply and emits it as events: word by word if the turn has followers, else as a whole.

A message that was started is always ended, and the text that was emitted is the text stored under its id. Calls that
nothing can hold back or deny are shown too: a literal prefix of the arguments that are recorded, and a call that comes
out differently is dropped. An answer that is to fit a schema of the client is checked first.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson
from langchain_core.messages import BaseMessage
from pydantic_core import from_json

from segue.agent import prompts
from segue.agent.state import StartedMessage, TurnContext
from segue.domain import events
from segue.domain.errors import app_error
from segue.domain.ids import UNREADABLE, new_id, read_json
from segue.domain.tool import ToolSpec
from segue.log import log
from segue.models.chat_model import MAX_EMPTY_ANSWERS
from segue.models.reply import CallPiece, ModelCall, Reply, ToolChoiceMode, of_client
from segue.models.streamed_answer import Listener
from segue.plans.plan_parser import find_json
from segue.tools.input_schema import ANY_OBJECT, faults_by
from segue.tools.normalize import clean

MAX_REASONING_CHARS = 100_000  # of one reply
MAX_SHOWN_BYTES: Final = 16_000  # of the arguments of one call, before it is complete
MAX_READ_CHARS: Final = 32_000  # of what the model has written, with spaces and escapes
READ_AGAIN: Final = 64  # the arguments so far are read again once they have grown by this part of their length
_CLEANED: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[bfu]|\x7f")  # control characters, which are not recorded
_MAY_CHANGE: Final = '"}]+-.eE0123456789'  # at the end: what closes, or a number that may go on

CallIds = Callable[[str], str | None]  # an id for a call of this tool, None if it may not be shown yet


async def stream_reply(
    context: TurnContext,
    messages: Sequence[BaseMessage],
    tools: Sequence[ToolSpec] = (),
    *,
    tool_choice: ToolChoiceMode = "auto",
    empty_tries: int = MAX_EMPTY_ANSWERS,
    new_ids: Callable[[], CallIds] = lambda: lambda _: None,
) -> tuple[Reply, StartedMessage | None]:
    """Returns the model's reply, up to where the client wants it to stop, and, if any of it was emitted, the message
    that `emit_message` has to end. Words that have to fit a schema are not emitted before they do. Calls that `new_ids`
    has ids for are emitted under these, as the model writes them.
    """
    options = context.options
    asking = partial(context.model.reply, messages, tools, tool_choice=tool_choice, empty_tries=empty_tries)
    asking = partial(asking, sampling=options.sampling)
    if options.output_schema is not None or not await context.has_listener():  # a whole answer costs less
        return _stopped(await asking(), options.stop), None
    heard = _HeardMessage(context, new_ids)
    try:
        reply = _stopped(await asking(listener=heard.listener), options.stop)
        reply = replace(reply, calls=heard.calls.completed(reply.calls))
    except asyncio.CancelledError:
        heard.cut_off()
        raise
    except BaseException:
        heard.withdraw()
        raise
    finally:
        heard.end_reasoning()
    return reply, heard.started(reply)


def _stopped(reply: Reply, stop: Sequence[str]) -> Reply:
    return replace(reply, text=reply.text[: _end(reply.text, stop)]) if stop else reply


def _end(text: str, stop: Sequence[str]) -> int | None:
    """Returns where the first complete stop sequence begins; None if there is none."""
    return min(((at + len(each), at) for each in stop if (at := text.find(each)) >= 0), default=(0, None))[1]


class _UntilStop:
    """Passes words on up to one of the sequences. What may be the beginning of one is kept back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._kept = ""
        self._has_stopped = False

    def add(self, piece: str) -> str:
        if self._has_stopped or not self._stop:
            return "" if self._has_stopped else piece
        text = self._kept + piece
        if (end := _end(text, self._stop)) is not None:
            self._has_stopped = True
            return text[:end]
        beginnings = (n for each in self._stop for n in range(1, len(each)) if text.endswith(each[:n]))
        passed = len(text) - max(beginnings, default=0)
        self._kept = text[passed:]
        return text[:passed]


@dataclass(slots=True)
class _Begun:
    """`written` is what the model wrote so far, `read` how much of it was read last, `shown` what followers have."""

    id: str | None
    name: str
    written: str = ""
    read: int = 0
    shown: str = ""

    def add(self, args: str) -> str:
        """Returns what can be shown now."""
        if self.id is None or len(self.written) > MAX_READ_CHARS:
            return ""
        self.written += args
        if len(self.written) - self.read <= self.read // READ_AGAIN or len(self.written) > MAX_READ_CHARS:
            return ""
        self.read = len(self.written)
        text = _beginning(self.written)
        if not text.startswith(self.shown):
            return ""
        added, self.shown = text[len(self.shown) :], text
        return added

    def becomes(self, call: ModelCall) -> bool:
        """Returns whether the part that was shown begins the call as it is recorded."""
        is_same = bool(self.shown) and self.name == call.name
        return is_same and orjson.dumps(clean(call.args or {})).decode().startswith(self.shown)


class StreamedCalls:
    """`new_ids` makes what gives an answer's calls their ids; `message_id` gives that of their message."""

    def __init__(self, context: TurnContext, new_ids: Callable[[], CallIds], message_id: Callable[[], str]) -> None:
        self._context = context
        self._new_ids = new_ids
        self._id_of = new_ids()
        self._message_id = message_id
        self._begun: dict[int, _Begun] = {}

    def add(self, piece: CallPiece) -> None:
        call = self._begun.get(piece.at)
        if call is None:
            call = self._begun[piece.at] = _Begun(self._id_of(piece.name), piece.name)
        is_first = not call.shown
        if not (added := call.add(piece.args)) or call.id is None:
            return
        if is_first:
            self._context.emit(events.CallBegun(call.id, call.name, self._message_id()))
        self._context.emit(events.ArgumentsAdded(call.id, added))

    def completed(self, calls: Iterable[ModelCall]) -> tuple[ModelCall, ...]:
        """Returns the calls of the reply, those that were shown with their ids. Gives up the others."""
        completed = list(calls)
        for at, call in enumerate(completed):
            begun = self._begun.get(at)
            if begun is not None and begun.becomes(call):
                completed[at] = replace(call, id=begun.id)
                del self._begun[at]
        self.give_up()
        return tuple(completed)

    def give_up(self) -> None:
        for call in self._begun.values():
            if call.id is not None and call.shown:
                self._context.emit(events.CallGivenUp(call.id))
        self._begun.clear()
        self._id_of = self._new_ids()


def _beginning(written: str) -> str:
    """Returns the part of unfinished arguments that is certain: "" if they are no object, or cannot be read yet."""
    try:
        known = from_json(written, allow_partial="trailing-strings")
        text = orjson.dumps(known)[:MAX_SHOWN_BYTES].decode(errors="ignore") if isinstance(known, dict) else ""
    except (ValueError, TypeError):  # no JSON; an integer beyond 64 bits
        return ""
    cleaned = _CLEANED.search(text)
    return text[: cleaned.start() if cleaned else None].rstrip(_MAY_CHANGE)


class _HeardMessage:
    """The message that a follower hears, from its first word or call on, and before it the model's reasoning."""

    def __init__(self, context: TurnContext, new_ids: Callable[[], CallIds]) -> None:
        self.message_id: str | None = None
        self.calls = StreamedCalls(context, new_ids, self._begin)
        self._context = context
        self.texts: list[str] = []
        self._until_stop = _UntilStop(context.options.stop)
        self._reasoning_id: str | None = None
        self._reasoning_chars = 0

    @property
    def listener(self) -> Listener:
        listener = Listener(self.add, self.withdraw, on_call=self.calls.add, on_asked=self.calls.give_up)
        shows = self._context.settings.show_reasoning
        return replace(listener, on_reasoning=self.add_reasoning) if shows else listener

    def add_reasoning(self, text: str) -> None:
        """Emits what fits MAX_REASONING_CHARS, unless the message has begun: none may begin within another."""
        text = text[: MAX_REASONING_CHARS - self._reasoning_chars]
        if not text or self.message_id is not None:
            return
        if self._reasoning_id is None:
            self._reasoning_id = new_id("msg", self._context.clock())
            self._context.emit(events.ReasoningStarted(self._reasoning_id))
        self._reasoning_chars += len(text)
        self._context.emit(events.ReasoningAdded(self._reasoning_id, text))

    def end_reasoning(self) -> None:
        if self._reasoning_id is not None:
            self._context.emit(events.ReasoningEnded(self._reasoning_id))
            self._reasoning_id = None

    def add(self, text: str) -> None:
        if not (text := self._until_stop.add(text)):
            return
        message_id = self._begin()
        if not self.texts:
            self._context.emit(events.TextStarted(message_id))
        self.texts.append(text)
        self._context.emit(events.TextAdded(message_id, text))

    def _begin(self) -> str:
        """Returns the id of the message, which is made once something is emitted of it."""
        if self.message_id is None:
            self.end_reasoning()
            self.message_id = new_id("msg", self._context.clock())
        return self.message_id

    def started(self, reply: Reply) -> StartedMessage | None:
        if self.message_id is None or not (self.texts or any(call.id for call in reply.calls)):
            return None
        return StartedMessage(self.message_id, sum(map(len, self.texts)))

    def withdraw(self) -> None:
        """Ends the message, which stays out of the history; its calls are not made."""
        self.cut_off(is_kept=False)
        self.message_id = None
        self.texts.clear()
        self._until_stop = _UntilStop(self._context.options.stop)

    def cut_off(self, *, is_kept: bool = True) -> None:
        """Ends the message, which is kept if its user stops the turn."""
        self.calls.give_up()
        if self.message_id is not None and self.texts:
            self._context.emit(events.TextEnded(self.message_id, cut_off="".join(self.texts) if is_kept else None))


def emit_message(
    context: TurnContext, text: str, started: StartedMessage | None = None, *, message_id: str | None = None
) -> str:
    """Emits a message with words, or the rest of a started one, to its end. Returns the id to store it under."""
    started = started or StartedMessage(message_id or new_id("msg", context.clock()), 0)
    if not started.chars:
        if not text:
            return started.message_id
        context.emit(events.TextStarted(started.message_id))
    if rest := text[started.chars :]:
        context.emit(events.TextAdded(started.message_id, rest))
    context.emit(events.TextEnded(started.message_id))
    return started.message_id


async def structured_answer(
    context: TurnContext, messages: Sequence[BaseMessage], tools: Sequence[ToolSpec], answer: str
) -> str:
    """Returns the answer as JSON of the client's schema, mended once by the model. Raises AppError `output_invalid`."""
    schema = context.options.output_schema or ANY_OBJECT
    text, faults = await asyncio.to_thread(_read, schema, answer)
    if not faults:
        return text
    log.info("output_mended", faults=len(faults))
    wrong = prompts.as_json({"answer": answer[: prompts.MAX_MENDED_CHARS], "faults": faults})
    note = prompts.fenced_lines(prompts.TEXTS["mending"], [wrong, f'{{"schema":{schema}}}'])
    request, sampling = prompts.with_instruction(messages, note), context.options.sampling
    reply = await context.model.reply(request, tools, tool_choice="none", schema=of_client(schema), sampling=sampling)
    text, faults = await asyncio.to_thread(_read, schema, reply.text)
    if faults:
        raise app_error("output_invalid", faults="; ".join(faults))
    return text


def _read(schema: str, answer: str) -> tuple[str, Sequence[str]]:
    """Returns the JSON in an answer, and what is wrong with it by the schema."""
    text = answer.strip()
    if (value := read_json(text)) is UNREADABLE:
        value = next(find_json(text), UNREADABLE)
        text = "" if value is UNREADABLE else orjson.dumps(value).decode()
    return text, faults_by(schema, value) if text else ("$: it is no JSON",)
