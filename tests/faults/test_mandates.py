"""Fifty calls against a sum on two instances, one of which is killed among them: no more is paid than was allowed."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from tests.support.logs import until
from tests.support.provider import calls, says
from tests.support.server import serving
from tests.support.service import Client
from tests.support.site import Site

CALLS, MOST = 50, 41


@pytest.mark.sweep
@pytest.mark.parametrize("after", [1, 5, 12, 19])
async def test_no_kill_among_fifty_calls_lets_more_through_than_the_sum(site: Site, tmp_path: Path, after: int) -> None:
    paid: list[int] = []
    enough = asyncio.Event()
    bank = MCPServer("bank", log_level="CRITICAL")

    @bank.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def pay(euros: int) -> str:
        """Pays somebody."""
        paid.append(euros)
        if len(paid) == after:
            enough.set()
        return "paid"

    async def reply(body: dict[str, Any]) -> Any:
        is_first = body["messages"][-1]["role"] == "user"
        return calls(("mcp_pay", {"euros": 2})) if is_first else says("Paid.")

    word = f"Pay {after}"
    site.provider.always(word, reply)
    async with serving(bank.streamable_http_app()) as url:
        (file := tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"bank": {"url": f"{url}/mcp"}}}))
        own = {"MCP_CONFIG": str(file), "CONFIRM": "destructive"}
        async with site.serving(**own) as (_, one), site.serving(**own) as (dying, two):
            bounds = {"args": {"euros": {"max": 5}}, "sum": {"path": "euros", "max": MOST}}
            given = await one.http.post("/mandates", json={"tool": "mcp_pay", "scope": "user", **bounds})
            assert given.status_code == 201, given.text
            sessions = [await one.new_session() for _ in range(CALLS)]

            async def ask(client: Client, session: str) -> None:
                with suppress(httpx2.HTTPError):
                    await client.send(session, word, background=True)

            asked = asyncio.gather(*(ask((one, two)[n % 2], session) for n, session in enumerate(sessions)))
            await enough.wait()
            site.kill(dying)
            await asked
            async with site.stores() as stores:

                async def settled() -> bool:
                    open_turns = "SELECT count(*) FROM turns WHERE status IN ('queued', 'running')"
                    return bool(await stores.database.fetchval(open_turns) == 0)

                await until(settled)
                booked = await stores.database.fetchval(
                    "SELECT count(*) FROM tool_calls WHERE mandate_id = $1", given.json()["id"]
                )
            [mandate] = [each for each in (await one.get("/mandates"))["items"] if each["id"] == given.json()["id"]]
            await one.http.delete(f"/mandates/{mandate['id']}")
    assert len(paid) <= booked == mandate["used"]["total"] <= MOST // 2
    assert sum(paid) <= mandate["used"]["sum"] == 2 * booked <= MOST
