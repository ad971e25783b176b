"""Records what a release leaves in its stores when it is killed at work: `python -m tests.releases.record`.

Run it in the tree of the release to record; `test_previous_release.py` of the next one goes on from the file it writes.
"""

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
from redis.asyncio import Redis

from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.servers import embedded_servers
from segue.db.migrations import upgrade
from tests.support.health import MOODY, put, uses
from tests.support.plans import THREE_STEPS, offered
from tests.support.provider import Provider, calls, says, scripted_provider, streams
from tests.support.redis_keys import read_key
from tests.support.service import Client, Process
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import plain
from tests.support.streams import chatting

FILE = Path(__file__).with_name("previous.json")
KEY = {"Idempotency-Key": "asked-once"}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, embedded_servers(Path(folder) / "servers", fast=True) as servers:
        await asyncio.to_thread(upgrade, servers.database_url)
        async with scripted_provider() as provider, serving_shelf() as shelf:
            scenes = await played(servers, provider, shelf, Path(folder))
        left = {"recorded_at": datetime.now(UTC).isoformat(), "scenes": scenes, **await dumped(servers)}
    FILE.write_text(json.dumps(left, ensure_ascii=False, indent=1, sort_keys=True) + "\n", "utf-8")


async def played(servers: ServerUrls, provider: Provider, shelf: Shelf, folder: Path) -> dict[str, Any]:
    """Brings a service of this release into every state that a next one has to go on from, and kills it there."""
    mcp_config = folder / "mcp.json"
    mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    process = Process(
        {
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
            "MCP_CONFIG": str(mcp_config),
            "OPENAI_BASE_URL": provider.base_url,
            "LLM_MODEL": "scripted",
            "LLM_MAX_RETRIES": "0",
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
            "TURN_LEASE_S": "2",
            "WORKER_CONCURRENCY": "1",
            "TOOL_FAILURE_THRESHOLD": "1",
            "TOOL_FLEET_THRESHOLD": "1",
            "LIMIT_CONCURRENT_TURNS": "9",
            "LIMIT_REQUESTS_PER_MINUTE": "900",
            "LIMIT_TOKENS_PER_DAY": "900000",
        }
    )
    try:
        url = await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.wait_for, "mcp_server_ready")
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            return await scenes_of(Client(http), provider, shelf, process)
    finally:
        process.kill()


async def scenes_of(client: Client, provider: Provider, shelf: Shelf, process: Process) -> dict[str, Any]:
    provider.will(calls(("mcp_find_items", {"query": "lamps"})), says("There are three lamps. Shall I read the first?"))
    found = await client.new_session(title="Lamps")
    answered = await client.http.post(f"/sessions/{found}/chat", json={"message": "Which lamps?"}, headers=KEY)
    await put(client, found, "mcp_burn_item", "maintenance")
    shelf.trouble = "the shelf is closed"
    assert await uses(client, provider, found) == "failed"
    await client.http.post("/memories", json={"content": "Likes tea", "kind": "preference"})
    waiting, asked = await offered(client, provider, THREE_STEPS)
    streaming, never = await client.new_session(), asyncio.Event()
    provider.will(streams("Half ", never, "of it."))
    async with chatting(client, streaming, "Tell me everything") as stream:
        heard = await stream.until("TEXT_MESSAGE_CONTENT")
        queued = await client.new_session()
        assert (await client.send(queued, "Are you there?", background=True)).status_code == 202
        await asyncio.to_thread(process.kill)
    never.set()
    return {
        "found": {"session": found, "answer": answered.json()},
        "waiting": {"session": waiting, "plan": asked["plan"]},
        "streaming": {"session": streaming, "heard": [{"id": each.id, "event": each.event} for each in heard]},
        "queued": {"session": queued},
        "failed_everywhere": MOODY,
    }


async def dumped(servers: ServerUrls) -> dict[str, Any]:
    """Every row and every key. Times that a key has left are in ms."""
    connection = await asyncpg.connect(plain(servers.database_url))
    try:
        revision = await connection.fetchval("SELECT version_num FROM alembic_version")
        names = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        tables = {}
        for (name,) in await connection.fetch(names):
            rows = await connection.fetch(f"SELECT to_jsonb({name}) FROM {name}")  # noqa: S608 (its own tables)
            tables[name] = [json.loads(row) for (row,) in rows]
    finally:
        await connection.close()
    del tables["alembic_version"]
    async with Redis.from_url(servers.redis_url, protocol=2, decode_responses=True) as redis:
        keys = {key: await read_key(redis, key) async for key in redis.scan_iter()}
    return {"revision": revision, "tables": {name: rows for name, rows in tables.items() if rows}, "redis": keys}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
