"""What the values of a call may come from: the user's own words, what is known of the user, and what others said."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anyio import to_thread

from segue.agent.turn_calls import TurnCalls
from segue.domain.session import Message
from segue.domain.tool import Reference
from segue.memory.history import BY_PROGRAM, recent_user_messages, said_by_user
from segue.plans.argument_origins import leaves, origins_of
from segue.tools.results import StoredResult, load_results, recent_references

MAX_MESSAGES = 200
MAX_RESULTS = 20
MAX_RESULT_BYTES = 200_000  # of a larger one its preview and identifiers are known


async def find_origins(
    turn: TurnCalls, args: Mapping[str, Any], schema: Mapping[str, Any], *, every: bool = False
) -> dict[str, str]:
    """Returns by path where each value of a call comes from, as `Step.args_origin` has it; of `every` value if it must
    be the user's whatever it is.
    """
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        said = await recent_user_messages(connection, context.owner, session_id, limit=MAX_MESSAGES)
        told = (await recent_references(connection, session_id))[:MAX_RESULTS]
        ids = [reference.tool_call_id for reference in told]
        kept = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)

    def find() -> dict[str, str]:
        words = [(message, said_by_user(message)) for message in said]
        own = [(f"message:{message.id}", text) for message, text in words]
        quoted = [(_of_another(message), str(message.content)) for message, text in words if text != message.content]
        facts = [(f"fact:{fact.id}", fact.content) for fact in turn.facts]
        return origins_of(args, [*own, *facts, *quoted, *_told(told, kept)], schema, every=every)

    return await to_thread.run_sync(find)


def _of_another(message: Message) -> str:
    return f"{'program' if BY_PROGRAM in message.metadata else 'quoted'}:{message.id}"


def _told(references: Sequence[Reference], kept: Mapping[str, StoredResult]) -> Iterator[tuple[str, str]]:
    for reference in reversed(references):  # the first that told it: later ones repeat what they were asked
        result = kept.get(reference.tool_call_id)
        content = result.content if result else None
        values = [str(value) for _, value in leaves(result.value())] if result and content else []
        known = [reference.summary, reference.preview, *reference.identifiers, content or "", *values]
        yield f"result:{reference.tool_call_id}", "\n".join(known)
