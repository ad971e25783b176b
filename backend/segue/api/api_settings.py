"""The settings of HTTP: who may call, from which origins, with bodies of which size."""

import re
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from segue.domain.field_types import Bytes, CommaSeparated
from segue.domain.identity import is_loopback
from segue.domain.ids import known_zone
from segue.domain.session import LONGEST_MESSAGE
from segue.turns.turn_settings import TurnSettings

_ORIGIN = (
    r"\*|null|[a-z][a-z0-9+.-]*://[^\s/]+",
    "origins, such as https://app.example.com, without a path or a / at the end",
)
_HOST = r"[\w.-]*\w|[\da-f.]*:[\da-f.]*:[\da-f:.]*", "names of hosts, such as segue.example.com, without a port or a *"


def _check_each(pattern: str, what: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if not all(re.fullmatch(pattern, value, re.IGNORECASE | re.ASCII) for value in values):
        raise ValueError(f"has to be {what}")
    return values


class ApiSettings(TurnSettings):
    host: str = "127.0.0.1"
    auth: Literal["none", "api_key", "jwt"] = "none"
    allow_anonymous: bool = False
    allowed_hosts: Annotated[CommaSeparated, AfterValidator(partial(_check_each, *_HOST))] = ()
    cors_origins: Annotated[CommaSeparated, AfterValidator(partial(_check_each, *_ORIGIN))] = ()
    console: bool = True
    metrics_public: bool = False
    max_body_bytes: Bytes = 1_048_576
    max_door_body_bytes: Bytes = 8_388_608
    max_message_chars: Annotated[int, Field(ge=1000, le=LONGEST_MESSAGE)] = 32_000
    time_zone: Annotated[str, AfterValidator(known_zone)] = "UTC"

    @model_validator(mode="after")
    def _anonymous_only_on_loopback(self) -> Self:
        if self.auth == "none" and not self.allow_anonymous and not is_loopback(self.host):
            raise ValueError(
                f"AUTH=none on HOST={self.host} would let anyone on the network in. Set AUTH=api_key and make a key "
                "with `segue keys create --user NAME`, or AUTH=jwt; or use HOST=127.0.0.1; or set ALLOW_ANONYMOUS=true "
                "if something in front decides who may call it."
            )
        return self

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Returns the host names it answers to besides loopback, or None for any, if callers have identities."""
        return None if self.auth != "none" or self.allow_anonymous else (self.host, *self.allowed_hosts)

    @property
    def session_time_zone(self) -> str:
        """Returns the time zone of a session whose client names none, empty if the setting does not either."""
        return "" if self.time_zone == "UTC" else self.time_zone
