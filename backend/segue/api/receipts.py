"""Routes to receipts: of a session as one chain, and of one call. Who may read a session's words may read its receipts;
of a session that is deleted operators read what is left, which has no words.
"""

from dataclasses import asdict, dataclass
from typing import Annotated

from segue.api.deps import IdentityDep, OriginDep, Services, ServicesDep, SessionId, ToolCallId, router_of
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
    """Lists what a session's calls changed, who approved them and what was shown. Oldest first. Of other users' sessions
    for the scopes `ops` and `ops:content`.
    """
    after = paging.after(BY_SEQ) or 0
    async with services.database.read_only() as connection:
        owner = await receipts.owner_of_chain(connection, session_id)
    await _check_reader(services, identity, origin, session_id, owner)
    async with services.database.read_only() as connection:
        head = await receipts.chain_head(connection, session_id)
        last = head.number if head else 0
        found = await receipts.list_receipts(connection, session_id, after=after, last=last, limit=paging.limit + 1)
    page = paging.page(found, lambda each: each.number)
    return ReceiptPage(page.items, page.next_cursor, head)


@router.get("/receipts/{tool_call_id}", responses=problems("receipt_not_found", "forbidden"))
async def get_receipt(
    tool_call_id: ToolCallId, services: ServicesDep, identity: IdentityDep, origin: OriginDep
) -> Receipt:
    """Shows the receipt of a call, the newest if its outcome was settled later. Of other users' calls for the scopes
    `ops` and `ops:content`.
    """
    async with services.database.read_only() as connection:
        receipt, owner = await receipts.get_receipt(connection, tool_call_id)
    await _check_reader(services, identity, origin, receipt.session_id, owner, thing="receipt")
    return receipt


async def _check_reader(
    services: Services,
    identity: Identity,
    origin: Origin,
    session_id: str,
    owner: str | None,
    *,
    thing: str = "session",
) -> None:
    """Raises NotFound, AppError `forbidden`. What an operator reads of another user is noted in the audit."""
    if owner == identity.user:
        return
    if "ops" not in identity.scopes:
        raise NotFound(thing)
    if owner is None:
        return
    if "ops:content" not in identity.scopes:
        detail = "This has what the user said: it is for callers with the scopes `ops` and `ops:content`."
        raise AppError("forbidden", status=403, title="Forbidden", detail=detail)
    async with services.database.transaction() as connection:
        operator = Operator(**asdict(identity), request_id=origin.request_id)
        await record_act(connection, operator, "read_session", session_id=session_id)
