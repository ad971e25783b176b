"""`make bench-wide`: every route that reads, with 1,000 sessions and with a million turns of 10,000 users; a plain turn
after 60 turns and after 10,000; 1,000 turns that wait; 2,000 streams; 500 tools.

Makes the rows by SQL, as copies of turns that Segue has run, and prints tables for docs/performance.md. The rows that
PostgreSQL reads for a request depend on nothing else that the machine does; its milliseconds do.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import asyncpg
import orjson
import psutil
import uvloop

from bench.client import Connection, Refused, Session, connected
from bench.many_tools import TOOLS
from bench.meter import database_of, resident_mb
from bench.processes import OUR_MODULES, Group, Setup, serving, setup
from bench.provider import MESSAGE, TOOL_MESSAGE
from bench.report import ROOT
from segue.around.embedded.servers import embedded_servers

FEW_SESSIONS, SESSIONS = 1_000, 100_000
USERS = 10_000  # have all sessions but the first FEW_SESSIONS, which are those of the user that asks
TURNS_EACH = 10
TURNS = 10_000  # of the long session
SHORT_TURNS = 60
WINDOW_TURNS = 40
SEQS = 4  # of a turn with a tool call
WAITING = 1_000
STREAMS = 2_000
AT_ONCE = 8
REQUESTS = 5
RESULT = f'["{"x" * 10_000_000}"]'
COUNTED_AFTER_S = 1.1  # PostgreSQL adds up the reads of a connection once a second
IDLE_S = 5.0
ROUNDS = 20
CONNECTED_S = 30
LOOK_AGAIN_S = 0.2
MANY = {"command": sys.executable, "args": ["-m", "bench.many_tools"], "env": dict(OUR_MODULES)}
ASKED = ("query=hello", "query=nowhere", "pinned=true", "archived=true")
PROGRAM = str(Path(sys.executable).with_name("segue"))
LONG = ("/events", "/stream", "/export")  # answers that stay open, or hold all there is

READS = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
COPIES = """
CREATE TABLE copies AS SELECT n, at, lpad(to_hex(n), 12, '0') AS tail, (
    SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz',
        ((extract(epoch FROM at) * 1000)::bigint >> (45 - 5 * digit) & 31)::int + 1, 1), '' ORDER BY digit)
    FROM generate_series(0, 9) AS digit) AS head
FROM (SELECT n, now() - interval '23 hours' * (1 - n / {last}::float) AS at
    FROM generate_series({first}, {last}) AS n) AS numbers
"""
TABLES: Mapping[str, tuple[str, ...]] = {
    "sessions": ("created_at", "updated_at"),
    "turns": ("created_at", "queued_at", "started_at", "finished_at"),
    "messages": ("created_at",),
    "tool_calls": ("started_at",),
    "tool_results": (),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: the median of its milliseconds, and the rows read for it."""

    ms: float
    rows: float


@dataclass(frozen=True, slots=True)
class Original:
    """A session that Segue has made, and all ids of its rows."""

    session_id: str
    ids: Sequence[str]

    def copy(self, table: str, *, within: bool) -> str:
        """Returns a statement that copies the session for each row of `copies`, or its turns `within` the session."""
        renamed = "to_jsonb(one)::text"
        for number, each in enumerate(self.ids, start=len(self.ids) if within else 0):
            if within and each == self.session_id:
                continue
            renamed = f"replace({renamed}, '{each}', '{each.partition('_')[0]}_' || head || tail || '{number:04x}')"
        changes = [f"'{column}', at" for column in TABLES[table]]
        if table == "sessions":
            changes.append(f"'owner', CASE WHEN n > {FEW_SESSIONS} THEN 'user-' || n % {USERS} ELSE one.owner END")
        if within and table in ("turns", "messages", "tool_calls"):
            changes.append(f"'seq', one.seq + n * {SEQS}")
        if within and table == "messages":
            changes.append(f"'turn_seq', one.turn_seq + n * {SEQS}")
        which = "id" if table == "sessions" else "session_id"
        copied = f"{renamed}::jsonb || jsonb_build_object({', '.join(changes)})"
        return (
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT copy.*"  # noqa: S608 (names of ours, and ids)
            f" FROM copies, {table} AS one, LATERAL jsonb_populate_record(NULL::{table}, {copied}) AS copy"
            f" WHERE one.{which} = '{self.session_id}'"
        )


async def original(database: asyncpg.Connection, session_id: str) -> Original:
    ids = [session_id]
    for table in ("turns", "messages", "tool_calls"):
        rows = await database.fetch(f"SELECT id FROM {table} WHERE session_id = $1", session_id)  # noqa: S608
        ids += [row["id"] for row in rows]
    return Original(session_id, ids)


async def copy_sessions(database: asyncpg.Connection, one: Original, first: int, last: int) -> None:
    await copy(database, one, first, last, tables=("sessions", "turns", "messages"), within=False)


async def copy_turns(database: asyncpg.Connection, long: Original) -> None:
    """Copies the turn of a session TURNS times, and says that all but the last WINDOW_TURNS are in its summary."""
    await copy(database, long, 1, TURNS, tables=("turns", "messages", "tool_calls", "tool_results"), within=True)
    ends, summed_up = (TURNS + 1) * SEQS + 1, (TURNS - WINDOW_TURNS) * SEQS + 1
    await database.execute(
        "UPDATE sessions SET next_seq = $2, summary_seq = $3, summary_due_at = NULL, summary_until = NULL,"
        " summary = 'They spoke of the time.' WHERE id = $1",
        long.session_id, ends, summed_up,
    )  # fmt: skip


async def copy(
    database: asyncpg.Connection, one: Original, first: int, last: int, *, tables: Sequence[str], within: bool
) -> None:
    await database.execute(COPIES.format(first=first, last=last))
    for table in tables:
        await database.execute(one.copy(table, within=within))
    await database.execute("DROP TABLE copies")
    await database.execute("VACUUM ANALYZE sessions, turns, messages, tool_calls, tool_results")
    await asyncio.sleep(COUNTED_AFTER_S)


def routes(long: Original) -> list[str]:
    """Returns the paths that can be read, those with an id filled in."""
    named = {each.partition("_")[0]: each for each in long.ids}
    values = {"session_id": long.session_id, "turn_id": named["turn"], "tool_call_id": named["call"]}
    known = orjson.loads((ROOT / "docs" / "openapi.json").read_bytes())["paths"]
    paths = [path for path, methods in known.items() if "get" in methods and not path.endswith(LONG)]
    filled = [
        path.format_map({**values, "agent_id": "segue"}) for path in paths if _names(path) <= {*values, "agent_id"}
    ]
    return [*filled, "/ops/overview?window=day", *(f"/sessions?{asked}" for asked in ASKED)]


def _names(path: str) -> set[str]:
    return {part[1:-1] for part in path.split("/") if part.startswith("{")}


async def ask(connection: Connection, database: asyncpg.Connection, path: str) -> Asked | None:
    """Returns None for what is not there in this setup."""
    times = []
    before = await database.fetchval(READS)
    for _ in range(REQUESTS):
        started = time.perf_counter()
        try:
            await connection.text(path)
        except Refused:
            return None
        times.append((time.perf_counter() - started) * 1000)
    await asyncio.sleep(COUNTED_AFTER_S)
    return Asked(median(times), (await database.fetchval(READS) - before) / REQUESTS)


async def measure_routes(group: Group) -> None:
    async with connected(group.ports[0]) as connection, database_of(group.stores) as database:
        one, long, short = [await Session.new(connection) for _ in range(3)]
        for _ in range(TURNS_EACH):
            await one.turn(MESSAGE)
        for session, turns in ((long, 1), (short, SHORT_TURNS)):
            for _ in range(turns):
                await session.turn(TOOL_MESSAGE)
        originals = await original(database, one.id), await original(database, long.id)
        paths = routes(originals[1])
        log(f"making {FEW_SESSIONS:,} sessions, and one of {TURNS:,} turns")
        await copy_turns(database, originals[1])
        await copy_sessions(database, originals[0], 1, FEW_SESSIONS)
        small = {path: await ask(connection, database, path) for path in paths}
        log(f"making {SESSIONS:,} sessions")
        await copy_sessions(database, originals[0], FEW_SESSIONS + 1, SESSIONS)
        wide = {path: await ask(connection, database, path) for path in paths}
        short_ms, long_ms = await side_by_side(short, long)
        await large_result(connection, database, originals[1])
    print(f"| GET | {FEW_SESSIONS:,} sessions | {SESSIONS:,} | ÷ | rows read, {FEW_SESSIONS:,} | {SESSIONS:,} |")
    print("|---|---:|---:|---:|---:|---:|")
    for path in paths:
        if (before := small[path]) and (after := wide[path]):
            shown = "/".join("{id}" if part.count("_") == 1 and len(part) > 26 else part for part in path.split("/"))  # noqa: PLR2004
            print(f"| `{shown}` | {before.ms:.1f} ms | {after.ms:.1f} ms | {after.ms / before.ms:.2f}", end="")
            print(f" | {before.rows:.0f} | {after.rows:.0f} |")
    print(f"\nA plain turn after {TURNS:,} turns takes {long_ms:.1f} ms, after {SHORT_TURNS} {short_ms:.1f} ms", end="")
    print(f" ({long_ms / short_ms:.2f})", flush=True)


async def side_by_side(first: Session, second: Session) -> tuple[float, float]:
    """Returns the median milliseconds of turns that take turns, so that noise is shared."""
    pairs = [(await first.timed_turn(), await second.timed_turn()) for _ in range(ROUNDS * REQUESTS)]
    one, other = zip(*pairs, strict=True)
    return median(one), median(other)


async def turn_ms(session: Session) -> float:
    return median([await session.timed_turn() for _ in range(REQUESTS)])


async def large_result(connection: Connection, database: asyncpg.Connection, long: Original) -> None:
    call = next(each for each in long.ids if each.startswith("call_"))
    await database.execute("UPDATE tool_results SET payload = $2, kind = 'json' WHERE tool_call_id = $1", call, RESULT)
    asked = await ask(connection, database, f"/sessions/{long.session_id}/tool-results/{call}")
    if asked is not None:
        print(f"A page of a result of 10 MB: {asked.ms:.0f} ms")


async def measure_waiting(group: Group) -> None:
    """No process takes the turns."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(group.ports[0])) for _ in range(AT_ONCE)]

        async def accept(connection: Connection, number: int) -> list[float]:
            times = []
            for _ in range(number):
                session = await Session.new(connection)
                started = time.perf_counter()
                await session.turn(background=True)
                times.append((time.perf_counter() - started) * 1000)
            return times

        paths = ["/ops/overview", "/ops/turns", "/metrics", "/health/ready"]
        database = await stack.enter_async_context(database_of(group.stores))
        few = {path: await ask(connections[0], database, path) for path in paths}
        times = await asyncio.gather(*(accept(each, WAITING // AT_ONCE) for each in connections))
        many = {path: await ask(connections[0], database, path) for path in paths}
    fifth = WAITING // AT_ONCE // 5
    first, last = ([one for line in times for one in line[part]] for part in (slice(fifth), slice(-fifth, None)))
    print(f"\n{WAITING:,} turns wait; accepting one, the last fifth ÷ the first: {median(last) / median(first):.2f}\n")
    print("| GET | none waits | 1,000 wait | rows read, none | 1,000 |")
    print("|---|---:|---:|---:|---:|")
    for path in paths:
        before, after = few[path], many[path]
        if before and after:
            print(f"| `{path}` | {before.ms:.1f} ms | {after.ms:.1f} ms | {before.rows:.0f} | {after.rows:.0f} |")


async def measure_streams(group: Group) -> None:
    process = psutil.Process(group.pids[0])
    async with connected(group.ports[0]) as connection:
        session = await Session.new(connection)
        alone, alone_ms, alone_s = resident_mb(process.pid), await turn_ms(session), await idle_s(process)
        writers = []
        for _ in range(STREAMS):
            reader, writer = await asyncio.open_connection("127.0.0.1", group.ports[0])
            writer.write(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            if b" 200 " not in await reader.readline():
                raise RuntimeError("a stream was refused")
            writers.append(writer)
        with_ms, with_s, megabytes = await turn_ms(session), await idle_s(process), resident_mb(process.pid)
        for writer in writers:
            writer.close()
    print(f"\n| one process | no stream | {STREAMS:,} idle streams of one user |")
    print("|---|---:|---:|")
    print(f"| memory | {alone:.0f} MB | {megabytes:.0f} MB |")
    print(f"| processor time of an idle second | {alone_s * 1000:.0f} ms | {with_s * 1000:.0f} ms |")
    print(f"| a plain turn, each told to all streams | {alone_ms:.1f} ms | {with_ms:.1f} ms |", flush=True)


async def measure_tools(within: Setup, group: Group, described: str) -> None:
    """A plain turn and the list of tools, in the words of `described`."""
    process = psutil.Process(group.pids[0])
    async with (
        connected(group.ports[0]) as connection,
        connected(within.provider_port) as provider,
        database_of(group.stores) as database,
    ):
        session = await Session.new(connection)
        await turn_ms(session)
        before = sum(process.cpu_times()[:2])
        taken = [await turn_ms(session) for _ in range(ROUNDS)]
        each_ms = (sum(process.cpu_times()[:2]) - before) / ROUNDS / REQUESTS * 1000
        sent = await provider.get("/")
        listed = await ask(connection, database, "/tools")
        size = len(await connection.text("/tools"))
    if listed is None:
        raise RuntimeError("the tools are not listed")
    print(f"| {described} | {len(sent['tools'])} | {len(orjson.dumps(sent)) / 1000:.1f} kB", end="")
    print(f" | {median(taken):.1f} ms | {each_ms:.1f} ms", end="")
    print(f" | {listed.ms:.1f} ms | {size / 1000:.0f} kB | {resident_mb(process.pid):.0f} MB |", flush=True)


async def tools_listed(group: Group) -> None:
    """Waits until the tools of the MCP server are there."""
    async with connected(group.ports[0]) as connection, asyncio.timeout(CONNECTED_S):
        while b"find_mail_0" not in await connection.text("/tools"):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(LOOK_AGAIN_S)


async def idle_s(process: psutil.Process) -> float:
    """Returns the seconds of processor time that the process needs in a second without requests."""
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE_S)
    return float(sum(process.cpu_times()[:2]) - before) / IDLE_S


def log(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


async def run(folder: Path) -> None:
    with embedded_servers(folder / "data") as servers:
        async with setup(servers, folder) as within:
            async with serving(within, PROGRAM, "streams", "serve") as group:
                await measure_streams(group)
            async with serving(within, PROGRAM, "waiting", "serve --no-worker") as group:
                await measure_waiting(group)
            async with serving(within, PROGRAM, "wide", "serve") as group:
                await measure_routes(group)
            print(
                "\n| tools | in a request | prompt | a plain turn | its processor time | `/tools` | its size | memory |"
            )
            print("|---|---:|---:|---:|---:|---:|---:|---:|")
            async with serving(within, PROGRAM, "few", "serve") as group:
                await measure_tools(within, group, "Segue's own")
            (folder / "mcp.json").write_bytes(orjson.dumps({"mcpServers": {"many": MANY}}))
            async with serving(within, PROGRAM, "many", "serve") as group:
                await tools_listed(group)
                await measure_tools(within, group, f"and {TOOLS} of an MCP server")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        uvloop.run(run(folder))


if __name__ == "__main__":
    main()
