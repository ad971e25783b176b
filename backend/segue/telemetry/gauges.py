"""The gauges: values that are read when Prometheus scrapes, of this process and of all processes together.

Knows no store and no turn: its callers pass the values in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from segue.domain.telemetry import Backlog


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
