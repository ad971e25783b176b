"""What the results of a session say of the thing that a waiting call names, so that the user sees more than an id.

It is data: only results of the tool's own server count, and the question says which tool said it.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from anyio import to_thread

from segue.agent.plan_messages import KnownThing
from segue.agent.turn_calls import TurnCalls
from segue.domain.plan import Step
from segue.domain.tool import Reference
from segue.tools.identifiers import identifiers, object_with
from segue.tools.results import StoredResult, load_results

MAX_RESULTS = 5
MAX_RESULT_BYTES = 200_000
# Of each row the first that the object has: what it is called, who it is from, when it was.
FIELDS = (
    ("subject", "title", "name", "label", "filename"),
    ("from", "sender", "author", "owner", "to"),
    ("date", "sent_at", "received_at", "start", "created_at", "updated_at"),
)


async def told_about(turn: TurnCalls, steps: Sequence[Step], earlier: Sequence[Reference]) -> dict[int, KnownThing]:
    """Returns by step what a recent result has of the thing that it names. A step that changes nothing has none."""
    found = {step.id: await _told_about(turn, step, earlier) for step in steps}
    return {number: known for number, known in found.items() if known is not None}


async def _told_about(turn: TurnCalls, step: Step, earlier: Sequence[Reference]) -> KnownThing | None:
    tool = turn.tools.get(step.tool or "")
    wanted = identifiers(step.args) if tool and tool.spec.effect != "read_only" else ()
    if not wanted or tool is None:
        return None
    sources = {name: each.spec.source for name, each in turn.tools.items()}
    told_by = {
        reference.tool_call_id: reference.tool_name
        for reference in (*turn.references, *earlier)
        if reference.status == "succeeded" and 0 < reference.size_bytes <= MAX_RESULT_BYTES
        if sources.get(reference.tool_name) == tool.spec.source
    }
    newest = dict(list(told_by.items())[:MAX_RESULTS])
    if not newest:
        return None
    context = turn.context
    async with context.transaction() as connection:
        kept = await load_results(connection, context.turn.session_id, newest, now=context.clock())
    return await to_thread.run_sync(_found, wanted, newest, kept)


def _found(wanted: Sequence[str], told_by: Mapping[str, str], kept: Mapping[str, StoredResult]) -> KnownThing | None:
    values = [(name, kept[call_id].value()) for call_id, name in told_by.items() if call_id in kept]
    for thing, (tool, value) in product(wanted, values):
        if (item := object_with(thing, value)) and (said := _telling(item)):
            return KnownThing(tool, thing, said)
    return None


def _telling(item: Mapping[str, Any]) -> dict[str, str]:
    named = (next((key for key in row if isinstance(item.get(key), str) and item[key].strip()), None) for row in FIELDS)
    return {key: item[key] for key in named if key is not None}
