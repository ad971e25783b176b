"""`segue chat`: talks to the service over HTTP, in a terminal or through a pipe. `y` and `n` decide on the plan version
that was shown. Without --url it starts a service of its own if none runs, and stops it.
"""

import json
import os
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx2
import typer

from segue.around.chat_screen import Screen, TurnView
from segue.around.service_client import Api, OwnService, Refused, TurnStream, waiting_step, waiting_steps
from segue.around.terminal import ServiceKey, ServiceUrl, local_time, local_url, one_line, refusal, settings_with
from segue.language.lexicon import load_toml
from segue.language.shown_call import CallView

ENDED_BY = 128
INTERRUPTED = ENDED_BY + signal.SIGINT
ASK_S = 2.0
START_S = 120.0  # the first start makes a database
PROMPT = "> "
DECISIONS = {"y": "confirm", "yes": "confirm", "n": "reject", "no": "reject"}

ReadLine = Callable[[str], "str | None"]  # shows a prompt and returns a line, None after the last one


def chat(
    *,
    url: ServiceUrl = None,
    api_key: ServiceKey = None,
    session: Annotated[str | None, typer.Option(help="The session to go on with, instead of the last one.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new session.")] = False,
) -> None:
    """Exits with 1 if a line has failed, and with 130 after Ctrl-C."""
    if session and new:
        raise refusal("--session goes on with a session and --new begins one: give one of them.")
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # Windows has no SIGHUP
        signal.signal(number, lambda ended_by, _frame: sys.exit(ENDED_BY + ended_by))
    screen = Screen(sys.stdout, sys.stderr)
    try:
        with _service(url, screen) as (base_url, name), closing(Api(base_url, api_key)) as api:
            api.get("/health/live")
            conversation = Conversation(api, screen, partial(_remember, name))
            if session:
                conversation.resume(quote(session, safe=""))
            else:
                conversation.begin(None if new else _last_sessions().get(name))
            try:
                conversation.talk(_reader(screen))
                code = int(not conversation.all_well)
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now; one more Ctrl-C must not print a traceback
                screen.end_line()
                code = INTERRUPTED
    except Refused as refused:
        raise refusal(str(refused)) from refused
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code=code)


@contextmanager
def _service(url: str | None, screen: Screen) -> Iterator[tuple[str, str]]:
    """Yields the base URL, and the name the last session is remembered by: a URL or a data folder. Raises Refused."""
    if url is not None:
        yield url, url
        return
    settings = settings_with()
    name = str(settings.data_dir.expanduser().resolve())
    local = local_url(settings)
    if settings.port and _answers(local):
        yield local, name
        return
    screen.note(f"No service answers at {local}; starting one with DATA_DIR={settings.data_dir} …")
    with tempfile.TemporaryDirectory(prefix="segue-chat-") as folder:
        service = OwnService(Path(folder) / "service.log", os.environ)
        try:
            service.start()
            deadline = time.monotonic() + START_S
            while not _answers(service.url):
                if service.has_ended or time.monotonic() > deadline:
                    raise Refused(f"The service does not start. Its log ends so:\n{service.log_end()}")
                time.sleep(0.05)
            screen.note(f"It serves at {service.url} until you leave.")
            yield service.url, name
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing else would stop the service
            service.stop()


def _answers(url: str) -> bool:
    try:
        response = httpx2.get(f"{url}/health/live", timeout=ASK_S, trust_env=False)
    except httpx2.HTTPError:
        return False
    return response.is_success and "X-Request-Id" in response.headers


def _reader(screen: Screen) -> ReadLine:
    """Returns what reads a line: with a prompt and line editing on a terminal, else as it comes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda _: sys.stdin.readline() or None
    with suppress(ImportError):
        import readline  # noqa: PLC0415 (line editing, where the system has it)

        readline.parse_and_bind("set enable-bracketed-paste on")  # else each line pasted is a message

    def read(prompt: str) -> str | None:
        screen.end_line()
        if prompt != PROMPT:
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before a question stood there answers none
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


@dataclass(slots=True)
class Conversation:
    """Acts on the user's lines. `remember` gets the id of each session; `all_well` is False once a line has failed."""

    api: Api
    screen: Screen
    remember: Callable[[str], None]
    session_id: str | None = None
    all_well: bool = True
    _waiting: dict[str, Any] | None = None

    def begin(self, last: str | None) -> None:
        """Resumes the last session, which may be gone, or says how to begin. Raises Refused."""
        if last is None:
            self.screen.note("A new conversation. /help says what there is beside talking.")
            return
        try:
            self.resume(last)
        except Refused as refused:
            if refused.code != "session_not_found":
                raise
            self.screen.note("The last conversation is gone; this is a new one.")

    def resume(self, session_id: str) -> None:
        """Prints the last messages, and follows the turn that runs in the session, if one does. Raises Refused."""
        session = self.api.get(f"/sessions/{session_id}")
        self.session_id = session_id
        self.remember(session_id)
        title = one_line(session["title"] or session_id)
        self.screen.note(f"Going on with {title} ({session_id}). /new begins another.")
        newest = self.api.get(f"/sessions/{session_id}/messages", order="desc", limit=50)["items"]
        for message in [each for each in newest if each["role"] != "tool" and each["content"]][5::-1]:
            self.screen.line(f"{PROMPT if message['role'] == 'user' else ''}{message['content']}")
        if session["running_turn_id"]:
            self._run(turn_id=session["running_turn_id"])
        else:
            self._refresh_waiting(None)

    def talk(self, read: ReadLine) -> None:
        """Ends after the last line, or at /quit. Raises KeyboardInterrupt at a second Ctrl-C."""
        interrupted = False
        while True:
            try:
                line = read(self._prompt())
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.screen.note("\n(Ctrl-C again, or /quit, leaves)")
                continue
            interrupted = False
            if line is None or line.strip() == "/quit":
                return
            try:
                self._read_line(line)
            except Refused as refusal:
                self.all_well = False
                self.screen.problem(str(refusal))

    def _prompt(self) -> str:
        if not (steps := waiting_steps(self._waiting)):
            return PROMPT
        which = f"step {steps[0]['id']}" if len(steps) == 1 else f"steps {', '.join(str(step['id']) for step in steps)}"
        return f"Run {which}? y, n, or say what should be different {PROMPT}"

    def _read_line(self, line: str) -> None:
        command, _, argument = line.rstrip().partition(" ")
        if command.startswith("/"):
            self._command(command, argument.strip())
        elif self._waiting is not None and line.strip().casefold() in DECISIONS:
            self._decide(self._waiting, DECISIONS[line.strip().casefold()])
        elif line.strip():
            if self.session_id is None:
                self.session_id = str(self.api.post("/sessions", {})["id"])
                self.remember(self.session_id)
            self._run("chat", {"message": line.strip(), "stream": True})
        elif self._waiting is not None:
            self.screen.note(f"Nothing was decided. The plan waits until {local_time(self._waiting['expires_at'])}.")

    def _decide(self, plan: dict[str, Any], decision: str) -> None:
        """Decides about the version that was shown. If the plan has changed, nothing happens and it is shown again."""
        try:
            self._run("plan/decision", {"decision": decision, "version": plan["version"]})
        except Refused:
            self._refresh_waiting(None)
            raise

    def _run(self, action: str = "", body: Mapping[str, Any] | None = None, turn_id: str | None = None) -> None:
        """Begins a turn, or follows one that has begun, and shows it."""
        view = TurnView(self.screen)
        turn = TurnStream(self.api.client, f"/sessions/{self.session_id}", action, body, turn_id=turn_id)
        turn.on_lost = lambda: self.screen.note("(the connection is lost; trying again)")
        cancelling = False

        async def show() -> None:
            async for event in turn.events():
                view.show(event)
                if cancelling and event["type"] == "RUN_STARTED":
                    await turn.cancel()

        while True:
            try:
                self.api.run(show())
                break
            except KeyboardInterrupt:
                if cancelling:
                    raise
                cancelling = True
                self.screen.note("\n(cancelling; Ctrl-C again leaves)")
                self.api.run(turn.cancel())
        self.screen.end_line()
        self.all_well = self.all_well and view.answered
        self._refresh_waiting(view.plan)

    def _refresh_waiting(self, shown: dict[str, Any] | None) -> None:
        """Reads which plan waits for a yes, and shows it unless the turn has just shown this version."""
        plan = self._open_plan()
        self._waiting = plan if waiting_step(plan) else None
        if self._waiting is not None and (shown is None or shown["version"] != self._waiting["version"]):
            self._show_plan(self._waiting)

    def _open_plan(self) -> dict[str, Any] | None:
        return self.api.get(f"/sessions/{self.session_id}")["pending_plan"] if self.session_id else None

    def _show_plan(self, plan: dict[str, Any], *, whole: bool = False) -> None:
        """Prints the arguments too that a yes would run the waiting steps with, as the question shows them."""
        self.screen.plan(plan)
        for step in waiting_steps(plan):
            for line in CallView("en", None if whole else "/plan").lines(step.get("args") or {}):
                self.screen.line(f"      {line}")

    def _command(self, command: str, argument: str) -> None:
        match command:
            case "/help":
                self.screen.line(load_toml("commands.toml", package="segue.around")["chat"]["slash_help"])
            case "/new":
                self.session_id = self._waiting = None
                self.screen.note("A new conversation.")
            case "/sessions":
                self._sessions(argument)
            case "/plan" if plan := self._open_plan():
                self._show_plan(plan, whole=True)
            case "/plan":
                self.screen.note("No plan is open.")
            case "/tools":
                self._tools()
            case "/memory":
                self._memory()
            case _:
                self.screen.note(f"There is no {one_line(command)}. /help says what there is.")

    def _sessions(self, argument: str) -> None:
        found = self.api.get("/sessions", limit=20)["items"]
        if argument.isdecimal() and 0 < int(argument) <= len(found):
            self.resume(found[int(argument) - 1]["id"])
            return
        for number, session in enumerate(found, start=1):
            here = "*" if session["id"] == self.session_id else " "
            at, title = local_time(session["updated_at"]), one_line(session["title"] or "untitled")
            self.screen.line(f"{here}{number:3}  {at}  {session['id']}  {title}, {session['message_count']} messages")
        if not found:
            self.screen.note("There are none yet.")

    def _tools(self) -> None:
        states = self.api.get(f"/sessions/{self.session_id}/tool-states")["tool_states"] if self.session_id else {}
        for tool in self.api.get("/tools")["items"]:
            state = states.get(tool["name"])
            if state is not None and not state["available"]:
                self.screen.item(f"{tool['name']}: {state['reason']}", "-", "yellow")
            else:
                asks = " (asks first)" if tool["confirmation"] else ""
                self.screen.item(f"{tool['name']}{asks}: {tool['description']}")

    def _memory(self) -> None:
        memory = self.api.get(f"/sessions/{self.session_id}/memory")["short_term"] if self.session_id else None
        known = [f"{each['tool_name']}: {each['summary']}" for each in (memory["tool_results"] if memory else ())]
        known += [f"{fact['kind']}: {fact['content']}" for fact in self.api.get("/memories")["items"]]
        for each in known:
            self.screen.item(each)
        if not known:
            self.screen.note("Nothing yet.")
