"""`segue chat`: talks to the service over its HTTP API, in a terminal or through a pipe.

Without --url it talks to the service that runs, or to one that it starts and stops.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated
from urllib.parse import quote

import httpx2
import typer

from segue.around.chat_conversation import Conversation, ReadLine, Screen
from segue.around.embedded.service_process import OwnService
from segue.around.service_client import Api, Refused
from segue.around.terminal import ServiceKey, check_url, local_url, refusal, settings_with

ENDED_BY = 128
INTERRUPTED = ENDED_BY + signal.SIGINT
ASK_S = 2.0
START_S = 120.0  # the first start makes a database
POLL_S = 0.05


def chat(
    *,
    url: Annotated[
        str | None, typer.Option(help="A running service. Otherwise HOST and PORT, or one of its own.")
    ] = None,
    api_key: ServiceKey = None,
    session: Annotated[str | None, typer.Option(help="The session to go on with, instead of the last one.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new session.")] = False,
) -> None:
    """Exits with 1 if a line has failed, and with 130 after Ctrl-C."""
    if session and new:
        raise refusal("--session goes on with a session and --new begins one: give one of them.")
    check_url(url)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    _lenient_streams()
    screen = Screen(sys.stdout, sys.stderr)
    try:
        with _service(url, screen) as (base_url, name), closing(Api(base_url, api_key)) as api:
            api.get("/health/live")
            conversation = Conversation(api, screen, partial(_remember, name))
            last = None if new else _last_sessions().get(name)
            _open(conversation, quote(session, safe="") if session else last, given=session is not None)
            code = _talk(conversation, screen)
    except Refused as refused:
        raise refusal(str(refused)) from refused
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code=code)


def _talk(conversation: Conversation, screen: Screen) -> int:
    try:
        conversation.talk(_reader(screen))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now; one more Ctrl-C must not print a traceback
        screen.end_line()
        return INTERRUPTED
    return int(not conversation.all_well)


@contextmanager
def _service(url: str | None, screen: Screen) -> Iterator[tuple[str, str]]:
    """Yields the base URL, and the name under which the last session is remembered: a URL or a data folder."""
    if url is not None:
        yield url.rstrip("/"), url.rstrip("/")
        return
    settings = settings_with()
    name = str(settings.data_dir.expanduser().resolve())
    local = local_url(settings)
    if settings.port and _answers(local):
        yield local, name
        return
    screen.note(
        f"No service answers at {local}; starting one for this conversation, with DATA_DIR={settings.data_dir} …"
    )
    with _own_service() as own:
        screen.note(f"It serves at {own} until you leave.")
        yield own, name


@contextmanager
def _own_service() -> Iterator[str]:
    """Yields its base URL. Raises Refused if it does not start."""
    with tempfile.TemporaryDirectory(prefix="segue-chat-") as folder:
        service = OwnService(Path(folder) / "service.log", os.environ)
        try:
            service.start()
            deadline = time.monotonic() + START_S
            while not _answers(service.url):
                if service.has_ended or time.monotonic() > deadline:
                    raise Refused(f"The service does not start. Its log ends so:\n{service.log_end()}")
                time.sleep(POLL_S)
            yield service.url
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing else would stop the service
            service.stop()


def _answers(url: str) -> bool:
    """Returns whether Segue answers there."""
    try:
        response = httpx2.get(f"{url}/health/live", timeout=ASK_S, trust_env=False)
    except httpx2.HTTPError:
        return False
    return response.is_success and "X-Request-Id" in response.headers


def _open(conversation: Conversation, session_id: str | None, *, given: bool) -> None:
    """Resumes the session. Raises Refused if it was given and does not exist; a remembered one may be gone."""
    if session_id is None:
        conversation.screen.note("A new conversation. /help says what there is beside talking.")
        return
    try:
        conversation.resume(session_id)
    except Refused as refused:
        if given or refused.code != "session_not_found":
            raise
        conversation.screen.note("The last conversation is gone; this is a new one.")


def _reader(screen: Screen) -> ReadLine:
    """Returns what reads a line: with a prompt and line editing on a terminal, else as it comes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda _: sys.stdin.readline() or None
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 (line editing, where the system has it)

    def read(prompt: str) -> str | None:
        screen.end_line()
        try:
            return input(prompt)
        except EOFError:
            screen.line()
            return None

    return read


def _sessions_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "segue" / "chat.json"


def _last_sessions() -> dict[str, str]:
    try:
        sessions = json.loads(_sessions_file().read_text("utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
        return {}
    return sessions if isinstance(sessions, dict) else {}


def _remember(service: str, session_id: str) -> None:
    """If the file cannot be written, the next chat begins a new session."""
    with suppress(OSError, RuntimeError):
        file = _sessions_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({**_last_sessions(), service: session_id}, indent=1), "utf-8")
        written.replace(file)


def _lenient_streams() -> None:
    """Replaces characters that the terminal cannot show, and bytes from a pipe that are no text."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(ENDED_BY + number)
