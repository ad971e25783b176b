"""One trace tells a turn from the client's own span to the tool that ran, across the processes it goes through."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from segue import __version__
from segue.api.deps import Services
from segue.around.tracing import tracing
from segue.config import Settings
from segue.domain.telemetry import current_traceparent, untraced
from segue.main import run_worker
from segue.models import traced_call
from tests.support.loop_lag import loop_kept_free
from tests.support.mcp_peer import TOOL, Peer, listening, said
from tests.support.provider import Provider, calls, completion, fails, raw, says
from tests.support.semantic_conventions import INSTRUCTIONS, KINDS, MESSAGES, TOLD, faults
from tests.support.server import serving
from tests.support.service import Client, running

CLIENTS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENTS_SPAN = "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01"}


@dataclass(slots=True)
class Collector:
    """What an OTLP collector was sent."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[Any] = field(default_factory=list)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def above(self, span: Any) -> str:
        """The name of the span it stands below; empty where that is not ours."""
        return next((each.name for each in self.spans if each.span_id == span.parent_span_id), "")


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in span.attributes}


def plain(value: Any) -> Any:
    told = getattr(value, value.WhichOneof("value"))
    return [plain(each) for each in told.values] if value.HasField("array_value") else told


def w3c(span: Any) -> str:
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collected = Collector()

    async def take(request: Request) -> Response:
        sent = ExportTraceServiceRequest.FromString(await request.body())
        collected.resources += [of.resource for of in sent.resource_spans]
        collected.spans += [span for of in sent.resource_spans for scope in of.scope_spans for span in scope.spans]
        return Response()

    async with serving(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])) as url:
        collected.url = url
        yield collected


@pytest.fixture
def settings(settings: Settings, collector: Collector) -> Settings:
    return settings.model_copy(update={"otel_exporter_otlp_endpoint": collector.url})


@asynccontextmanager
async def api_and_worker(settings: Settings) -> AsyncIterator[Client]:
    """Each with a provider of its own, as two processes have. What is left of their spans is sent as they leave."""
    stopped, started = asyncio.Event(), asyncio.Event()

    async def tell(_: Services) -> None:
        started.set()

    worker = asyncio.create_task(run_worker(settings, stopped, tell))
    await started.wait()
    async with running(settings, takes_turns=False) as client:
        yield client
    stopped.set()
    await worker


async def test_a_turn_is_one_trace_from_the_client_through_api_and_worker(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    provider.will(calls(("current_time", {}), ("current_time", {"timezone": "no such zone"})), says("noon"))
    async with api_and_worker(settings) as client:
        session = await client.new_session()
        with capture_logs([merge_contextvars]) as logs:
            body = {"message": "what time is it?"}
            answer = await client.http.post(f"/sessions/{session}/chat", json=body, headers=TRACEPARENT)
    mine = [span for span in collector.spans if span.trace_id.hex() == CLIENTS_TRACE]
    [request] = [span for span in mine if span.name == "POST /sessions/{session_id}/chat"]
    assert request.parent_span_id.hex() == CLIENTS_SPAN
    below = {(span.name, collector.above(span)) for span in mine if span is not request}
    assert below == {
        ("turn", request.name),
        ("invoke_agent Segue", "turn"),
        ("detect_acknowledgement", "invoke_agent Segue"),
        ("plan", "invoke_agent Segue"),
        ("tool_loop", "invoke_agent Segue"),
        ("chat scripted", "tool_loop"),
        ("execute_tool current_time", "tool_loop"),
        ("respond", "invoke_agent Segue"),
        ("knowledge", "invoke_agent Segue"),
    }
    [turn] = collector.named("turn")
    tool, failed = sorted(collector.named("execute_tool current_time"), key=lambda span: int(span.status.code))
    assert attributes(turn)["segue.turn_id"] == answer.json()["turn_id"]
    assert attributes(tool)["segue.outcome"] == "succeeded"
    assert attributes(failed)["error.type"] == failed.status.message == attributes(failed)["segue.outcome"]
    http = {name: value for name, value in attributes(request).items() if name.startswith("http.")}
    assert http == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/sessions/{session_id}/chat",
    }
    kinds = {span.name: Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_") for span in mine}
    assert [kinds[name] for name in (request.name, "turn", "chat scripted", "execute_tool current_time")] == [
        "SERVER", "CONSUMER", "CLIENT", "INTERNAL",
    ]  # fmt: skip
    told = {entry["event"]: entry for entry in logs}
    assert told["turn_finished"]["trace_id"] == told["request"]["trace_id"] == CLIENTS_TRACE


USED = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
PRICES = "[scripted]\ninput = 2.0\ncached_input = 0.5\noutput = 8.0\n"
TOKEN = "ghp_" + "a1B2c3D4e5" * 4


async def test_every_span_says_what_the_conventions_have_it_say_and_nothing_they_do_not_know(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    cut_off = completion({"role": "assistant", "content": "It is"}, "length")
    provider.will(calls(("current_time", {})), says("noon"), cut_off, fails(401))
    async with running(settings) as client:
        session = await client.new_session()
        await client.chat(session, "what time is it?")
        await client.chat(session, "say it again")
        assert (await client.send(session, "and again")).status_code == 502
    assert [fault for span in collector.spans for each in attributes(span).items() for fault in faults(*each)] == []
    of_calls = [span for span in collector.spans if "gen_ai.operation.name" in attributes(span)]
    assert {attributes(span)["gen_ai.operation.name"] for span in of_calls} == TOLD.keys()
    for span in of_calls:
        told = attributes(span)
        operation = told["gen_ai.operation.name"]
        assert told["gen_ai.conversation.id"] == session
        assert told["gen_ai.agent.name"] == "Segue"
        assert span.status.code == Status.STATUS_CODE_ERROR or TOLD[operation] <= told.keys()
        assert Span.SpanKind.Name(span.kind) == f"SPAN_KIND_{KINDS[operation]}"
        subject = told.get("gen_ai.tool.name") or told.get("gen_ai.request.model", "")
        assert span.name == f"{operation} {told['gen_ai.agent.name'] if operation == 'invoke_agent' else subject}"
    finished = [attributes(span).get("gen_ai.response.finish_reasons") for span in collector.named("chat scripted")]
    assert finished == [["tool_call"], ["stop"], ["length"], None]
    assert {
        plain(each.value) for of in collector.resources for each in of.attributes if each.key == "service.version"
    } == {__version__}


async def test_a_call_of_the_model_tells_whom_it_asked_what_came_and_what_it_cost(
    settings: Settings, provider: Provider, collector: Collector, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES, "utf-8")
    choice = {"index": 0, "message": {"role": "assistant", "content": "noon"}, "finish_reason": "stop"}
    provider.will(raw({"id": "chatcmpl-7", "model": "scripted-1", "choices": [choice], "usage": USED}))
    async with running(settings.model_copy(update={"prices_file": prices})) as client:
        session = await client.new_session()
        await client.chat(session, "what time is it?")
    [asked] = collector.named("chat scripted")
    where = urlsplit(provider.base_url)
    assert attributes(asked) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.conversation.id": session,
        "gen_ai.agent.name": "Segue",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": False,
        "gen_ai.response.model": "scripted-1",
        "gen_ai.response.id": "chatcmpl-7",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "gen_ai.usage.cost": pytest.approx((4 * 2 + 5 * 0.5 + 2 * 2.5 + 7 * 8) / 1_000_000),
        "server.address": where.hostname,
        "server.port": where.port,
    }
    [agent] = collector.named("invoke_agent Segue")
    assert attributes(agent)["gen_ai.usage.input_tokens"] == 11


async def test_what_was_said_is_told_on_request_only_in_the_form_of_the_conventions_and_without_secrets(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    provider.will(calls(("current_time", {"timezone": "UTC", "password": "canary"})), says("It is noon."))
    told = "a long day " * 2_000
    async with running(settings.model_copy(update={"otel_capture_content": True})) as client:
        await client.chat(await client.new_session(), f"what time is it? My token is {TOKEN}. {told}")
    first, last = (attributes(span) for span in collector.named("chat scripted"))
    [tool] = collector.named("execute_tool current_time")
    for span in (first, last):
        for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
            MESSAGES.validate(json.loads(span[name]))
    INSTRUCTIONS.validate(json.loads(last["gen_ai.system_instructions"]))
    said, asked, answered = json.loads(last["gen_ai.input.messages"])
    assert (said["role"], asked["role"], answered["role"]) == ("user", "assistant", "tool")
    assert "what time is it?" in said["parts"][0]["content"]
    [call], [result] = asked["parts"], answered["parts"]
    assert call["id"] == result["id"]
    assert (call["name"], call["arguments"]["timezone"]) == ("current_time", "UTC")
    assert json.loads(last["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "It is noon."}]
    assert json.loads(attributes(tool)["gen_ai.tool.call.arguments"])["timezone"] == "UTC"
    assert attributes(tool)["gen_ai.tool.call.result"]
    everything = str(collector.spans)
    assert TOKEN not in everything
    assert "canary" not in everything
    assert len(everything) < len(told) * 2


@pytest.mark.sweep
async def test_of_a_long_conversation_the_newest_messages_are_told_and_nothing_waits_for_it() -> None:
    text = f"my token: {TOKEN} " * 100
    said = [HumanMessage(text), AIMessage(text), HumanMessage(text * 1_000)] * 1_000
    with loop_kept_free():
        written = traced_call.input_messages([SystemMessage(text), *said, HumanMessage("and now?")])[
            "gen_ai.input.messages"
        ]
    told = json.loads(written)
    MESSAGES.validate(told)
    assert told[-1]["parts"] == [{"type": "text", "content": "and now?"}]
    assert 50_000 < len(written) <= traced_call.MAX_CHARS + len(told) + 2
    assert TOKEN not in written


async def test_a_failure_is_told_by_its_code_and_no_words_leave_with_a_span(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    provider.will(*[fails(500, body='{"error": {"message": "canary"}}', headers={"Retry-After": "0"})] * 2)
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        session = await client.new_session()
        assert (await client.send(session, "a canary sings")).status_code == 502
    [turn], [model] = collector.named("turn"), collector.named("chat scripted")
    assert turn.status.message == model.status.message == attributes(model)["error.type"] == "model_unavailable"
    assert turn.status.code == model.status.code == Status.STATUS_CODE_ERROR
    [retry] = model.events
    assert (retry.name, attributes(retry)["segue.attempt"], attributes(retry)["segue.reason"]) == (
        "retry",
        1,
        "failing",
    )
    assert "canary" not in str(collector.spans)


async def test_the_model_and_an_mcp_server_learn_in_which_span_they_are_asked(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    provider.will(calls(("mcp_look", {})), says("seen"))
    told: list[str] = []

    def looks(body: Any) -> Response:
        told.append(body["params"]["_meta"]["traceparent"])
        return said(body, {"content": []})

    peer = Peer(looks, [{**TOOL, "annotations": {"readOnlyHint": True}}])
    async with listening(peer) as port:
        servers = {"mcpServers": {"peer": {"url": f"http://127.0.0.1:{port}/mcp"}}}
        settings.mcp_config.write_text(json.dumps(servers), "utf-8")
        async with running(settings) as client:
            await client.connected("peer")
            await client.chat(await client.new_session(), "look!")
    told += [headers["traceparent"] for headers in peer.headers if "traceparent" in headers]
    [tool] = collector.named("execute_tool mcp_look")
    assert {traceparent[:-3] for traceparent in told} == {w3c(tool)}
    assert len(told) == 2
    asked = {w3c(span) for span in collector.named("chat scripted")}
    assert {headers["traceparent"][:-3] for headers in provider.headers} == asked


async def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(
    settings: Settings, provider: Provider, collector: Collector
) -> None:
    provider.will(says("hello"))
    async with running(settings) as client:
        session = await client.new_session()
        for odd in ("x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-" + "f" * 5000):
            response = await client.http.get(f"/sessions/{session}", headers={"traceparent": odd})
            assert response.status_code == 200
        await client.chat(session, "hello")
        await client.http.get("/health/live")
    requests = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len({span.trace_id for span in requests}) == len(requests) == 5
    assert not any(span.parent_span_id for span in requests)


async def test_a_collector_that_is_away_costs_no_turn(settings: Settings, provider: Provider) -> None:
    provider.will(says("hello"))
    away = settings.model_copy(update={"otel_exporter_otlp_endpoint": "http://127.0.0.1:9"})
    async with running(away) as client:
        assert (await client.chat(await client.new_session(), "hello"))["status"] == "completed"


async def test_without_an_endpoint_nothing_is_traced() -> None:
    async with tracing(None) as span:
        assert span is untraced
        with span("turn", parent=TRACEPARENT["traceparent"]) as opened:
            assert opened.trace_id is current_traceparent.get() is None


async def test_an_endpoint_without_the_extra_is_said_aloud_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with capture_logs() as logs:
        async with tracing("http://127.0.0.1:9") as span:
            assert span is untraced
    assert [entry["event"] for entry in logs] == ["tracing_off"]
