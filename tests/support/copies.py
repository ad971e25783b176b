"""Copies of a session that the release before left with everything in it, and a plan that waits."""

import json
import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from segue.db.models import metadata
from tests.support.stores import Stores

LEFT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "releases" / "previous.json").read_text("utf-8"))
WHOLE = LEFT["scenes"]["waiting"]["session"]
ID = re.compile(r"(?:ses|turn|msg|plan|call|chg)_[0-9a-z]{26}")
TABLES = ("sessions", "turns", "messages", "plans", "tool_calls", "tool_results", "tool_states", "tool_state_changes")
FRESH = """WITH plan AS (UPDATE plans SET expires_at = now() + interval '1 day' WHERE session_id = $1),
    result AS (UPDATE tool_results SET expires_at = now() + interval '1 day' WHERE session_id = $1)
    INSERT INTO tool_state_changes (id, session_id, tool, before, after, at)
    VALUES ('chg_' || substr($1, 5), $1, 'mcp_burn_item', 'available', 'maintenance', now())"""


def _of_copy(number: int, found: re.Match[str]) -> str:
    return f"{found[0][:-8]}{number:04d}{found[0][-4:]}"


async def copied(stores: Stores, count: int) -> list[str]:
    """Returns new sessions, each with the rows of WHOLE under ids of its own."""
    made = [f"{WHOLE[:-8]}{number:04d}{WHOLE[-4:]}" for number in range(count)]
    for table, number in product(TABLES, range(count)):
        rows = [row for row in LEFT["tables"].get(table, ()) if WHOLE in (row.get("id"), row.get("session_id"))]
        own = ID.sub(partial(_of_copy, number), json.dumps(rows))
        names = ", ".join(name for name in (rows or [{}])[0] if name in metadata.tables[table].c)
        if rows:
            await stores.database.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1)",  # noqa: S608 (names of our own)
                own,
            )
    for session in made:
        await stores.database.execute(FRESH.replace("$1", f"'{session}'"))
    return made
