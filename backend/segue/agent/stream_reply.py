"""What the assistant says, told to whoever follows the turn: as it comes where somebody listens, else when whole.

A message that has been begun is always ended, and what was told of it is what is stored under its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from segue.agent.context import TurnContext
from segue.agent.model import Reply
from segue.domain.events import TextAdded, TextEnded, TextStarted
from segue.domain.ids import new_id
from segue.domain.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class Spoken:
    """A message that is still open: its first `chars` characters have been told."""

    message_id: str
    chars: int


async def ask(
    context: TurnContext, messages: Sequence[BaseMessage], tools: Sequence[ToolSpec] = ()
) -> tuple[Reply, Spoken | None]:
    """The model's reply, and what of it has been told already. It has to be given to `tell`."""
    if not await context.listened():
        return await context.model.reply(messages, tools), None
    message_id = new_id("msg", context.clock())
    begun = False

    def hear(words: str) -> None:
        nonlocal begun
        if not begun:
            context.emit(TextStarted(message_id))
            begun = True
        context.emit(TextAdded(message_id, words))

    try:
        reply = await context.model.reply(messages, tools, hear=hear)
    except BaseException:
        if begun:
            context.emit(TextEnded(message_id))
        raise
    return reply, Spoken(message_id, len(reply.text)) if begun else None


def tell(context: TurnContext, text: str, spoken: Spoken | None = None) -> str:
    """Tells a message, or the rest of one, to its end. Gives the id to store it under."""
    if spoken is None:
        spoken = Spoken(new_id("msg", context.clock()), 0)
        context.emit(TextStarted(spoken.message_id))
    if rest := text[spoken.chars :]:
        context.emit(TextAdded(spoken.message_id, rest))
    context.emit(TextEnded(spoken.message_id))
    return spoken.message_id
