"""A durable fact about a user: stored, and new. The field names are part of the HTTP API."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

MemoryKind = Literal["fact", "preference", "personal_info", "contact", "project"]

MAX_CONTENT_CHARS = 500
MIN_IMPORTANCE, MAX_IMPORTANCE = 1, 5
EXPLICIT_IMPORTANCE = 4  # of a fact that the user asked to have remembered


@dataclass(frozen=True, slots=True)
class Memory:
    """`session_id` and `message_id` say where it was told; of a session that was deleted only its id is left."""

    id: str
    kind: MemoryKind
    content: str
    importance: int
    created_at: datetime
    last_used_at: datetime | None = None
    session_id: str | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMemory(Memory):
    """A memory of a kind that this release does not know."""

    unreadable: Literal[True]


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to store. `supersedes` is the id of the fact that it corrects."""

    content: str
    kind: MemoryKind
    importance: int = EXPLICIT_IMPORTANCE
    supersedes: str | None = None
