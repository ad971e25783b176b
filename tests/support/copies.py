"""Copies of a session that the release before left with everything in it, and a plan that waits.

They lie in the present: what is recorded grows old, and the service looks at the last hour or day, and at what expires.
"""

import json
import re
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from segue.db.models import metadata
from segue.domain.ids import first_id, utc_now
from tests.support.stores import Stores

LEFT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "releases" / "previous.json").read_text("utf-8"))
WHOLE = LEFT["scenes"]["waiting"]["session"]
RECORDED_AT = datetime.fromisoformat(LEFT["recorded_at"])
ID = re.compile(r"(?:ses|turn|msg|plan|call|chg)_[0-9a-z]{26}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00")
TABLES = ("sessions", "turns", "messages", "plans", "tool_calls", "tool_results", "tool_states", "tool_state_changes")
CHANGE = """INSERT INTO tool_state_changes (id, session_id, tool, before, after, at)
    VALUES ('chg_' || substr($1, 5), $1, 'mcp_burn_item', 'available', 'maintenance', now())"""


def _id_of_copy(number: int, now: datetime, found: re.Match[str]) -> str:
    made_at = first_id("ses", now).removeprefix("ses_")[:10]
    prefix, _, rest = found[0].partition("_")
    return f"{prefix}_{made_at}{rest[10:-8]}{number:04d}{rest[-4:]}"


def _time_of_copy(passed: timedelta, found: re.Match[str]) -> str:
    return (datetime.fromisoformat(found[0]) + passed).isoformat()


async def copied(stores: Stores, count: int) -> list[str]:
    """Returns new sessions, each with the rows of WHOLE under ids of its own."""
    now = utc_now()
    made = [ID.sub(partial(_id_of_copy, number, now), WHOLE) for number in range(count)]
    for table, number in product(TABLES, range(count)):
        rows = [row for row in LEFT["tables"].get(table, ()) if WHOLE in (row.get("id"), row.get("session_id"))]
        own = ID.sub(partial(_id_of_copy, number, now), json.dumps(rows))
        names = ", ".join(name for name in (rows or [{}])[0] if name in metadata.tables[table].c)
        if rows:
            await stores.database.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1)",  # noqa: S608 (names of our own)
                TIME.sub(partial(_time_of_copy, now - RECORDED_AT), own),
            )
    for session in made:
        await stores.database.execute(CHANGE, session)
    return made
