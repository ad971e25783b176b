"""A new secret in SECRETS_DIR, or a new mcp.json, reaches the MCP server it is of without a restart of the service."""

import json
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from segue.config import Settings
from tests.support.logs import until
from tests.support.mcp_peer import STDIO
from tests.support.service import running

OLD, NEW = "token-old-0123456789", "token-new-0123456789"


def servers() -> dict[str, str]:
    """The processes of servers, each with its secret, by what they are."""
    found = {}
    for each in psutil.Process().children():
        try:
            environment = each.environ()
        except psutil.Error:
            continue
        if "WHICH" in environment:
            found[f"{environment['WHICH']} {each.pid}"] = environment.get("SECRET", "")
    return found


async def test_a_server_whose_secret_changes_is_connected_anew_with_it_and_no_other_is(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 0.05)
    (folder := tmp_path / "secrets").mkdir()
    (folder / "MAIL_TOKEN").write_text(OLD)
    mail = {**STDIO, "prefix": "mail_", "env": {"WHICH": "mail", "SECRET": "${MAIL_TOKEN}"}}
    files = {**STDIO, "prefix": "files_", "env": {"WHICH": "files"}}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"mail": mail, "files": files}}))
    with capture_logs() as logs:
        async with running(settings.model_copy(update={"secrets_dir": folder})) as client:

            async def is_ready() -> bool:
                return set((await client.get("/health/ready"))["mcp"].values()) == {"ready"}

            await until(is_ready)
            before = servers()
            [mails] = [each for each in before if each.startswith("mail")]
            [others] = [each for each in before if each.startswith("files")]
            assert before == {mails: OLD, others: ""}
            (folder / "MAIL_TOKEN").write_text(NEW)

            async def has_the_new_one() -> bool:
                return sorted(servers().values()) == ["", NEW] and await is_ready()

            await until(has_the_new_one)
            after = servers()
            settings.mcp_config.write_text('{"mcpServers": {"files": {"comand": "x"}}}')

            async def is_refused() -> bool:
                return "mcp_config" in await client.get("/health/ready")

            await until(is_refused)
            assert "did you mean command?" in (await client.get("/mcp/servers"))["refused"]
            assert [each["state"] for each in (await client.get("/mcp/servers"))["items"]] == ["ready", "ready"]
            settings.mcp_config.write_text(json.dumps({"mcpServers": {"files": files}}))

            async def is_taken() -> bool:
                return "mcp_config" not in await client.get("/health/ready")

            await until(is_taken)
            tools = {tool["name"] for tool in (await client.get("/tools"))["items"]}
    assert (after[others], mails in after, len(after)) == ("", False, 2)
    assert {name for name in tools if name.endswith("_add")} == {"files_add"}
    assert OLD not in str(logs)
    assert NEW not in str(logs)
