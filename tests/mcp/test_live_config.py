"""mcp.json changes while the service runs: what the change concerns follows, and a wrong one changes nothing."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from segue.domain.tool import Tool, ToolRetry
from segue.mcp.mcp_servers import McpServers
from segue.mcp_file import RESTLESS, McpFile
from tests.support.mcp_peer import SMALL, WHO, until
from tests.support.patience import PATIENCE_S


class Live:
    """A file, and the servers that follow it. It is looked at when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mcp.json"
        self._folder = folder
        self._versions = 0

    def write(self, text: str = "", **servers: dict[str, Any]) -> None:
        """As Kubernetes changes a ConfigMap: the name leads elsewhere at once."""
        self._versions += 1
        (new := self._folder / f"version{self._versions}").write_text(text or json.dumps({"mcpServers": servers}))
        (link := self._folder / "next").symlink_to(new)
        link.replace(self.path)

    async def follow(self) -> AsyncIterator["Live"]:
        self._file = McpFile(self.path, dict)
        async with McpServers(self._file.read(), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as self.servers:
            self._file.followed_by(self.servers)
            yield self

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self._file.look()

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.servers.tools() if tool.spec.name == name)

    async def pids(self) -> dict[str, int]:
        """The process of each server, by its prefix."""
        tools = [tool for tool in self.servers.tools() if tool.spec.original_name == "pid"]
        return {tool.spec.name.removesuffix("pid"): int(str(await tool.run({}, WHO))) for tool in tools}


A, B, C = ({**SMALL, "prefix": prefix} for prefix in ("a_", "b_", "c_"))


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path)
    (tmp_path / ".env").write_text("WHICH=a\n")
    made.write(a={**A, "envFile": ".env"}, b=B)
    async for following in made.follow():
        yield following


async def test_a_change_reaches_only_the_servers_it_concerns_and_calls_that_run_end_first(
    live: Live, tmp_path: Path
) -> None:
    before, old = await live.pids(), live.tool("a_pid")
    os.mkfifo(pipe := tmp_path / "pipe")
    held = asyncio.ensure_future(live.tool("a_hold").run({"pipe": str(pipe)}, WHO))
    writing = await asyncio.wait_for(asyncio.to_thread(os.open, pipe, os.O_WRONLY), PATIENCE_S)
    live.write(a={**A, "confirm": ["pid"]}, b=B, c=C)
    with capture_logs() as logs:
        await live.look()
    after = await live.pids()
    assert after["b_"] == before["b_"]
    assert after["a_"] != before["a_"]
    assert (list(after), live.tool("a_pid").spec.confirm) == (["a_", "b_", "c_"], True)
    assert {"event": "mcp_config_read", "log_level": "info", "added": ["c"], "changed": ["a"], "removed": []} in logs
    with pytest.raises(ToolRetry, match=r"mcp\.json has changed"):
        await old.run({}, WHO)
    assert not held.done()
    os.write(writing, b"written")
    os.close(writing)
    assert await held == "written"
    await until(lambda: not psutil.pid_exists(before["a_"]))
    live.write(b=B)
    await live.look()
    assert await live.pids() == {"b_": before["b_"]}
    await until(lambda: not psutil.pid_exists(after["a_"]) and not psutil.pid_exists(after["c_"]))


async def test_a_tool_whose_name_another_server_has_is_there_once_that_one_gives_it_up(live: Live) -> None:
    """Both list what is called a_b_search."""
    both: dict[str, Any] = {"a": A, "b": {**SMALL, "prefix": "a_b_"}}

    async def lists(server: str, *names: str) -> None:
        await live.tool(f"{both[server]['prefix']}learn").run({"names": names}, WHO)
        [told] = [each for each in live.servers.servers if each.name == server]
        await until(lambda: {*names} == {tool.name for tool in told.listed or ()} - {"pid", "hold", "learn", "echo"})

    live.write(**both)
    await live.look()
    await lists("a", "b_search")
    await lists("b", "search")
    assert live.tool("a_b_search").spec.source == "mcp:a"
    await lists("a")
    assert live.tool("a_b_search").spec.source == "mcp:b"
    await lists("a", "b_search")
    assert [tool.spec.source for tool in live.servers.tools() if tool.spec.name == "a_b_search"] == ["mcp:b"]
    live.write(a=both["a"])
    await live.look()
    assert live.tool("a_b_search").spec.source == "mcp:a"


async def test_a_file_of_variables_that_changes_restarts_its_server(live: Live, tmp_path: Path) -> None:
    before = await live.pids()
    (tmp_path / ".env").write_text("WHICH=another\n")
    await live.look()
    after = await live.pids()
    assert after["b_"] == before["b_"]
    assert after["a_"] != before["a_"]


async def test_a_file_that_cannot_be_used_is_refused_whole_and_said_once(live: Live) -> None:
    before = await live.pids()
    changed = {**A, "confirm": ["pid"]}
    with capture_logs() as logs:
        for text, why in {
            '{"mcpServers": {': "is not JSON",
            json.dumps({"mcpServers": {"a": {**changed, "confrim": []}}}): "did you mean confirm?",
            json.dumps({"mcpServers": {"a": changed, "b": B, "c": B}}): "servers b and c both offer a tool called b_",
            json.dumps({"mcpServers": {"a": {**changed, "depends_on": {"pid": [{"type": "any", "tools": ["no"]}]}}}}): (
                "does not offer: no"
            ),
            " " * 2_000_000: "must be smaller",
        }.items():
            live.write(text)
            await live.look(6)
            assert why in str(live.servers.refused)
        live.path.unlink()
        await live.look(6)
        assert "is gone" in str(live.servers.refused)
        live.path.mkdir()
        await live.look(6)
        assert "Is a directory" in str(live.servers.refused)
        live.path.rmdir()
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["mcp_config_refused"] * 7
    assert (await live.pids(), live.tool("a_pid").spec.confirm) == (before, None)
    live.write(a={**A, "envFile": ".env"}, b=B)
    await live.look()
    assert (live.servers.refused, await live.pids()) == (None, before)


async def test_secrets_that_change_beside_no_file_refuse_nothing(tmp_path: Path) -> None:
    file = McpFile(tmp_path / "mcp.json", dict)
    async with McpServers(file.read(), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
        file.followed_by(servers)
        for _ in range(2):
            await file.look()
        await file.secrets_changed()
        for _ in range(3):
            await file.look()
    assert servers.refused is None


async def test_a_file_that_changes_all_the_time_is_read_once_it_rests(live: Live) -> None:
    before = await live.pids()
    with capture_logs() as logs:
        for number in range(3 * RESTLESS):
            live.write(a={**A, "confirm": ["x" * number]}, b=B)
            await live.look(1)
        assert await live.pids() == before
        assert "changes all the time" in str(live.servers.refused)
        await live.look(1)
    assert live.servers.refused is None
    assert [log["event"] for log in logs if log["event"].startswith("mcp_config_re")] == [
        "mcp_config_refused",
        "mcp_config_read",
    ]
    assert (await live.pids())["a_"] != before["a_"]
