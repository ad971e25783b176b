"""The counters and histograms of this process, for Prometheus, fed by the observations of `domain/telemetry.py`.

A label takes few values: never an id, never text of a user. Values that can be read at a scrape are gauges.

The gauges: values that are read when Prometheus scrapes, of this process and of all processes together.

Knows no store and no turn: its callers pass the values in.

How long callbacks keep others waiting: a timer that is late shows it.

Serves /metrics and /health/live of a process that has no API, from threads of its own.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, assert_never
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from segue.domain.errors import AppError
from segue.domain.identity import Charge
from segue.domain.telemetry import (
    Backlog,
    GlobalToolStateChanged,
    LoopLagged,
    ModelCalled,
    ModelCharged,
    ModelRetried,
    Observation,
    Observe,
    PlanEnded,
    RequestAnswered,
    RowsDeleted,
    SessionToolStateChanged,
    ToolCalled,
    TurnEnded,
    TurnRecovered,
    WebhookTried,
)
from segue.version import VERSION


class RedisHealth(Protocol):
    """Redis as this process sees it; `outages` counts since the process started."""

    @property
    def degraded(self) -> bool: ...

    @property
    def outages(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Of this process. `watchers` counts all that wait for a turn, `streams` those that read the answer by token."""

    turns_running: int
    turn_slots: int
    streams: int
    watchers: int
    pool_size: int
    pool_in_use: int
    redis: RedisHealth
    mcp_ready: Mapping[str, bool]
    unreadable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SharedState:
    """Of all processes together. A value is None while its store cannot be reached. `outbox` is how many webhook events
    wait, and for how many seconds the first of them has.
    """

    backlog: Backlog | None
    jobs: int | None
    tools_failed: Mapping[str, bool] | None
    outbox: tuple[int, float] | None


def process_metrics(now: ProcessState) -> Iterator[Metric]:
    yield GaugeMetricFamily("segue_turns_running", "Turns that run in this process.", now.turns_running)
    yield GaugeMetricFamily("segue_turn_places", "Turns that may run here at once.", now.turn_slots)
    yield GaugeMetricFamily("segue_streams_open", "Clients that read events as they come.", now.streams)
    yield GaugeMetricFamily("segue_watchers", "Requests that wait for a turn or read its events.", now.watchers)
    yield GaugeMetricFamily("segue_database_pool_size", "Connections to PostgreSQL there may be.", now.pool_size)
    yield GaugeMetricFamily("segue_database_pool_in_use", "Connections that are in use.", now.pool_in_use)
    yield GaugeMetricFamily("segue_redis_degraded", "1 while Redis is lost.", now.redis.degraded)
    yield CounterMetricFamily("segue_redis_outages_total", "Times Redis was lost.", now.redis.outages)
    unreadable = CounterMetricFamily("segue_unreadable_total", "Reads of what cannot be read.", labels=["table"])
    for table, count in now.unreadable.items():
        unreadable.add_metric([table], count)
    yield unreadable
    yield _by_label("segue_mcp_server_ready", "1 while an MCP server is connected.", "server", now.mcp_ready)


def shared_metrics(now: SharedState) -> Iterator[Metric]:
    up = {"postgres": now.backlog is not None, "redis": now.tools_failed is not None}
    yield _by_label("segue_store_up", "1 where the store answered just now.", "store", up)
    if now.backlog is not None:
        open_turns = {"queued": now.backlog.queued, "running": now.backlog.running}
        yield _by_label("segue_turns_open", "Turns that have not ended, of all.", "status", open_turns)
        yield GaugeMetricFamily("segue_turns_lapsed", "Running turns whose lease is over.", now.backlog.lapsed)
        yield GaugeMetricFamily(
            "segue_turn_oldest_waiting_seconds", "How long a turn that could run has waited.", now.backlog.oldest_s
        )
    if now.outbox is not None:
        pending, oldest_s = now.outbox
        yield GaugeMetricFamily("segue_webhook_pending", "Events that wait to be sent to the webhook.", pending)
        yield GaugeMetricFamily("segue_webhook_oldest_seconds", "How long the first of them has waited.", oldest_s)
    if now.jobs is not None:
        yield GaugeMetricFamily("segue_queue_jobs", "Sessions in the queue that no process has taken.", now.jobs)
    if now.tools_failed is not None:
        yield _by_label("segue_tool_failed_for_all", "1 for a tool that has failed for all.", "tool", now.tools_failed)


def _by_label(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, help_text, labels=[label])
    for value_of_label, value in values.items():
        gauge.add_metric([value_of_label], value)
    return gauge


CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
OTHER: Final = "other"

REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TURN_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
QUEUE_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
MODEL_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
TOOL_SECONDS: Final = (0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60)
LAG_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


@dataclass(frozen=True, slots=True, eq=False)
class _Scraped(Collector):
    """Reads the metrics at each scrape, in the thread of the scrape."""

    read: Callable[[], Iterable[Metric]]

    def collect(self) -> Iterable[Metric]:
        return self.read()


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of the series would say when they began
        self.registry = CollectorRegistry()
        Gauge(
            "segue_build_info", "1; the label says which release this is.", ["version"], registry=self.registry
        ).labels(VERSION).set(1)
        self._declare_turns()
        self._declare_models_and_tools()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def add_process_state(self, read: Callable[[], ProcessState]) -> None:
        self.registry.register(_Scraped(lambda: process_metrics(read())))

    def text(self, more: Iterable[Metric] = ()) -> bytes:
        """All metrics of this process and `more`, in Prometheus' text format."""
        given = CollectorRegistry()
        given.register(_Scraped(lambda: more))
        return generate_latest(self.registry) + generate_latest(given)

    def observe(self, observation: Observation) -> None:  # noqa: C901, PLR0912 (one line per kind of observation)
        match observation:
            case TurnEnded():
                self._turn_ended(observation)
            case ModelCalled(outcome, seconds):
                self._model_calls.labels(outcome).inc()
                self._model_seconds.observe(seconds)
            case ModelCharged(charge, agent):
                self._model_charged(charge, agent)
            case ModelRetried():
                self._model_retries.inc()
            case ToolCalled(tool, outcome, seconds):
                self._tool_calls.labels(tool or OTHER, outcome).inc()
                self._tool_seconds.labels(tool or OTHER).observe(seconds)
            case SessionToolStateChanged(tool, status):
                self._tool_moves.labels(tool, status).inc()
            case GlobalToolStateChanged(tool, failed):
                self._fleet_moves.labels(tool, "failed" if failed else "available").inc()
            case PlanEnded(status, count):
                self._plans.labels(status).inc(count)
            case TurnRecovered(action):
                self._recoveries.labels(action).inc()
            case RowsDeleted(kind, rows, size_bytes):
                self._removed_rows.labels(kind).inc(rows)
                self._removed_bytes.labels(kind).inc(size_bytes)
            case RequestAnswered(method, status, route, seconds):
                method = method if method in METHODS else OTHER
                self._requests.labels(method, status).inc()
                self._request_seconds.labels(method, route or OTHER).observe(seconds)
            case WebhookTried(outcome):
                self._webhooks.labels(outcome).inc()
            case LoopLagged(seconds):
                self._lag.observe(seconds)
            case _:
                assert_never(observation)

    def _turn_ended(self, turn: TurnEnded) -> None:
        self._turns.labels(turn.outcome, turn.code or "").inc()
        if turn.seconds is not None:
            self._turn_seconds.labels(turn.outcome).observe(turn.seconds)
        if turn.queued_s is not None:
            self._queue_seconds.observe(turn.queued_s)
        if turn.verdict is not None:
            self._verdicts.labels(turn.verdict).inc()
        if turn.web_search is not None:
            performed = "true" if turn.web_search.performed else "false"
            self._searches.labels(performed, turn.web_search.reason).inc()

    def _model_charged(self, charge: Charge, agent: str) -> None:
        self._tokens.labels("input", charge.model, agent).inc(charge.input_tokens)
        self._tokens.labels("output", charge.model, agent).inc(charge.output_tokens)
        self._cached_tokens.inc(charge.cached_tokens)
        self._reasoning_tokens.inc(charge.reasoning_tokens)
        if charge.cost is not None:
            self._cost.inc(float(charge.cost))

    def _declare_turns(self) -> None:
        self._requests = self._counter("segue_http_requests_total", "Requests answered.", "method", "status")
        self._request_seconds = self._histogram(
            "segue_http_request_duration_seconds", "Until the answer has ended.", REQUEST_SECONDS, "method", "route"
        )
        self._turns = self._counter("segue_turns_total", "Turns that have ended.", "outcome", "code")
        self._turn_seconds = self._histogram(
            "segue_turn_duration_seconds", "From the claim of a turn to its end.", TURN_SECONDS, "outcome"
        )
        self._queue_seconds = self._histogram(
            "segue_turn_queue_wait_seconds", "From the message, or its last return to the queue, to the claim.",
            QUEUE_SECONDS,
        )  # fmt: skip
        self._recoveries = self._counter(
            "segue_turn_recoveries_total", "Turns whose process was lost, by what was done.", "action"
        )
        self._plans = self._counter("segue_plans_total", "Plans that have ended.", "outcome")
        self._verdicts = self._counter("segue_acknowledgements_total", "How messages were read.", "verdict")
        self._searches = self._counter(
            "segue_web_search_decisions_total", "Whether the web was searched, and why.", "performed", "reason"
        )
        self._removed_rows = self._counter(
            "segue_retention_removed_rows_total", "Rows that were deleted because they had expired.", "kind"
        )
        self._removed_bytes = self._counter("segue_retention_removed_bytes_total", "Their size.", "kind")
        self._webhooks = self._counter("segue_webhook_tries_total", "Events posted to the webhook.", "outcome")
        self._lag = self._histogram(
            "segue_event_loop_lag_seconds", "By how much a timer, ten a second, was late.", LAG_SECONDS
        )

    def _declare_models_and_tools(self) -> None:
        self._model_calls = self._counter("segue_model_calls_total", "Calls to the model.", "outcome")
        self._model_retries = self._counter("segue_model_retries_total", "Tries after the first of a call.")
        self._model_seconds = self._histogram(
            "segue_model_call_duration_seconds", "A call to the model, with its retries.", MODEL_SECONDS
        )
        self._tokens = self._counter(
            "segue_model_tokens_total", "Tokens as the provider counts them.", "direction", "model", "agent"
        )
        self._cached_tokens = self._counter("segue_model_cached_tokens_total", "Input that the provider had cached.")
        self._reasoning_tokens = self._counter("segue_model_reasoning_tokens_total", "Output that was reasoning.")
        self._cost = self._counter("segue_model_cost_dollars_total", "What calls of models with a price cost.")
        self._tool_calls = self._counter("segue_tool_calls_total", "Tool calls.", "tool", "outcome")
        self._tool_seconds = self._histogram("segue_tool_call_duration_seconds", "A tool call.", TOOL_SECONDS, "tool")
        self._tool_moves = self._counter(
            "segue_tool_state_changes_total", "Changes of a tool's status in a session.", "tool", "status"
        )
        self._fleet_moves = self._counter(
            "segue_tool_fleet_changes_total", "Times a tool has failed, or is available again, for all.", "tool",
            "status",
        )  # fmt: skip

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, help_text, labels, buckets=buckets, registry=self.registry)


INTERVAL_S: Final = 0.1


class LoopLag:
    """While it is entered, it observes by how many seconds each timer was late.

    `held_s` is the longest that this process itself held the loop: what a loaded machine adds does not count.
    """

    def __init__(self, observe: Observe, *, interval_s: float = INTERVAL_S) -> None:
        self.held_s = 0.0
        self._observe = observe
        self._interval_s = interval_s

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._measure()

    def _start(self) -> None:
        self._spent_s = time.process_time()
        self._due_s = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self._measure()
        self._start()

    def _measure(self) -> None:
        late_s = max(self._loop.time() - self._due_s, 0.0)
        self.held_s = max(self.held_s, min(late_s, time.process_time() - self._spent_s))
        self._observe(LoopLagged(late_s))


LIVE_WITHIN_S: Final = 2.0

log = structlog.get_logger()


@asynccontextmanager
async def metrics_served(
    metrics: Metrics, host: str, port: int, *, live_within_s: float = LIVE_WITHIN_S
) -> AsyncIterator[str]:
    """Yields the URL. The process is alive if its event loop answers within `live_within_s` seconds, because a thread
    goes on where that stands still. Raises AppError `port_taken`.
    """
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise AppError(
            "port_taken",
            status=500,
            title="The port cannot be used",
            detail=f"WORKER_METRICS_PORT={port} cannot be listened on: {error.strerror}.",
        ) from error
    server.set_app(_application(make_wsgi_app(metrics.registry), asyncio.get_running_loop(), live_within_s))
    url = f"http://{host}:{server.server_port}"
    log.info("metrics_served", url=f"{url}/metrics")
    try:
        yield url
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def _application(scrape: WSGIApplication, loop: asyncio.AbstractEventLoop, live_within_s: float) -> WSGIApplication:
    def is_live() -> bool:
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        return answered.wait(live_within_s)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return scrape(environ, start_response)
            case "/health/live":
                status = "200 OK" if is_live() else "503 Service Unavailable"
            case _:
                status = "404 Not Found"
        start_response(status, [("Content-Type", "text/plain")])
        return [status.encode()]

    return answer
