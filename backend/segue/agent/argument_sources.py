"""What the values of a call may come from: the user's messages, what is known of the user, and what tools have told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from anyio import to_thread

from segue.agent.turn_calls import TurnCalls
from segue.domain.session import Message
from segue.domain.tool import Reference
from segue.memory.history import recent_user_messages
from segue.plans.argument_origins import Sources, all_said, leaves, origins_of
from segue.tools.results import StoredResult, load_results, recent_references

MAX_MESSAGES = 200
MAX_RESULTS = 20
MAX_RESULT_BYTES = 200_000  # of a larger one its preview and identifiers are known

Found = TypeVar("Found")


async def find_origins(turn: TurnCalls, args: Mapping[str, Any]) -> dict[str, str]:
    """Returns by path where each value of a call that waits for a yes comes from, as `Step.args_origin` has it."""
    return await _find(turn, lambda sources: origins_of(args, sources))


async def all_from_user(turn: TurnCalls, args: Mapping[str, Any]) -> bool:
    """Returns whether each value of a call is the user's, whatever it is."""
    return await _find(turn, lambda sources: all_said(args, sources))


async def _find(turn: TurnCalls, look: Callable[[Sources], Found]) -> Found:
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        said = await recent_user_messages(connection, context.owner, session_id, limit=MAX_MESSAGES)
        told = (await recent_references(connection, session_id))[:MAX_RESULTS]
        ids = [reference.tool_call_id for reference in told]
        kept = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)

    def find() -> Found:
        facts = [(f"fact:{fact.id}", fact.content) for fact in turn.facts]
        return look([*_said(said), *facts, *_told(told, kept)])

    return await to_thread.run_sync(find)


def _said(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    return ((f"message:{message.id}", str(message.content)) for message in messages)


def _told(references: Sequence[Reference], kept: Mapping[str, StoredResult]) -> Iterator[tuple[str, str]]:
    for reference in reversed(references):  # the first that told it: later ones repeat what they were asked
        result = kept.get(reference.tool_call_id)
        content = result.content if result else None
        values = [str(value) for _, value in leaves(result.value())] if result and content else []
        known = [reference.summary, reference.preview, *reference.identifiers, content or "", *values]
        yield f"result:{reference.tool_call_id}", "\n".join(known)
