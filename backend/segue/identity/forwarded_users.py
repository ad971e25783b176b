"""The users of a gateway, as it names them in a signed token: that of Open WebUI. Knows nothing of HTTP."""

import jwt

from segue.domain.identity import is_user
from segue.identity.authenticator import Unauthorized

ISSUER = "open-webui"
LEEWAY_S = 30
MAX_TOKEN_CHARS = 8192

_JWT = jwt.PyJWT({"require": ["exp", "sub"], "enforce_minimum_key_length": True})


def user_of_token(token: str, *, secret: str) -> str:
    """`secret` is shared with the gateway. Raises Unauthorized for a token that is not signed with it, or is out of
    date.
    """
    if len(token) > MAX_TOKEN_CHARS:
        raise Unauthorized("token_too_long")
    try:
        claims = _JWT.decode(token, secret, algorithms=["HS256"], issuer=ISSUER, leeway=LEEWAY_S)
    except jwt.PyJWTError as error:
        raise Unauthorized(type(error).__name__) from error
    if not is_user(claims["sub"]):
        raise Unauthorized("unusable_sub")
    return str(claims["sub"])
