"""The conversation: a line is a message, a command that begins with a slash, or a decision about a waiting step.

`y` and `n` decide by the route of the button, bound to the version that was shown. Any other line is a message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from segue.commands.chat.api import Api, Refused, TurnStream, waiting_step, waiting_steps
from segue.commands.chat.screen import Screen, TurnView
from segue.commands.terminal import one_line
from segue.language.shown_call import CallView

ReadLine = Callable[[str], "str | None"]  # shows a prompt and returns a line, None after the last one

PROMPT = "> "
SHOWN_HISTORY = 6
SHOWN_SESSIONS = 20
DECISIONS = {"y": "confirm", "yes": "confirm", "n": "reject", "no": "reject"}

HELP = """\
/new          begin another conversation
/sessions     your conversations; /sessions NUMBER goes on with one
/plan         the plan that is open, and what it waits for
/tools        what the agent can use here, and what it cannot and why
/memory       what it remembers of this conversation and of you
/quit         leave; so does Ctrl-D. Ctrl-C cancels the answer that is being given
Anything else is a message. To begin one with a slash, put a space before it."""


@dataclass(slots=True)
class Conversation:
    """`remember` is given the id of each session it goes on with. `all_well` is False once a line has failed."""

    api: Api
    screen: Screen
    remember: Callable[[str], None]
    session_id: str | None = None
    all_well: bool = True
    _waiting: dict[str, Any] | None = None

    def resume(self, session_id: str) -> None:
        """Prints the last messages, and follows the turn that runs in the session, if one does. Raises Refused."""
        session = self.api.get(f"/sessions/{session_id}")
        self.session_id = session_id
        self.remember(session_id)
        self.screen.note(
            f"Going on with {one_line(session['title'] or session_id)} ({session_id}). /new begins another."
        )
        messages = [each for each in self.api.all_items(f"/sessions/{session_id}/messages") if each["role"] != "tool"]
        for message in [each for each in messages if each["content"]][-SHOWN_HISTORY:]:
            self.screen.line(f"{PROMPT if message['role'] == 'user' else ''}{message['content']}")
        if session["running_turn_id"]:
            self._follow(TurnStream(self.api, session_id, turn_id=session["running_turn_id"]))
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
            self._send(line.strip())
        elif self._waiting is not None:
            self.screen.note(f"Nothing was decided. The plan waits until {_here(self._waiting['expires_at'])}.")

    def _send(self, message: str) -> None:
        if self.session_id is None:
            self.session_id = str(self.api.post("/sessions", {})["id"])
            self.remember(self.session_id)
        body = {"message": message, "stream": True}
        self._follow(TurnStream(self.api, self.session_id, f"/sessions/{self.session_id}/chat", body))

    def _decide(self, plan: dict[str, Any], decision: str) -> None:
        """Decides about the version that was shown. If the plan has changed, nothing happens and it is shown again."""
        assert self.session_id is not None  # noqa: S101 (a plan is a session's)
        body = {"decision": decision, "version": plan["version"]}
        path = f"/sessions/{self.session_id}/plan/decision"
        try:
            self._follow(TurnStream(self.api, self.session_id, path, body))
        except Refused:
            self._refresh_waiting(None)
            raise

    def _follow(self, turn: TurnStream) -> None:
        view = TurnView(self.screen)
        turn.on_lost = lambda: self.screen.note("(the connection is lost; trying again)")
        cancelling = False
        while True:
            try:
                for event in turn.events():
                    view.show(event)
                    if cancelling and event["type"] == "RUN_STARTED":
                        turn.cancel()
                break
            except KeyboardInterrupt:
                if cancelling:
                    raise
                cancelling = True
                self.screen.note("\n(cancelling; Ctrl-C again leaves)")
                turn.cancel()
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

    # --- commands ---

    def _command(self, command: str, argument: str) -> None:
        match command:
            case "/help":
                self.screen.line(HELP)
            case "/new":
                self.session_id = self._waiting = None
                self.screen.note("A new conversation.")
            case "/sessions":
                self._sessions(argument)
            case "/plan":
                if plan := self._open_plan():
                    self._show_plan(plan, whole=True)
                else:
                    self.screen.note("No plan is open.")
            case "/tools":
                self._tools()
            case "/memory":
                self._memory()
            case _:
                self.screen.note(f"There is no {one_line(command)}. /help says what there is.")

    def _sessions(self, argument: str) -> None:
        found = self.api.get("/sessions", limit=SHOWN_SESSIONS)["items"]
        if argument.isdecimal() and 0 < int(argument) <= len(found):
            self.resume(found[int(argument) - 1]["id"])
            return
        for number, session in enumerate(found, start=1):
            here = "*" if session["id"] == self.session_id else " "
            title = one_line(session["title"] or "untitled")
            messages = f"{session['message_count']} messages"
            self.screen.line(f"{here}{number:3}  {_here(session['updated_at'])}  {session['id']}  {title}, {messages}")
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
        known = [f"{result['tool_name']}: {result['summary']}" for result in (memory or {"results": ()})["results"]]
        known += [f"{fact['kind']}: {fact['content']}" for fact in self.api.get("/memories")["items"]]
        for each in known:
            self.screen.item(each)
        if not known:
            self.screen.note("Nothing yet.")


def _here(moment: str) -> str:
    """Returns a time of the API by the clock of this terminal."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
