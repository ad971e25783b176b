"""The gauges: values that are read when Prometheus scrapes, of this process and of all processes together.

Knows no store and no turn: its callers pass the values in.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class RedisState:
    """One client of Redis; `outages` counts since the process started."""

    lost: bool
    outages: int


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Of this process. `watchers` counts all that wait for a turn, `streams` those that read the answer by token."""

    turns_running: int
    turn_slots: int
    streams: int
    watchers: int
    pool_size: int
    pool_in_use: int
    redis: Mapping[str, RedisState]
    mcp_ready: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The open turns of all processes. `lapsed` counts running turns whose lease is over, `oldest_s` is how long the
    first turn that could run has waited.
    """

    queued: int
    running: int
    lapsed: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class SharedState:
    """Of all processes together. A value is None while its store cannot be reached."""

    backlog: Backlog | None
    jobs: int | None
    tools_failed: Mapping[str, bool] | None


def process_metrics(now: ProcessState) -> Iterator[Metric]:
    yield GaugeMetricFamily("segue_turns_running", "Turns that run in this process.", now.turns_running)
    yield GaugeMetricFamily("segue_turn_places", "Turns that may run here at once.", now.turn_slots)
    yield GaugeMetricFamily("segue_streams_open", "Clients that read events as they come.", now.streams)
    yield GaugeMetricFamily("segue_watchers", "Requests that wait for a turn or read its events.", now.watchers)
    yield GaugeMetricFamily("segue_database_pool_size", "Connections to PostgreSQL there may be.", now.pool_size)
    yield GaugeMetricFamily("segue_database_pool_in_use", "Connections that are in use.", now.pool_in_use)
    lost = GaugeMetricFamily("segue_redis_degraded", "1 while Redis is lost.", labels=["client"])
    outages = CounterMetricFamily("segue_redis_outages_total", "Times Redis was lost.", labels=["client"])
    for name, client in now.redis.items():
        lost.add_metric([name], client.lost)
        outages.add_metric([name], client.outages)
    yield lost
    yield outages
    ready = GaugeMetricFamily("segue_mcp_server_ready", "1 while an MCP server is connected.", labels=["server"])
    for server, is_ready in now.mcp_ready.items():
        ready.add_metric([server], is_ready)
    yield ready


def shared_metrics(now: SharedState) -> Iterator[Metric]:
    up = GaugeMetricFamily("segue_store_up", "1 where the store answered just now.", labels=["store"])
    up.add_metric(["postgres"], now.backlog is not None)
    up.add_metric(["redis"], now.tools_failed is not None)
    yield up
    if now.backlog is not None:
        open_turns = GaugeMetricFamily("segue_turns_open", "Turns that have not ended, of all.", labels=["status"])
        open_turns.add_metric(["queued"], now.backlog.queued)
        open_turns.add_metric(["running"], now.backlog.running)
        yield open_turns
        yield GaugeMetricFamily("segue_turns_lapsed", "Running turns whose lease is over.", now.backlog.lapsed)
        yield GaugeMetricFamily(
            "segue_turn_oldest_waiting_seconds", "How long a turn that could run has waited.", now.backlog.oldest_s
        )
    if now.jobs is not None:
        yield GaugeMetricFamily("segue_queue_jobs", "Jobs on Redis that nobody has taken.", now.jobs)
    if now.tools_failed is not None:
        failed = GaugeMetricFamily(
            "segue_tool_failed_for_all", "1 for a tool that has failed for all.", labels=["tool"]
        )
        for tool, has_failed in now.tools_failed.items():
            failed.add_metric([tool], has_failed)
        yield failed


@dataclass(frozen=True, slots=True, eq=False)
class ProcessStateCollector(Collector):
    """Reads the state at each scrape, in the thread of the scrape."""

    read: Callable[[], ProcessState]

    def collect(self) -> Iterator[Metric]:
        return process_metrics(self.read())
