"""What mcp.json says of a server that asks each user for a login: `"oauth": true`, or what is registered there."""

from collections.abc import Callable
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator


class OAuthClientConfig(BaseModel):
    """Without `client_id` Segue registers itself, if the authorization server lets it. Without `scopes` it asks for
    those that the server names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    client_id: str | None = Field(default=None, min_length=1)
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    scopes: Annotated[
        tuple[str, ...] | None, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
    ] = None

    def expanded(self, expand: Callable[[str, str], str]) -> "OAuthClientConfig":
        """Returns it with variables filled in; `expand` takes a text and the name of its field."""
        changes: dict[str, object] = {}
        if self.client_id is not None:
            changes["client_id"] = expand(self.client_id, "client_id")
        if self.client_secret is not None:
            changes["client_secret"] = SecretStr(expand(self.client_secret.get_secret_value(), "client_secret"))
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _secret_is_somebodys(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret is that of a client_id: give both")
        return self


def as_client(value: object) -> object:
    """Reads `true` as a client of whom nothing is known, and `false` as none."""
    return ({} if value else None) if isinstance(value, bool) else value


OAuthSetting = Annotated[OAuthClientConfig | None, BeforeValidator(as_client)]
