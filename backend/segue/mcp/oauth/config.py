"""What mcp.json says of a server that asks each user for a login: `"oauth": true`, or what is registered there."""

from collections.abc import Callable
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator


class OAuthClientConfig(BaseModel):
    """Without `client_id` Segue registers itself, if the authorization server lets it. Without `scopes` it asks for
    those that the server names. With `issuer` users log in there or nowhere; without it the MCP server says where.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    client_id: str | None = Field(default=None, min_length=1)
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    issuer: str | None = Field(default=None, min_length=1)
    scopes: Annotated[
        tuple[str, ...] | None, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
    ] = None

    def takes(self, issuer: str) -> bool:
        """Whether tokens of this authorization server may be used, and its endpoints be sent what is secret."""
        return self.issuer is None or self.issuer.rstrip("/") == issuer.rstrip("/")

    def expanded(self, expand: Callable[[str, str], str]) -> "OAuthClientConfig":
        """Returns it with variables filled in; `expand` takes a text and the name of its field."""
        changes: dict[str, object] = {}
        for name in ("client_id", "issuer"):
            if (text := getattr(self, name)) is not None:
                changes[name] = expand(text, name)
        if self.client_secret is not None:
            changes["client_secret"] = SecretStr(expand(self.client_secret.get_secret_value(), "client_secret"))
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _secret_has_a_client(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret needs a client_id: give both")
        return self


def as_client(value: object) -> object:
    """Reads `true` as a client of whom nothing is known, and `false` as none."""
    return ({} if value else None) if isinstance(value, bool) else value


OAuthSetting = Annotated[OAuthClientConfig | None, BeforeValidator(as_client)]
