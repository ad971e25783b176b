"""The official MCP servers, unmodified: every tool of each is called by a turn. `make mcp-servers` installs them, runs
this and prints a row of a table for each; it is no part of CI. docs/proof.md has what came of it.
"""

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says
from tests.support.results import loaded, ran
from tests.support.server import serving
from tests.support.service import Client, running

NODE_MODULES = ROOT / "tests" / "mcp" / "official" / "node_modules"
PYTHONS = ROOT / ".venv" / "mcp-servers" / "bin"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_MODULES / ".package-lock.json").exists() or not PYTHONS.exists(),
    reason="the official MCP servers are not installed: make mcp-servers",
)

FIRST_LINE = "the first line"
PAGE = "<html><body><h1>Lamps</h1><p>There are three.</p></body></html>"


@dataclass(frozen=True, slots=True)
class Row:
    """A call, and a part of its result; `fails` if it is its error. `{folder}` and `{site}` are places of the test's. A
    tool that always fails need not be offered. `answers` is what the user answers to what it asks; nothing to a link.
    """

    tool: str
    args: dict[str, Any]
    says: str
    fails: bool = False
    answers: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Official:
    """`serves` is how it is started to listen on a port; without it, `config` starts it."""

    package: str
    transport: str
    config: Callable[[Path], dict[str, Any]]
    rows: tuple[Row, ...]
    serves: str | None = None

    @property
    def version(self) -> str:
        if self.package.startswith("@"):
            return str(json.loads((NODE_MODULES / self.package / "package.json").read_text())["version"])
        folder = next((PYTHONS.parent / "lib").glob(f"*/site-packages/{self.package.replace('-', '_')}-*.dist-info"))
        return folder.name.removesuffix(".dist-info").partition("-")[2]


def node(package: str, *arguments: str) -> dict[str, Any]:
    return {"command": "node", "args": [str(NODE_MODULES / package / "dist" / "index.js"), *arguments]}


def python(program: str, *arguments: str) -> dict[str, Any]:
    return {"command": str(PYTHONS / program), "args": list(arguments)}


EVERYTHING = "@modelcontextprotocol/server-everything"
OF_EVERYTHING = (
    Row("echo", {"message": "ciao"}, "Echo: ciao"),
    Row("get-sum", {"a": 2, "b": 3}, "The sum of 2 and 3 is 5."),
    Row("get-annotated-message", {"messageType": "error", "includeImage": True}, "Error: Operation failed"),
    Row("get-env", {}, "PATH"),
    Row("get-resource-links", {"count": 2}, "resource_link"),
    Row("get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "demo://resource/dynamic/text/1"),
    Row("get-structured-content", {"location": "Chicago"}, "temperature"),
    Row("get-tiny-image", {}, "image/png"),
    Row("gzip-file-as-resource", {"name": "a.gz", "data": "data:text/plain,ciao"}, "a.gz"),
    Row("toggle-simulated-logging", {}, "Started simulated, random-leveled logging"),
    Row("toggle-subscriber-updates", {}, "Started simulated resource updated notifications"),
    Row("trigger-long-running-operation", {"duration": 1, "steps": 4}, "Long running operation completed."),
    Row("trigger-elicitation-request", {}, "User provided the requested information", answers={"name": "Ada"}),
    Row("trigger-url-elicitation", {"url": "https://example.com/a"}, "User completed the URL elicitation", answers={}),
    Row("simulate-research-query", {"topic": "lamps"}, "task", fails=True),
)

OFFICIAL = {
    "everything": Official(EVERYTHING, "stdio", lambda _: node(EVERYTHING), OF_EVERYTHING),
    "everything-http": Official(EVERYTHING, "streamable HTTP", lambda _: {}, OF_EVERYTHING, serves="streamableHttp"),
    "filesystem": Official(
        "@modelcontextprotocol/server-filesystem",
        "stdio",
        lambda folder: node("@modelcontextprotocol/server-filesystem", str(folder)),
        (
            Row("list_allowed_directories", {}, "{folder}"),
            Row(
                "write_file", {"path": "{folder}/a.txt", "content": f"{FIRST_LINE}\nthe second\n"}, "Successfully wrote"
            ),
            Row("read_file", {"path": "{folder}/a.txt"}, FIRST_LINE),
            Row("read_text_file", {"path": "{folder}/a.txt", "head": 1}, FIRST_LINE),
            Row("read_multiple_files", {"paths": ["{folder}/a.txt"]}, FIRST_LINE),
            Row(
                "edit_file",
                {"path": "{folder}/a.txt", "edits": [{"oldText": "second", "newText": "last"}]},
                "+the last",
            ),
            Row("read_media_file", {"path": "{folder}/dot.png"}, "image/png"),
            Row("create_directory", {"path": "{folder}/in"}, "Successfully created"),
            Row("move_file", {"source": "{folder}/a.txt", "destination": "{folder}/in/b.txt"}, "Successfully moved"),
            Row("list_directory", {"path": "{folder}"}, "[DIR] in"),
            Row("list_directory_with_sizes", {"path": "{folder}"}, "Total: 1 files"),
            Row("directory_tree", {"path": "{folder}"}, "b.txt"),
            Row("search_files", {"path": "{folder}", "pattern": "**/b.*"}, "b.txt"),
            Row("get_file_info", {"path": "{folder}/in/b.txt"}, "size: 24"),
            Row("read_file", {"path": "/etc/passwd"}, "outside allowed directories", fails=True),
        ),
    ),
    "memory": Official(
        "@modelcontextprotocol/server-memory",
        "stdio",
        lambda folder: (
            node("@modelcontextprotocol/server-memory") | {"env": {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}}
        ),
        (
            Row(
                "create_entities",
                {
                    "entities": [
                        {"name": "Eve", "entityType": "person", "observations": ["likes tea"]},
                        {"name": "Bob", "entityType": "person", "observations": []},
                    ]
                },
                "likes tea",
            ),
            Row("create_relations", {"relations": [{"from": "Eve", "to": "Bob", "relationType": "knows"}]}, "knows"),
            Row("add_observations", {"observations": [{"entityName": "Bob", "contents": ["is tall"]}]}, "is tall"),
            Row("read_graph", {}, "likes tea"),
            Row("search_nodes", {"query": "tall"}, "Bob"),
            Row("open_nodes", {"names": ["Eve"]}, "likes tea"),
            Row("delete_observations", {"deletions": [{"entityName": "Bob", "observations": ["is tall"]}]}, "deleted"),
            Row("delete_relations", {"relations": [{"from": "Eve", "to": "Bob", "relationType": "knows"}]}, "deleted"),
            Row("delete_entities", {"entityNames": ["Eve", "Bob"]}, "deleted"),
        ),
    ),
    "fetch": Official(
        "mcp-server-fetch",
        "stdio",
        lambda _: python("mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        (
            Row("fetch", {"url": "{site}/lamps"}, "There are three."),
            Row("fetch", {"url": "{site}/missing"}, "404", fails=True),
        ),
    ),
    "git": Official(
        "mcp-server-git",
        "stdio",
        lambda folder: python("mcp-server-git", "--repository", str(folder)),
        (
            Row("git_status", {"repo_path": "{folder}"}, "dot.png"),
            Row("git_add", {"repo_path": "{folder}", "files": ["dot.png"]}, "staged"),
            Row("git_diff_staged", {"repo_path": "{folder}"}, "dot.png"),
            Row("git_commit", {"repo_path": "{folder}", "message": "Add a dot"}, "committed"),
            Row("git_log", {"repo_path": "{folder}"}, "Add a dot"),
            Row("git_show", {"repo_path": "{folder}", "revision": "HEAD"}, "Add a dot"),
            Row("git_create_branch", {"repo_path": "{folder}", "branch_name": "other"}, "other"),
            Row("git_checkout", {"repo_path": "{folder}", "branch_name": "other"}, "Switched"),
            Row("git_branch", {"repo_path": "{folder}", "branch_type": "local"}, "other"),
            Row("git_diff", {"repo_path": "{folder}", "target": "HEAD"}, "Diff"),
            Row("git_diff_unstaged", {"repo_path": "{folder}"}, "Unstaged"),
            Row("git_reset", {"repo_path": "{folder}"}, "reset"),
            Row("git_status", {"repo_path": "/"}, "", fails=True),
        ),
    ),
    "time": Official(
        "mcp-server-time",
        "stdio",
        lambda _: python("mcp-server-time", "--local-timezone", "Europe/Rome"),
        (
            Row("get_current_time", {"timezone": "Europe/Rome"}, "Europe/Rome"),
            Row(
                "convert_time",
                {"source_timezone": "Europe/Rome", "time": "12:00", "target_timezone": "Asia/Tokyo"},
                "Asia/Tokyo",
            ),
            Row("get_current_time", {"timezone": "Nowhere/Else"}, "Nowhere/Else", fails=True),
        ),
    ),
}
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc00000030101"
    "00c9fe92ef0000000049454e44ae426082"
)


@asynccontextmanager
async def listening(way: str) -> AsyncIterator[str]:
    """The everything server on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        "node",
        *node(EVERYTHING, way)["args"],
        env={"PORT": str(port), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while str(port).encode() not in await process.stderr.readline():
                assert process.returncode is None
        yield f"http://127.0.0.1:{port}/{'sse' if way == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.communicate()


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE if request.url.path == "/lamps" else "no", 200 if request.url.path == "/lamps" else 404)


def placed(value: Any, **places: str) -> Any:
    text = json.dumps(value)
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return json.loads(text)


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "things"
    folder.mkdir()
    (folder / "dot.png").write_bytes(DOT)
    for arguments in (
        ("init", "-q"),
        ("config", "user.email", "a@b.c"),
        ("config", "user.name", "A"),
        ("commit", "-q", "--allow-empty", "-m", "Begin"),
    ):
        subprocess.run(("git", "-C", str(folder), *arguments), check=True)
    return folder


@asynccontextmanager
async def reached(server: Official, folder: Path) -> AsyncIterator[dict[str, Any]]:
    if server.serves is None:
        yield server.config(folder)
        return
    async with listening(server.serves) as url:
        yield {"url": url, "type": "sse" if server.serves == "sse" else "http"}


async def answered(
    service: Client, provider: Provider, session: str, wanted: tuple[str, dict[str, Any]], answers: dict[str, Any]
) -> dict[str, Any]:
    """The ledger entry of a call that asks the user first, once the user has answered."""
    provider.will(calls(wanted))
    asked = await service.chat(session, "Please do that.")
    provider.will(says("done"))
    body = {"decision": "confirm", "version": asked["plan"]["version"], **({"answer": answers} if answers else {})}
    response = await service.http.post(f"/sessions/{session}/plan/decision", json=body)
    assert response.status_code == 200, response.text
    made: list[dict[str, Any]] = response.json()["tool_calls"]
    return made[-1]


@pytest.mark.parametrize("name", OFFICIAL)
async def test_every_tool_of_an_official_server_is_called_by_a_turn(
    name: str, settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    server, folder = OFFICIAL[name], folder_of(tmp_path)
    settings = settings.model_copy(update={"confirm": "never"})
    async with reached(server, folder) as config, serving(Starlette(routes=[Route("/{_:path}", page)])) as site:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {name: {**config, "prefix": "its_"}}}))
        async with running(settings) as service:
            await service.connected(name)
            session = await service.new_session()
            listed = [tool["name"] for tool in (await service.get("/tools"))["items"]]
            offered = {each.removeprefix("its_") for each in listed if each.startswith("its_")}
            works = {row.tool for row in server.rows if not row.fails}
            wrong = sorted(works - offered | offered - {row.tool for row in server.rows})
            for row in (row for row in server.rows if row.tool in offered):
                args, expected = placed(row.args, folder=str(folder), site=site), placed(row.says, folder=str(folder))
                wanted = (f"its_{row.tool}", args)
                if row.answers is None:
                    [call] = await ran(service, provider, session, wanted)
                else:
                    call = await answered(service, provider, session, wanted, row.answers)
                found = await loaded(service, session, call)
                text = json.dumps([found["result"], call["error"], call["metadata"]], ensure_ascii=False)
                if (call["status"] == "failed") != row.fails or expected not in text:
                    wrong.append(f"{row.tool}: {call['status']} {text[:400]}")
    not_working = sorted({row.tool for row in server.rows} - works)
    shown = (server.package, server.version, server.transport, str(len(offered)), ", ".join(sorted(works)))
    print(f"| {' | '.join(shown)} | {', '.join(not_working)} |")  # noqa: T201
    assert wrong == []
