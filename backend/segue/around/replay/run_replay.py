"""`segue replay` and `segue rehearse`: reads recordings, starts the fake servers, plays on a service, and reports."""

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import typer
import uvicorn
from pydantic import SecretStr

from segue.around.embedded.server_urls import server_urls
from segue.around.replay import rehearsal
from segue.around.replay.fake_servers import RESULTS_SHOWN, CannotPlay, FakeServers, ReplayConfig, Trial, replay_config
from segue.around.replay.play import TURN_TIMEOUT_S, Playback, Player, usage_line
from segue.around.service_client import HOST, OwnService, key_header
from segue.around.terminal import ServiceKey, checked_url, printable, refusal, refusing, settings_with
from segue.domain.recording import BrokenRecording, Recording, read_recording
from segue.mcp.mcp_config import read_mcp_config
from segue.models.model_settings import MODEL_SETTINGS

INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
Result = TypeVar("Result")


def replay_command(
    files: Annotated[list[Path], typer.Argument(help="Recordings, as GET /sessions/{id}/export gives them.")],
    *,
    url: Annotated[str | None, typer.Option(help="A running service to play on.", callback=checked_url)] = None,
    listen: Annotated[str, typer.Option(help="With --url: where it finds the model and tools.")] = "127.0.0.1:8900",
    api_key: ServiceKey = None,
    restart_between_turns: Annotated[
        bool, typer.Option("--restart-between-turns", help="kill -9 its own service after every turn.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="An LLM_MODEL to ask in place of the recording.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Plays recordings against a service and prints what differs."""
    if url and restart_between_turns:
        raise refusal("--restart-between-turns needs a service of its own: leave out --url")
    running = RunningService(url, api_key, _address(listen)) if url else None
    real = ({"LLM_MODEL": model} if running else _real_model(model)) if model else None
    with _ending():
        report = asyncio.run(until_ended(replay(files, running=running, restarting=restart_between_turns, model=real)))
    typer.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=1) if as_json else "\n".join(report.lines()))
    raise typer.Exit(code=int(report.differs))


def _address(listen: str) -> tuple[str, int]:
    with suppress(ValueError):  # of its port, or of brackets
        parts = urlsplit(f"//{listen}")
        if parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise refusal("--listen takes HOST:PORT, such as 127.0.0.1:8900")


def rehearse_command(
    recordings: Annotated[list[Path], typer.Argument(help="Recordings, or folders of them.", exists=True)],
    *,
    model: Annotated[str | None, typer.Option(help="The model to try, as LLM_MODEL names it: without, that.")] = None,
    agents: Annotated[Path | None, typer.Option(help="An agents.toml to try.", exists=True)] = None,
    mcp: Annotated[Path | None, typer.Option(help="An mcp.json to try. No server is asked.", exists=True)] = None,
    fail_on: Annotated[str, typer.Option(help="What exits with 1, as tokens:+20%.")] = "missing,new,args,failed",
    ignore: Annotated[list[str] | None, typer.Option(help="TOOL.ARGUMENT in which effects may differ.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the report here, as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write it here, as JUnit's XML.")] = None,
) -> None:
    """Plays recordings with what is to be tried and prints which effects differ. None is performed."""
    for file in filter(None, (json_file, junit)):  # before the model is asked, which costs
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise refusal(f"{file} cannot be written. Name a file in a folder that there is and that you may write to.")
    files = [file for path in recordings for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    with _ending():
        limits = rehearsal.read_limits(fail_on)
        trial = Trial(agents, read_mcp_config(mcp, as_written=True).servers if mcp else None)
        playbacks = asyncio.run(until_ended(rehearse(files, _real_model(model), trial)))
    reports = rehearsal.report(playbacks, limits, ignore or ())
    typer.echo(printable("\n".join(rehearsal.table(reports))))
    if json_file is not None:
        shown = [asdict(each) for each in reports]
        json_file.write_text(json.dumps(shown, ensure_ascii=False, indent=1) + "\n", "utf-8")
    if junit is not None:
        junit.write_bytes(rehearsal.as_junit(reports))
    raise typer.Exit(code=int(any(each.exceeded for each in reports)))


@contextmanager
def _ending() -> Iterator[None]:
    """Ends the command if something cannot be played, or when it was told to end."""
    try:
        with refusing():
            yield
    except CannotPlay as error:
        raise refusal(str(error)) from error
    except asyncio.CancelledError:
        raise typer.Exit(code=ENDED_BY_SIGTERM) from None


async def until_ended(playing: Coroutine[Any, Any, Result]) -> Result:
    """SIGTERM, and SIGHUP of a closed terminal, end it like Ctrl-C: it stops its service and its stores."""
    task = asyncio.ensure_future(playing)
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def _real_model(name: str | None) -> dict[str, str]:
    """Returns what leads to the provider, from the settings. Nothing else answers: no smaller model and no fallback."""
    settings = settings_with(llm_model=name)
    if not settings.model_configured:
        raise refusal(f"--model {settings.llm_model} needs its provider: set OPENAI_API_KEY or OPENAI_BASE_URL.")
    environment = {}
    for setting in settings.model_fields_set - set(MODEL_SETTINGS):
        value = getattr(settings, setting)
        if setting == "prices_file":
            environment[setting.upper()] = str(value.absolute())
        elif setting.startswith(("anthropic_", "google_", "llm_", "openai_")):
            is_table = isinstance(value, Mapping)
            environment[setting.upper()] = json.dumps(value, default=_revealed) if is_table else str(_revealed(value))
    return environment | {"LLM_MODEL": settings.llm_model}


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


# --- how it runs ---


@dataclass(frozen=True, slots=True)
class RunningService:
    """A running service, and the address for the fake servers."""

    url: str
    api_key: str | None
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    playbacks: list[Playback]
    restarts: int

    @property
    def differs(self) -> bool:
        return any(playback.differences for playback in self.playbacks)

    def as_json(self) -> dict[str, Any]:
        recordings = [
            {
                "file": playback.name,
                "turns": len(playback.recording.turns),
                **{name: getattr(playback, name) for name in ("session_id", "calls", "arrived", "requests")},
                "usage": [
                    {"recorded": recorded and recorded.model_dump(), "played": played and played.model_dump()}
                    for recorded, played in playback.usage
                ],
                "differences": [asdict(difference) for difference in playback.differences],
            }
            for playback in self.playbacks
        ]
        return {"differs": self.differs, "restarts": self.restarts, "recordings": recordings}

    def lines(self) -> Iterable[str]:
        for playback in self.playbacks:
            if playback.differences:
                yield f"{playback.name} (session {playback.session_id})"
                yield from (f"  {line}" for each in playback.differences for line in str(each).splitlines())
            for number, (recorded, played) in enumerate(playback.usage, start=1):
                yield f"{playback.name} turn {number}: {usage_line(played)}; recorded: {usage_line(recorded)}"
        rows = [(not each.differences, len(each.recording.turns), each.calls, each.requests) for each in self.playbacks]
        same, turns, calls, requests = (sum(column) for column in zip(*rows, strict=True))
        totals = f"{turns} turns, {calls} tool calls, {requests} requests to the model, {self.restarts} restarts"
        yield f"{same} of {len(self.playbacks)} as recorded: {totals}"


async def replay(
    files: Iterable[Path],
    *,
    running: RunningService | None = None,
    restarting: bool = False,
    results_in_view: int = RESULTS_SHOWN,
    model: Mapping[str, str] | None = None,
) -> ReplayReport:
    """Plays on a running service, or on one of its own, which it kills after each turn if `restarting`. The model that
    `model` has the settings of answers in place of the recording. Raises CannotPlay.
    """
    recordings = {str(file): _read(file) for file in files}
    config = replace(replay_config(recordings, model), results_in_view=results_in_view)
    playbacks = [Playback(name, recording) for name, recording in recordings.items()]
    if running is None:
        return await _on_own_service(config, playbacks, restarting=restarting)
    return await _on_running_service(config, playbacks, running)


async def rehearse(files: Iterable[Path], model: Mapping[str, str], trial: Trial) -> list[Playback]:
    """Plays with a real model, with effects from the recordings; those that clash play apart. Raises CannotPlay."""
    together: list[dict[str, Recording]] = []
    for name, recording in {str(file): _read(file) for file in files}.items():
        for group in together:
            with suppress(CannotPlay):
                replay_config({**group, name: recording})
                group[name] = recording
                break
        else:
            together.append({name: recording})
    if not together:
        raise CannotPlay("There is no recording to rehearse: give files, or folders of *.json.")
    played: list[Playback] = []
    for recordings in together:
        config = replay_config(recordings, model, trial)
        playbacks = [Playback(name, recording) for name, recording in recordings.items()]
        played += (await _on_own_service(config, playbacks, restarting=False)).playbacks
    return played


async def _on_own_service(config: ReplayConfig, playbacks: list[Playback], *, restarting: bool) -> ReplayReport:
    servers = FakeServers(config.tools, stands_in=config.trial is not None)
    async with _serving(servers, (HOST, 0)) as base_url:
        try:
            own = _own_service(config, base_url)
            async with own as service, httpx2.AsyncClient(base_url=service.url, timeout=TURN_TIMEOUT_S) as client:
                player, restarts = Player(client, servers, config), 0

                def check() -> None:
                    if service.has_ended:
                        raise CannotPlay(f"The service has stopped. Its log ends so:\n{service.log_end()}")

                async def restart() -> None:
                    nonlocal restarts
                    await asyncio.to_thread(service.kill)
                    restarts += 1
                    service.start()
                    await player.wait_until_ready(check)

                await player.wait_until_ready(check)
                await player.play(playbacks, restart=restart if restarting else None)
                return ReplayReport(playbacks, restarts)
        except httpx2.TransportError as error:
            raise CannotPlay(f"The service was lost on the way ({type(error).__name__}).") from error


@asynccontextmanager
async def _own_service(config: ReplayConfig, base_url: str) -> AsyncIterator[OwnService]:
    """Yields a started service with none of the caller's settings. Its stores survive it when it is killed."""
    with tempfile.TemporaryDirectory(prefix="segue-replay-") as name:
        folder = Path(name)
        (folder / "mcp.json").write_text(config.mcp_config(base_url), "utf-8")
        async with server_urls(None, None, folder / "data", fast=True) as urls:
            inherited = {variable: os.environ[variable] for variable in INHERITED if variable in os.environ}
            stores = {"DATABASE_URL": urls.database_url, "REDIS_URL": urls.redis_url}
            environment = inherited | stores | {"MCP_CONFIG": "mcp.json"} | config.environment(base_url)
            service = OwnService(folder / "service.log", environment, folder=folder)
            try:
                service.start()
                yield service
            finally:
                await asyncio.to_thread(service.stop)


async def _on_running_service(config: ReplayConfig, playbacks: list[Playback], target: RunningService) -> ReplayReport:
    servers = FakeServers(config.tools)
    own = httpx2.AsyncClient(base_url=target.url, headers=key_header(target.api_key), timeout=TURN_TIMEOUT_S)
    async with _serving(servers, target.address) as base_url, own as client:
        settings = [f"{name}={value}" for name, value in config.environment(base_url).items()]
        needs = [f"For {target.url}, in its environment:", *settings, "and as its mcp.json:"]
        typer.echo("\n".join([*needs, config.mcp_config(base_url)]), err=True)
        player = Player(client, servers, config)
        try:
            await player.wait_until_ready(lambda: None)
            await player.play(playbacks)
            for same in (each for each in playbacks if not each.differences):  # the others stay for a look
                await client.delete(f"/sessions/{same.session_id}")
        except httpx2.TransportError as error:
            raise CannotPlay(f"{target.url} was lost on the way ({type(error).__name__}).") from error
        return ReplayReport(playbacks, 0)


def _read(file: Path) -> Recording:
    if file.is_char_device():
        raise CannotPlay(f"{file} cannot be read: it is a device, which may have no end.")
    try:
        return read_recording(file.read_bytes())
    except OSError as error:
        raise CannotPlay(f"{file} cannot be read: {error.strerror}.") from error
    except BrokenRecording as error:
        raise CannotPlay(f"{file} cannot be played: {error}.") from error


@asynccontextmanager
async def _serving(servers: FakeServers, address: tuple[str, int]) -> AsyncIterator[str]:
    """Yields the base URL of the servers. Raises CannotPlay if the address is taken."""
    try:
        listener = socket.create_server(address)
    except (OSError, TypeError) as error:  # TypeError: no host can have this name
        why = error.strerror if isinstance(error, OSError) else error
        raise CannotPlay(f"The replay cannot listen at {address[0]}:{address[1]}: {why}.") from error
    host, port = listener.getsockname()[:2]
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    app = servers.app(host)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # the replay stops it
    task = asyncio.create_task(server.serve(sockets=[listener]), name="fake servers")
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task
