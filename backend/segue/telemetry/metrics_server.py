"""Serves the metrics of a process that has no API, at /metrics, from a thread of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from prometheus_client import start_http_server

from segue.domain.errors import AppError
from segue.telemetry.metrics import Metrics

log = structlog.get_logger()


@asynccontextmanager
async def metrics_served(metrics: Metrics, host: str, port: int) -> AsyncIterator[None]:
    """Raises AppError `port_taken`."""
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise AppError(
            "port_taken",
            status=500,
            title="The port cannot be used",
            detail=f"WORKER_METRICS_PORT={port} cannot be listened on: {error.strerror}.",
        ) from error
    log.info("metrics_served", url=f"http://{host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
