"""`segue doctor`: what it finds and says to do; and, in a process of its own, how it exits."""

import ast
import asyncio
import base64
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue.around.doctor import report
from segue.around.doctor.examine import examine
from segue.around.doctor.report import Diagnosis
from segue.around.embedded.servers import embedded_servers
from segue.config import Settings
from segue.db.migrations import missing_revisions, upgrade
from segue.domain.errors import NotFound
from segue.domain.ids import utc_now
from segue.language.lexicon import load_toml
from tests.support.commands import piped, segue
from tests.support.health import MOODY, connect, fails_out, put
from tests.support.logs import until
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, fails, raw, says
from tests.support.receiver import SECRET, receiving
from tests.support.redis_servers import free_port, plain_server
from tests.support.server import serving
from tests.support.service import running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into

CANARY = "sk-zitronenfalter0123456789"
NO_SUCH_SESSION = "ses_00000000000000000000000000"
SERVICE = {
    "postgres",
    "redis",
    "migrations",
    "queue",
    "turns",
    "running_turns",
    "tools",
    "pgvector",
    "mcp",
    "model",
    "models",
    "data_folder",
    "settings",
}
SESSION = {
    "session",
    "open_turns",
    "last_error",
    "plan",
    "tools",
    "stored",
    "summary",
    "short_term_memory",
    "event_log",
}
COMMON = {"at", "healthy", "problems", "notes"}


def beside(settings: Settings, **changes: Any) -> Settings:
    """The settings of a doctor beside a service with these settings."""
    if not settings.mcp_config.exists():
        settings.mcp_config.write_text('{"mcpServers": {}}')
    return settings.model_copy(update={"openai_api_key": SecretStr(CANARY), **changes})


async def examined(settings: Settings, *session: str) -> tuple[dict[str, Any], str]:
    """The report as JSON and as text."""
    report = await examine(settings, *session)
    document, text = report.json_text(utc_now()), "\n".join(report.lines(utc_now()))
    assert CANARY not in document + text
    found: dict[str, Any] = json.loads(document)
    assert found.keys() == COMMON | (SESSION if session else SERVICE)
    return found, text


def areas(findings: list[dict[str, str]]) -> list[str]:
    return [finding["area"] for finding in findings]


@pytest.mark.sweep
async def test_a_session_with_a_waiting_plan_and_a_failed_tool_is_told_as_it_stands(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    connect(settings, shelf, headers={"Authorization": f"Bearer {CANARY}"})
    async with running(settings) as client:
        session = await fails_out(client, provider, shelf)
        await put(client, session, "mcp_sleepy", "maintenance", reason=f"It sleeps. password={CANARY}")
        provider.will(planned(THREE_STEPS))
        await client.chat(session, ASK)
        report, said = await examined(beside(settings), session)
        with pytest.raises(NotFound, match="There is no session with this id"):
            await examine(beside(settings), NO_SUCH_SESSION)
        messages = len(await client.messages(session))
    assert report["healthy"] is False
    assert report["session"]["owner"] == "local"
    assert report["session"]["status"] == "waiting"
    assert report["session"]["message_count"] == messages
    assert report["plan"]["steps"] == ["complete", "complete", "waiting"]
    assert report["plan"]["current_step"]["tool"] == "mcp_delete_item"
    blocked = {tool["tool"]: tool for tool in report["tools"]["not_available"]}
    assert blocked.keys() == {MOODY, "mcp_sleepy", "mcp_dependent_tool"}
    assert blocked[MOODY]["reason_code"] == "consecutive_failures"
    assert blocked["mcp_dependent_tool"]["reason_code"] == "missing_dependencies"
    assert report["stored"]["messages"]["rows"] == messages
    assert report["stored"]["tool_results"]["bytes"] > 100
    assert report["short_term_memory"]["current"] is True
    assert report["event_log"]["present"] is True
    assert report["summary"]["covers_until_seq"] == 0
    assert (areas(report["problems"]), areas(report["notes"])) == (["tools"], ["plan", "tools"])
    assert "Step 3 (mcp_delete_item) waits for the user's yes until" in said
    assert f"tools: {MOODY} may not run (failed): the shelf is closed" in said
    assert "→ wait until" in said


@pytest.mark.sweep
async def test_a_session_whose_process_died_says_so_and_what_waits_behind_it(
    settings: Settings, provider: Provider
) -> None:
    provider.will(fails(401))
    async with running(settings) as client:
        session = await client.new_session()
        await client.send(session, "hello")
    async with running(settings, takes_turns=False) as client:
        for message in ("one", "two"):
            assert (await client.send(session, message, background=True)).status_code == 202
    async with looking_into(settings) as stores:
        await stores.database.execute(
            "UPDATE turns SET status = 'running', worker = 'w1', epoch = 2, attempts = 2, started_at = now(),"
            " lease_until = now() - interval '90 s' WHERE id = (SELECT min(id) FROM turns WHERE status = 'queued')"
        )
        await stores.database.execute(
            "INSERT INTO tool_calls (id, session_id, turn_id, message_id, tool_name, args, status, started_at)"
            " SELECT 'call_x', t.session_id, t.id, m.id, $1, '{}', 'running', now() - interval '95 s'"
            " FROM turns t JOIN messages m ON m.turn_id = t.id WHERE t.status = 'running'",
            MOODY,
        )
        hung = await stores.database.fetchval("SELECT id FROM turns WHERE status = 'running'")
        said = {"at": utc_now().isoformat(), "turns": {hung: {"epoch": 2, "node": "tool_loop", "model": None}}}
        await stores.redis.set("segue:activity:w1", json.dumps(said), ex=60)
    provider.will(fails(401))
    report, _ = await examined(beside(settings), session)
    service, _ = await examined(beside(settings))
    running_turn, waiting = report["open_turns"]
    assert (report["healthy"], report["session"]["status"]) == (False, "running")
    assert (running_turn["held_by"], running_turn["epoch"], running_turn["attempts"]) == ("w1", 2, 2)
    assert running_turn["lease_left_s"] < -80
    assert (waiting["status"], waiting["held_by"]) == ("queued", None)
    assert report["last_error"]["code"] == "model_unavailable"
    assert report["last_error"]["is_last_turn"] is False
    assert areas(report["problems"]) == ["turn"]
    assert "w1 has died or hangs" in report["problems"][0]["what"]
    assert service["turns"] | {"longest_running_s": None, "oldest_queued_s": None} == {
        "queued": 1,
        "running": 1,
        "running_on": 1,
        "leases_passed": 1,
        "longest_running_s": None,
        "oldest_queued_s": None,
    }
    [told] = service["running_turns"]
    assert (told["session_id"], told["instance"], told["node"]) == (session, "w1", "tool_loop")
    [lapsed] = [each["what"] for each in service["problems"] if each["area"] == "turns"]
    assert f"w1: {hung}, session {session}, tool_loop, tool {MOODY} since " in lapsed
    assert service["queue"]["workers"] == 0
    assert sorted(areas(service["problems"])) == ["model", "queue", "turns"]


async def test_a_service_that_is_well_exits_with_zero(settings: Settings, provider: Provider, shelf: Shelf) -> None:
    connect(settings, shelf)
    provider.will(says("ok"))
    async with running(settings):
        report, _ = await examined(beside(settings))
    assert (report["healthy"], report["problems"]) == (True, [])
    assert report["postgres"]["reachable"] is True
    assert report["redis"]["reachable"] is True
    assert report["migrations"]["missing"] == []
    assert report["queue"]["workers"] == 1
    assert (report["model"]["name"], report["model"]["answers"]) == ("scripted", True)
    [server] = report["mcp"]
    assert (server["name"], server["state"]) == ("shelf", "ready")
    assert server["tools"] > 5


async def test_a_redis_that_may_forget_to_make_room_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    there = beside(settings, redis_url=SecretStr(f"redis://127.0.0.1:{port}"), openai_base_url="http://127.0.0.1:1/v1")
    async with plain_server(port, tmp_path, "--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"):
        report, said = await examined(there)
        assert report["redis"]["eviction"] == "volatile-lru"
        assert "It may drop keys to make room (maxmemory-policy volatile-lru)" in said
    async with plain_server(port, tmp_path, "--maxmemory-policy", "allkeys-lru"):  # it has no limit to make room for
        assert "redis" not in areas((await examined(there))[0]["problems"])


async def test_a_webhook_that_takes_nothing_and_a_trigger_that_no_key_opens_are_problems(
    settings: Settings, provider: Provider
) -> None:
    def key(byte: int) -> SecretStr:
        return SecretStr(base64.b64encode(bytes([byte]) * 32).decode())

    async with receiving() as receiver, looking_into(settings) as stores:
        receiver.answer = lambda _: Response(status_code=500)
        hooks = {"webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET), "mcp_token_key": key(1)}
        told = beside(settings, **hooks)
        async with running(told) as client:
            provider.will(says("Lemons."))
            await client.chat(await client.new_session(), "What grows here?")
            await stores.until("SELECT count(*) = 1 FROM webhook_events WHERE failure IS NOT NULL")
            trigger = {"message": "Sum it up", "new_session": True}
            assert (await client.http.post("/triggers", json=trigger)).status_code == 201
        provider.always("Are you there?", says("ok"))
        assert {"webhook", "triggers"}.isdisjoint(areas((await examined(told))[0]["problems"]))
        await stores.database.execute("UPDATE webhook_events SET created_at = now() - interval '26 hours'")
        _, said = await examined(told.model_copy(update={"mcp_token_key": key(2)}))
        assert "1 events wait for the webhook, the first for 1 day, 2:00:0" in said
        assert ": HTTP 500." in said
        assert "No key of MCP_TOKEN_KEY opens the secrets of 1 triggers" in said
        _, said = await examined(told.model_copy(update={"mcp_token_key": None, "webhook_url": None}))
        assert "opens the secrets of 1 triggers" in said
        assert "for the webhook" not in said


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Response(status_code=404), "cannot be read (Client error '404 Not Found')"),
        (Response("<html>"), "cannot be read (unexpected character"),
        (Response('{"keys": []}'), "has no key that can check tokens"),
        (None, "cannot be read (All connection attempts failed)"),
    ],
)
async def test_an_identity_provider_whose_keys_cannot_be_read_is_a_problem(
    settings: Settings, answer: Response | None, found: str
) -> None:
    async def give(_: Request) -> Response:
        assert answer is not None
        return answer

    async with serving(Starlette(routes=[Route("/keys", give)])) as url:
        at = f"{url}/keys" if answer else "http://127.0.0.1:1/keys"
        tokens = {"auth": "jwt", "jwt_issuer": "us", "jwt_audience": "segue", "jwt_jwks_url": at}
        _, said = await examined(beside(settings, openai_base_url="http://127.0.0.1:1/v1", **tokens))
        assert f"JWT_JWKS_URL={at} {found}" in said.replace("The keys at ", "")


async def test_a_protection_with_a_misspelt_name_of_a_tool_is_a_problem(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    connect(settings, shelf, confirm=["relable"], idempotency_arg={"stamp": "item_id"})
    provider.will(says("ok"))
    report, said = await examined(beside(settings))
    assert areas(report["problems"]) == ["queue", "mcp"]  # nothing serves
    assert "server shelf does not have: relable (confirm), stamp (idempotency_arg)." in said


@pytest.mark.parametrize(
    ("answer", "todo"),
    [
        (fails(401), "Check OPENAI_API_KEY."),
        (fails(404, body='{"error": {"code": "model_not_found"}}'), "Check LLM_MODEL."),
        (raw("<html>Hello</html>", media_type="text/html"), "Check OPENAI_BASE_URL: what is there does not speak this"),
    ],
    ids=["a wrong key", "a wrong model", "a wrong URL"],
)
async def test_the_model_is_asked_as_a_turn_asks_and_a_refusal_names_the_setting(
    settings: Settings, provider: Provider, answer: Response, todo: str
) -> None:
    provider.will(answer)
    report, said = await examined(beside(settings))
    [request] = provider.requests
    assert (request["stream"], len(request["tools"])) == (True, 1)
    [problem] = [each for each in report["problems"] if each["area"] == "model"]
    assert problem["do"].startswith(todo)
    assert todo in said


@pytest.mark.sweep
async def test_a_key_of_several_that_is_refused_is_told_by_its_number_and_what_the_service_leaves_out(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    async def takes_the_second(_: dict[str, Any]) -> Response:
        return says("ok") if provider.headers[-1]["authorization"].endswith("-2") else fails(429)

    provider.always("hello", takes_the_second)
    provider.always("Are you there?", takes_the_second)
    (tmp_path / "OPENAI_API_KEY").write_text(f"{CANARY}-0 {CANARY}-2")
    listed = SecretStr(f"{CANARY}-1,{CANARY}-2")
    keys = {"openai_api_key": listed, "llm_fallback_model": "spare,other", "secrets_dir": tmp_path}
    async with running(settings.model_copy(update=keys)) as client:
        before = (await client.get("/ops/doctor"))["models"]
        await client.chat(await client.new_session(), "hello")
        report = await client.get("/ops/doctor")
    assert CANARY not in str(report)
    found = [(each["name"], each["key"], each["outcome"]) for each in report["models"]]
    assert found == [
        (name, number, "answered" if number == 2 else "rate_limit")
        for name in ("scripted", "spare", "other")
        for number in (1, 2)
    ]
    assert [each["left_out"] for each in (*before[:2], *report["models"][:2])] == [None, None, "rate_limit", None]
    said = [each["what"] for each in report["problems"] if each["area"] == "model"]
    assert "does not answer with key 1 of OPENAI_API_KEY (rate_limit)" in said[0]
    assert len(said) == 3


async def test_paths_that_cannot_even_be_looked_at_are_told_and_end_no_report() -> None:
    settings = Settings(_env_file=None, mcp_config=Path("x" * 300), data_dir=Path("y" * 300))
    report, _ = await examined(settings)
    assert {"stores", "mcp"} <= {*areas(report["problems"])}


async def test_what_is_down_or_set_wrongly_is_told_with_what_to_do(tmp_path: Path) -> None:
    mcp = tmp_path / "mcp.json"
    mcp.write_text(json.dumps({"mcpServers": {"gone": {"url": "http://127.0.0.1:1/mcp"}}}))
    settings = Settings(
        _env_file=None,
        database_url=SecretStr(f"postgresql://u:{CANARY}@127.0.0.1:1/x"),
        redis_url=SecretStr(f"redis://:{CANARY}@127.0.0.1:1"),
        openai_base_url="http://127.0.0.1:1/v1",
        openai_api_key=SecretStr(CANARY),
        mcp_config=mcp,
        host="0.0.0.0",  # noqa: S104 (it is what is found wrong)
        allow_anonymous=True,
        llm_timeout_s=1000,
        llm_first_token_timeout_s=1000,
        llm_small_model="small",
    )
    (service, said), (report, _) = await asyncio.gather(examined(settings), examined(settings, NO_SUCH_SESSION))
    assert (service["healthy"], report["healthy"]) == (False, False)
    for what in (
        "PostgreSQL at 127.0.0.1:1/x cannot be used: nothing listens there.",
        "Redis at 127.0.0.1:1 cannot be used: nothing listens there.",
        "The MCP server gone is not ready",
        "gpt-5-mini at 127.0.0.1 does not answer (unreachable): The model provider cannot be reached: check",
        "small at 127.0.0.1 does not answer (unreachable): The model provider cannot be reached: check OPENAI_BASE",
        "AUTH=none on HOST=0.0.0.0",
        "LLM_TIMEOUT_S is not below TURN_TIMEOUT_S=900",
        "LLM_FIRST_TOKEN_TIMEOUT_S is not below LLM_TIMEOUT_S=1000",
    ):
        assert what in said
    assert areas(report["problems"]) == ["postgres", "redis", "mcp"]


@pytest.mark.sweep
async def test_turns_that_another_connection_locks_are_told_with_who_it_is(settings: Settings) -> None:
    async with looking_into(settings) as stores, stores.database.transaction():
        await stores.database.execute("LOCK TABLE turns IN SHARE MODE")  # as CREATE INDEX does: they can be read

        async def is_told() -> bool:
            _, said = await examined(beside(settings, openai_base_url="http://127.0.0.1:1/v1"))
            return f"another connection holds a lock, probably blocked by pid {pid} (" in said

        pid = stores.database.get_server_pid()
        await until(is_told)


@pytest.mark.sweep
async def test_embedded_servers_are_looked_at_as_they_are_and_none_is_made(tmp_path: Path) -> None:
    data, mcp = tmp_path / "data", tmp_path / "mcp.json"
    mcp.write_text('{"mcpServers": {}}')
    _, said = await examined(Settings(_env_file=None, data_dir=data, mcp_config=mcp))
    assert f"There is no database in {data}" in said
    assert not data.exists()
    around = {"DATA_DIR": str(data), "MCP_CONFIG": str(mcp), "AUTH": "api_key"}
    servers = embedded_servers(data, fast=True)
    urls = await asyncio.to_thread(servers.__enter__)
    await asyncio.to_thread(upgrade, urls.database_url)
    redis = int((data / "redis.pid").read_text())
    try:
        os.kill(redis, signal.SIGSTOP)
        whole, (unknown, refused) = await asyncio.gather(
            asyncio.to_thread(piped, "", "doctor", "--json", **around),
            asyncio.to_thread(segue, "doctor", NO_SUCH_SESSION, **around),
        )
    finally:
        os.kill(redis, signal.SIGCONT)
        await asyncio.to_thread(servers.__exit__, None, None, None)
    report = json.loads(whole.stdout)
    assert whole.returncode == 1
    assert areas(report["problems"]) == ["redis", "settings"]
    assert "segue keys create" in report["problems"][1]["do"]
    assert report["postgres"]["reachable"] is True
    assert report["data_folder"]["path"] == str(data)
    assert (unknown, "There is no session with this id" in refused) == (2, True)
    assert "Traceback" not in whole.stderr + refused


def test_what_a_database_lacks_is_told_by_revision_and_one_of_a_newer_version_is_not_guessed_at() -> None:
    everything = missing_revisions(None)
    assert everything is not None
    assert everything[0] == "0001"
    assert missing_revisions("0006") == everything[6:]
    assert missing_revisions(everything[-1]) == ()
    assert missing_revisions("9999") is None


def test_what_tools_wrote_cannot_write_on_the_terminal_and_no_secret_is_shown() -> None:
    report = Diagnosis("Segue")
    report.parts = {"tools": [{"reason": f"\x1b[2Jgone\n\u202egnorw password={CANARY}", "free_bytes": 1_500_000}]}
    said = "\n".join(report.lines(datetime(2026, 11, 20, tzinfo=UTC)))
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert CANARY not in said
    assert "free 1.5 MB" in said


def test_every_finding_has_a_row_with_the_values_that_it_is_given() -> None:
    table = load_toml("findings.toml", package="segue.around.doctor")
    rows = {f"{area}.{name}": row for area, of in table.items() for name, row in of.items()}
    sources = [ast.parse(file.read_text("utf-8")) for file in Path(report.__file__).parent.glob("*.py")]
    nodes = [node for source in sources for node in ast.walk(source)]
    assert rows.keys() == {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in rows}
    for call in nodes:
        match call:
            case ast.Call(func=ast.Attribute(attr="add"), args=[ast.Constant(value=str(name))], keywords=given):
                row = rows[name]
                fields = {field for text in (row["what"], row["do"]) for _, field, _, _ in Formatter().parse(text)}
                assert fields - {None} == {value.arg for value in given}, name
