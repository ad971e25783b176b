"""Reads what the user says to a turn that runs, between two requests to the model.

It is no yes to anything: what was approved and has not run yet is asked about again.
"""

from collections.abc import Awaitable, Callable

from langchain_core.messages import BaseMessage, HumanMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent.turn_calls import TurnCalls
from segue.agent.untrusted import without_notes

WriteWithSteers = Callable[[AsyncConnection], Awaitable[None]]


async def read_steers(turn: TurnCalls, conversation: list[BaseMessage], *, also: WriteWithSteers | None = None) -> bool:
    """Adds what the user has said since to the conversation. Returns whether there was anything; `also` is written in
    the same transaction then.
    """
    context = turn.context
    if not await context.is_steered():
        return False
    async with context.transaction() as connection:
        read = await context.read_steers(connection)
        if read and also is not None:
            await also(connection)
    for steer in read:
        conversation.append(HumanMessage(without_notes(str(steer.message.content))))
        context.emit(steer)
    turn.stored_messages += len(read)
    if read:
        turn.agreement = None
        turn.approved.clear()
    return bool(read)
