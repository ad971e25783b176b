"""A message as it came, and what its turn's row keeps of it."""

from dataclasses import dataclass
from typing import Any, Literal

from segue.db.rows import readable, reader
from segue.domain.ids import digest_of_json
from segue.domain.session import NO_OPTIONS, Attached, TurnOptions
from segue.domain.tool import RememberFor

OnBusy = Literal["enqueue", "reject", "interrupt", "steer"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that brought a message: its id, the W3C traceparent of its span if it has one, and those of the
    caller's groups that agents, tools or caps are for.
    """

    request_id: str | None = None
    traceparent: str | None = None
    groups: tuple[str, ...] = ()


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Once:
    """An idempotency key and the digest of the request under it; empty if the key alone says what is asked."""

    key: str
    body_hash: str


def once(key: str | None, *parts: str | int) -> Once | None:
    """Two requests are the same if their keys and contents are; how the answer is delivered does not count."""
    return Once(key, digest_of_json(parts)) if key is not None else None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A message as it came."""

    message: str
    force_web_search: bool = False
    decided_plan_id: str | None = None  # the plan whose button it is, None for a typed message
    decided_by: str | None = None  # who pressed the button, if it was another person than the user
    amends: bool = False  # a button with a text of the user's
    args_changed: bool = False  # by a button
    remember: RememberFor | None = None  # of a button
    on_busy: OnBusy = "enqueue"
    once: Once | None = None
    stream: bool = False  # asks for the model's words as they come
    turn_id: str | None = None  # the id its turn gets, None for a new one
    origin: Origin = NO_ORIGIN  # joins its log lines and its trace to the request
    instead_of: str | None = None  # replaces this message's turn and all after it; an empty message asks the same again
    note: str | None = None  # what the model is told with it
    abandons: tuple[str, int] | None = None  # instead of an answer to this plan (id, version), cancelled if it waits
    steers: str | None = None  # the turn that is to read the message if it can
    approves: bool = True  # a program's message does not: a yes in it is none, and what waits stays as it is
    unattended: bool = False  # that of a schedule or a trigger
    options: TurnOptions = NO_OPTIONS  # named by the client
    attachment_ids: tuple[str, ...] = ()  # named by the client
    attachments: tuple[Attached, ...] = ()  # their files


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What `turns.request` holds of a ChatRequest, which says what its members are. At the time the message came,
    `shown_plan` was the open plan and its version, and `language` and `time_zone` (may be empty) the session's.
    """

    force_web_search: bool
    decided_plan_id: str | None = None
    amends: bool = False
    args_changed: bool = False
    remember: RememberFor | None = None
    shown_plan: tuple[str, int] | None = None
    stream: bool = False
    origin: Origin = NO_ORIGIN
    language: str | None = None
    time_zone: str = ""
    steers: str | None = None
    approves: bool = True
    options: TurnOptions = NO_OPTIONS
    unattended: bool = False
    decided_by: str | None = None


_read_request = reader(TurnRequest)


def request_of(value: Any, turn_id: str) -> TurnRequest | None:
    """Returns None if it cannot be read."""
    return readable(_read_request, value, "turns", turn_id)
