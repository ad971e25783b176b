"""Serves /metrics and /health/live of a process that has no API, from threads of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog
from prometheus_client import make_wsgi_app, start_http_server

from segue.domain.errors import AppError
from segue.telemetry.metrics import Metrics

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
