"""No secret in a log, a row, a key or an answer: each is a canary, what could tell one does, then everything is read.

What a user types into a message is the conversation's content, not a secret of ours, and is not looked for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx2
import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.commands import ROOT, segue
from tests.support.provider import Provider, calls, fails, says
from tests.support.server import serving
from tests.support.service import Process
from tests.support.stores import plain

CANARIES = {
    name: f"canary-{name}-7f3a9c51"
    for name in ("openai", "tavily", "jwt", "database", "redis", "env", "header", "wrong-key", "argument", "gateway")
}
SERVER = str(ROOT / "tests" / "support" / "telling_server.py")


def echo(request: Request) -> Response:
    """An HTTP server that refuses with every header it was sent."""
    return Response(json.dumps({"error": str(request.headers)}), 401, media_type="application/json")


def mcp_config(url: str) -> str:
    env = {"MAIL_TOKEN": "${CANARY_ENV}"}
    telling = {"command": "python", "args": [SERVER, "${CANARY_ARGUMENT}"], "env": env}
    dying = {"command": "python", "args": [SERVER, "dying"], "env": env, "prefix": "dying_"}
    web = {"url": url, "headers": {"Authorization": "Bearer ${CANARY_HEADER}"}, "prefix": "web_"}
    return json.dumps({"mcpServers": {"telling": telling, "dying": dying, "web": web}})


@pytest.fixture
async def environment(
    database_url: str, redis_url: str, provider: Provider, tmp_path: Path
) -> AsyncIterator[dict[str, str]]:
    """Settings whose every secret is a canary, on stores that are asked with one."""
    refusing = Starlette(routes=[Route("/", echo, methods=["POST"])])
    async with Redis.from_url(redis_url, protocol=2) as redis, serving(refusing) as url:
        password = f"+{CANARIES['redis']}"
        await redis.acl_setuser(
            "canary", enabled=True, passwords=password, categories=["+@all"], keys=["*"], channels=["*"]
        )
        (tmp_path / "mcp.json").write_text(mcp_config(url))
        yield {
            "DATABASE_URL": database_url.replace("segue@", f"segue:{CANARIES['database']}@"),
            "REDIS_URL": f"{redis_url}?username=canary&password={quote(CANARIES['redis'])}",
            "OPENAI_API_KEY": f"sk-{CANARIES['openai']}",
            "OPENAI_BASE_URL": provider.base_url,
            "LLM_MODEL": "scripted",
            "LLM_EXTRA_HEADERS": json.dumps({"X-Gateway": f"Token {CANARIES['gateway']}"}),
            "LLM_MAX_RETRIES": "0",
            "TAVILY_API_KEY": CANARIES["tavily"],
            "JWT_KEY": CANARIES["jwt"],
            "WEB_SEARCH_PROVIDER": "none",
            "AUTH": "api_key",
            "MCP_CONFIG": str(tmp_path / "mcp.json"),
            "MIGRATE_ON_START": "false",
            "CANARY_ENV": CANARIES["env"],
            "CANARY_HEADER": CANARIES["header"],
            "CANARY_ARGUMENT": CANARIES["argument"],
            "LOG_LEVEL": "DEBUG",
            "LOG_FORMAT": "json",
        }
        await redis.acl_deluser("canary")


async def test_no_secret_is_told_to_anybody(environment: dict[str, str], provider: Provider) -> None:
    code, said = await asyncio.to_thread(segue, "keys", "create", "--user", "ada", **environment)
    assert code == 0, said
    key, service = said.split()[-1], Process(environment)
    url = await asyncio.to_thread(service.start)
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}) as http:
            answers = await converse(http, provider)
    finally:
        await asyncio.to_thread(service.stop)
    seen = {
        "answers": "\n".join(answers),
        "log": said.rpartition(" ")[0] + "".join(service.log),
        "rows": await rows(environment["DATABASE_URL"]),
        "redis": await keys_and_values(environment["REDIS_URL"]),
    }
    assert [where for where, text in seen.items() if len(text) < 1000] == []
    canaries = {**CANARIES, "api key": key}
    for where, text in seen.items():
        told = [name for name, canary in canaries.items() if canary in text or canary.encode().hex() in text]
        assert told == [], where
    assert "[redacted]" in seen["rows"]
    assert "a message nobody logs" not in seen["log"]


async def converse(http: httpx2.AsyncClient, provider: Provider) -> list[str]:
    """Everything the service answered while its provider, its tools and its callers went wrong."""
    answers: list[str] = []

    async def ask(method: str, path: str, **options: Any) -> httpx2.Response:
        response = await http.request(method, path, **options)
        answers.append(f"{response.headers} {response.text}")
        return response

    session = (await ask("POST", "/sessions", json={})).json()["id"]
    keys = f"sk-{CANARIES['openai']}, {CANARIES['gateway']}"
    said = json.dumps({"error": {"message": f"Incorrect API key: {keys}", "code": "invalid_api_key"}})
    for status in (401, 400, 429, 500):
        for stream in (False, True):
            provider.will(fails(status, body=said))
            await ask("POST", f"/sessions/{session}/chat", json={"message": "a message nobody logs", "stream": stream})
    for stream in (False, True):
        provider.will(
            calls(("mcp_works", {}), ("mcp_fails", {}), ("mcp_refuses", {}), ("dying_x", {})), says("That went wrong.")
        )
        await ask("POST", f"/sessions/{session}/chat", json={"message": "a message nobody logs", "stream": stream})
    for turn in (await ask("GET", f"/sessions/{session}/turns")).json()["items"]:
        await ask("GET", f"/sessions/{session}/turns/{turn['turn_id']}/events")
    for call in (await ask("GET", f"/sessions/{session}/tool-results")).json()["items"]:
        await ask("GET", f"/sessions/{session}/tool-results/{call['tool_call_id']}")
    for path in ("messages", "memory", "export", "tool-states", "tool-states/history"):
        await ask("GET", f"/sessions/{session}/{path}")
    for path in ("/tools", "/health/ready", "/health/live", "/openapi.json", "/sessions", "/tool-states", "/nowhere"):
        await ask("GET", path)
    wrong = {"Authorization": f"Bearer {CANARIES['wrong-key']}"}
    assert (await ask("GET", "/sessions", headers=wrong)).status_code == 401
    await ask("GET", "/sessions", params={"api_key": CANARIES["wrong-key"]})
    return answers


async def rows(url: str) -> str:
    """Every row of every table, as text."""
    database = await asyncpg.connect(plain(url))
    try:
        tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = [
            str(row[0])
            for table in tables
            for row in await database.fetch(f'SELECT each::text FROM "{table[0]}" AS each')  # noqa: S608
        ]
    finally:
        await database.close()
    return "\n".join(found)


async def keys_and_values(url: str) -> str:
    """Every key of Redis with what it holds."""
    found: list[str] = []
    async with Redis.from_url(url, protocol=2) as redis:
        async for key in redis.scan_iter():
            match kind := await redis.type(key):
                case b"string":
                    value: object = await redis.get(key)
                case b"hash":
                    value = await redis.hgetall(key)
                case b"list":
                    value = await redis.lrange(key, 0, -1)
                case b"set":
                    value = await redis.smembers(key)
                case b"zset":
                    value = await redis.zrange(key, 0, -1, withscores=True)
                case b"stream":
                    value = await redis.xrange(key)
                case _:
                    raise AssertionError(kind)
            found.append(f"{key!r} {value!r}")
    return "\n".join(found)
