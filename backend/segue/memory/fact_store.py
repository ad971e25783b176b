"""Durable facts about a user. Owns the table `memories`; every statement for a user has the owner in its predicate. A
corrected fact keeps its row behind the one that replaced it, and is deleted with it. Only current facts are read.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, REAL, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import UserDefinedType

from segue.db.engine import Connection
from segue.db.models import memories
from segue.db.rows import Position, if_given, newest_first, note_unreadable, older_than, oldest_first
from segue.domain.errors import app_error, existing
from segue.domain.ids import new_id
from segue.domain.session import Memory, MemoryKind, NewFact, UnreadableMemory
from segue.memory.fact_cues import index_words, split_words

# A fact and a question go through every stemmer: a few words are too short to guess the language by, and a wrong guess
# would hide the fact. For hundreds of facts this takes 1 ms.
CONFIGURATIONS = (
    *("simple", "english", "italian", "spanish", "french", "german", "portuguese", "dutch", "russian", "turkish"),
    *("arabic", "hindi"),
)
ALWAYS_USEFUL = ("personal_info", "preference")
RECENT_DAYS = 90
MARKED_EVERY = timedelta(hours=1)

_SIGN = re.compile(r"[+#%<>=@/*&_]|-(?=\d)|(?<=\w)-(?!\w)")
_IS_CURRENT = memories.c.superseded_by.is_(None)
_SHOWN = [memories.c[field.name] for field in fields(Memory)]  # in the order `_memory` needs


@dataclass(frozen=True, slots=True)
class FactSource:
    """The message that states a fact."""

    session_id: str
    message_id: str


def _memory(row: sa.Row[Any]) -> Memory:
    """Returns an UnreadableMemory, shown as a plain fact, for a kind that this release does not know."""
    columns = {column.name: value for column, value in zip(_SHOWN, row, strict=False)}
    if columns["kind"] in get_args(MemoryKind):
        return Memory(**columns)
    note_unreadable("memories", row.id)
    return UnreadableMemory(**{**columns, "kind": "fact"}, unreadable=True)


def _joined(function: Any, words: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Returns the vector or the query that all configurations make of the words."""
    parts = [function(sa.literal_column(f"'{name}'::regconfig"), sa.cast(words, sa.Text)) for name in CONFIGURATIONS]
    return reduce(lambda joined, part: joined.op("||")(part), parts)


async def add_fact(
    connection: Connection, owner: str, fact: NewFact, *, now: datetime, source: FactSource | None = None
) -> Memory:
    """Returns the stored fact, or the current one with the same words. The fact it supersedes is no longer current."""
    told_by = asdict(source) if source else {}
    values = {"id": new_id("mem", now), "owner": owner, "kind": fact.kind, "importance": fact.importance, **told_by}
    new = insert(memories).values(**values, **_worded(" ".join(fact.content.split())), created_at=now)
    same: dict[str, Any] = {"index_elements": ["owner", "content_hash"], "index_where": _IS_CURRENT}
    most = sa.func.greatest(memories.c.importance, new.excluded.importance)
    stored = await connection.execute(new.on_conflict_do_update(**same, set_={"importance": most}).returning(*_SHOWN))
    memory = _memory(stored.one())
    if fact.supersedes is not None:
        await supersede(connection, owner, fact.supersedes, by=memory.id)
    return memory


async def supersede(connection: Connection, owner: str, memory_id: str, *, by: str) -> None:
    """Marks a fact as replaced by another, unless it was deleted or corrected in the meantime."""
    is_it = (memories.c.owner == owner, memories.c.id == memory_id, memories.c.id != by, _IS_CURRENT)
    await connection.execute(sa.update(memories).where(*is_it).values(superseded_by=by))


async def list_facts(
    connection: Connection, owner: str, *, before: Position | None, limit: int, session_id: str | None = None
) -> list[tuple[Memory, Position]]:
    """Newest first, each with its position, of one session if given. `before` is the last one seen, perhaps gone."""
    mine = (memories.c.owner == owner, _IS_CURRENT, if_given(memories.c.session_id, session_id))
    statement: sa.Select[Any] = sa.select(*_SHOWN, memories.c.seq).where(*mine, older_than(memories, before))
    rows = await connection.execute(statement.order_by(*newest_first(memories)).limit(limit))
    return [(_memory(row), (row.seq, row.id)) for row in rows]


async def oldest_facts(connection: Connection, owner: str, *, limit: int) -> list[Memory]:
    statement = sa.select(*_SHOWN).where(memories.c.owner == owner, _IS_CURRENT).order_by(*oldest_first(memories))
    return [_memory(row) for row in await connection.execute(statement.limit(limit))]


async def change_fact(
    connection: Connection, owner: str, memory_id: str, *, content: str | None, kind: MemoryKind | None
) -> Memory:
    """Changes the given columns. Raises NotFound as `delete_fact`, AppError `memory_exists` if another fact says so."""
    changes: dict[str, Any] = {"kind": kind} if kind is not None else {}
    if content is not None:
        changes |= _worded(" ".join(content.split())) | {"embedding": None, "embedding_model": None}
    is_it = (memories.c.owner == owner, memories.c.id == memory_id, _IS_CURRENT)
    # an UPDATE that changes nothing would not be one
    changed = sa.update(memories).where(*is_it).values(changes or {"kind": memories.c.kind}).returning(*_SHOWN)
    try:
        row = existing("memory", (await connection.execute(changed)).one_or_none())
    except IntegrityError as error:  # one current fact of the same words is a unique index
        raise app_error("memory_exists") from error
    return _memory(row)


def _hash(content: str) -> str:
    """Ignores case, accents and punctuation, but not signs: `A+` is not `A-`, nor `C` the language `C++`."""
    folded = " ".join(split_words(content)) or content
    return hashlib.sha256("".join((folded, *_SIGN.findall(content))).encode()).hexdigest()[:32]


def _worded(content: str) -> dict[str, Any]:
    """Returns the columns that are made of a fact's words."""
    return {
        "content": content,
        "content_hash": _hash(content),
        "search": sa.func.strip(_joined(sa.func.to_tsvector, sa.bindparam("indexed", index_words(content)))),
    }


async def delete_fact(connection: Connection, owner: str, memory_id: str) -> str | None:
    """Deletes the fact and those it corrected. Returns the session it comes from. Raises NotFound."""
    gone = sa.delete(memories).where(memories.c.owner == owner, memories.c.id == memory_id, _IS_CURRENT)
    told_in: str | None
    (told_in,) = existing("memory", (await connection.execute(gone.returning(memories.c.session_id))).one_or_none())
    return told_in


async def delete_facts_that_say(connection: Connection, owner: str, contents: Collection[str]) -> list[str]:
    """Deletes the current facts of these words, whatever their case and punctuation, and those they corrected."""
    hashes = [_hash(" ".join(content.split())) for content in contents]
    is_said = memories.c.content_hash.in_(hashes) | memories.c.content.in_(contents)  # older hashes know no signs
    gone = sa.delete(memories).where(memories.c.owner == owner, is_said, _IS_CURRENT)
    return [str(content) for content in await connection.scalars(gone.returning(memories.c.content))]


async def delete_facts_told_in(connection: Connection, told_in: sa.Select[tuple[str]]) -> None:
    """Deletes the facts that come from these messages. What they corrected holds again, unless it was told since."""
    gone, newer = sa.select(memories.c.id).where(memories.c.message_id.in_(told_in)), memories.alias("newer")
    same = (newer.c.owner == memories.c.owner, newer.c.content_hash == memories.c.content_hash)
    told_since = sa.exists().where(*same, (newer.c.seq > memories.c.seq) | newer.c.superseded_by.is_(None))
    corrected = (memories.c.superseded_by.in_(gone), memories.c.id.not_in(gone), ~told_since)
    await connection.execute(sa.update(memories).where(*corrected).values(superseded_by=None))
    await connection.execute(sa.delete(memories).where(memories.c.id.in_(gone)))


async def delete_facts_of_session(connection: Connection, owner: str, session_id: str) -> None:
    """Deletes the facts that come from a session, corrected ones too, and those they corrected."""
    await connection.execute(sa.delete(memories).where(memories.c.owner == owner, memories.c.session_id == session_id))


def _find_statement() -> sa.Select[Any]:
    # MATERIALIZED, or the query would be made again for every fact. No GIN index: the facts are of one owner.
    query = sa.select(_joined(sa.func.to_tsquery, sa.bindparam("asked")).label("words"))
    asked = query.cte("query").prefix_with("MATERIALIZED")
    matches = memories.c.search.op("@@")(asked.c.words)
    used_at = sa.func.coalesce(memories.c.last_used_at, memories.c.created_at)
    age = sa.bindparam("at", type_=sa.DateTime(timezone=True)) - used_at
    days = sa.func.greatest(sa.func.extract("epoch", age) / 86_400, 0)
    importance, recency = 0.5 + memories.c.importance * 0.1, 0.5 + 0.5 * sa.func.exp(-days / RECENT_DAYS)
    rank = sa.func.ts_rank(memories.c.search, asked.c.words, 1) * importance * recency
    return (
        sa.select(*_SHOWN, matches.label("matches"))
        .select_from(memories.join(asked, sa.true()))
        .where(memories.c.owner == sa.bindparam("of_owner"), _IS_CURRENT)
        .where(sa.or_(matches, memories.c.kind.in_(ALWAYS_USEFUL)))
        .order_by(matches.desc(), sa.case((matches, rank)).desc(), memories.c.importance.desc())
        .order_by(days, *newest_first(memories))
        .limit(sa.bindparam("at_most"))
    )


_FIND = _find_statement()


async def find_facts(
    connection: Connection, owner: str, words: str, *, limit: int, now: datetime
) -> tuple[list[Memory], list[Memory]]:
    """Returns the facts that share a word with `search_words`, best first, and then others of ALWAYS_USEFUL kinds."""
    values = {"of_owner": owner, "asked": " | ".join(words.split()), "at_most": limit, "at": now}
    found = [(row.matches, _memory(row)) for row in await connection.execute(_FIND, values)]
    return [fact for matches, fact in found if matches], [fact for matches, fact in found if not matches]


class _Vector(UserDefinedType[Any]):
    """pgvector's type. Embeddings are stored as plain arrays: one schema with and without the extension."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "vector"


# pgvector refuses what is no number; one such fact would hide the others.
_IS_VECTOR: sa.ColumnElement[bool] = sa.literal_column(
    "embedding <@ array_remove(embedding, NULL) AND NOT embedding && '{NaN,Infinity,-Infinity}'"
)


_TO = sa.cast(sa.bindparam("to", type_=ARRAY(REAL)), _Vector())
_COSINE = 1 - sa.cast(memories.c.embedding, _Vector()).op("<=>", return_type=sa.Float())(_TO)
_NEAREST: sa.Select[Any] = (
    sa.select(*_SHOWN, _COSINE.label("cosine"))
    .where(memories.c.owner == sa.bindparam("of_owner"), _IS_CURRENT)
    .where(memories.c.embedding_model == sa.bindparam("of_model"))
    # Only embeddings of one length compare; a model may be served at another length one day.
    .where(sa.func.cardinality(memories.c.embedding) == sa.bindparam("dimensions", type_=sa.Integer), _IS_VECTOR)
    .order_by(_COSINE.desc())
    .limit(sa.bindparam("at_most"))
)


async def nearest_facts(
    connection: Connection, owner: str, model: str, embedding: Sequence[float], *, limit: int
) -> list[tuple[Memory, float]]:
    """Returns the facts whose embeddings are closest, with the cosine of the angle between. Needs pgvector."""
    values = {"of_owner": owner, "of_model": model, "to": list(embedding), "dimensions": len(embedding)}
    return [(_memory(row), row.cosine) for row in await connection.execute(_NEAREST, {**values, "at_most": limit})]


async def mark_used(connection: Connection, owner: str, memory_ids: Sequence[str], *, now: datetime) -> None:
    """Leaves the mark of a fact that has one of the last hour: most are given in every turn."""
    is_due = sa.or_(memories.c.last_used_at.is_(None), memories.c.last_used_at < now - MARKED_EVERY)
    marked = sa.update(memories).where(memories.c.owner == owner, memories.c.id.in_(memory_ids), is_due)
    await connection.execute(marked.values(last_used_at=now))


async def facts_without_embedding(
    connection: Connection, model: str, *, limit: int, is_any: bool
) -> dict[str, list[tuple[str, str]]]:
    """Returns ids and contents of current facts whose embedding is missing or of another model, by owner. With `is_any`
    they are drawn by lot: one that the endpoint does not take is not always among them.
    """
    embedded_by = memories.c.embedding_model
    of_another = (embedded_by.is_(None), embedded_by < model, embedded_by > model)  # `!=` would not use the index
    lacking = sa.select(memories.c.owner, memories.c.id, memories.c.content).where(_IS_CURRENT, sa.or_(*of_another))
    statement = (lacking.order_by(sa.func.random()) if is_any else lacking).limit(limit)
    found: dict[str, list[tuple[str, str]]] = {}
    for row in await connection.execute(statement):
        found.setdefault(row.owner, []).append((row.id, row.content))
    return found


async def set_embeddings(
    connection: Connection, model: str, embeddings: Sequence[tuple[str, str, Sequence[float]]]
) -> None:
    """Each goes to a fact's id and content, and is left out if the fact's content has changed by now."""
    is_it = memories.c.id == sa.bindparam("of_id"), memories.c.content == sa.bindparam("says")
    statement = sa.update(memories).where(*is_it).values(embedding=sa.bindparam("vector"), embedding_model=model)
    values = [{"of_id": fact, "says": content, "vector": list(vector)} for fact, content, vector in embeddings]
    await connection.execute(statement, values)


def has_facts(owner: sa.ColumnElement[str]) -> sa.Exists:
    """Returns a condition for a statement about another table."""
    return sa.exists().where(memories.c.owner == owner, _IS_CURRENT)
