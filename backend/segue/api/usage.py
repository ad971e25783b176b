"""Routes to what model calls took. HTTP only."""

from datetime import date, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from segue.api.deps import IdentityDep, ServicesDep, require_ops, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import Page, decode_cursor, page
from segue.domain.doc import doc
from segue.domain.errors import InvalidRequest
from segue.domain.identity import MAX_USER_CHARS
from segue.usage.ledger import Group, UsageTotal, list_usage

DEFAULT_DAYS = 30
MAX_DAYS = 366

router = router_of("usage")

Day = Annotated[date, Field(ge=date(2000, 1, 1))]
_Key = Annotated[str, StringConstraints(max_length=500, pattern="^[^\x00]*$")]
_POSITION: TypeAdapter[str] = TypeAdapter(_Key)


class UsageQuery(BaseModel):
    """What to add up, and by what."""

    model_config = ConfigDict(extra="forbid")

    from_: Annotated[Day | None, Field(alias="from"), doc("The first UTC day, 29 days before `to` by default.")] = None
    to: Annotated[Day | None, doc("The last UTC day, today by default.")] = None
    group: Annotated[Group, doc("What to add up by. `user` is for ops.")] = "day"
    user: Annotated[str | None, Field(max_length=MAX_USER_CHARS, pattern="^[^\x00]*$"), doc("For ops.")] = None
    limit: Annotated[int, Field(ge=1, le=200), doc("How many items to give at most.")] = 50
    cursor: Annotated[str | None, Field(max_length=500), doc("`next_cursor` of the page before, as it is.")] = None


@router.get("/usage", responses=problems("forbidden"))
async def get_usage(
    services: ServicesDep, identity: IdentityDep, asked: Annotated[UsageQuery, Query()]
) -> Page[UsageTotal]:
    """Adds up what turns, summaries and facts took. The caller's; with the scope `ops` also another user's, or each."""
    if asked.user is not None or asked.group == "user":
        require_ops(identity)
    last = asked.to or services.clock().date()
    first = asked.from_ or last - timedelta(days=DEFAULT_DAYS - 1)
    if not 0 <= (last - first).days < MAX_DAYS:
        detail = f"`from` has to be before `to` or the same day, and at most {MAX_DAYS} days are given at once."
        raise InvalidRequest(detail)
    owner = asked.user if asked.user is not None or asked.group == "user" else identity.user
    after = decode_cursor(asked.cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await list_usage(
            connection, owner, first=first, last=last, group=asked.group, after=after, limit=asked.limit + 1
        )
    return page(found, asked.limit, lambda item: item.key or "")
