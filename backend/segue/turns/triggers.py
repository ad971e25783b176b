"""Triggers: signed events from elsewhere (https://www.standardwebhooks.com), each one turn however often it is sent.
Owns `triggers`, whose secrets are sealed. An event's content is data beside the message that the user has set up.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import orjson
from sqlalchemy import Row, delete, func, insert, select, update

from segue.agent.prompts import brought
from segue.db.engine import Connection, Database
from segue.db.models import triggers
from segue.db.redis_keys import Rates
from segue.db.rows import Position, made_before, newest_first, older_than
from segue.domain.errors import NotFound, app_error, existing, rate_limited
from segue.domain.field_types import doc
from segue.domain.ids import Clock, new_id
from segue.log import log
from segue.memory.session_store import check_session
from segue.tools.normalize import clean_text
from segue.turns.admission import Admitted
from segue.turns.chat_request import Once
from segue.turns.jobs.webhooks import signatures
from segue.turns.schedules import begin_unattended, begun_before, check_room
from segue.turns.turn_service import TurnService
from segue.turns.turn_settings import TurnSettings

if TYPE_CHECKING:  # cryptography is slow to import
    from segue.mcp.oauth.login_tokens import Seal

MAX_EVENT_BYTES: Final = 32_000
WINDOW_S: Final = 300
ROLLED_LASTS: Final = timedelta(days=1)
MOST_ROLLED: Final = 10  # old secrets of a trigger, the newest: each of them holds for its day
SECRET_BYTES: Final = 32
_EVENT_ID: Final = re.compile(r"[\x21-\x7e]{1,150}")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A message that starts a turn for each event that comes to its address."""

    id: Annotated[str, doc("The id of the trigger, which begins with `trg_`.")]
    url: Annotated[str, doc("The address to which its events are sent.")]
    session_id: Annotated[str | None, doc("The id of the session of its turns; null: a new one each time.")]
    new_session: Annotated[bool, doc("Whether each event starts a new session.")]
    agent: Annotated[str, doc("The id of the agent that answers in new sessions.")]
    message: Annotated[str, doc("The message of its turns. What the event brings goes with it, as data.")]
    status: Annotated[Literal["active", "paused"], doc("Whether it takes events: `paused` refuses them.")]
    created_at: Annotated[datetime, doc("When the trigger was created.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerWithSecret(Trigger):
    """A trigger and the secret that signs its events, which is not shown again."""

    secret: Annotated[str, doc("The secret, which begins with `whsec_`. Not shown again.")] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Triggers:
    """`seal` is None without MCP_TOKEN_KEY: then none can be made. `base_url` is where the service is reached."""

    database: Database
    turns: TurnService
    rates: Rates
    seal: "Seal | None"
    settings: TurnSettings
    base_url: str
    time_zone: str
    clock: Clock

    async def make(self, owner: str, fields: Mapping[str, Any]) -> TriggerWithSecret:
        """Makes a trigger, or returns the one of the id in `fields` with its secret. Raises NotFound for the session,
        AppError `too_many_unattended`, `trigger_key_missing`, `idempotency_key_reused`.
        """
        trigger_id, limit = fields["id"] or new_id("trg", self.clock()), self.settings.triggers_per_user
        sealed = self._sealed(trigger_id, secret := _new_secret())
        async with self.database.transaction() as connection:
            if (made := await made_before(connection, triggers, owner, fields["id"])) is not None:
                for known, _ in self._secrets(made):
                    return TriggerWithSecret(**self._shown(made), secret=known)
                raise app_error("trigger_key_missing")
            if fields["session_id"] is not None:
                await check_session(connection, owner, fields["session_id"])
            await check_room(connection, triggers, owner, limit=limit)
            own = {"id": trigger_id, "owner": owner, "sealed": sealed, "status": "active", "created_at": func.now()}
            stored = await connection.execute(insert(triggers).values({**fields, **own}).returning(triggers))
            return TriggerWithSecret(**self._shown(stored.one()), secret=secret)

    async def roll(self, owner: str, trigger_id: str) -> TriggerWithSecret:
        """Gives a trigger another secret. The one before holds for a day, as those before it do. Raises NotFound."""
        async with self.database.transaction() as connection:
            row = await _find(connection, trigger_id, owner=owner)
            secret, ends = _new_secret(), (self.clock() + ROLLED_LASTS).isoformat()
            old = [(each, until or ends) for each, until in self._secrets(row)]
            sealed = self._sealed(trigger_id, secret, old[:MOST_ROLLED])
            await connection.execute(update(triggers).where(triggers.c.id == trigger_id).values(sealed=sealed))
        return TriggerWithSecret(**self._shown(row), secret=secret)

    async def listed(self, owner: str, *, before: Position | str | None, limit: int) -> list[tuple[Trigger, Position]]:
        """Newest first, each with its position."""
        mine = select(triggers).where(triggers.c.owner == owner, older_than(triggers, before))
        rows = await self.database.read(Connection.execute, mine.order_by(*newest_first(triggers)).limit(limit))
        return [(Trigger(**self._shown(row)), (row.seq, row.id)) for row in rows]

    async def change(self, owner: str, trigger_id: str, changes: Mapping[str, Any]) -> Trigger:
        """Raises NotFound."""
        changed = update(triggers).values({"status": triggers.c.status, **changes}).returning(triggers)
        async with self.database.autocommit() as connection:
            found = await connection.execute(changed.where(triggers.c.id == trigger_id, triggers.c.owner == owner))
            return Trigger(**self._shown(existing("trigger", found.one_or_none())))

    async def delete(self, owner: str, trigger_id: str) -> None:
        """Raises NotFound."""
        mine = delete(triggers).where(triggers.c.id == trigger_id, triggers.c.owner == owner)
        existing("trigger", await self.database.write(Connection.scalar, mine.returning(triggers.c.id)))

    async def receive(self, trigger_id: str, headers: Mapping[str, str], body: bytes) -> Admitted:
        """Begins the turn of an event, or returns the one that it has begun before. Raises NotFound, AppError
        `signature_invalid`, `rate_limited`, `too_many_queued`, `idempotency_key_reused`.
        """
        row = await self.database.read(_find, trigger_id)
        if row.status != "active":
            raise NotFound("trigger")
        once = Once(f"{trigger_id} {self._check(row, headers, body)}", hashlib.sha256(body).hexdigest())
        if (known := await self.database.read(begun_before, row, once)) is not None:
            return known
        wait_s = await self.rates.count("triggers", trigger_id, self.settings.trigger_events_per_minute)
        if wait_s is not None:
            raise rate_limited("trigger_events_per_minute", self.settings.trigger_events_per_minute, wait_s)
        note = brought(clean_text(body.decode(errors="replace")))
        admitted = await self.turns.begin(row.owner, row.message, partial(self._begin, row, once, note))
        log.info("trigger_pulled", trigger_id=trigger_id, turn_id=admitted.turn.turn_id)
        return admitted

    async def _begin(self, row: Row[Any], once: Once, note: str, connection: Connection, turn_id: str) -> Admitted:
        await _find(connection, row.id, owner=row.owner)  # it may have been deleted meanwhile, with its user
        of = connection, row, once, turn_id, note
        return await begin_unattended(*of, time_zone=self.time_zone, now=self.clock())

    def _check(self, row: Row[Any], headers: Mapping[str, str], body: bytes) -> str:
        """Returns the id of an event that was signed within five minutes. Raises AppError `signature_invalid`."""
        event_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        is_recent = re.fullmatch("[0-9]{1,12}", at) and abs(self.clock().timestamp() - int(at)) <= WINDOW_S
        if _EVENT_ID.fullmatch(event_id) and is_recent:
            keys = [base64.b64decode(each.removeprefix("whsec_")) for each, _ in self._secrets(row)]
            expected = signatures(keys, event_id, int(at), body).split()
            received = headers.get("webhook-signature", "").split()
            if any(hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in received):
                return event_id
        log.info("trigger_refused", trigger_id=row.id)
        raise app_error("signature_invalid")

    def _secrets(self, row: Row[Any]) -> list[tuple[str, str | None]]:
        """Returns the valid secrets and when each ends, first the newest, which does not; none if no key opens them."""
        opened = self.seal.open_text(row.sealed) if self.seal is not None else None
        known = orjson.loads(opened) if opened is not None else {}
        if known.get("trigger") != row.id:
            log.warning("trigger_not_opened", trigger_id=row.id, advice="Put its MCP_TOKEN_KEY back, or roll it.")
            return []
        old, now = [(known["before"], known["until"]), *known.get("earlier", ())], self.clock()
        valid = [(each, until) for each, until in old if each and now < datetime.fromisoformat(until)]
        return [(known["secret"], None), *valid]

    def _sealed(self, trigger_id: str, secret: str, old: Sequence[tuple[str, str | None]] = ()) -> str:
        """Of the `old` secrets, the newest first, the release before this reads one."""
        if self.seal is None:
            raise app_error("trigger_key_missing")
        before, until = old[0] if old else (None, None)
        known = {"trigger": trigger_id, "secret": secret, "before": before, "until": until, "earlier": old[1:]}
        return self.seal.seal_text(orjson.dumps(known).decode())

    def _shown(self, row: Row[Any]) -> dict[str, Any]:
        known = {name: getattr(row, name) for name in Trigger.__slots__ if name in triggers.c}
        return {**known, "url": f"{self.base_url}/hooks/{row.id}", "new_session": row.session_id is None}


async def _find(connection: Connection, trigger_id: str, *, owner: str | None = None) -> Row[Any]:
    """Returns the row; with an owner, locked. Raises NotFound, with an owner also for another user's."""
    statement = select(triggers).where(triggers.c.id == trigger_id)
    if owner is not None:
        statement = statement.where(triggers.c.owner == owner).with_for_update()
    return existing("trigger", (await connection.execute(statement)).one_or_none())


def _new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"
