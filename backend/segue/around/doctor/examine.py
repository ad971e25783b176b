"""Examines the whole service, or one session: for `segue doctor`, which opens what it needs, and for GET /ops/doctor.
Each part is looked at by itself, so that one that is down does not hide the others.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr

from segue.around.doctor.examine_stores import Unreachable, look_at_stores, opened, reading
from segue.around.doctor.report import FINDINGS, Diagnosis
from segue.around.embedded.server_urls import OpenStores
from segue.config import Settings
from segue.domain.agent import OFFLINE, provider_and_id
from segue.domain.errors import AppError
from segue.domain.identity import is_loopback
from segue.domain.ids import Clock, utc_now
from segue.domain.telemetry import unobserved, untraced
from segue.events.outbox import read_outbox, read_pending
from segue.history.operator_turns import TurnFilter, list_any, with_activity
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import MAX_GUESSED_SHOWN, McpServers
from segue.mcp.status import STDERR_SHOWN
from segue.net.http_client import tls_context
from segue.secret_files import LiveKeys, SecretFiles, read_secrets
from segue.tools.availability import ToolAvailability
from segue.tools.tool_states import failed_for_all
from segue.turns.queries import overview, sealed_of_triggers
from segue.turns.queue import QueueFacts, look_at_queue
from segue.users.api_keys import list_keys

if TYPE_CHECKING:
    from segue.models.chat_model import ChatModel

MODEL_S = 10.0
LITTLE_DISK_BYTES = 1_000_000_000
LATE_S = 10.0  # how long a turn may wait while none runs
WEBHOOK_LATE_S = 1800.0  # as the alert SegueWebhookLate


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines a service; stores and MCP servers are None if they cannot be used. One examination at a time."""

    settings: Settings
    stores: OpenStores | None
    mcp: McpServers | None
    files: SecretFiles
    own: tuple[ToolAvailability, Clock] | None = None  # of the service that it is part of
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def examine(self, session_id: str | None, *, words: bool) -> dict[str, Any]:
        """Returns what `segue doctor --json` prints. Without `words` it holds no text of users. Raises NotFound."""
        report = Diagnosis.of(session_id)
        async with self.turnstile:
            await self.look(report, session_id, words=words)
        return report.as_json(self.own[1]() if self.own else utc_now())

    async def look(self, report: Diagnosis, session_id: str | None, *, words: bool = True) -> None:
        settings, stores = self.settings, self.stores
        found, server = await look_at_stores(stores, report)
        migrations, redis = found["migrations"], found["redis"]
        readable = stores if migrations and not migrations["missing"] else None
        if session_id is not None:
            _look_at_mcp(self.mcp, report)
            if readable is not None:
                from segue.around.doctor.examine_session import look_at_session, open_tools  # noqa: PLC0415 (they take seconds)

                async with AsyncExitStack() as stack:
                    tools, clock = self.own or await open_tools(stack, settings, readable, self.mcp)
                    await look_at_session(session_id, readable, tools, clock, report, words=words)
            return
        parts = found | dict.fromkeys(("queue", "turns", "running_turns", "tools", "pgvector"))
        if stores is not None and redis["reachable"]:
            parts["queue"] = await look_at_queue(stores.urls.redis_url)
            failed = sorted(await failed_for_all(stores.cache))
            for tool in failed:
                report.add("tools.failed_for_all", tool=tool)
            parts["tools"] = {"failed_for_all": failed}
        if readable is not None:
            parts |= await _look_at_turns(readable, parts["queue"], report)
            await _look_at_events(settings, readable, report)
        if server:
            parts["pgvector"] = {"version": server.pgvector, "embedding_model": settings.embedding_model}
            if settings.embedding_model and server.pgvector is None:
                report.add("pgvector.missing")
        models = await _look_at_models(settings, self.files, report)
        report.parts = {
            **parts,
            "mcp": _look_at_mcp(self.mcp, report),
            "model": models[0],
            "models": models,
            "data_folder": await asyncio.to_thread(_look_at_data_folder, settings, report),
            "settings": await _look_at_settings(settings, readable, report),
        }


async def examine(settings: Settings, session_id: str | None = None) -> Diagnosis:
    """Returns the report about the service, or about one session. Raises NotFound if there is no such session."""
    report = Diagnosis.of(session_id)
    async with AsyncExitStack() as stack:
        stores: OpenStores | None = None
        try:
            stores = await opened(stack, settings)
        except AppError as error:
            report.add("stores.not_opened", why=error.detail)
        mcp = await _mcp_servers(stack, settings, report)
        await Doctor(settings, stores, mcp, SecretFiles(settings.secrets_dir)).look(report, session_id)
    return report


# --- turns ---


async def _look_at_turns(stores: OpenStores, queue: QueueFacts | None, report: Diagnosis) -> dict[str, Any]:
    try:
        async with reading(stores.database) as connection:
            turns = await overview(connection)
            running = await list_any(connection, TurnFilter(status="running"), limit=50)
            running = await with_activity(stores.cache, running)
    except Unreachable as error:
        report.add("turns.unknown", why=error)
        return {}
    if queue is not None and queue.workers == 0:
        report.add("queue.no_worker")
    if turns.leases_passed:
        where = ""
        for turn in running:
            if (turn.lease_left_s or 0) < 0:
                waits = [f"{each.kind} {each.name} since {each.since:%H:%M:%S} UTC" for each in turn.running]
                at = [turn.turn_id, f"session {turn.session_id}", *([turn.node] if turn.node else ()), *waits]
                where += f" {turn.instance}: {', '.join(at)}."
        report.add("turns.lapsed", count=turns.leases_passed, where=where)
    if turns.oldest_queued_s is not None and turns.oldest_queued_s > LATE_S and not turns.running:
        report.add("turns.waiting", waiting_s=turns.oldest_queued_s)
    return {"turns": turns, "running_turns": running}


# --- events that go out and come in ---


async def _look_at_events(settings: Settings, stores: OpenStores, report: Diagnosis) -> None:
    """Looks whether the webhook takes events, and whether triggers can check theirs."""
    seal = None
    if keys := settings.mcp_token_keys:
        from segue.mcp.oauth.login_tokens import Seal  # noqa: PLC0415 (cryptography is slow to import)

        seal = Seal(keys)
    with suppress(Unreachable):  # which is a problem of its own
        async with reading(stores.database) as connection:
            sealed = await sealed_of_triggers(connection)
            if unopened := sum(seal is None or seal.open_text(each) is None for each in sealed):
                report.add("triggers.unopened", count=unopened)
            pending, waited_s = await read_pending(connection)
            if settings.webhook_url is not None and waited_s > WEBHOOK_LATE_S:
                why = ", ".join((await read_outbox(connection)).failing) or "no process sends them"
                report.add("webhook.late", pending=pending, waited=timedelta(seconds=round(waited_s)), why=why)


# --- models ---


async def _look_at_models(settings: Settings, files: SecretFiles, report: Diagnosis) -> list[dict[str, Any]]:
    """Asks every configured model one short question, with each key. Returns what they did, the main model first."""
    if not settings.model_configured:
        report.add("model.offline")
        return [{"name": OFFLINE, "at": "built in", "answers": None, "outcome": None, "latency_ms": None}]
    from segue.models.open_models import open_model  # noqa: PLC0415 (LangChain takes a second)

    times = ("llm_timeout_s", "llm_first_token_timeout_s", "llm_idle_timeout_s")
    bounded = settings.model_copy(update={**dict.fromkeys(times, MODEL_S), "llm_max_retries": 0})
    probes: list[Awaitable[dict[str, Any]]] = []
    async with AsyncExitStack() as stack:
        for setting, name in settings.named_models:
            provider, _ = provider_and_id(name)
            given, _ = settings.access_to(provider)
            keys = files.keys(provider.key, given.get_secret_value() if given else "")
            for number, key in enumerate(keys.all, start=1):
                with_key = bounded.model_copy(update={provider.key.lower(): SecretStr(key)} if key else {})
                model = await open_model(stack, with_key, name, setting, observe=unobserved, span=untraced)
                probes.append(_probe(model, settings, report, keys, number))
        return await asyncio.gather(*probes)


async def _probe(model: "ChatModel", settings: Settings, report: Diagnosis, keys: LiveKeys, nth: int) -> dict[str, Any]:
    from segue.models.refusals import outcome_of, what_to_mend  # noqa: PLC0415 (the same)

    where = urlsplit(settings.access_to(model.provider)[1] or model.provider.default_url).hostname or "?"
    latency_ms, outcome, is_one = None, "answered", len(keys.all) == 1
    key = {} if is_one else {"key": nth, "left_out": keys.left_out().get(nth)}
    with_key = "" if is_one else f" with key {nth} of {keys.name}"
    started = time.monotonic()
    try:
        await model.probe()
        latency_ms = round((time.monotonic() - started) * 1000, 1)
    except AppError as error:
        outcome = outcome_of(error)
        why = f"nothing within {MODEL_S:g} s." if error.code == "model_timeout" else error.detail
        mend = what_to_mend(error, model.setting, model.provider)
        report.add("model.silent", model=model.name, where=where, key=with_key, outcome=outcome, why=why, mend=mend)
    answers = latency_ms is not None
    return {"name": model.name, "at": where, "answers": answers, "outcome": outcome, "latency_ms": latency_ms, **key}


# --- MCP servers ---


async def _mcp_servers(stack: AsyncExitStack, settings: Settings, report: Diagnosis) -> McpServers | None:
    """Returns the servers of mcp.json, connected for the report. None if the file cannot be used."""
    if "mcp_config" in settings.model_fields_set and not os.access(settings.mcp_config, os.F_OK):
        report.add("mcp.no_file", path=settings.mcp_config)
    try:
        config = read_mcp_config(settings.mcp_config, read_secrets(settings.secrets_dir))
        servers = McpServers(config, timeout_s=settings.tool_timeout_s, start_timeout_s=6.0)
        return await stack.enter_async_context(servers)
    except AppError as error:
        report.add("mcp.invalid", why=error.detail)
        return None


def _look_at_mcp(servers: McpServers | None, report: Diagnosis) -> list[dict[str, Any]]:
    if servers is None:
        return []
    if servers.refused:
        report.add("mcp.refused", why=servers.refused)
    if servers.config.ignored:
        report.add("mcp.ignored", keys="; ".join(servers.config.ignored))
    for name, unknown in servers.unknown_tools().items():
        report.add("mcp.unknown_tools", server=name, tools=", ".join(unknown))
    specs, parts = [tool.spec for tool in servers.tools()], []
    for server in servers.statuses():
        own = [spec for spec in specs if spec.source == f"mcp:{server.name}"]
        if guessed := [spec.name for spec in own if spec.effect_guessed]:
            names = ", ".join(guessed[:MAX_GUESSED_SHOWN]) + (" and more" if guessed[MAX_GUESSED_SHOWN:] else "")
            report.add("mcp.guessed", count=len(guessed), server=server.name, tools=names)
        if server.state != "ready":
            from segue.mcp.call_failures import cause_and_advice  # noqa: PLC0415 (mcp takes a second)

            cause, advice = cause_and_advice(server.state)
            do = f"{advice[:1].upper()}{advice[1:]}." if advice else "Ask again in a moment."
            report.add("mcp.not_ready", server=server.name, cause=cause, advice=do)
        stderr = [] if server.state == "ready" else server.stderr[-STDERR_SHOWN:]
        parts.append({"name": server.name, "state": server.state, "tools": len(own), "stderr": stderr})
    return parts


# --- disk and settings ---


def _look_at_data_folder(settings: Settings, report: Diagnosis) -> dict[str, Any] | None:
    """Returns None if both stores have URLs, or if there is no such folder."""
    folder = settings.data_dir.expanduser().resolve()
    if (settings.database_url and settings.redis_url) or not os.access(folder, os.R_OK | os.X_OK):
        return None
    free = shutil.disk_usage(folder).free
    if free < LITTLE_DISK_BYTES:
        report.add("data_folder.full", folder=folder)
    used = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # a file that has just been removed
            used += path.lstat().st_size
    return {"path": str(folder), "free_bytes": free, "used_bytes": used}


async def _look_at_settings(settings: Settings, stores: OpenStores | None, report: Diagnosis) -> dict[str, object]:
    public = not is_loopback(settings.host)
    if settings.auth == "none" and public:
        report.add("settings.open", host=settings.host)
    if settings.metrics_public and public:
        report.add("settings.metrics")
    for name, above in FINDINGS["settings"]["bounded"]["by"].items():
        if getattr(settings, name) >= (bound := getattr(settings, above)):
            report.add("settings.bounded", name=name.upper(), above=above.upper(), bound=bound)
    if (settings.database_url is None) != (settings.redis_url is None):
        report.add("settings.one_url")
    if settings.auth == "jwt" and settings.jwt_jwks_url is not None:
        await _look_at_provider(settings.jwt_jwks_url, report)
    if settings.auth == "api_key" and stores is not None:
        with suppress(Unreachable):  # which is a problem of its own
            async with reading(stores.database) as connection:
                works = any(key.works(utc_now()) for key in await list_keys(connection, None))
            if not works:
                report.add("settings.no_key")
    shown = ("auth", "turn_timeout_s", "turn_lease_s", "worker_concurrency")
    return {"listens_on": f"{settings.host}:{settings.port}"} | {name: getattr(settings, name) for name in shown}


async def _look_at_provider(url: str, report: Diagnosis) -> None:
    from segue.users.id_tokens import UNREADABLE, fetch_keys  # noqa: PLC0415 (PyJWT and cryptography are for AUTH=jwt)

    try:
        async with httpx2.AsyncClient(verify=tls_context()) as client:
            if not await fetch_keys(client, url):
                report.add("settings.jwks_empty", url=url)
    except UNREADABLE as error:
        report.add("settings.jwks_unreadable", url=url, why=str(error).partition(" for url")[0] or type(error).__name__)
