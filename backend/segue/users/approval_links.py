"""Signed links, each for one person to decide on one version of one plan without sending a key. Nothing is stored.

A link is signed with the digest of a key of that person and with the secret of the webhook that carries it: it ends
with the key, and neither a reader of the database nor the receiver of the webhook can make one for another person. The
decision uses it up, because the plan then has another version.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from segue.db.engine import Database
from segue.domain.identity import Identity
from segue.users.api_keys import ApiKey, find_working_key, keys_of_members

PATH: Final = "/approve/"
MAX_PEOPLE: Final = 20  # an event has to stay below 20 kB
_TOKEN: Final = re.compile(r"(([0-9a-z]{26})\.([0-9a-z]{26})\.([0-9]{1,9})\.([0-9]{1,12}))\.([\w-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class OpenedLink:
    """What a genuine link says: who decides on which version of a plan. It may be too old."""

    identity: Identity
    plan_id: str
    version: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ApprovalLinks:
    """Makes and opens links. Each of the `secrets` opens one, the first makes them: while one is replaced there are
    two. Without a webhook there is none.
    """

    database: Database
    secrets: Sequence[bytes] = field(repr=False)
    base_url: str

    async def make(
        self, plan_id: str, version: int, until: datetime, *, group: str, but: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Returns a link, as the webhook has it, for each user with a key of this group or role, apart from `but`."""
        async with self.database.read_only() as connection:
            keys = await keys_of_members(connection, group, but=but, limit=MAX_PEOPLE)
        said = f"{plan_id.removeprefix('plan_')}.{version}.{int(until.timestamp())}"
        return [{"user": key.owner, "url": f"{self.base_url}{PATH}{self._token(key, said)}"} for key in keys]

    async def open(self, token: str) -> OpenedLink | None:
        """Returns what a link says, None if it is not genuine or the key of its person works no more."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        async with self.database.read_only() as connection:
            key = await find_working_key(connection, f"key_{found[2]}")
        expected = (_signature(each, key, found[1]) for each in self.secrets) if key else ()
        if key is None or not any(hmac.compare_digest(found[6], each) for each in expected):
            return None
        return OpenedLink(key.identity, f"plan_{found[3]}", int(found[4]), datetime.fromtimestamp(int(found[5]), UTC))

    def _token(self, key: ApiKey, said: str) -> str:
        text = f"{key.id.removeprefix('key_')}.{said}"
        return f"{text}.{_signature(self.secrets[0], key, text)}"


def _signature(secret: bytes, key: ApiKey, text: str) -> str:
    signed = hmac.new(secret, f"approve.{key.digest}.{text}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")
