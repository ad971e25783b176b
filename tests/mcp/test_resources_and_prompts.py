"""Resources and prompts of MCP servers: what of them a model may read and a user may take, and what a server may do."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.tool import ToolRetry
from segue.mcp.mcp_servers import McpServers
from segue.tools.normalize import Unread
from tests.support.mcp_peer import PROTOCOL, WHO, Peer, connected, listening, said, speaking_protocol, tool
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running

SECRET = "canary-8f3a91"  # noqa: S105 (made up for the test)
OURS = "io.example/notes"  # as registries name servers


@pytest.fixture(scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpServers]:
    async with speaking_protocol(tmp_path_factory.mktemp("offers")) as servers:
        yield servers


async def listed(servers: McpServers) -> Any:
    return await tool(servers, "list_resources").run({}, WHO)


async def read(servers: McpServers, uri: str) -> Any:
    found = await tool(servers, "read_resource").run({"server": "ours", "uri": uri}, WHO)
    return found.read(found.text) if isinstance(found, Unread) else found


async def test_resources_of_all_pages_and_templates_are_listed_and_anew_after_a_change(tmp_path: Path) -> None:
    async with speaking_protocol(tmp_path) as servers:
        found = await listed(servers)
        one = {"server": "ours", "uri": "note://1", "title": "one", "mime_type": "text/plain", "size_bytes": 11}
        assert (found[0], len(found)) == (one, 5)
        assert found[-1]["uri_template"] == "note://by-day/{day}"
        with pytest.raises(ToolRetry, match="lists no resource 'note://2'"):
            await read(servers, "note://2")
        await tool(servers, "add_note").run({}, WHO)
        assert (await read(servers, "note://2"))["text"] == "what stands at note://2"
        assert len(await listed(servers)) == 6


@pytest.mark.parametrize("uri", ["note://1", "note://by-day/2026-11-22"])
async def test_what_is_listed_or_fits_a_template_can_be_read(ours: McpServers, uri: str) -> None:
    assert (await read(ours, uri))["text"] == f"what stands at {uri}"


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "note://by-day/2026/../../secret", "note://10", "note://by-day/" + "x" * 3000]
)
async def test_what_no_server_lists_is_not_asked_for(ours: McpServers, uri: str) -> None:
    with pytest.raises(ToolRetry, match="lists no resource"):
        await read(ours, uri)


async def test_what_a_result_links_to_can_be_read_though_it_is_not_listed(tmp_path: Path) -> None:
    async with speaking_protocol(tmp_path) as servers:
        with pytest.raises(ToolRetry, match="lists no resource 'note://draft'"):
            await read(servers, "note://draft")
        await tool(servers, "add_note").run({}, WHO)
        assert (await read(servers, "note://draft"))["text"] == "what stands at note://draft"
        assert "note://draft" not in str(await listed(servers))
        others = replace(WHO, owner="bob", session_id="another")
        with pytest.raises(ToolRetry, match="lists no resource 'note://draft'"):
            await tool(servers, "read_resource").run({"server": "ours", "uri": "note://draft"}, others)


async def test_a_server_that_lists_no_resources_may_link_to_some(tmp_path: Path) -> None:
    link = {"type": "resource_link", "uri": "note://draft", "name": "draft"}
    peer = Peer(lambda body: said(body, {"content": [link]}))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert {each.spec.name for each in servers.tools()} == {"mcp_look"}
        await tool(servers, "look").run({}, WHO)
        assert "mcp_read_resource" in {each.spec.name for each in servers.tools()}


async def test_a_large_resource_is_read_apart_and_a_binary_one_is_kept_whole(ours: McpServers) -> None:
    assert isinstance(await tool(ours, "read_resource").run({"server": "ours", "uri": "note://large"}, WHO), Unread)
    assert len((await read(ours, "note://large"))["text"]) == 800_000
    assert (await read(ours, "note://picture"))["mime_type"] == "image/png"


async def test_a_server_that_fails_takes_no_resources_of_others_away(settings: Settings, provider: Provider) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"ours": PROTOCOL}}))
    wanted = [("mcp_read_resource", {"server": name, "uri": "note://locked"}) for name in ("ours", "theirs", "ours")]
    async with running(settings) as client:
        session = await client.new_session()
        for each in wanted:
            provider.will(calls(each))
        provider.will(says("I cannot."))
        answer = await client.chat(session, "Read the locked note")
        state = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]["mcp_read_resource"]
    assert [call["status"] for call in answer["tool_calls"]] == ["failed"] * 3
    assert (state["status"], state["consecutive_failures"]) == ("available", 0)


async def test_what_a_server_asks_of_us_is_refused_and_its_tool_is_not_to_blame(
    ours: McpServers, tmp_path: Path
) -> None:
    said: Any = await tool(ours, "ask_back").run({}, WHO)
    assert (said["sample"], said["roots"]) == ("Sampling not supported", "List roots not supported")
    assert said["can"].keys() == {"elicitation"}
    async with speaking_protocol(tmp_path, args=[*PROTOCOL["args"], "2026"]) as servers:
        with pytest.raises(ToolRetry, match="does not get: Sampling not supported"):
            await tool(servers, "count_up").run({}, WHO)


async def test_a_limited_server_offers_nothing_to_others(tmp_path: Path) -> None:
    async with speaking_protocol(tmp_path, users=["ada"], agents=["notes"]) as servers:
        assert await listed(servers) == []
        with pytest.raises(ToolRetry, match="There is no server 'ours'"):
            await read(servers, "note://1")
        ada = replace(WHO, owner="ada", agent="notes")
        assert str(await tool(servers, "list_resources").run({}, ada)).count("note:") == 5
        assert (await servers.prompts("bob", ()), len(await servers.prompts("ada", ()))) == ([], 2)
        with pytest.raises(AppError, match="mcp_server_not_found"):
            await servers.fill_prompt("bob", (), "ours", "plain", {})


async def test_a_tool_that_runs_as_a_task_only_is_left_out_and_said_so(ours: McpServers) -> None:
    assert "mcp_later" not in {tool.spec.name for tool in ours.tools()}
    assert [each.name for each in ours.statuses()[0].left_out] == ["later"]


async def test_a_user_lists_prompts_and_has_one_filled(settings: Settings) -> None:
    ours = {**PROTOCOL, "headers": {}, "env": {"NOTES_API_KEY": SECRET}}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {OURS: ours, "gone": {"command": "no-such-program"}}}))
    async with running(settings) as client:
        found = await client.get("/mcp/prompts")
        assert [prompt["name"] for prompt in found["items"]] == ["plain", "review/mail"]
        assert found["items"][1] == {
            "server": OURS,
            "name": "review/mail",
            "title": "Review a mail",
            "description": "Says what is wrong.‹U+202E›",
            "arguments": [
                {"name": "id", "description": "of the mail", "required": True},
                {"name": "tone", "description": "", "required": False},
            ],
        }
        filled = await post(client, OURS, "review/mail", {"id": f"eml-1 {SECRET}"})
        assert filled[1]["messages"] == [
            {"role": "user", "content": '{"id": "eml-1 [redacted]"}'},
            {"role": "assistant", "content": "[image]"},
        ]
        assert (await post(client, OURS, "review/mail", {"tone": "calm", "mood": "x"}))[0] == "invalid_request"
        assert (await post(client, OURS, "nothing", {}))[0] == "mcp_prompt_not_found"
        assert (await post(client, "theirs", "plain", {}))[0] == "mcp_server_not_found"
        assert (await post(client, OURS, "plain", {}))[0] == "mcp_server_failed"
        assert (await client.http.post(f"/mcp/servers/{OURS}/reconnect")).status_code == 202
        assert (await client.http.post(f"/mcp/servers/{OURS}/login")).json()["code"] == "mcp_server_not_found"


async def post(client: Client, server: str, name: str, arguments: dict[str, str]) -> tuple[str, Any]:
    body = {"name": name, "arguments": arguments}
    answer = (await client.http.post(f"/mcp/prompts/{server}", json=body)).json()
    return answer.get("code", ""), answer
