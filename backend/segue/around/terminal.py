"""What all commands share: settings from flags and environment, refusals, text that is safe to print, new files."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from errno import EAGAIN, EDQUOT, EEXIST, EFBIG, ENOSPC
from pathlib import Path
from typing import IO, Annotated, Any, Final
from urllib.parse import urlsplit

import httpx2
import typer
from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from segue.around.service_client import HOST, WHAT_TO_DO, Api, Refused
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.identity import is_loopback
from segue.log import configure_logging, log, never_log
from segue.tools.summaries import shown_line

MAX_LINE_CHARS = 200
ALIKE: Final = 0.88  # AZURE_OPENAI_API_KEY and OPENAI_API_KEY_FILE are names of their own

# Control characters except tab and line feed, and those that change the direction of text. rich lets ESC through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def settings_with(**flags: Any) -> Settings:
    """Returns settings and configures the log; flags win over the environment. Raises typer.Exit for invalid ones."""
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise refusal("\n".join(_sentence(one) for one in error.errors())) from None
    except (OSError, UnicodeError):
        raise refusal("The environment and .env have to be UTF-8 text that you may read.") from None
    never_log(settings.secrets)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    given = EnvSettingsSource(Settings).env_vars.keys() | DotEnvSettingsSource(Settings).env_vars.keys()
    for name in sorted(given - Settings.model_fields.keys()):
        for meant in get_close_matches(name, Settings.model_fields, n=1, cutoff=ALIKE):
            log.warning("setting_unknown", name=name.upper(), did_you_mean=meant.upper())
    return settings


def local_url(settings: Settings) -> str:
    """Returns where the service of this machine answers, by its HOST and PORT."""
    host = settings.host if is_loopback(settings.host) else HOST
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def service_url(given: str | None) -> str:
    """Returns the URL of a running service, of this machine if none is given."""
    return given or local_url(settings_with())


def checked_url(url: str | None) -> str | None:
    """Returns the --url of a service, if there is one, without a slash at its end. Raises typer.Exit."""
    if url is None:
        return None
    with suppress(ValueError, httpx2.InvalidURL):  # of its port, or of brackets; of its host
        parts, _ = urlsplit(url), httpx2.URL(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    raise refusal("--url or SEGUE_URL is no address of a service, such as https://segue.example.com")


def checked_key(key: str | None) -> str | None:
    """Returns the key without the line end of a file. Raises typer.Exit for one that no header can have."""
    if key is None or ((key := key.strip()).isascii() and key.isprintable()):
        return key
    raise refusal("--api-key or SEGUE_API_KEY is no key: there is a character in it that no key has. Copy it again.")


_url = typer.Option(envvar="SEGUE_URL", help="A running service. Otherwise HOST and PORT.", callback=checked_url)
ServiceUrl = Annotated[str | None, _url]
ServiceKey = Annotated[
    str | None,
    typer.Option(envvar="SEGUE_API_KEY", help="A key of the service, if it wants one.", callback=checked_key),
]


@contextmanager
def asking(url: str | None, api_key: str | None) -> Iterator[Api]:
    """Yields the API of a running service; what it refuses ends the command with 1."""
    api = Api(service_url(url), api_key, {401: WHAT_TO_DO[401]})
    try:
        yield api
    except Refused as error:
        raise refusal(str(error), code=1) from None
    finally:
        api.close()


def refusal(text: str, *, code: int = 2) -> typer.Exit:
    """Prints what is wrong and what to do, and returns the exit for the caller to raise."""
    typer.secho(text, err=True, fg=typer.colors.RED)
    return typer.Exit(code=code)


@contextmanager
def refusing() -> Iterator[None]:
    """An AppError within the block ends the command with 2, and is told."""
    try:
        yield
    except AppError as error:
        raise refusal(error.detail) from error


def printable(text: str) -> str:
    """Returns the text without the characters that would do something to a terminal."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Returns text without line breaks, cut to a readable length; what it hides is written out."""
    return shown_line(text, MAX_LINE_CHARS)


def local_time(moment: str) -> str:
    """Returns a time of the API by the clock of this terminal."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"


def _sentence(error: Any) -> str:
    """Returns a validation error as a sentence about a setting, or about a member of one, which keeps its own name."""
    name = ".".join(each if place else each.upper() for place, each in enumerate(map(str, error["loc"])))
    said = re.sub("^(Input|Value) should", "should", error["msg"]).replace("items after validation", "characters")
    text = str(error["ctx"]["error"]) if error["type"] == "value_error" else said.replace("frozenset", "list")
    if error["type"] == "import_error":
        text += ": install its package, or set PYTHONPATH"
    return f"{name}{': ' if name and text[0].isupper() else ' '}{text}".strip()


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file for this account only, called `….part` until the block ends; the next command to write it takes
    over what a `kill -9` leaves. Raises typer.Exit if it is there already, or cannot be written.
    """
    part = path.parent / f"{path.name}.part"  # of a folder too, which may have no name
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                file.truncate(0)
                os.fchmod(file.fileno(), 0o600)
                if path.exists():
                    raise FileExistsError(EEXIST, os.strerror(EEXIST))
                yield file
                file.flush()
                os.fsync(file.fileno())
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        why = "another command is writing it" if error.errno == EAGAIN else error.strerror or type(error).__name__
        has_room = error.errno not in (EDQUOT, EFBIG, ENOSPC)
        advice = "Give the name of a new file." if has_room else "Make room there, or name a file on another disk."
        raise refusal(f"{path} cannot be written: {why}. {advice}") from None
