"""The users of a gateway, as it names them in a signed token: that of Open WebUI. Knows nothing of HTTP."""

import jwt

from segue.domain.identity import is_user
from segue.identity.authenticator import Unauthorized

ISSUER = "open-webui"
LEEWAY_S = 30
MAX_TOKEN_CHARS = 8192


class ForwardedUsers:
    """`secret` is shared with the gateway."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._jwt = jwt.PyJWT({"require": ["exp", "sub"], "enforce_minimum_key_length": True})

    def user_of_token(self, token: str) -> str:
        """Raises Unauthorized for a token that is not signed with the secret, or is out of date."""
        if len(token) > MAX_TOKEN_CHARS:
            raise Unauthorized("token_too_long")
        try:
            claims = self._jwt.decode(token, self._secret, algorithms=["HS256"], issuer=ISSUER, leeway=LEEWAY_S)
        except jwt.PyJWTError as error:
            raise Unauthorized(type(error).__name__) from error
        if not is_user(claims["sub"]):
            raise Unauthorized("unusable_sub")
        return str(claims["sub"])
