"""`segue replay`: reads the files, puts up the stage, plays on a service of its own or a given one, and reports.

The part of the replay that knows all the others; `cli.py` prints what it gives.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from segue.domain.errors import AppError
from segue.domain.recording import BrokenRecording, Recording, read_recording
from segue.replay.config import CannotPlay, Cast, cast_of
from segue.replay.fake_servers import Stage
from segue.replay.play import RESULTS_IN_VIEW, TURN_TIMEOUT_S, Performance, clear_away, come_to_serve, play
from segue.replay.service import own_service

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class GivenService:
    """A service somebody else runs, and the address at which it finds the stage. `tell` is given how to set it up."""

    url: str
    api_key: str | None
    stage: tuple[str, int]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    performances: list[Performance]
    restarts: int

    @property
    def differs(self) -> bool:
        return any(performance.differences for performance in self.performances)

    def as_json(self) -> dict[str, Any]:
        recordings = [_summary(performance) for performance in self.performances]
        return {"differs": self.differs, "restarts": self.restarts, "recordings": recordings}

    def lines(self) -> Iterable[str]:
        for performance in self.performances:
            if performance.differences:
                yield f"{performance.name} (session {performance.session_id})"
                yield from (f"  {line}" for each in performance.differences for line in str(each).splitlines())
        same = sum(not performance.differences for performance in self.performances)
        turns, calls, requests = (
            sum(_summary(performance)[counted] for performance in self.performances)
            for counted in ("turns", "calls", "requests")
        )
        yield (
            f"{same} of {len(self.performances)} as recorded: {turns} turns, {calls} tool calls, "
            f"{requests} requests to the model, {self.restarts} restarts"
        )


async def replay(
    files: Iterable[Path],
    *,
    given: GivenService | None = None,
    restarting: bool = False,
    results_in_view: int = RESULTS_IN_VIEW,
) -> Report:
    """On a service of its own, killed after each turn where `restarting`, or on a given one. Raises CannotPlay."""
    recordings = {str(file): _read(file) for file in files}
    cast = cast_of(recordings)
    performances = [Performance(name, recording) for name, recording in recordings.items()]
    with _ending_on_sigterm():
        if given is None:
            return await _on_our_own(cast, performances, restarting=restarting, results_in_view=results_in_view)
        return await _on_a_given_one(cast, performances, given, results_in_view=results_in_view)


async def _on_our_own(cast: Cast, performances: list[Performance], *, restarting: bool, results_in_view: int) -> Report:
    stage = Stage(cast.tools)
    async with _standing(stage, (LOOPBACK, 0)) as base_url:
        try:
            running = own_service(cast.environment(base_url), cast.mcp_config(base_url))
            async with running as service, httpx2.AsyncClient(base_url=service.url, timeout=TURN_TIMEOUT_S) as client:
                await come_to_serve(client, cast, service.check)

                async def restart() -> None:
                    await service.restart()
                    await come_to_serve(client, cast, service.check)

                again = restart if restarting else None
                await play(client, stage, performances, restart=again, results_in_view=results_in_view)
                return Report(performances, service.restarts)
        except AppError as error:
            raise CannotPlay(error.detail) from error
        except httpx2.TransportError as error:
            raise CannotPlay(f"The service was lost on the way ({type(error).__name__}).") from error


async def _on_a_given_one(
    cast: Cast, performances: list[Performance], given: GivenService, *, results_in_view: int
) -> Report:
    stage = Stage(cast.tools)
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    async with (
        _standing(stage, given.stage) as base_url,
        httpx2.AsyncClient(base_url=given.url, headers=headers, timeout=TURN_TIMEOUT_S) as client,
    ):
        settings = [f"{name}={value}" for name, value in cast.environment(base_url).items()]
        given.tell("\n".join([f"For {given.url}, in its environment:", *settings, "and as its mcp.json:"]))
        given.tell(cast.mcp_config(base_url))
        try:
            await come_to_serve(client, cast, lambda: None)
            await play(client, stage, performances, results_in_view=results_in_view)
            await clear_away(client, performances)
        except httpx2.TransportError as error:
            raise CannotPlay(f"{given.url} was lost on the way ({type(error).__name__}).") from error
        return Report(performances, 0)


def _read(file: Path) -> Recording:
    try:
        return read_recording(file.read_bytes())
    except OSError as error:
        raise CannotPlay(f"{file} cannot be read: {error.strerror}.") from error
    except BrokenRecording as error:
        raise CannotPlay(f"{file} cannot be played: {error}.") from error


def _summary(performance: Performance) -> dict[str, Any]:
    return {
        "file": performance.name,
        "session_id": performance.session_id,
        "turns": len(performance.recording.turns),
        "calls": performance.calls,
        "arrived": performance.arrived,
        "requests": performance.requests,
        "differences": [asdict(difference) for difference in performance.differences],
    }


class _Server(uvicorn.Server):
    """Leaves signals to the replay."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # a generator in uvicorn
        return nullcontext()


@asynccontextmanager
async def _standing(stage: Stage, address: tuple[str, int]) -> AsyncIterator[str]:
    """The base URL of the stage. Raises CannotPlay where its address is taken."""
    try:
        listener = socket.create_server(address)
    except OSError as error:
        raise CannotPlay(f"The stage cannot stand at {address[0]}:{address[1]}: {error.strerror}.") from error
    host, port = listener.getsockname()[:2]
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(stage.app(host), log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="stage")
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the replay as Ctrl-C does: with its service and its stores."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
