"""The counters and histograms of this process, for Prometheus, fed by the observations of `domain/telemetry.py`.

A label takes few values: never an id, never text of a user. Values that can be read at a scrape are gauges.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from segue.domain.telemetry import (
    GlobalToolStateChanged,
    LoopLagged,
    ModelCalled,
    ModelCharged,
    ModelRetried,
    Observation,
    PlanEnded,
    RequestAnswered,
    RowsDeleted,
    SessionToolStateChanged,
    ToolCalled,
    TurnEnded,
    TurnRecovered,
    WebhookTried,
)
from segue.domain.usage import Charge
from segue.telemetry.gauges import ProcessState, process_metrics
from segue.version import VERSION

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
