"""`segue replay` plays recorded conversations against a service, `segue rehearse` with what is to replace it."""

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from segue.around.replay import rehearsal, run_replay
from segue.around.replay.fake_servers import CannotPlay, RealModel, Trial
from segue.around.replay.run_replay import RunningService
from segue.around.terminal import printable, refusal, settings_with
from segue.domain.errors import AppError
from segue.mcp.mcp_config import read_mcp_config
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


def rehearse(
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
    files = [file for path in recordings for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    try:
        limits = rehearsal.read_limits(fail_on)
        trial = Trial(agents, read_mcp_config(mcp, as_written=True).servers if mcp else None)
        playbacks = asyncio.run(run_replay.rehearse(files, _real_model(model), trial))
    except CannotPlay as error:
        raise refusal(str(error)) from error
    except AppError as error:
        raise refusal(error.detail) from error
    except asyncio.CancelledError:
        raise typer.Exit(code=ENDED_BY_SIGTERM) from None
    reports = rehearsal.report(playbacks, limits, ignore or ())
    typer.echo(printable("\n".join(rehearsal.table(reports))))
    if json_file is not None:
        shown = [asdict(each) for each in reports]
        json_file.write_text(json.dumps(shown, ensure_ascii=False, indent=1) + "\n", "utf-8")
    if junit is not None:
        junit.write_bytes(rehearsal.as_junit(reports))
    raise typer.Exit(code=int(any(each.exceeded for each in reports)))


def _real_model(name: str | None, *, on_own_service: bool = True) -> RealModel:
    """Takes what leads to the provider from the settings. Nothing else answers: no smaller model and no fallback."""
    if not on_own_service and name:
        return RealModel(name, {})
    settings = settings_with(llm_model=name)
    if not settings.model_configured:
        raise refusal(f"--model {settings.llm_model} needs its provider: set OPENAI_API_KEY or OPENAI_BASE_URL.")
    environment = {}
    for setting in settings.model_fields_set - set(MODEL_SETTINGS):
        value = getattr(settings, setting)
        if setting == "prices_file":
            environment[setting.upper()] = str(value.absolute())
        elif setting.startswith(_OF_MODELS):
            is_table = isinstance(value, Mapping)
            environment[setting.upper()] = json.dumps(value, default=_revealed) if is_table else str(_revealed(value))
    return RealModel(settings.llm_model, environment)


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
