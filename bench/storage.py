"""`make bench-storage`: what a plain turn takes in PostgreSQL, with indexes and dead rows, over a million turns.

Segue runs two turns; the rows of the second are those of all others, which SQL makes in the two transactions of a turn:
for each of 10,000 sessions in turn a message is accepted, its turn begins, and ends with an answer. Prints tables for
docs/performance.md.
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import uvloop

from bench.client import Session, connected
from bench.meter import database_of
from bench.processes import serving, setup
from bench.provider import ANSWER, MESSAGE
from bench.wide import PROGRAM
from segue.around.embedded.servers import embedded_servers
from segue.domain.ids import new_id

TURNS = 1_000_000
SESSIONS = 10_000
AT_ONCE = 20
TURNS_A_DAY = 10  # of a session
SHOWN_AT = (100_000, 250_000, 500_000)
HEAD = slice(len("turn_"), len("turn_") + 10)  # of an id: the part that is its time
APART = timedelta(milliseconds=250)  # a message is accepted, and answered before the next ones come

# Autovacuum looks once a second and does not pause, because the turns of half an hour come in one minute. The rest only
# saves time.
FAST = """
autovacuum_naptime = '1s'
autovacuum_vacuum_cost_delay = 0
synchronous_commit = off
max_wal_size = '4GB'
"""
ORIGINAL = """
CREATE TABLE original AS
SELECT agent, worker, request || '{"origin": {"request_id": "61afac929d7af9d7"}}' AS asked,
    request, report, timeline, run
FROM turns ORDER BY created_at DESC LIMIT 1
"""
TALKING = """
INSERT INTO sessions (id, owner, title, metadata, created_at, updated_at, title_due_at, gaps)
SELECT 'ses_' || $1 || substr(md5(n::text), 1, 16), 'user' || n % 500, $2, '{}', now(), now(), 'infinity', 0
FROM generate_series(1, $3::int) AS n
"""
ACCEPTED = """
WITH owned AS (
    UPDATE sessions SET next_seq = next_seq + 1, updated_at = clock_timestamp()
    FROM talking WHERE talking.id = sessions.id AND place > $1 AND place <= $2
    RETURNING sessions.id, next_seq - 1 AS seq
), begun AS (
    INSERT INTO turns
        (id, session_id, seq, status, request, agent, epoch, attempts, worker, lease_until, created_at, started_at)
    SELECT 'turn_' || $3 || substr(md5(owned.id || owned.seq), 1, 16), owned.id, owned.seq, 'running', asked,
        original.agent, 1, 1, original.worker, now() + interval '30 s', now(), now()
    FROM owned, original
    RETURNING id, session_id, seq
)
INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)
SELECT 'msg_' || substr(id, 6), session_id, seq, id, seq, 'user', $4, now() FROM begun
"""
ANSWERED = """
WITH finished AS (
    UPDATE turns SET status = 'completed', lease_until = NULL, finished_at = now(),
        request = original.request, report = original.report, timeline = original.timeline, run = original.run
    FROM original WHERE turns.status = 'running'
    RETURNING turns.id, turns.session_id, turns.seq
), moved AS (
    UPDATE sessions SET next_seq = next_seq + 1, updated_at = clock_timestamp(), last_turn_id = finished.id
    FROM finished WHERE sessions.id = finished.session_id
    RETURNING sessions.id, owner, next_seq - 1 AS seq, finished.id AS turn_id, finished.seq AS turn_seq
), booked AS (
    INSERT INTO usage AS usage (owner, day, model, session_id, calls, input_tokens, cached_tokens, output_tokens,
        reasoning_tokens, estimated)
    SELECT owner, $3, 'scripted', id, 1, 5000, 0, 1, 0, false FROM moved
    ON CONFLICT (session_id, day, model) WHERE session_id IS NOT NULL
    DO UPDATE SET calls = usage.calls + 1, input_tokens = usage.input_tokens + excluded.input_tokens
)
INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)
SELECT 'msg_' || $1 || substr(turn_id, 16), id, seq, turn_id, turn_seq, 'assistant', $2, now() FROM moved
"""
SIZES = """
SELECT held.relname AS of_table, part.relname AS name, part.oid = held.oid AS is_rows,
    pg_relation_size(part.oid) AS bytes
FROM pg_class AS held JOIN pg_class AS part ON part.oid IN (held.oid, held.reltoastrelid)
    OR part.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = held.oid)
WHERE held.relname IN ('turns', 'messages', 'usage', 'sessions') AND held.relkind = 'r'
ORDER BY bytes DESC
"""


async def make_original(database: asyncpg.Connection, session: Session) -> None:
    """Keeps what Segue stores of a plain turn, and deletes the turn."""
    for _ in range(2):
        await session.turn()
    await database.execute(ORIGINAL)
    await database.execute("DELETE FROM sessions")
    await database.execute("DELETE FROM usage")


async def make_sessions(database: asyncpg.Connection) -> None:
    await database.execute(TALKING, time_of(datetime.now(UTC)), MESSAGE, SESSIONS)
    await database.execute(
        "CREATE TABLE talking AS SELECT id, row_number() OVER (ORDER BY md5(id)) AS place FROM sessions"
    )
    await database.execute("ALTER TABLE talking ADD PRIMARY KEY (place)")
    await database.execute("ANALYZE sessions, talking, original")


async def make_turns(database: asyncpg.Connection, turns: int) -> None:
    """Each session has its next turn when all have had the last one. Ids come in the order of time."""
    begun = datetime.now(UTC)
    for made in range(0, turns, AT_ONCE):
        number, place = divmod(made, SESSIONS)
        at = begun + 2 * APART * (made // AT_ONCE)
        await database.execute(ACCEPTED, place, place + AT_ONCE, time_of(at), MESSAGE)
        day = begun.date() + timedelta(days=number // TURNS_A_DAY)
        await database.execute(ANSWERED, time_of(at + APART), ANSWER, day)
        if (done := made + AT_ONCE) in (*SHOWN_AT, turns):
            await show(database, done)


def time_of(at: datetime) -> str:
    """Returns the part of an id that is its time."""
    return new_id("turn", at)[HEAD]


async def show(database: asyncpg.Connection, turns: int) -> None:
    """Prints a row of the first table."""
    total = sum(part["bytes"] for part in await database.fetch(SIZES))
    print(f"| {turns:,} | {total / turns:,.0f} |", flush=True)


async def show_parts(database: asyncpg.Connection, turns: int) -> None:
    parts = await database.fetch(SIZES)
    print("\n| bytes of a turn | rows | indexes |\n|---|---:|---|")
    for table in dict.fromkeys(part["of_table"] for part in parts):
        of_table = [part for part in parts if part["of_table"] == table]
        [rows] = [part for part in of_table if part["is_rows"]]
        indexes = [part for part in of_table if not part["is_rows"] and part["bytes"] > turns]
        listed = ", ".join(f"{part['name']} {part['bytes'] / turns:.0f}" for part in indexes)
        print(f"| `{table}` | {rows['bytes'] / turns:,.0f} | {listed} |")


async def run(folder: Path, turns: int) -> None:
    with embedded_servers(folder / "data"):
        [settings] = (folder / "data").rglob("postgresql.conf")
    with settings.open("a") as file:
        file.write(FAST)
    with embedded_servers(folder / "data") as servers:
        async with setup(servers, folder) as within, serving(within, PROGRAM, "storage", "serve") as group:
            async with connected(group.ports[0]) as connection, database_of(group.stores) as database:
                await make_original(database, await Session.new(connection))
            stores = group.stores
        async with database_of(stores) as database:
            await make_sessions(database)
            print("| turns | bytes a turn |\n|---:|---:|")
            await make_turns(database, turns)
            await show_parts(database, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        uvloop.run(run(folder, parser.parse_args().turns))


if __name__ == "__main__":
    main()
