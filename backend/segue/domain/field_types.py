"""Types of fields, bounded as PostgreSQL and Redis bound times and numbers; `doc` describes one in openapi.json."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

_Value = TypeVar("_Value", str, SecretStr)


def _split_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _read_json_object(value: object) -> object:
    try:
        value = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError as error:
        raise ValueError(f"has to be a JSON object, and is no JSON: {error.msg} at {error.pos}") from None
    if not isinstance(value, Mapping):
        raise ValueError('has to be a JSON object, such as {"name": "value"}')  # noqa: TRY004 (pydantic's own)
    return value


def _check_url(value: _Value) -> _Value:
    try:
        parts = urlsplit(value.get_secret_value() if isinstance(value, SecretStr) else value)
        leads_somewhere = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        leads_somewhere = False
    if not leads_somewhere:
        raise ValueError("has to be a URL, such as https://api.example.com/v1")
    return value


Seconds = Annotated[float, Field(gt=0, le=31_622_400, allow_inf_nan=False)]
PositiveCount = Annotated[int, Field(ge=1, le=2_147_483_647)]
DayCount = Annotated[int, Field(ge=1, le=36_500)]
KeptDays = Annotated[int, Field(ge=0, le=36_500)]  # 0 keeps for ever
Bytes = Annotated[int, Field(ge=1, le=2**53)]
OptionalLimit = Annotated[int, Field(ge=0, le=2**53)]  # 0 means no limit
CommaSeparated = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
JSON_OBJECT: Final = BeforeValidator(_read_json_object)
Url = Annotated[str, AfterValidator(_check_url)]
SecretUrl = Annotated[SecretStr, AfterValidator(_check_url)]


def doc(text: str) -> Any:
    return Field(description=text)


IsUnreadable = Annotated[Literal[True], doc("Always true: marks what this release cannot read in full.")]
