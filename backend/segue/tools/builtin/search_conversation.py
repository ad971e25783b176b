"""`search_conversation`: what was said in this session, as it was said, also what the model no longer sees.

Which session and whose it is comes from the context. How messages are stored is not known here; what is found is data.
"""

from typing import Any, Protocol

from segue.db.engine import Database
from segue.domain.ids import local_time
from segue.domain.tool import Tool, ToolContext, ToolSpec

FOUND, MOST_FOUND = 5, 20

SPEC = ToolSpec(
    name="search_conversation",
    description=(
        "Search what the user and you have said in this conversation, word for word, also what you no longer see and "
        "only know by its summary. Use it if the user refers to something that neither the summary nor the messages "
        "have, before you say that you do not know it. `query` has words that were said, in the language in which they "
        "were said; what has most of them comes first, each with its place in the conversation (`seq`) and its time."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 300},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    ephemeral=True,  # what it finds is in the session already
)


class SearchSaid(Protocol):
    """Returns passages of a session's messages from before a turn, the best first; none of another owner's."""

    async def __call__(
        self, database: Database, owner: str, session_id: str, query: str, *, before_turn: str, limit: int
    ) -> list[dict[str, Any]]: ...


def search_conversation_tool(database: Database, search: SearchSaid) -> Tool:
    async def run(args: dict[str, Any], context: ToolContext) -> object:
        query, limit, turn = args["query"], args.get("limit", FOUND), context.turn_id
        found = await search(database, context.owner, context.session_id, query, before_turn=turn, limit=limit)
        times = [local_time(each["at"], context.time_zone).isoformat(timespec="minutes") for each in found]
        return {"found": [{**each, "at": at} for each, at in zip(found, times, strict=True)]}

    return Tool(SPEC, run)
