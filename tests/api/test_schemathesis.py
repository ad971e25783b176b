"""Every operation of the OpenAPI description, called with what it allows and with what it does not."""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from typing import Any
from zlib import crc32

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from pydantic import SecretStr
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from segue.config import Settings
from segue.domain.identity import SCOPES
from tests.support.identity import new_key, speaking
from tests.support.login_server import serving_logins
from tests.support.mailbox import write_mailbox_config
from tests.support.patience import PATIENCE_S
from tests.support.service import Client, running
from tests.support.stores import looking_into

IS_SWEEP = "SWEEP" in os.environ
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2" if IS_SWEEP else "1"))  # of each operation and mode
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)  # CI gives every fourth operation something wrong
WAIT_S = PATIENCE_S
PLAN = "Cerca le mail di Rossi, poi leggi la più recente e infine scrivi una risposta"
OF_NO_ROUTE = {"not_found", "method_not_allowed"}
CONVERSATIONS: dict[str, Any] = {  # what is in a message says OpenAI's description, not ours
    "/v1/chat/completions": {"model": "segue", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"model": "segue", "stream": True, "input": [{"role": "user", "content": "hello"}]},
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # of schemathesis' own strategies
async def test_no_operation_fails_or_answers_otherwise_than_described(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.events.user_feed.LASTS_S", 0)  # a stream without an end otherwise
    config, _ = write_mailbox_config(settings.mcp_config.parent)
    sealing = SecretStr("bmV3" * 10 + "bmU=")
    offline = settings.model_copy(update={"openai_base_url": None, "auth": "api_key", "mcp_token_key": sealing})
    key = await new_key(settings, "ada", SCOPES)
    async with (
        serving_logins(config) as _,
        running(offline) as service,
        speaking(service, key) as client,
    ):
        await client.connected("mailbox")
        known = await _things_that_exist(client)
        known["/retry"] = await _failed_turn(client, settings)
        base_url = str(client.http.base_url).rstrip("/")
        description = (await client.http.get("/openapi.json")).json()
        answered, faults = await asyncio.to_thread(_call_everything, description, base_url, known, key)
    assert faults == {}
    operations = {f"{method.upper()} {path}" for path, item in description["paths"].items() for method in item}
    assert answered.keys() == operations
    for operation, statuses in sorted(answered.items()):
        print(operation, dict(statuses))  # noqa: T201 (the report)
    refused = [operation for operation, statuses in answered.items() if not any(status < 400 for status in statuses)]
    assert refused == ["POST /hooks/{trigger_id}"]  # which is signed


async def _things_that_exist(client: Client) -> dict[str, Any]:
    session = await client.new_session(title="one")
    answer = await client.chat(session, "what time is it?")
    plan = await client.chat(session, PLAN)
    asking = await client.new_session()
    asked = await client.chat(asking, PLAN)
    listed = await client.chat(await client.new_session(), PLAN)
    granting = await client.new_session()
    granted = await client.chat(granting, PLAN)
    grant = {"decision": "confirm", "version": granted["plan"]["version"], "remember": "session"}
    decided = (await client.http.post(f"/sessions/{granting}/plan/decision", json=grant)).json()
    [remembered] = (await client.get(f"/sessions/{granting}/grants"))["items"]
    memory = await client.http.post("/memories", json={"content": "I have a cat", "kind": "fact"})
    edited = await client.new_session()
    await client.chat(edited, "hello")
    file = await client.http.post(f"/sessions/{edited}/attachments", files={"file": ("notes.txt", b"tea")})
    key = await client.http.post("/ops/keys", json={"user": "bob"})
    response = await client.http.post("/v1/responses", json={"model": "segue", "input": "hello, all alone"})
    said = {"new_session": True, "message": "hello"}
    schedule = await client.http.post("/schedules", json={**said, "cron": "0 9 * * *"})
    trigger = await client.http.post("/triggers", json=said)
    mandate = await client.http.post("/mandates", json={"tool": "current_time", "scope": "user"})
    return {
        "schedule_id": schedule.json()["id"],
        "trigger_id": trigger.json()["id"],
        "mandate_id": mandate.json()["id"],
        "confirm": (await client.get("/me"))["user"],
        "key_id": key.json()["key"]["id"],
        "session_id": session,
        "chat_id": session,
        "thread_id": session,
        "run_id": answer["turn_id"],
        "assistant_id": "segue",
        "turn_id": answer["turn_id"],
        "response_id": f"resp_{session.removeprefix('ses_')}{answer['turn_id'].removeprefix('turn_')}",
        "conversation_id": session,
        "tool_call_id": answer["tool_calls"][0]["tool_call_id"],
        "memory_id": memory.json()["id"],
        "message_id": answer["message"]["id"],
        "/{response_id}": {"response_id": response.json()["id"]},
        "/{attachment_id}": {"session_id": edited, "attachment_id": file.json()["id"]},
        "agent_id": "segue",
        "mcp_server": "mailbox",
        "/login": {"mcp_server": "diary"},
        "user": "bob",
        "/{user}": {"confirm": "bob"},
        "tool": "current_time",
        "plan_id": listed["plan"]["id"],
        "version": plan["plan"]["version"],
        "/{thread_id}": {"thread_id": await client.new_session()},
        "/edit": {"session_id": edited, "message_id": (await client.messages(edited))[0]["id"]},
        "/{tool}": {"session_id": granting, "tool": remembered["tool"]},
        "/{tool_call_id}": {"session_id": granting, "tool_call_id": decided["effects"][0]["tool_call_id"]},
        "/fork": {"session_id": asking, "message_id": asked["message"]["id"]},
        "approval": {"session_id": asking, "version": asked["plan"]["version"]},
    }


async def _failed_turn(client: Client, settings: Settings) -> dict[str, str]:
    session = await client.new_session()
    turn = (await client.chat(session, "hello"))["turn_id"]
    async with looking_into(settings) as stores:
        await stores.database.execute("DELETE FROM messages WHERE turn_id = $1 AND role = 'assistant'", turn)
        await stores.database.execute("UPDATE turns SET status = 'failed', report = NULL WHERE id = $1", turn)
    return {"session_id": session, "turn_id": turn}


def _call_everything(
    description: Any, base_url: str, known: dict[str, Any], key: str
) -> tuple[dict[str, Counter[int]], dict[str, str]]:
    """How often each operation answered with which status, and what was wrong. What exists is deleted last."""
    schema = schemathesis.openapi.from_dict(description)
    answered: dict[str, Counter[int]] = {}
    faults: dict[str, str] = {}
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    with requests.Session() as http:
        http.headers["X-API-Key"] = key
        for operation in sorted(operations, key=_looks_decides_changes_deletes):
            name = f"{operation.method.upper()} {operation.path}"
            statuses = answered.setdefault(name, Counter())
            is_in_turn = IS_SWEEP or crc32(name.encode()) % 4 == 0
            for mode in MODES if is_in_turn else MODES[:1]:
                try:
                    with suppress(Unsatisfiable):  # what takes nothing cannot be given anything wrong
                        _call(operation.as_strategy(generation_mode=mode), base_url, http, known, statuses)
                except* Failure as failures:
                    faults[name] = str(failures)
    return answered, faults


def _looks_decides_changes_deletes(operation: APIOperation[Any, Any, Any, Any]) -> tuple[int, bool]:
    erased = {"/ops/users/{user}": 3, "/me": 4}.get(operation.path, 2)
    rank = {"GET": 0, "DELETE": erased}.get(operation.method.upper(), 1)
    return rank, not operation.path.endswith("/decision")


def _check_code(case: Case[Any], response: Any) -> None:
    if response.status_code < 400:
        return
    problem = response.json()
    declared = case.operation.definition.raw["responses"]["default"]["x-problem-codes"]
    code = problem["error"]["code"] if "error" in problem else problem["code"]
    assert code.replace("model_not_found", "unknown_agent") in {*declared, *OF_NO_ROUTE}, (case.path, case.method)


def _call(
    cases: st.SearchStrategy[Case[Any]],
    base_url: str,
    http: requests.Session,
    known: dict[str, Any],
    statuses: Counter[int],
) -> None:
    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, exists=st.sampled_from([True, True, False]))
    def call(case: Case[Any], *, exists: bool) -> None:
        if exists:
            here = known | known.get(case.path[case.path.rindex("/") :], {})
            case.path_parameters.update({name: here[name] for name in case.path_parameters})
            case.query.update({name: here[name] for name in case.query.keys() & {"confirm"}})
            if isinstance(case.body, dict) and type(case.body.get("version")) is int:
                case.body["version"] = int(known["version"])
            if case.meta is not None and case.meta.generation.mode.is_positive:
                _fit(case, here)
        response = case.call(base_url=base_url, session=http, timeout=WAIT_S)
        statuses[response.status_code] += 1
        _check_code(case, response)
        case.validate_response(response, checks=CHECKS)

    call()


def _fit(case: Case[Any], here: dict[str, Any]) -> None:  # noqa: C901, PLR0912 (one case for each body)
    """Puts into a body what the description cannot say of it: what exists, and what is a client's to choose."""
    body: Any = case.body
    match case.path.rpartition("/")[2]:
        case "{mcp_server}":
            body.update(name="answer_mail", arguments={})
        case "fork":
            case.body = {"message_id": here["message_id"]}
        case "decisions":
            case.body = {"items": [{**here["approval"], "decision": "reject"}]}
        case "decision":  # which arguments go with it is the tool's to say
            case.body = {"decision": "reject", "version": int(here["version"])}
        case "reset" if case.path == "/tool-states/reset":
            case.body = {"tool_name": here["tool"]}
        case "mandates":  # a tool there is
            case.body = {"tool": here["tool"], "scope": "user"}
        case "keys":  # who may be named, and until when
            case.body = {"user": "bob"}
        case "agui":
            case.body = {"threadId": "a thread", "runId": "a run", "messages": []}
        case "attachments" if case.method == "POST":
            body["file"] = b"tea"  # not any bytes are a file that is taken
        case "chat" if case.path.startswith("/api/"):
            said: Any = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}
            case.body = {"id": "a chat", "messages": [said]}
        case "runs" | "stream" | "wait":
            case.body = {"assistant_id": "segue", "input": {"messages": "hello"}}
        case "threads":
            case.body = {}
        case "schedules":  # one of the ways to say when, and where
            case.body = {"new_session": True, "message": "hello", "cron": "0 9 * * *"}
        case "triggers":
            case.body = {"new_session": True, "message": "hello"}
        case "{schedule_id}":
            case.body = {"status": "active"}
        case "{trigger_id}" if case.path.startswith("/triggers/"):
            case.body = {"status": "active"}
        case "chat" | "edit":
            body.pop("attachments", None)
        case _ if case.path in CONVERSATIONS:
            case.body = CONVERSATIONS[case.path]
