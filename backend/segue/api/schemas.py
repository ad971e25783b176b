"""The bodies that clients send, and pages of lists with their cursors. Responses are the dataclasses of `domain/`."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import orjson
import pydantic
from fastapi import Depends, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from segue.api.deps import AnySession
from segue.db.rows import Position
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.approval_rule import MAX_REASON_CHARS
from segue.domain.errors import app_error
from segue.domain.field_types import doc
from segue.domain.identity import MAX_USER_CHARS, SCOPES, Scope, known_user
from segue.domain.ids import Prefix, id_pattern, known_zone
from segue.domain.plan import Button, Decision, Pressed
from segue.domain.session import LONGEST_MESSAGE, MAX_ATTACHMENTS, MAX_CONTENT_CHARS, MemoryKind, Rating
from segue.domain.tool import ManualStatus, RememberFor, canonical_args
from segue.turns.chat_request import OnBusy

MAX_CHANGE_CHARS = 32_000  # of the words that change a plan
MAX_METADATA_BYTES = 16_384  # a list has up to 200 sessions, each with its own
MAX_VERSION = 2**31 - 1

Json = dict[str, Any]
Responses = dict[int | str, Json]  # of a route, by status
BINARY: Json = {"type": "string", "format": "binary"}


def _bounded(metadata: Json) -> Json:
    size = len(canonical_args(metadata).encode())
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"The metadata has {size} bytes as JSON, and may have {MAX_METADATA_BYTES}.")
    return metadata


Item = TypeVar("Item")
CursorPosition = TypeVar("CursorPosition")
FilledText = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)]
Name = Annotated[str, Field(max_length=200)]
NameFilter = Annotated[str | None, Field(max_length=200, pattern="^[^\x00]*$")]
MessageText = Annotated[FilledText, Field(max_length=LONGEST_MESSAGE)]
ChangeInWords = Annotated[FilledText, Field(max_length=MAX_CHANGE_CHARS)]
Content = Annotated[FilledText, Field(max_length=MAX_CONTENT_CHARS)]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$")]
TimeZone = Annotated[str, AfterValidator(known_zone)]
_ISO = TypeAdapter(Annotated[str, Field(strict=True, pattern=r"^\d{4}-\d\d-\d\dT")])  # no number, as pydantic takes
Moment = Annotated[AwareDatetime, pydantic.Strict(strict=False), BeforeValidator(_ISO.validate_python)]
KnownUser = Annotated[str, Field(max_length=MAX_USER_CHARS), AfterValidator(known_user)]
ResetScope = Literal["fleet", "sessions", "all"]
UserLimit = Annotated[int, Field(ge=0, le=2**53)]
Metadata = Annotated[Json, Field(max_length=64), AfterValidator(_bounded)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewSession(Body):
    """A session to create."""

    title: Annotated[Name | None, doc("The title; null for one made of the first message.")] = None
    agent: Annotated[Name, doc("The id of the agent that answers, from `GET /agents`.")] = DEFAULT_AGENT
    language: Annotated[Language | None, doc("Tag of the answers' language, as `it`; null for the user's own.")] = None
    time_zone: Annotated[TimeZone | None, doc("An IANA time zone; null for the setting TIME_ZONE.")] = None
    metadata: Annotated[Metadata, doc("The client's own data, at most 16 kB as JSON. The agent does not see it.")] = {}


class SessionChanges(NewSession):
    """Changes to a session. Fields that are left out keep their values."""

    archived: Annotated[bool, doc("Whether the session is archived: listed only with `archived=true`.")] = False
    pinned: Annotated[bool, doc("Whether the session is pinned, which is a mark for the client.")] = False


class NewFork(Body):
    """The point of a session's history up to which a new session copies it."""

    message_id: Annotated[Name, doc("The id of the last message to copy.")]


class Delivery(Body):
    """How the client wants the answer to be delivered."""

    background: Annotated[bool, doc("Whether to answer 202 at once instead of waiting for the turn.")] = False
    stream: Annotated[bool, doc("Whether to answer with the events of the turn as they happen (SSE).")] = False


class Answerer(Delivery):
    """Which model answers, and how the answer is delivered."""

    model: Annotated[Name | None, doc("The model that answers, from the agent's `models`; null for `model`.")] = None


class EditedMessage(Answerer):
    """What the user says in place of an earlier message."""

    message: Annotated[MessageText, doc("The message, of up to `MAX_MESSAGE_CHARS`.")]
    attachments: Annotated[list[Name], Field(max_length=MAX_ATTACHMENTS), doc("Ids of files of the session.")] = []
    output_schema: Annotated[Json | None, doc("A JSON schema for the answer, which is then in `output`.")] = None


class ChatBody(EditedMessage):
    """A message to the agent."""

    force_web_search: Annotated[bool, doc("Whether to search the web first, if it can answer the message.")] = False
    on_busy: Annotated[OnBusy, doc("If a turn is open: wait, answer 409, cancel it, or let it read this.")] = "enqueue"
    approves: Annotated[bool, doc("False for a message that a program wrote: a yes in it approves nothing.")] = True


class PlanDecision(Body):
    """The user's decision on the plan that waits, as a button sends it."""

    decision: Annotated[Pressed, doc("Whether the user approves, rejects or changes the waiting step.")]
    version: int = Field(ge=1, le=MAX_VERSION, description="The version of the plan that the user was shown.")
    args: Annotated[Json | None, doc("With `confirm`: arguments that replace those of the waiting step.")] = None
    message: Annotated[ChangeInWords | None, doc("With `amend`: the change to the plan, in the user's words.")] = None
    remember: Annotated[RememberFor | None, doc("With `confirm`: the tool need not ask again in this session.")] = None
    answer: Annotated[Json | None, doc("With `confirm`, if the step `asks` by a form: the values for it.")] = None

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        for name, goes in (("args", "go"), ("answer", "goes"), ("remember", "goes")):
            if getattr(self, name) is not None and self.decision != "confirm":
                raise ValueError(f"`{name}` {goes} with the decision `confirm` only")
        if (self.message is not None) != (self.decision == "amend"):
            raise ValueError("the decision `amend` needs a `message`, and the others take none")
        return self

    @property
    def button(self) -> Button:
        return Button(self.decision, self.version, self.args, self.message or "", self.remember, answer=self.answer)


class OneDecision(PlanDecision):
    """A decision on the plan that waits in one of several sessions."""

    session_id: Annotated[Name, doc("The id of the session whose plan waits.")]


class Decisions(Body):
    """Decisions in several sessions, of which all are accepted or none."""

    items: Annotated[list[OneDecision], Field(min_length=1, max_length=50), doc("The decisions, one for each session.")]


class ApprovalDecision(Body):
    """The caller's decision on a plan that waits for them."""

    decision: Annotated[Decision, doc("Whether the caller approves or rejects the waiting step.")]
    version: int = Field(ge=1, le=MAX_VERSION, description="The version of the plan that the caller was shown.")
    args: Annotated[Json | None, doc("With `confirm`: new arguments, if the plan is theirs or a rule allows.")] = None
    reason: Annotated[str | None, Field(max_length=MAX_REASON_CHARS), doc("The reason, for user and model.")] = None
    channel: Annotated[Literal["button", "terminal"], doc("Where the decision is made, for the audit.")] = "button"

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        if self.args is not None and self.decision != "confirm":
            raise ValueError("`args` goes with the decision `confirm` only")
        return self


class StatusChange(Body):
    """The status of a tool, as a person sets it."""

    status: Annotated[ManualStatus, doc("The new status. It stays until a person changes or resets it.")]
    reason: Annotated[Annotated[str, Field(max_length=500)] | None, doc("The reason, in words for people.")] = None


class FleetStatusChange(StatusChange):
    """The status of a tool in all sessions, as an operator sets it."""

    until: Annotated[Moment | None, doc("When the status ends by itself; null if it lasts until it is lifted.")] = None

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        if self.until is not None and self.status == "available":
            raise ValueError("`until` goes with `maintenance` and `unavailable` only")
        return self


class ToolReset(Body):
    """Which tools to make available again."""

    tool_name: Annotated[Name | None, doc("The name of the tool to reset; null for all tools.")] = None


class FleetReset(ToolReset):
    """Which tools to make available again, and where: for a tool, for a session, or with `all` for everything."""

    all: Annotated[bool, doc("True to reset all tools in all sessions, without naming a tool or a session.")] = False
    session_id: Annotated[AnySession | None, doc("The only session to reset, of any user; null for all.")] = None
    scope: Annotated[ResetScope, doc("What to reset: the state for all sessions, the sessions' own or both.")] = "all"

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.all and self.tool_name is None and self.session_id is None:
            raise ValueError('give `tool_name` or `session_id`, or `"all": true` for all tools in all sessions')
        if self.session_id is not None and self.scope == "fleet":
            raise ValueError("`session_id` goes with the scopes `sessions` and `all` only")
        return self


class KeyToMake(Body):
    """An API key to create."""

    user: Annotated[KnownUser, doc("The user whom the key belongs to.")]
    scopes: Annotated[list[Scope], Field(max_length=len(SCOPES)), doc("The key's scopes; none for a plain user.")] = []
    name: Annotated[Annotated[FilledText, Field(max_length=200)] | None, doc("What the key is for.")] = None
    expires_at: Annotated[Moment | None, doc("When the key expires; null if it never does.")] = None


class KeyRotation(Body):
    """How an API key is replaced by a new one."""

    overlap_s: Annotated[int, Field(ge=0, le=31_622_400), doc("How many seconds the old key still works.")] = 86_400


class LimitsToSet(Body):
    """The limits of one user. 0 is no limit, null the limit in the settings. A day is one in UTC."""

    requests_per_minute: Annotated[UserLimit | None, doc("The most requests in a minute.")] = None
    turns_per_minute: Annotated[UserLimit | None, doc("The most turns that may begin in a minute.")] = None
    concurrent_turns: Annotated[UserLimit | None, doc("The most turns that may be open at once.")] = None
    tokens_per_day: Annotated[UserLimit | None, doc("The most tokens of models in a day.")] = None
    cost_per_day: Annotated[float | None, Field(ge=0, le=1e9), doc("The most US dollars for models in a day.")] = None


class MessageFeedback(Body):
    """The user's rating of an answer."""

    rating: Annotated[Rating | None, doc("The rating; null removes an earlier one.")]
    comment: Annotated[Annotated[str, Field(max_length=2000)] | None, doc("A comment by the user.")] = None


class MemoryChanges(Body):
    """Changes to a fact. Fields that are left out keep their values."""

    content: Annotated[Content | None, doc("The fact, in a sentence.")] = None
    kind: Annotated[MemoryKind | None, doc("What kind of fact it is.")] = None


class NewMemory(Body):
    """A fact to remember about the caller."""

    content: Annotated[Content, doc("The fact, in a sentence.")]
    kind: Annotated[MemoryKind, doc("What kind of fact it is.")] = "fact"


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A page of a list."""

    items: Annotated[list[Item], doc("The items of this page.")]
    next_cursor: Annotated[str | None, doc("The `cursor` of the next page; null on the last page.")]


@dataclass(frozen=True, slots=True)
class PageAround(Page[Item]):
    """A page of a list that may begin in the middle of it."""

    previous_cursor: Annotated[str | None, doc("`cursor` of the page before, by the other `order`; null on the first.")]


Seq = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
BY_SEQ = TypeAdapter(Seq)  # a position in a list that is ordered by it
BY_NAME: TypeAdapter[str] = TypeAdapter(Annotated[str, Field(max_length=500, pattern="^[^\x00]*$")])
Limit = Annotated[int, Query(ge=1, le=200, description="The most items that a page may have.")]
# Of a list that is given whole: who reads all lists alike sends one.
AnyLimit = Annotated[int, Query(alias="limit", ge=1, le=200, include_in_schema=False)]
Cursor = Annotated[str | None, Query(max_length=500, description="The `next_cursor` of the page before, as it is.")]


class Paging(BaseModel):
    """The page that a client asks for: `limit` items after the position in `cursor`, or the first ones. A model of all
    parameters of a route extends it: FastAPI takes no others beside one.
    """

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor = None

    def after(self, position: TypeAdapter[CursorPosition]) -> CursorPosition | None:
        """Returns the position in the cursor, None without one. Raises AppError `invalid_cursor` for a forged one."""
        if not self.cursor:
            return None
        try:
            return position.validate_json(base64.b64decode(self.cursor, altchars=b"-_", validate=True))
        except (ValueError, OverflowError) as error:
            raise app_error("invalid_cursor") from error

    def behind(self, position: TypeAdapter[Any], name: str = "before") -> Json:
        """Returns what a list is asked for: `limit`, one more than the page has, and, as `name`, where it begins."""
        return {name: self.after(position), "limit": self.limit + 1}

    def page(self, found: list[Item], position: Callable[[Item], object]) -> Page[Item]:
        """Makes the page; `found` has one item more if there is a next one. A cursor holds a `position`."""
        shown = found[: self.limit]
        return Page(shown, encode_cursor(position(shown[-1])) if len(found) > self.limit else None)

    def page_of_placed(self, found: list[tuple[Item, CursorPosition]]) -> Page[Item]:
        """Makes the page of items that come with their positions."""
        placed = self.page(found, lambda each: each[1])
        return Page([item for item, _ in placed.items], placed.next_cursor)


async def _paging(limit: Limit = 50, cursor: Cursor = None) -> Paging:
    return Paging(limit=limit, cursor=cursor)


Paged = Annotated[Paging, Depends(_paging)]


def encode_cursor(position: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


def row_position(prefix: Prefix) -> TypeAdapter[Position | str]:
    """Returns the shape of a position in a list that is ordered by seq. The release before had the id alone in it."""
    is_id = Field(pattern=id_pattern(prefix))
    return TypeAdapter(tuple[Seq, Annotated[str, is_id]] | Annotated[str, is_id])


def id_position(prefix: Prefix) -> TypeAdapter[str]:
    """Returns the shape of a position in a list that is ordered by id."""
    return TypeAdapter(Annotated[str, Field(pattern=id_pattern(prefix))])
