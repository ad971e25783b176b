"""`segue replay`: plays recorded conversations against a service."""

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from segue.around.replay import run_replay
from segue.around.replay.fake_servers import CannotPlay, RealModel
from segue.around.replay.run_replay import RunningService
from segue.around.terminal import refusal, settings_with
from segue.config import Settings
from segue.models.model_settings import MODEL_SETTINGS

_OF_MODELS = ("anthropic_", "google_", "llm_", "openai_")
ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def replay(
    files: Annotated[list[Path], typer.Argument(help="Recordings, as GET /sessions/{id}/export gives them.")],
    *,
    url: Annotated[str | None, typer.Option(help="A running service to play on, instead of one of its own.")] = None,
    listen: Annotated[str, typer.Option(help="With --url: where that service finds the model and the tools.")] = (
        "127.0.0.1:8900"
    ),
    api_key: Annotated[
        str | None, typer.Option(envvar="SEGUE_API_KEY", help="With --url: a key of the service.")
    ] = None,
    restart_between_turns: Annotated[
        bool, typer.Option("--restart-between-turns", help="kill -9 its own service after every turn.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="A model to ask in place of the recording, as LLM_MODEL names it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Plays recordings against a service and prints what differs."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host:
        raise refusal("--listen takes HOST:PORT")
    if url and restart_between_turns:
        raise refusal("--restart-between-turns needs a service of its own: leave out --url")
    running = RunningService(url, api_key, (host, int(port)), partial(typer.echo, err=True)) if url else None
    try:
        real = _real_model(model, on_own_service=running is None) if model else None
        report = asyncio.run(run_replay.replay(files, running=running, restarting=restart_between_turns, model=real))
    except CannotPlay as error:
        raise refusal(str(error)) from error
    except asyncio.CancelledError:
        raise typer.Exit(code=ENDED_BY_SIGTERM) from None
    typer.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=1) if as_json else "\n".join(report.lines()))
    raise typer.Exit(code=int(report.differs))


def _real_model(name: str, *, on_own_service: bool) -> RealModel:
    """Takes what leads to the provider from the settings. Nothing else answers: no smaller model and no fallback."""
    if not on_own_service:
        return RealModel(name, {})
    settings = settings_with(llm_model=name)
    if not settings.model_configured:
        raise refusal(f"--model {name} needs its provider: set OPENAI_API_KEY or OPENAI_BASE_URL.")
    return RealModel(name, dict(_of_the_model(settings)))


def _of_the_model(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the settings that were given for providers and models, as variables of an environment."""
    for name in settings.model_fields_set - set(MODEL_SETTINGS):
        value = getattr(settings, name)
        if name == "prices_file":
            yield name.upper(), str(value.absolute())
        elif name.startswith(_OF_MODELS):
            yield name.upper(), _revealed(value) if isinstance(value, SecretStr) else _written(value)


def _written(value: object) -> str:
    return json.dumps(value, default=_revealed) if isinstance(value, Mapping) else str(value)


def _revealed(secret: SecretStr) -> str:
    return secret.get_secret_value()
