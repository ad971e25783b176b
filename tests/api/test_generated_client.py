"""Clients that openapi-python-client and openapi-typescript make of docs/openapi.json speak to the service.

`make clients` installs the one, `make npm-clients` the other.
"""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.conversations import shelf_service
from tests.support.node import CLIENTS as ON_NODE
from tests.support.node import needs_node, node
from tests.support.provider import Provider, calls, says
from tests.support.service import Client

CLIENTS = ROOT / ".venv" / "clients" / "bin"
DOCUMENT = ROOT / "docs" / "openapi.json"
CALLS = '''
"""Calls every operation that only reads with the generated client, and those that make something to read."""
import importlib, json, pathlib, sys
from segue_client import Client
from segue_client.models import ChatBody, NewMemory, NewSession, Problem

url, document = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text("utf-8"))
tags = {
    operation["operationId"]: (operation["tags"][0].replace(" ", "_"), method, operation.get("parameters", []))
    for item in document["paths"].values()
    for method, operation in item.items()
}

def call(name, **given):
    module = importlib.import_module(f"segue_client.api.{tags[name][0]}.{name}")
    return module.sync_detailed(client=Client(base_url=url), **given)

session = call("create_session", body=NewSession(title="Generated")).parsed
answer = call("chat", session_id=session.id, body=ChatBody(message="what time is it?")).parsed
assert answer.message.content == "It is noon.", answer
memory = call("add_memory", body=NewMemory(content="I have a cat")).parsed
known = {"session_id": session.id, "turn_id": answer.turn_id, "agent_id": "segue"}
read = set()
refused = {"get_open_plan": "no_open_plan", "list_api_keys": "no_api_keys"}
left_out = ("follow_turn", "follow_events", "metrics", "examine")  # without an end, no JSON, and what asks the model
for name, (_, method, parameters) in tags.items():
    needed = {each["name"] for each in parameters if each["in"] == "path"}
    if method == "get" and needed <= known.keys() and name not in left_out:
        response = call(name, **{each: known[each] for each in needed})
        if name in refused:
            assert response.parsed.code == refused[name], response
        else:
            assert response.status_code == 200, response
            assert response.parsed is not None and not isinstance(response.parsed, Problem), response
            read.add(name)
assert [each.title for each in call("list_sessions").parsed.items] == ["Generated"]
assert call("get_session", session_id="ses_0").parsed.code == "session_not_found"
assert call("delete_memory", memory_id=memory.id).status_code == 204
print(len(read))
'''


@pytest.mark.sweep  # of generated clients CI tries the one in TypeScript
@pytest.mark.skipif(not CLIENTS.exists(), reason="openapi-python-client is not installed: make clients")
async def test_a_generated_client_reads_all_there_is(client: Client, provider: Provider, tmp_path: Path) -> None:
    made, config = tmp_path / "made", tmp_path / "config.yml"
    config.write_text("post_hooks: []")  # else it looks for ruff
    options = ("--path", DOCUMENT, "--output-path", made, "--config", config, "--fail-on-warning")
    await run(CLIENTS / "openapi-python-client", "generate", *options)
    provider.will(says("It is noon."))
    said = await run(CLIENTS / "python", "-c", CALLS, str(client.http.base_url).rstrip("/"), DOCUMENT, cwd=made)
    assert int(said) > 15


@pytest.mark.sweep
@needs_node
async def test_a_program_with_generated_types_compiles_and_holds_a_conversation(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(ON_NODE / "node_modules")
    for file in ("typed.mts", "tsconfig.json"):
        shutil.copy(ON_NODE / file, tmp_path)
    generator, compiler = (
        ON_NODE / "node_modules" / of for of in ("openapi-typescript/bin/cli.js", "typescript/bin/tsc")
    )
    await node(generator, DOCUMENT, "--output", tmp_path / "schema.d.ts", "--default-non-nullable", "false")
    await node(compiler, "--project", tmp_path)
    provider.will(
        calls(("mcp_get_item", {"item_id": "itm-1"})),
        calls(("mcp_delete_item", {"item_id": "itm-1"})),
        says("It is gone."),
    )
    async with shelf_service(settings) as client:
        said = json.loads(await node(tmp_path / "typed.mjs", str(client.http.base_url).rstrip("/")))
    assert said == {
        "result": {"id": "itm-1", "text": "the text of itm-1"},
        "asked": "mcp_delete_item",
        "ended": "completed",
        "last": ["assistant", "tool"],
        "problem": "session_not_found",
    }


async def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What it prints."""
    done = await asyncio.to_thread(subprocess.run, command, cwd=cwd, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()
