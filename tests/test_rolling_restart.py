"""Two instances on the same stores are replaced one after the other, and nobody who talks to them loses a word."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.service import Process

SESSIONS = 2


@pytest.fixture
def environment(database_url: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "MCP_CONFIG": str(tmp_path / "none.json"),
        "WEB_SEARCH_PROVIDER": "none",
        "MIGRATE_ON_START": "false",
    }


@asynccontextmanager
async def instances(environment: dict[str, str], count: int) -> AsyncIterator[tuple[list[Process], list[str]]]:
    """The processes and where each listens at the moment."""
    processes = [Process(environment) for _ in range(count)]
    try:
        urls = await asyncio.gather(*(asyncio.to_thread(process.start) for process in processes))
        yield processes, list(urls)
    finally:
        for process in processes:
            process.kill()


async def post(http: httpx2.AsyncClient, urls: list[str], first: int, path: str, body: Any, **headers: str) -> Any:
    """Asks the instances in turn until one has an answer, as a proxy does, or a client that can read a 503."""
    attempts = itertools.count(first)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(httpx2.TransportError):
                url = urls[next(attempts) % len(urls)]
                response = await http.post(url + path, json=body, headers=headers)
                if response.status_code != 503:
                    assert response.is_success, response.text
                    return response.json()
                assert response.json()["code"] == "turn_interrupted"


async def messages(http: httpx2.AsyncClient, url: str) -> AsyncIterator[Any]:
    """All of a session's, in order."""
    after: dict[str, str] = {}
    while True:
        page = (await http.get(url, params={"limit": 200, **after})).json()
        for message in page["items"]:
            yield message
        if page["next_cursor"] is None:
            return
        after = {"cursor": page["next_cursor"]}


@pytest.mark.sweep
async def test_a_rolling_restart_loses_and_doubles_no_message(environment: dict[str, str]) -> None:
    talking, replaced = asyncio.Event(), asyncio.Event()
    async with instances(environment, 2) as (processes, urls), httpx2.AsyncClient(timeout=30) as http:

        async def talk(number: int) -> tuple[str, list[str]]:
            session = (await post(http, urls, number, "/sessions", {}))["id"]
            sent: list[str] = []

            async def say() -> None:
                text, key = f"message {len(sent)} of {number}", {"Idempotency-Key": f"{number}-{len(sent)}"}
                path, body = f"/sessions/{session}/chat", {"message": text}
                assert (await post(http, urls, number + len(sent), path, body, **key))["status"] == "completed"
                sent.append(text)

            while not replaced.is_set():
                await say()
                await talking.wait()
            for _ in urls:
                await say()
            return session, sent

        async def replace() -> None:
            for index, process in enumerate(processes):
                talking.set()
                assert await asyncio.to_thread(process.stop) == 0
                talking.clear()  # a start has the cores to itself
                urls[index] = await asyncio.to_thread(process.start)
            replaced.set()
            talking.set()

        talks, _ = await asyncio.gather(asyncio.gather(*map(talk, range(SESSIONS))), replace())
        for session, sent in talks:
            stored = [message async for message in messages(http, f"{urls[0]}/sessions/{session}/messages")]
            assert [message["content"] for message in stored[::2]] == sent
            assert [message["role"] for message in stored] == ["user", "assistant"] * len(sent)
