"""Prometheus: the metrics of metrics.toml, fed by `domain/telemetry.py`, and gauges read at a scrape. Also measures how
late the event loop is, and serves metrics and health from threads for a process that has no API.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self, assert_never
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import prometheus_client
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from segue import __version__
from segue.db.engine import Database
from segue.db.redis_connection import RedisServer
from segue.db.rows import unreadable_reads
from segue.domain import telemetry
from segue.domain.errors import app_error
from segue.domain.identity import Charge
from segue.events.event_log import EventLog
from segue.language.lexicon import load_toml
from segue.log import log
from segue.mcp.mcp_servers import McpServers
from segue.turns.turn_service import TurnService

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
OTHER: Final = "other"
DECLARED: Final = load_toml("metrics.toml", package="segue.api")

ANSWER_WITHIN_S: Final = 1.0  # of another process, to a scrape
MAX_ANSWER_BYTES: Final = 16_000_000

Value = float | Mapping[str, float] | None  # one by each value of the label; None while its store cannot be reached


def process_metrics(
    turns: TurnService, events: EventLog, database: Database, redis: RedisServer, mcp: McpServers
) -> Iterator[Metric]:
    """Yields the gauges of this process."""
    watchers, streams = events.followers
    in_use, pool_size = database.connections
    return _families(
        segue_turns_running=turns.running,
        segue_turn_places=turns.places,
        segue_streams_open=streams,
        segue_watchers=watchers,
        segue_database_pool_size=pool_size,
        segue_database_pool_in_use=in_use,
        segue_redis_degraded=redis.degraded,
        segue_redis_outages_total=redis.outages,
        segue_unreadable_total=unreadable_reads,
        segue_mcp_server_ready={server: state == "ready" for server, state in mcp.states().items()},
    )


def shared_metrics(
    *,
    backlog: telemetry.Backlog | None,
    jobs: int | None,
    tools_failed: Mapping[str, bool] | None,
    outbox: tuple[int, float] | None,
) -> Iterator[Metric]:
    """Yields the gauges of all processes together; a value is None while its store cannot be reached. `outbox` is how
    many webhook events wait, and for how many seconds the first of them has.
    """
    pending, oldest_s = outbox or (None, None)
    return _families(
        segue_store_up={"postgres": backlog is not None, "redis": tools_failed is not None},
        segue_turns_open={"queued": backlog.queued, "running": backlog.running} if backlog else None,
        segue_turns_lapsed=backlog.lapsed if backlog else None,
        segue_turn_oldest_waiting_seconds=backlog.oldest_s if backlog else None,
        segue_webhook_pending=pending,
        segue_webhook_oldest_seconds=oldest_s,
        segue_queue_jobs=jobs,
        segue_tool_failed_for_all=tools_failed,
    )


def _families(**values: Value) -> Iterator[Metric]:
    for name, value in values.items():
        if value is not None:
            help_text, label = DECLARED["read"][name]
            family = Metric(name.removesuffix("_total"), help_text, "counter" if name.endswith("_total") else "gauge")
            for of, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                family.add_sample(name, {label: of} if label else {}, number)
            yield family


@dataclass(frozen=True, slots=True, eq=False)
class _Scraped(Collector):
    """Reads the metrics at each scrape, in the thread of the scrape."""

    read: Callable[[], Iterable[Metric]]

    def collect(self) -> Iterable[Metric]:
        return self.read()


class Metrics:
    """The counters and histograms of this process."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of the series would say when they began
        registry = self.registry = prometheus_client.CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        prometheus_client.Gauge(
            "segue_build_info", "1; the label says which release this is.", ["version"], registry=registry
        ).labels(__version__).set(1)
        self._counters = {
            name: prometheus_client.Counter(name, help_text, labels.split(), registry=registry)
            for name, (help_text, labels, *_) in DECLARED["counters"].items()
        }
        for name, (_, _, *values) in DECLARED["counters"].items():
            for value in values:
                self._counters[name].labels(value)  # a rate does not see the step of a series that begins above 0
        self._histograms = {
            name: prometheus_client.Histogram(name, help_text, labels.split(), buckets=buckets, registry=registry)
            for name, (help_text, labels, buckets) in DECLARED["histograms"].items()
        }
        self._read_all: Callable[[], Iterable[Metric]] = registry.collect
        self.scraped = prometheus_client.CollectorRegistry()
        self.scraped.register(_Scraped(lambda: self._read_all()))  # noqa: PLW0108 (`share` changes it)

    def add_process_state(self, read: Callable[[], Iterable[Metric]]) -> None:
        self.registry.register(_Scraped(read))

    async def share(self, folder: Path, number: int) -> None:
        """Gives this process's metrics at a socket in `folder`, and takes the others' too, by the label `process`."""

        async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                writer.write(prometheus_client.generate_latest(self.registry))
                await writer.drain()
                writer.close()

        (folder / str(number)).unlink(missing_ok=True)  # of the process that this one replaces
        self.given = await asyncio.start_unix_server(give, folder / str(number))
        self._read_all = partial(_of_all_processes, self.registry, folder, number)

    def text(self, more: Iterable[Metric] = ()) -> bytes:
        """Returns all metrics and `more`, in Prometheus' text format. Blocks while other processes give theirs."""
        given = _Scraped(lambda: more)
        return prometheus_client.generate_latest(self.scraped) + prometheus_client.generate_latest(given)

    def observe(self, observation: telemetry.Observation) -> None:  # noqa: C901, PLR0912 (one line per kind of observation)
        match observation:
            case telemetry.TurnEnded():
                self._turn_ended(observation)
            case telemetry.ModelCalled(outcome, seconds):
                self._count("segue_model_calls_total", outcome)
                self._time("segue_model_call_duration_seconds", seconds)
            case telemetry.ModelCharged(charge, agent):
                self._model_charged(charge, agent)
            case telemetry.ModelRetried():
                self._count("segue_model_retries_total")
            case telemetry.ToolCalled(tool, outcome, seconds):
                self._count("segue_tool_calls_total", tool or OTHER, outcome)
                self._time("segue_tool_call_duration_seconds", seconds, tool or OTHER)
            case telemetry.SessionToolStateChanged(tool, status):
                self._count("segue_tool_state_changes_total", tool, status)
            case telemetry.GlobalToolStateChanged(tool, failed):
                self._count("segue_tool_fleet_changes_total", tool, "failed" if failed else "available")
            case telemetry.PlanEnded(status, count):
                self._count("segue_plans_total", status, by=count)
            case telemetry.TurnRecovered(action):
                self._count("segue_turn_recoveries_total", action)
            case telemetry.RowsDeleted(kind, rows, size_bytes):
                self._count("segue_retention_removed_rows_total", kind, by=rows)
                self._count("segue_retention_removed_bytes_total", kind, by=size_bytes)
            case telemetry.RequestAnswered(method, status, route, seconds):
                method = method if method in METHODS else OTHER
                self._count("segue_http_requests_total", method, status)
                self._time("segue_http_request_duration_seconds", seconds, method, route or OTHER)
            case telemetry.WebhookTried(outcome):
                self._count("segue_webhook_tries_total", outcome)
            case telemetry.LoopLagged(seconds):
                self._time("segue_event_loop_lag_seconds", seconds)
            case _:
                assert_never(observation)

    def _turn_ended(self, turn: telemetry.TurnEnded) -> None:
        self._count("segue_turns_total", turn.outcome, turn.code or "")
        if turn.seconds is not None:
            self._time("segue_turn_duration_seconds", turn.seconds, turn.outcome)
        if turn.queued_s is not None:
            self._time("segue_turn_queue_wait_seconds", turn.queued_s)
        if turn.verdict is not None:
            self._count("segue_acknowledgements_total", turn.verdict)
        if turn.web_search is not None:
            performed = "true" if turn.web_search.performed else "false"
            self._count("segue_web_search_decisions_total", performed, turn.web_search.reason)

    def _model_charged(self, charge: Charge, agent: str) -> None:
        self._count("segue_model_tokens_total", "input", charge.model, agent, by=charge.input_tokens)
        self._count("segue_model_tokens_total", "output", charge.model, agent, by=charge.output_tokens)
        self._count("segue_model_cached_tokens_total", by=charge.cached_tokens)
        self._count("segue_model_reasoning_tokens_total", by=charge.reasoning_tokens)
        if charge.cost is not None:
            self._count("segue_model_cost_dollars_total", by=float(charge.cost))

    def _count(self, name: str, *labels: object, by: float = 1) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def _time(self, name: str, seconds: float, *labels: object) -> None:
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)


def _of_all_processes(own: prometheus_client.CollectorRegistry, folder: Path, number: int) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        for family in own.collect() if path.name == str(number) else _asked(path):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [each._replace(labels={**each.labels, "process": path.name}) for each in family.samples]
    return families.values()


def _asked(path: Path) -> list[Metric]:
    """Returns none if the process at the socket is gone, takes longer than ANSWER_WITHIN_S or does not say all."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_WITHIN_S)
        asking.connect(str(path))
        with asking.makefile("rb") as answer:
            text = answer.read(MAX_ANSWER_BYTES).decode()
        if text.endswith("\n"):
            return list(text_string_to_metric_families(text))
    return []


class LoopLag:
    """Observes by how many seconds each timer was late. `held_s` is the longest that this process held the loop."""

    def __init__(self, observe: telemetry.Observe, *, interval_s: float = 0.1) -> None:
        self.held_s = 0.0
        self._observe = observe
        self._interval_s = interval_s

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
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
        self._observe(telemetry.LoopLagged(late_s))


@asynccontextmanager
async def metrics_served(metrics: Metrics, host: str, port: int, *, live_within_s: float = 2.0) -> AsyncIterator[str]:
    """Yields the URL. The process is alive if its loop answers within `live_within_s`. Raises AppError `port_taken`."""
    try:
        server, thread = prometheus_client.start_http_server(port, host, metrics.scraped)
    except OSError as error:
        raise app_error("port_taken", port=port, why=error.strerror) from error
    scrape = prometheus_client.make_wsgi_app(metrics.scraped)
    server.set_app(_application(scrape, asyncio.get_running_loop(), live_within_s))
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
