"""Every route × every caller, read off the app: a new route is in here before anybody thinks of it.

Without a key 401; with somebody else's, what is not theirs looks exactly as if it were not there.
"""

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr

from segue.api.middleware import OPEN_FOLDER, OPEN_PATHS
from segue.api.schemas import encode_cursor
from segue.config import Settings
from segue.domain.ids import Prefix, new_id, utc_now
from segue.main import create_app
from segue.mcp.status import CALLBACK_PATH, DOCUMENT_PATH
from tests.support.commands import ROOT
from tests.support.identity import new_key, speaking
from tests.support.service import Client, running

# What a path may name: things of one user, by the prefix of their ids, and things of nobody.
OWNED: dict[str, Prefix] = {
    "session_id": "ses",
    "turn_id": "turn",
    "tool_call_id": "call",
    "memory_id": "mem",
    "mandate_id": "man",
    "plan_id": "plan",
    "message_id": "msg",
    "chat_id": "ses",
    "thread_id": "ses",
    "run_id": "turn",
    "attachment_id": "att",
    "schedule_id": "sch",
    "trigger_id": "trg",
    "key_id": "key",
    "response_id": "turn",
    "conversation_id": "ses",
}
SEALING = base64.urlsafe_b64encode(bytes(32)).decode()
SHARED = {
    "tool": "current_time",
    "agent_id": "segue",
    "assistant_id": "segue",
    "asset": "nothing.js",
    "user": "nobody",
    "mcp_server": "nobody",
    "rest": "anything",
    "token": "no-link",
}

Things = dict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    parameters: tuple[str, ...]
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    async def send(self, http: httpx2.AsyncClient, things: Things) -> httpx2.Response:
        path = self.path.format(**things, **SHARED)
        named = things.keys() & self.body.keys() if isinstance(self.body, dict) else set()
        body = {**self.body, **{name: things[name] for name in named}} if named else self.body
        return await http.request(self.method, path, json=body, headers={"Accept": "application/json"})


def calls_of(app: FastAPI) -> list[Call]:
    """One valid request for each method of each route. To describe them anew would take each worker a second."""
    description = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    found = []
    for route in iter_route_contexts(app.routes):
        path = str(route.path).replace(":path}", "}")
        parameters = tuple(part.partition("}")[0] for part in path.split("{")[1:])
        for method in sorted(set(route.methods or ()) - {"HEAD", "OPTIONS"}):
            operation = description["paths"].get(path, {}).get(method.lower(), {})
            found.append(Call(method, path, parameters, body_of(operation, description)))
    return found


def body_of(operation: dict[str, Any], description: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {})
    return smallest(content["application/json"]["schema"], description) if "application/json" in content else None


def smallest(schema: dict[str, Any], description: dict[str, Any]) -> Any:
    """A small value that a schema of ours accepts."""
    while "$ref" in schema or "anyOf" in schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = description["components"]["schemas"][name] if name else schema["anyOf"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: smallest(schema["properties"][name], description) for name in schema.get("required", ())}
    scalars = {"string": "x", "integer": int(schema.get("minimum", 1)), "boolean": False, "array": []}
    assert schema["type"] in scalars, f"teach `smallest` what a small {schema['type']} is"
    return scalars[schema["type"]]


# What each role has: all of them are other users than ada, but for ada's own key without a scope.
ROLES: dict[str, dict[str, Any]] = {
    "user": {"scopes": ()},
    "approver": {"scopes": (), "groups": ["finance"], "roles": ["approver"]},
    "gateway": {"scopes": ("act_as",)},
    "operator": {"scopes": ("ops",)},
    "reader": {"scopes": ("ops", "ops:content")},
    "ada": {"scopes": ()},  # last: what she calls changes her things
}
# Routes for the scope `ops` whose paths do not say so, and what those who have it may see of others elsewhere.
OPS = {
    "POST /agents/reload",
    "GET /tool-states",
    "PUT /tool-states/{tool}",
    "POST /tool-states/reset",
    "GET /feedback",
    "GET /metrics",
    "GET /mcp/servers",
    "POST /mcp/servers/{mcp_server}/reconnect",
}
FOR_OPERATORS = {f"GET {path}" for path in ("/sessions/{session_id}/prompt", "/sessions/{session_id}/receipts")}
FOR_READERS = {"POST /ops/keys", "POST /ops/keys/{key_id}/rotate", "GET /ops/users/{user}/export"}
# Paths that name nothing of a user: they show or make what is the caller's.
OWN = {
    *("/agents", "/agents/{agent_id}", "/sessions", "/events", "/tools", "/memories", "/usage", "/me", "/me/export"),
    *("/mcp/prompts", "/mcp/prompts/{mcp_server}", "/mcp/logins", "/mcp/servers/{mcp_server}/login"),
    *("/approvals", "/approvals/decisions", "/mandates", "/schedules", "/triggers"),
    *("/agui", "/agents/{agent_id}/agui", "/api/chat", "/v1/models", "/v1/models/{agent_id}"),
    *("/v1/chat/completions", "/v1/responses", "/v1/conversations"),
    *("/info", "/ok", "/assistants", "/assistants/search", "/assistants/{assistant_id}"),
    *(
        "/assistants/{rest}",
        "/threads",
        "/threads/count",
        "/threads/search",
        "/runs",
        "/runs/stream",
        "/runs/wait",
    ),
    *("/runs/{rest}", "/store/{rest}"),
}


def roles_at(call: Call) -> list[str]:
    """All of them with SWEEP=1; else the owner of the things, a plain user, and one of the others in turn."""
    others = [role for role in ROLES if role not in ("user", "ada")]
    return [*ROLES] if "SWEEP" in os.environ else ["user", others[crc32(str(call).encode()) % len(others)], "ada"]


CALLS = calls_of(create_app(Settings(_env_file=None)))
CLOSED = [call for call in CALLS if call.path not in OPEN_PATHS and not call.path.startswith(OPEN_FOLDER)]


def kind_of(call: Call) -> str:
    """`ops`: for operators; `owned`: of one user, whom its path names a thing of; `own`: of who calls it."""
    if call.path.startswith("/ops/") or str(call) in OPS:
        return "ops"
    if set(call.parameters) & OWNED.keys():
        return "owned"
    assert call.path in OWN, f"{call} is of no kind: add it to OPS, or its path to OWN, in {__file__}"
    return "own"


@pytest.fixture
async def guarded(settings: Settings) -> Settings:
    """Keys are asked for, and the offline model answers."""
    many = {"schedules_per_user": 1000, "triggers_per_user": 1000, "mcp_token_key": SecretStr(SEALING)}
    return settings.model_copy(update={"auth": "api_key", "openai_base_url": None, **many})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served


@pytest.fixture
async def owner(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "ada", ["ops"])) as client:
        yield client


@pytest.fixture
async def other(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "mallory")) as client:
        yield client


@pytest.fixture
async def callers(service: Client, guarded: Settings) -> AsyncIterator[dict[str, Client]]:
    async with AsyncExitStack() as stack:
        keys = {role: await new_key(guarded, role, **given) for role, given in ROLES.items()}
        yield {role: await stack.enter_async_context(speaking(service, key)) for role, key in keys.items()}


async def things_of(client: Client) -> Things:
    session = await client.new_session()
    answer = await client.chat(session, "What time is it?")
    [call] = answer["tool_calls"]
    file = await client.http.post(f"/sessions/{session}/attachments", files={"file": ("notes.txt", b"tea")})
    noted = await client.http.post("/memories", json={"content": "likes tea", "kind": "fact"})
    allowed = await client.http.post("/mandates", json={"tool": "remember", "scope": "user"})
    key = await client.http.post("/ops/keys", json={"user": (await client.get("/me"))["user"]})
    said = {"session_id": session, "message": "x"}
    schedule = await client.http.post("/schedules", json={**said, "cron": "0 9 * * *"})
    trigger = await client.http.post("/triggers", json=said)
    planned = await client.chat(session, "First tell me the time, then tell me the time again")
    things = {
        "session_id": session,
        "turn_id": answer["turn_id"],
        "tool_call_id": call["tool_call_id"],
        "memory_id": noted.json()["id"],
        "mandate_id": allowed.json()["id"],
        "plan_id": planned["plan"]["id"],
        "message_id": answer["message"]["id"],
        "chat_id": session,
        "thread_id": session,
        "run_id": answer["turn_id"],
        "attachment_id": file.json()["id"],
        "schedule_id": schedule.json()["id"],
        "trigger_id": trigger.json()["id"],
        "key_id": key.json()["key"]["id"] if key.status_code == 201 else new_id("key", utc_now()),  # for ops alone
        "response_id": f"resp_{session.removeprefix('ses_')}{answer['turn_id'].removeprefix('turn_')}",
        "conversation_id": session,
    }
    assert things.keys() == OWNED.keys(), "make one of each thing in OWNED here"
    return things


def nothing() -> Things:
    """Ids that could be, and are not."""
    return {name: new_id(prefix, utc_now()) for name, prefix in OWNED.items()}


def seen(response: httpx2.Response) -> tuple[int, set[str], dict[str, Any]]:
    """All that a caller can tell two answers apart by, but for the id of the request."""
    return response.status_code, set(response.headers), {**response.json(), "request_id": None}


def is_turned_away(response: httpx2.Response) -> bool:
    problem = response.headers.get("content-type") == "application/problem+json"
    return response.status_code in (401, 403) or (problem and response.json()["code"].endswith("_not_found"))


def test_every_name_in_a_path_is_known_here() -> None:
    for call in CALLS:
        unknown = set(call.parameters) - OWNED.keys() - SHARED.keys()
        assert not unknown, (
            f"{call} names {sorted(unknown)}. Add each to OWNED in {__file__} with the prefix of its ids, and make one "
            "in things_of; or to SHARED, if it is nobody's."
        )


def test_what_is_open_is_only_what_was_meant_to_be() -> None:
    assert {call.path for call in CALLS} - {call.path for call in CLOSED} == {
        "/",
        "/assets/{asset}",
        "/health/live",
        "/health/ready",
        "/docs",
        "/openapi.json",
        "/hooks/{trigger_id}",
        "/approve/{token}",
        CALLBACK_PATH,
        DOCUMENT_PATH,
    }


async def test_open_paths_answer_without_a_key(service: Client) -> None:
    for path in OPEN_PATHS - {CALLBACK_PATH, DOCUMENT_PATH}:
        assert (await service.http.get(path)).status_code == 200, path
    assert (await service.http.get(CALLBACK_PATH)).status_code == 400  # the state is missing, and not a key
    assert (await service.http.get(DOCUMENT_PATH)).status_code == 404  # no server here asks for a login


async def test_without_a_key_or_with_a_wrong_one_nothing_is_answered(
    service: Client, owner: Client, guarded: Settings
) -> None:
    things = await things_of(owner)
    right = await new_key(guarded, "ada")
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    async with speaking(service, wrong) as impostor:
        for call in CLOSED:
            answers = [await call.send(http, things) for http in (service.http, impostor.http)]
            for response in answers:
                assert response.status_code == 401, call
                assert response.headers["www-authenticate"].startswith("Bearer"), call
            assert seen(answers[0]) == seen(answers[1]), call


async def test_each_role_is_let_in_where_it_belongs_and_what_is_anothers_looks_as_if_it_were_not_there(
    owner: Client, callers: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles × every route × own and foreign; of the roles CI takes three a route. Of ada's things the owner's key may
    all, the other keys nothing. That she is not turned away says that they were there: they are made again only after
    one of them was deleted.
    """
    monkeypatch.setattr("segue.events.user_feed.LASTS_S", 0)  # a stream without an end otherwise
    own, things = {role: await things_of(client) for role, client in callers.items()}, await things_of(owner)
    for call in sorted(CLOSED, key=lambda each: ("owned", "own", "ops").index(kind_of(each))):
        for role, client in ((role, callers[role]) for role in roles_at(call)):
            if kind_of(call) != "owned":
                is_let_in = kind_of(call) == "own" or "ops" in ROLES[role]["scopes"]
                is_let_in &= str(call) not in FOR_READERS or "ops:content" in ROLES[role]["scopes"]
                response = await call.send(client.http, things if set(call.parameters) & OWNED.keys() else {})
                assert (response.status_code not in (401, 403)) == is_let_in, (role, str(call), response.text)
                assert response.status_code < 500, (role, str(call))
            elif role == "ada":
                mine = await call.send(client.http, things)
                assert mine.status_code < 500, call
                has_none = call.path == "/receipts/{tool_call_id}"  # of a call that only reads: test_receipts.py
                assert is_turned_away(mine) == has_none, (str(call), mine.text)
                things = await things_of(owner) if call.method == "DELETE" else things
            elif str(call) not in FOR_OPERATORS or "ops" not in ROLES[role]["scopes"]:
                missing = await call.send(client.http, nothing())
                assert missing.status_code == 404, (role, str(call))
                assert seen(await call.send(client.http, things)) == seen(missing), (role, str(call))
                if len(set(call.parameters) & OWNED.keys()) > 1:
                    at_home = {"session_id": own[role]["session_id"]}
                    inside, outside = {**things, **at_home}, {**nothing(), **at_home}
                    unknown = seen(await call.send(client.http, outside))
                    assert seen(await call.send(client.http, inside)) == unknown, (role, str(call))


async def test_a_door_shows_nobody_the_session_of_another(owner: Client, other: Client) -> None:
    theirs, missing = await things_of(owner), nothing()
    said = {"model": "segue", "messages": [{"role": "user", "content": "hello"}]}
    respond = {"model": "segue", "input": "hello"}

    def asked(things: Things) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
        session = things["session_id"]
        response = "resp_" + session.removeprefix("ses_") + things["turn_id"].removeprefix("turn_")
        return [
            ("/v1/chat/completions", said, {"X-Session-Id": session}),
            ("/v1/chat/completions", said, {"X-OpenWebUI-Chat-Id": session}),
            ("/v1/chat/completions", {**said, "metadata": {"session_id": session}}, {}),
            ("/v1/chat/completions", said, {"X-OpenWebUI-Task": "title", "X-Session-Id": session}),
            ("/v1/responses", {**respond, "conversation": {"id": session}}, {}),
            ("/v1/responses", {**respond, "previous_response_id": response}, {}),
        ]

    for (path, body, headers), (_, no_body, no_headers) in zip(asked(theirs), asked(missing), strict=True):
        refused = await other.http.post(path, json=body, headers=headers)
        unknown = await other.http.post(path, json=no_body, headers=no_headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "session_not_found"), (body, headers)
        assert (refused.json(), set(refused.headers)) == (unknown.json(), set(unknown.headers)), (body, headers)
        assert (await owner.http.post(path, json=body, headers=headers)).status_code == 200, (body, headers)


async def test_lists_hold_nothing_of_others(owner: Client, other: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.events.user_feed.LASTS_S", 0)  # a stream without an end otherwise
    things = await things_of(owner)
    for call in CLOSED:
        if call.method == "GET" and not set(call.parameters) & OWNED.keys():
            response = await call.send(other.http, {})
            assert not [name for name, value in things.items() if value in response.text], call
    [session] = (await owner.get("/sessions"))["items"]
    assert session["id"] == things["session_id"]


async def test_a_cursor_that_names_the_turn_of_another_goes_on_as_one_that_names_none(
    owner: Client, other: Client
) -> None:
    session, theirs = await other.new_session(), await owner.new_session()
    await other.chat(session, "Hello")
    await owner.chat(theirs, "Hello")
    later = await owner.chat(theirs, "Hello again")

    async def page(turn_id: str) -> tuple[int, set[str], dict[str, Any]]:
        return seen(await other.http.get(f"/sessions/{session}/turns", params={"cursor": encode_cursor(turn_id)}))

    assert await page(later["turn_id"]) == await page(nothing()["turn_id"])


async def test_what_is_of_everybody_is_for_ops_alone(owner: Client, other: Client) -> None:
    theirs = (await things_of(other))["session_id"]
    path = f"/sessions/{theirs}/tool-states"
    await other.http.put(f"{path}/current_time", json={"status": "maintenance"})
    reset = {"tool_name": "current_time", "session_id": theirs}
    for method, body in (("GET", None), ("POST", reset)):
        fleet = "/tool-states" if method == "GET" else "/tool-states/reset"
        refused = await other.http.request(method, fleet, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await owner.http.request(method, fleet, json=body)).status_code == 200
    assert (await other.get(path))["tool_states"]["current_time"]["status"] == "available"
