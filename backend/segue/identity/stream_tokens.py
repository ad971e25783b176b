"""Tokens for clients that cannot send headers: a browser's EventSource. Each reads the events of one turn for a minute.

Owns the table `stream_tokens`, which has the hash of a token. Times are the database's.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import stream_tokens
from segue.domain.doc import doc

LASTS = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class StreamToken:
    """Opens one turn's events without a key."""

    token: Annotated[str, doc("For `?token=` of this turn's events.")]
    expires_at: Annotated[datetime, doc("After it no stream can be opened with it.")]


async def create_token(connection: AsyncConnection, owner: str, turn_id: str) -> StreamToken:
    """Also deletes those that have expired. `owner` has to be that of the turn."""
    await connection.execute(delete(stream_tokens).where(stream_tokens.c.expires_at < func.now()))
    token = f"stream_{secrets.token_hex(32)}"
    made = insert(stream_tokens).values(
        digest=_digest(token), owner=owner, turn_id=turn_id, expires_at=func.now() + LASTS
    )
    return StreamToken(token, (await connection.execute(made.returning(stream_tokens.c.expires_at))).scalar_one())


async def user_of_token(connection: AsyncConnection, token: str, turn_id: str) -> str | None:
    """Returns None for a token that is unknown, has expired or is for another turn."""
    valid = select(stream_tokens.c.owner).where(
        stream_tokens.c.digest == _digest(token),
        stream_tokens.c.turn_id == turn_id,
        stream_tokens.c.expires_at > func.now(),
    )
    return (await connection.execute(valid)).scalar_one_or_none()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()  # 256 random bits need no slow hash
