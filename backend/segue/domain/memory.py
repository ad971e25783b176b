"""A durable fact about a user: stored, and new. The field names are part of the HTTP API."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from segue.domain.doc import doc

MemoryKind = Literal["fact", "preference", "personal_info", "contact", "project"]

MAX_CONTENT_CHARS = 500
MIN_IMPORTANCE, MAX_IMPORTANCE = 1, 5
EXPLICIT_IMPORTANCE = 4  # of a fact that the user asked to have remembered


@dataclass(frozen=True, slots=True)
class Memory:
    """A durable fact about the caller."""

    id: Annotated[str, doc("Begins with `mem_`.")]
    kind: Annotated[MemoryKind, doc("What it is about.")]
    content: Annotated[str, doc("The fact, in a sentence.")]
    importance: Annotated[int, doc("From 1 to 5: the model is shown what matters more.")]
    created_at: Annotated[datetime, doc("When it was noted.")]
    last_used_at: Annotated[datetime | None, doc("When the model was last shown it.")] = None
    session_id: Annotated[str | None, doc("Where it was told, also of a session that was deleted.")] = None
    message_id: Annotated[str | None, doc("The message that told it.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMemory(Memory):
    """A memory of a kind that this release does not know."""

    unreadable: Annotated[Literal[True], doc("Always true: tells it from what can be read.")]


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to store. `supersedes` is the id of the fact that it corrects."""

    content: str
    kind: MemoryKind
    importance: int = EXPLICIT_IMPORTANCE
    supersedes: str | None = None
