"""Who the caller is."""

from dataclasses import dataclass

from fastapi import APIRouter

from segue.api.deps import IdentityDep, StrictJsonRoute
from segue.api.problems import PROBLEMS

router = APIRouter(tags=["me"], route_class=StrictJsonRoute, responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class Me:
    """`scopes` may hold words that mean nothing to Segue: they come from the caller's token as they are."""

    user: str
    scopes: list[str]


@router.get("/me")
async def get_me(identity: IdentityDep) -> Me:
    return Me(identity.user, sorted(identity.scopes))
