"""The bodies that clients send, and pages of lists with their cursors. Responses are the dataclasses of `domain/`."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Self, TypeVar

import orjson
from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from segue.domain.agent import DEFAULT_AGENT
from segue.domain.clock import known_zone
from segue.domain.errors import AppError
from segue.domain.ids import Prefix, id_pattern
from segue.domain.memory import MAX_CONTENT_CHARS, MemoryKind
from segue.domain.plan import Button, Pressed
from segue.domain.session import Rating
from segue.domain.tool import canonical_args
from segue.domain.tool_state import ManualStatus
from segue.turns.store import OnBusy

MAX_MESSAGE_CHARS = 32_000
MAX_METADATA_KEYS = 64
MAX_COMMENT_CHARS = 2000
MAX_DECISIONS = 50
MAX_VERSION = 2**31 - 1

Item = TypeVar("Item")
Position = TypeVar("Position")
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Title = Annotated[str, Field(max_length=200)]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$")]
TimeZone = Annotated[str, AfterValidator(known_zone)]
Metadata = Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewSession(Body):
    """`time_zone` is an IANA name; null stands for the setting TIME_ZONE. `language` is a tag such as `it` or `pt-BR`;
    null for the one the user writes in.
    """

    title: Title | None = None
    agent: Annotated[str, Field(max_length=200)] = DEFAULT_AGENT
    language: Language | None = None
    time_zone: TimeZone | None = None
    metadata: Metadata = {}


class SessionChanges(NewSession):
    archived: bool = False
    pinned: bool = False


class Delivery(Body):
    background: bool = False
    stream: bool = False


class EditedMessage(Delivery):
    message: Annotated[Text, Field(max_length=MAX_MESSAGE_CHARS)]


class ChatBody(EditedMessage):
    force_web_search: bool = False
    on_busy: OnBusy = "enqueue"


class PlanDecision(Body):
    """`version` is the one the user was shown. With `confirm`, `args` take the place of those of the step that waits;
    with `amend`, `message` says what is to be otherwise.
    """

    decision: Pressed
    version: int = Field(ge=1, le=MAX_VERSION)
    args: dict[str, Any] | None = None
    message: Annotated[Text, Field(max_length=MAX_MESSAGE_CHARS)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.args is not None and self.decision != "confirm":
            raise ValueError("`args` go with the decision `confirm` only")
        if (self.message is not None) != (self.decision == "amend"):
            raise ValueError("the decision `amend` needs a `message`, and the others take none")
        return self

    @property
    def button(self) -> Button:
        return Button(self.decision, self.version, self.args, self.message or "")

    @property
    def asked(self) -> tuple[str | int, ...]:
        """What a repeated request repeats."""
        more = canonical_args(self.args) if self.args is not None else self.message
        return (self.decision, self.version, *([more] if more is not None else []))


class OneDecision(PlanDecision):
    session_id: Annotated[str, Field(max_length=200)]


class Decisions(Body):
    items: Annotated[list[OneDecision], Field(min_length=1, max_length=MAX_DECISIONS)]


class StatusChange(Body):
    """What a person sets stays until a person changes it."""

    status: ManualStatus
    reason: Annotated[str, Field(max_length=500)] | None = None


class ToolReset(Body):
    """All tools without a name."""

    tool_name: Annotated[str, Field(max_length=200)] | None = None


class FleetReset(ToolReset):
    """The fleet's states, and those of the session where one is named."""

    session_id: Annotated[str, Field(max_length=200)] | None = None


class MessageFeedback(Body):
    """`rating: null` takes back what was said."""

    rating: Rating | None
    comment: Annotated[str, Field(max_length=MAX_COMMENT_CHARS)] | None = None


class MemoryChanges(Body):
    content: Annotated[Text, Field(max_length=MAX_CONTENT_CHARS)] | None = None
    kind: MemoryKind | None = None


class NewMemory(Body):
    content: Annotated[Text, Field(max_length=MAX_CONTENT_CHARS)]
    kind: MemoryKind = "fact"


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """`next_cursor` is null on the last page."""

    items: list[Item]
    next_cursor: str | None


Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=500)]


def page(found: list[Item], limit: int, position: Callable[[Item], object]) -> Page[Item]:
    """Makes a page of `limit` items; `found` has one more if there is a next page. A cursor holds a `position`."""
    shown = found[:limit]
    last = base64.urlsafe_b64encode(orjson.dumps(position(shown[-1]))).decode() if len(found) > limit else None
    return Page(shown, last)


def decode_cursor(cursor: str | None, position: TypeAdapter[Position]) -> Position | None:
    """Returns the position in a cursor, None without one.

    Raises AppError `invalid_cursor` if `page` cannot have made it.
    """
    try:
        return position.validate_json(base64.b64decode(cursor, altchars=b"-_", validate=True)) if cursor else None
    except (ValueError, OverflowError) as error:
        raise invalid_cursor() from error


def id_position(prefix: Prefix) -> TypeAdapter[str]:
    """Returns the shape of a position in a list that is ordered by id."""
    return TypeAdapter(Annotated[str, Field(pattern=id_pattern(prefix))])


def invalid_cursor() -> AppError:
    detail = "Use the next_cursor of the page before as it is, or none for the first page."
    return AppError("invalid_cursor", status=422, title="Not a cursor of this list", detail=detail)
