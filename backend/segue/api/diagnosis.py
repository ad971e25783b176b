"""The route of the doctor: what is wrong with the service, or with one session. HTTP only."""

from typing import Annotated, Any

from fastapi import Query

from segue.api.deps import Ops, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.domain.errors import NotFound
from segue.domain.ids import is_id
from segue.identity.audit import record_act

router = router_of("ops", "/ops/doctor")


@router.get("", responses=problems("forbidden", "session_not_found"))
async def examine(
    services: ServicesDep,
    operator: Ops,
    *,
    session_id: Annotated[str | None, Query(max_length=200, description="A session of any user.")] = None,
) -> dict[str, Any]:
    """Says what `segue doctor --json` says: `healthy`, the `problems` and what to do, and what was found of each part.
    Asks the model a word, so it takes a second or more. For the scope `ops`; what was said in a session, as the goal
    of its plan, is only for `ops:content`.
    """
    if session_id is not None and not is_id("ses", session_id):
        raise NotFound("session")
    words = session_id is not None and "ops:content" in operator.scopes
    found = await services.examine(session_id, words=words)
    if words:
        async with services.database.transaction() as connection:
            await record_act(connection, operator, "read_session", session_id=session_id)
    return found
