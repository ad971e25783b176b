"""Who the caller is."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter

from segue.api.deps import IdentityDep, StrictJsonRoute
from segue.api.problems import PROBLEMS
from segue.domain.doc import doc

router = APIRouter(tags=["me"], route_class=StrictJsonRoute, responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class Me:
    """The caller."""

    user: Annotated[str, doc("The id that rows of the caller's belong to.")]
    scopes: Annotated[list[str], doc("As the token has them, also words that mean nothing to Segue.")]


@router.get("/me")
async def get_me(identity: IdentityDep) -> Me:
    """Shows who the caller is."""
    return Me(identity.user, sorted(identity.scopes))
