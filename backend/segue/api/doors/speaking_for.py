"""Who asks at a door: the caller, or a user of the caller's, which is a gateway that says for whom it asks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Request

from segue.api.chat import Asking
from segue.api.deps import Caller, IdentityDep, OriginDep, Services, ServicesDep
from segue.domain.errors import AppError
from segue.domain.identity import Identity, is_user, user_of_gateway

SIGNED_USER: Final = "x-openwebui-user-jwt"
NAMED_USERS: Final = ("x-openwebui-user-id", "x-openwebui-user-email")  # the first that is there counts


async def _asking(services: ServicesDep, identity: IdentityDep, http: Request, origin: OriginDep) -> Asking:
    caller = spoken_for(services, identity, http.headers)
    return Asking(caller, services, http, origin if caller == identity.user else replace(origin, groups=()))


DoorAskingDep = Annotated[Asking, Depends(_asking)]


async def _own_asking(services: ServicesDep, caller: Caller, http: Request, origin: OriginDep) -> Asking:
    return Asking(caller, services, http, origin)


OwnAskingDep = Annotated[Asking, Depends(_own_asking)]  # at a door that no gateway comes through


def spoken_for(services: Services, identity: Identity, headers: Mapping[str, str]) -> str:
    """Returns the caller or, if the request names a user of a gateway with the scope `act_as`, that user.

    A caller without the scope is refused: the gateway's users would share all that the agent remembers. Without AUTH
    all callers are one user anyway. Raises AppError `may_not_speak_for`, Unauthorized.
    """
    signed = headers.get(SIGNED_USER)
    named = next((headers[name] for name in NAMED_USERS if headers.get(name)), None)
    if signed is None and named is None:
        return identity.user
    if identity.is_everybody:
        return identity.user
    if "act_as" not in identity.scopes:
        raise _may_not("Its key has not the scope `act_as`: `segue keys create --user … --scope act_as`.")
    if services.forwarded_user is not None:
        if signed is None:
            raise _may_not("With OPENWEBUI_JWT_SECRET the user has to come in a signed token, not in a header.")
        return user_of_gateway(identity, services.forwarded_user(signed)).user
    if named is None:
        raise _may_not("A signed token can be checked if OPENWEBUI_JWT_SECRET is set.")
    if not is_user(named):
        raise _may_not("The user is not one printable line of at most 200 characters.")
    return user_of_gateway(identity, named).user


def _may_not(why: str) -> AppError:
    detail = f"The request names a user for whom it speaks. {why}"
    return AppError("may_not_speak_for", status=403, title="May not speak for another user", detail=detail)
