"""The types that settings share. The bounds are those of times and numbers in PostgreSQL and Redis."""

from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

_Value = TypeVar("_Value", str, SecretStr)


def _split_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _check_url(value: _Value) -> _Value:
    if not _leads_somewhere(value.get_secret_value() if isinstance(value, SecretStr) else value):
        raise ValueError("has to be a URL, such as https://api.example.com/v1")
    return value


def _leads_somewhere(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


Seconds = Annotated[float, Field(gt=0, le=31_622_400, allow_inf_nan=False)]
PositiveCount = Annotated[int, Field(ge=1, le=2_147_483_647)]
DayCount = Annotated[int, Field(ge=1, le=36_500)]
KeptDays = Annotated[int, Field(ge=0, le=36_500)]  # 0 keeps for ever
Bytes = Annotated[int, Field(ge=1, le=2**53)]
OptionalLimit = Annotated[int, Field(ge=0, le=2**53)]  # 0 means no limit
CommaSeparated = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
Url = Annotated[str, AfterValidator(_check_url)]
SecretUrl = Annotated[SecretStr, AfterValidator(_check_url)]
