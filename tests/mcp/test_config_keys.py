"""The keys of mcp.json: Segue's own, those of other clients, and those that nobody has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from segue.config import Settings
from segue.domain.errors import AppError
from segue.mcp.mcp_config import McpConfig, McpServerConfig, read_mcp_config
from segue.mcp.other_clients_config import FILE_KEYS, LOGIN_KEYS, SERVER_KEYS
from tests.support.commands import ROOT
from tests.support.service import running

# From each client's reference: docs of Claude Desktop and Cursor, the JSON schema of VS Code.
CLIENTS: dict[str, dict[str, Any]] = {
    "Claude Desktop": {
        "globalShortcut": "Ctrl+Space",
        "preferences": {"menuBarEnabled": True},
        "isUsingBuiltInNodeForMcp": True,
        "isDxtAutoUpdatesEnabled": True,
        "mcpServers": {"a": {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "value"}}},
    },
    "VS Code": {
        "inputs": [{"type": "promptString", "id": "api-key", "description": "Key", "password": True}],
        "servers": {
            "a": {
                "type": "stdio",
                "command": "${workspaceFolder}/a",
                "args": ["${userHome}${/}x"],
                "cwd": "${workspaceFolder}",
                "env": {"KEY": "${input:api-key}", "PORT": 8080, "GONE": None},
                "envFile": "${workspaceFolder}/.env",
                "sandboxEnabled": False,
                "sandbox": {"network": {"allowedDomains": []}},
                "dev": {"watch": "src/**/*.ts", "debug": {"type": "node"}},
                "gallery": True,
                "version": "1.0.0",
            },
            "b": {"type": "http", "url": "https://b.example/mcp", "headers": {}, "oauth": {"clientId": "c"}},
        },
    },
    "Cursor": {
        "mcpServers": {
            "a": {"type": "stdio", "command": "npx", "args": [], "env": {"K": "${env:API_KEY}"}, "envFile": ".env"},
            "b": {"url": "https://b.example/mcp", "headers": {}, "auth": {"CLIENT_ID": "c", "scopes": []}},
        }
    },
}


def read(folder: Path, **file: Any) -> McpConfig:
    path = folder / "mcp.json"
    path.write_text(json.dumps(file))
    return read_mcp_config(path)


@pytest.mark.parametrize(
    ("text", "where"),
    [("[]", "the file"), ('{"mcpServers": []}', "mcpServers"), ('{"mcpServers": {"a": 1}}', "mcpServers.a")],
)
def test_what_is_no_object_is_said_to_have_to_be_one(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(AppError) as refused:
        read_mcp_config(path)
    assert refused.value.detail == f"{path} must be corrected: {where}: it must be an object, {{ … }}"


def server(folder: Path, **keys: Any) -> McpServerConfig:
    return read(folder, mcpServers={"a": {"command": "x", **keys}}).servers["a"]


def refused(folder: Path, **file: Any) -> str:
    with pytest.raises(AppError) as caught:
        read(folder, **file)
    assert caught.value.code == "mcp_config_invalid"
    return caught.value.detail


def test_a_key_that_nobody_has_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    groups = {"get": [{"type": "any", "tool": ["search"]}]}
    text = refused(tmp_path, mcpServers={"mail": {"command": "x", "confrim": ["send"], "dependsOn": {}}}, server={})
    assert "mcpServers.mail.confrim is unknown: did you mean confirm?" in text
    assert "mcpServers.mail.dependsOn is unknown: did you mean depends_on?" in text
    assert "server is unknown: did you mean servers?" in text
    text = refused(tmp_path, mcpServers={"mail": {"command": "x", "depends_on": groups, "off": True, "\n" * 99: 1}})
    assert "mcpServers.mail.depends_on.get: tool is unknown: did you mean tools?" in text
    assert "mcpServers.mail.off is unknown" in text
    assert "\n" not in text


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "confirm": ["send"], "confirm": []}}}')
    with pytest.raises(AppError, match="'confirm' stands twice"):
        read_mcp_config(path)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_key_of_another_client_is_used_or_named(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "from the environment")
    (folder := tmp_path / ".vscode").mkdir()
    for where in (folder, tmp_path):
        (where / ".env").write_text("# a comment\nexport A='one # two'\nB=three # four\nPORT=1\n")
    file = CLIENTS[client]
    config = read(folder, **file)
    servers = next(file[key] for key in ("mcpServers", "servers") if key in file)
    named = {name.partition(":")[0] for name in config.ignored}
    ignored = {name for name, key in (FILE_KEYS | SERVER_KEYS).items() if key.becomes == "ignored"}
    given = {f"mcpServers.{name}.{key}" for name, keys in servers.items() for key in keys.keys() & ignored}
    assert named == given | (file.keys() & ignored)
    if client == "VS Code":
        a = config.servers["a"]
        assert (a.command, a.cwd, a.args) == (f"{tmp_path}/a", str(tmp_path), (f"{Path.home()}/x",))
        env = {name: value.get_secret_value() for name, value in a.env.items()}
        assert env == {"KEY": "from the environment", "PORT": "8080", "A": "one # two", "B": "three"}


def test_keys_of_other_clients_become_those_of_segue(tmp_path: Path) -> None:
    one = server(tmp_path, timeout=60, disabledTools=["rm"], excludeTools=["mv"], disabled=["cp"])
    assert one.timeout_s == 60
    assert one.disabled == {"rm", "mv", "cp"}
    assert server(tmp_path, timeout=30_000).timeout_s == 30
    for key in ("includeTools", "enabledTools", "tools"):
        assert [server(tmp_path, **{key: ["ls"]}).offers(tool) for tool in ("ls", "rm")] == [True, False]
    assert server(tmp_path, tools=["*"]).offers("rm")
    for off in ({"enabled": False}, {"isActive": False}, {"disabled": True}, {"disabled": True, "enabled": True}):
        assert server(tmp_path, **off).off
    for key in ("serverUrl", "httpUrl"):
        [config] = read(tmp_path, servers={"a": {key: "https://a.example", "type": "sse"}}).servers.values()
        assert (config.url, config.transport) == ("https://a.example", "sse")


def test_confirm_is_a_list_of_names_or_says_how_each_asks(tmp_path: Path) -> None:
    assert server(tmp_path, confirm=["send", "pay"]).confirm == {"send": True, "pay": True}
    each = {"send": True, "pay": "always_ask"}
    assert server(tmp_path, confirm=each).confirm == each
    for wrong, why in (
        ({"pay": "always"}, "a.confirm.pay: Input should be True or 'always_ask'"),
        ({"pay": False}, "a.confirm.pay: Input should be True or 'always_ask'"),
        ("pay", "a.confirm: must be a list of names, or an object such as"),
        ([["pay"]], "a.confirm: must be a list of names, or an object such as"),
    ):
        assert why in refused(tmp_path, mcpServers={"a": {"command": "x", "confirm": wrong}})


def test_what_tools_without_annotations_are_is_one_of_three_words(tmp_path: Path) -> None:
    assert server(tmp_path).unannotated is None
    for word in ("ask", "write", "read_only"):
        assert server(tmp_path, unannotated=word).unannotated == word
    for wrong in ("destructive", "never", True, ["ask"]):
        text = refused(tmp_path, mcpServers={"a": {"command": "x", "unannotated": wrong}})
        assert "a.unannotated: Input should be 'ask', 'write' or 'read_only'" in text
    assert "did you mean unannotated?" in refused(tmp_path, mcpServers={"a": {"command": "x", "unanotated": "ask"}})


def test_a_list_of_calls_that_another_client_does_not_ask_about_takes_no_question_away(tmp_path: Path) -> None:
    keys = {"alwaysAllow": ["send"], "autoApprove": ["send"], "trust": True}
    config = read(tmp_path, mcpServers={"a": {"command": "x", "confirm": ["send"], **keys}})
    assert config.servers["a"].confirm == {"send": True}
    assert [name.partition(":")[0].rpartition(".")[2] for name in config.ignored] == list(keys)


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"timeout": 2000}, "may be seconds (Cline, Roo Code) or milliseconds"),
        ({"timeout": 60, "timeout_s": 30}, "says the same as timeout_s"),
        ({"timeout": "60"}, "timeout must be a number"),
        ({"disabledTools": "rm"}, "disabledTools must be a list"),
        ({"enabled": "no"}, "enabled must be true or false"),
        ({"type": "http"}, "its type is http"),
        ({"type": "websocket"}, "Segue speaks no other"),
        ({"sandboxEnabled": True}, "Segue has no sandbox"),
        ({"args": ["${config:editor.fontSize}"]}, "needs ${config:editor.fontSize} at mcpServers.a.args"),
        ({"env": {"K": "${input:my-token}"}}, "the environment variable MY_TOKEN at mcpServers.a.env.K"),
        ({"envFile": "none.env"}, "none.env at mcpServers.a.envFile"),
    ],
)
def test_what_a_key_of_another_client_cannot_mean_is_refused(tmp_path: Path, keys: dict[str, Any], hint: str) -> None:
    assert hint in refused(tmp_path, mcpServers={"a": {"command": "x", **keys}})


def test_a_file_of_both_formats_or_of_ten_megabytes_or_none_is_refused(tmp_path: Path) -> None:
    assert "put all of them under mcpServers" in refused(tmp_path, mcpServers={}, servers={"a": {"command": "x"}})
    assert "must be smaller" in refused(tmp_path, mcpServers={"a": {"command": "x" * 10_000_000}})
    with pytest.raises(AppError, match="cannot be read \\(Is a directory\\)"):
        read_mcp_config(tmp_path)
    with pytest.raises(AppError, match="an ordinary one"):
        read_mcp_config(Path("/dev/null"))


def test_the_login_of_another_clients_file_is_read_or_named_and_one_that_is_switched_off_is_none(
    tmp_path: Path,
) -> None:
    login = {"clientId": "c", "scope": "read write", "redirectUri": "http://localhost:7777/x", "enabled": True}
    config = read(tmp_path, mcpServers={"a": {"url": "https://a.example", "oauth": login}})
    [one] = config.servers.values()
    assert one.oauth is not None
    assert (one.oauth.client_id, one.oauth.scopes) == ("c", ("read", "write"))
    assert [each.partition(":")[0] for each in config.ignored] == ["mcpServers.a.oauth.redirectUri"]
    assert server(tmp_path, oauth={"enabled": False}).oauth is None
    text = refused(tmp_path, mcpServers={"a": {"url": "https://a.example", "oauth": {"client_idd": "c"}}})
    assert "mcpServers.a.oauth.client_idd is unknown: did you mean client_id?" in text


def test_each_row_of_the_table_becomes_what_the_reader_knows() -> None:
    login = {"client_id", "client_secret", "scopes", "off", "ignored"}
    server = {"url", "disabled", "only", "off", "transport", "timeout_s", "env_file", "refused", "ignored"}
    assert {key.becomes for key in FILE_KEYS.values()} == {"mcpServers", "inputs", "ignored"}
    assert {key.becomes for key in SERVER_KEYS.values()} == server
    assert {key.becomes for key in LOGIN_KEYS.values()} == login


def test_the_docs_have_the_keys_of_other_clients_as_they_are_read() -> None:
    page = (ROOT / "docs" / "mcp.md").read_text("utf-8")
    section = page.partition("### Keys of other clients")[2].partition("\n#")[0].splitlines()

    of_login = (replace(key, name=f"oauth.{key.name}") for key in LOGIN_KEYS.values())
    named: dict[str, list[str]] = {}
    for key in [*FILE_KEYS.values(), *SERVER_KEYS.values(), *of_login]:
        if key.becomes != "ignored":
            named.setdefault(key.said, []).append(f"`{key.name}` ({key.clients})")
    rows = [f"| {', '.join(names)} | {said} |" for said, names in named.items()]
    assert [line for line in section if line.startswith("| `")] == rows


async def test_what_is_ignored_is_one_line_of_the_log(settings: Settings) -> None:
    settings.mcp_config.write_text('{"mcpServers": {"a": {"command": "x", "disabled": true, "alwaysAllow": ["rm"]}}}')
    with capture_logs() as logs:
        async with running(settings):
            pass
    [line] = [log for log in logs if log["event"] == "mcp_config_ignored"]
    assert "no question away" in line["keys"][0]
