"""Routes to receipts: of a session as one chain, and of one call. Of a user who was erased operators read what is left,
which has no words.
"""

from dataclasses import asdict, dataclass
from typing import Annotated

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.api.deps import IdentityDep, OriginDep, ServicesDep, SessionId, ToolCallId, router_of
from segue.api.problems import problems
from segue.api.schemas import BY_SEQ, Page, PagingDep
from segue.domain.errors import AppError, NotFound
from segue.domain.field_types import doc
from segue.domain.identity import Identity, Operator
from segue.domain.receipt import ChainHead, Receipt
from segue.tools import receipts
from segue.turns.claims import Origin
from segue.users.audit import record_act

router = router_of("receipts")


@dataclass(frozen=True, slots=True)
class ReceiptPage(Page[Receipt]):
    """Receipts in their order, and the end of their chain: what `segue receipts verify` reads."""

    head: Annotated[ChainHead | None, doc("The last receipt of the session by now; null if it has none.")]


@router.get("/sessions/{session_id}/receipts", responses=problems("forbidden"))
async def list_receipts(
    session_id: SessionId, services: ServicesDep, identity: IdentityDep, origin: OriginDep, paging: PagingDep
) -> ReceiptPage:
    """Lists what a session's calls changed, who approved them and what was shown. Oldest first. Of other users for the
    scopes `ops` and `ops:content`.
    """
    after, limit = paging.after(BY_SEQ) or 0, paging.limit + 1
    async with services.database.transaction() as connection:
        owner, head, found = await receipts.read_chain(connection, session_id, after=after, limit=limit)
        await _check_reader(connection, identity, origin, owner, session_id, "session")
    page = paging.page(found, lambda each: each.number)
    return ReceiptPage(page.items, page.next_cursor, head)


@router.get("/receipts/{tool_call_id}", responses=problems("receipt_not_found", "forbidden"))
async def get_receipt(
    tool_call_id: ToolCallId, services: ServicesDep, identity: IdentityDep, origin: OriginDep
) -> Receipt:
    """Shows the receipt of a call, the newest if its outcome was settled later. Of other users as the list."""
    async with services.database.transaction() as connection:
        owner, receipt = await receipts.get_receipt(connection, tool_call_id)
        await _check_reader(connection, identity, origin, owner, receipt.session_id, "receipt")
    return receipt


async def _check_reader(
    connection: AsyncConnection, identity: Identity, origin: Origin, owner: str | None, session_id: str, thing: str
) -> None:
    """Raises NotFound, AppError `forbidden`. What operators read of other users is in the audit."""
    if owner == identity.user:
        return
    if "ops" not in identity.scopes:
        raise NotFound(thing)
    if owner is not None and "ops:content" not in identity.scopes:
        detail = "This has what the user said: it is for callers with the scopes `ops` and `ops:content`."
        raise AppError("forbidden", status=403, title="Forbidden", detail=detail)
    operator = Operator(**asdict(identity), request_id=origin.request_id)
    await record_act(connection, operator, "read_session", session_id=session_id)
