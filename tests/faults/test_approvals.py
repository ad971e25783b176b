"""Five who may decide do so at once on two instances, one of which is killed among them: one decision, one effect."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.provider import calls, says
from tests.support.server import serving
from tests.support.service import Client
from tests.support.site import Site
from tests.support.sweeps import first

RULE = '[agents.segue]\n[[agents.segue.approvals]]\ntool = "mcp_pay"\nwho = "other"\ngroup = "finance"\n'


@pytest.mark.sweep  # tests/turns/plans/test_approvals.py has five decide at two instances
@pytest.mark.parametrize("when", first(1, ["paid", "decided", "pressed"]))
async def test_of_five_who_decide_at_once_one_counts_though_an_instance_is_killed_among_them(
    site: Site, tmp_path: Path, when: str
) -> None:
    paid: list[int] = []
    now = asyncio.Event()
    bank = MCPServer("bank", log_level="CRITICAL")

    @bank.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def pay(euros: int) -> str:
        """Pays somebody."""
        paid.append(euros)
        if when == "paid":
            now.set()
        return "paid"

    async def decide(client: Client, plan_id: str, version: int) -> int | None:
        if when == "pressed":
            now.set()
        body = {"decision": "confirm", "version": version}
        try:
            status = (await client.http.post(f"/approvals/{plan_id}/decision", json=body)).status_code
        except httpx2.HTTPError:
            return None
        if when == "decided" and status == 200:
            now.set()
        return int(status)

    (rules := tmp_path / "agents.toml").write_text(RULE)
    async with serving(bank.streamable_http_app()) as url, AsyncExitStack() as stack:
        (file := tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"bank": {"url": f"{url}/mcp"}}}))
        own = {"MCP_CONFIG": str(file), "AGENTS_CONFIG": str(rules), "AUTH": "api_key", "CONFIRM": "destructive"}
        _, lasting = await stack.enter_async_context(site.serving(**own))
        dying, other = await stack.enter_async_context(site.serving(**own))
        clerk = await stack.enter_async_context(speaking(lasting, await new_key(site.settings, "clerk")))
        leads = [
            await stack.enter_async_context(
                speaking((other, lasting)[n % 2], await new_key(site.settings, f"lead-{n}", groups=["finance"]))
            )
            for n in range(5)
        ]
        session = await clerk.new_session()
        site.provider.will_to("Pay bob", calls(("mcp_pay", {"euros": 800})))
        plan = (await clerk.chat(session, "Pay bob"))["plan"]
        site.provider.always("Pay bob", says("Well."))
        deciding = asyncio.gather(*(decide(each, plan["id"], plan["version"]) for each in leads))
        await now.wait()
        site.kill(dying)
        answers = [each for each in await deciding if each is not None]

        async def is_over() -> bool:
            turns = await clerk.turns(session)
            return len(turns) > 1 and all(turn["status"] in ("completed", "failed") for turn in turns)

        await until(is_over)
        [ended] = (await clerk.get(f"/sessions/{session}/plans"))["items"]
        async with site.stores() as stores:
            decided = "SELECT count(*) FROM audit WHERE action = 'decide_approval' AND session_id = $1"
            acts = await stores.database.fetchval(decided, session)
    assert acts == 1 >= answers.count(200)
    assert set(answers) <= {200, 409}
    assert len(ended["steps"][0]["others"]["yes_by"]) == 1
    assert paid == ([800] if ended["status"] == "completed" else paid[:1])
