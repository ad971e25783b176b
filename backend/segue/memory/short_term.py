"""A session's short-term memory, in Redis with a sliding TTL: the last exchange and references to recent results. It
copies rows of Postgres. One turn runs at a time in a session, so writes do not race.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from segue.db.redis_keys import Cache, short_term_memory_key
from segue.db.rows import cached, reader
from segue.domain.field_types import doc
from segue.domain.tool import Reference, canonical_args

MAX_REFERENCES = 20


@dataclass(frozen=True, slots=True)
class ShortTermMemory:
    """The short-term memory of a session: what its last turn left behind."""

    session_id: Annotated[str, doc("The id of the session.")]
    turn_id: Annotated[str, doc("The id of the turn that left it.")]
    last_user_message: Annotated[str | None, doc("The user's last message; null if there is none.")]
    last_assistant_message: Annotated[str | None, doc("The assistant's last message; null if there is none.")]
    message_count: Annotated[int, doc("The number of messages in the session at that time.")]
    tool_results: Annotated[
        tuple[Reference, ...], doc("References to results, newest first: one per tool and arguments, all unknown ones.")
    ]


async def read(cache: Cache, session_id: str, *, last_turn_id: str | None) -> ShortTermMemory | None:
    """Returns None if it is missing, cannot be parsed, is another session's, or is not of the session's last turn."""
    value = await cache.get_json(short_term_memory_key(session_id))
    memory = None if value is None else cached(reader(ShortTermMemory), value)
    # A crash between the write to Redis and the commit, a lost Redis and a stale replica all count as missing.
    if memory is None or memory.session_id != session_id or memory.turn_id != last_turn_id:
        return None
    return memory


async def ttl_s(cache: Cache, session_id: str) -> int:
    return await cache.ttl_s(short_term_memory_key(session_id))


async def write(cache: Cache, memory: ShortTermMemory, *, ttl_s: int) -> None:
    await cache.set_json(short_term_memory_key(memory.session_id), memory, ttl_s=ttl_s)


async def forget(cache: Cache, session_id: str) -> None:
    await cache.delete(short_term_memory_key(session_id))


def merge_results(known: Iterable[Reference], newer: Iterable[Reference]) -> tuple[Reference, ...]:
    """Returns references newest first, as both are given: of each call the latest success, else the latest failure. An
    unknown outcome is one of its own: a success before it says nothing of it.
    """
    newest_first = [*newer, *known]
    current: dict[tuple[str, str, str], Reference] = {}
    for reference in sorted(newest_first, key=lambda each: each.status != "succeeded"):
        own = reference.tool_call_id if reference.status == "unknown" else ""
        current.setdefault((reference.tool_name, canonical_args(reference.args), own), reference)
    kept = {id(reference) for reference in current.values()}
    return tuple(reference for reference in newest_first if id(reference) in kept)[:MAX_REFERENCES]
