"""The conversation: a line is a message, a command that begins with a slash, or a decision about a waiting step.

`y` and `n` decide by the route of the button, bound to the version that was shown. Any other line is a message.

Prints a conversation: words as they come, one line for each tool call, plans step by step.

What a model or a tool wrote is data: none of its control characters reaches the terminal.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console

from segue.around.service_client import Api, Refused, StreamEvent, TurnStream, turn_problem, waiting_step, waiting_steps
from segue.around.terminal import one_line, printable
from segue.language.shown_call import CallView

MARKS: dict[str, tuple[str, str | None]] = {  # and the style
    "pending": ("[ ]", None),
    "running": ("[>]", "cyan"),
    "waiting": ("[?]", "yellow"),
    "complete": ("[x]", "green"),
    "failed": ("[!]", "red"),
    "skipped": ("[-]", None),
    "unknown": ("[!?]", "red"),
}


class Screen:
    """Prints the conversation to `out`, and remarks about it to `aside`, or to `out` if that is a terminal."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = Console(file=out, highlight=False)
        self._aside = Console(file=out if out.isatty() else aside, highlight=False)
        self._within_line = False

    def words(self, text: str) -> None:
        """Prints a piece of a text; the next piece continues its line."""
        if shown := printable(text):
            self._out.out(shown, end="")
            self._within_line = not shown.endswith("\n")

    def end_line(self) -> None:
        if self._within_line:
            self.words("\n")

    def line(self, text: str = "", style: str | None = None) -> None:
        self._print(self._out, text, style)

    def item(self, text: str, mark: str = " ", style: str | None = None) -> None:
        self.line(f"{mark} {one_line(text)}", style)

    def note(self, text: str) -> None:
        self._print(self._aside, text, "dim")

    def problem(self, text: str) -> None:
        self._print(self._aside, text, "red")

    def step(self, step: dict[str, Any]) -> None:
        tool = f" ({step['tool']})" if step["tool"] else ""
        error = f": {step['error']}" if step["error"] else ""
        mark, style = MARKS.get(step["status"], MARKS["pending"])
        self.item(f"{step['id']}. {step['description']}{tool}{error}", f"  {mark}", style)

    def plan(self, plan: dict[str, Any]) -> None:
        self.line(f"Plan, {plan['status']}: {one_line(plan['goal'])}", "cyan")
        for step in plan["steps"]:
            self.step(step)

    def _print(self, console: Console, text: str, style: str | None) -> None:
        self.end_line()
        console.out(printable(text), style=style)


class TurnView:
    """Prints the events of one turn. `answered` is True once the turn has ended well; `plan` is the plan it changed."""

    def __init__(self, screen: Screen) -> None:
        self.answered = False
        self.plan: dict[str, Any] | None = None
        self._screen = screen
        self._calls: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def show(self, event: StreamEvent) -> None:  # noqa: C901, PLR0912 (one line or two per kind of event)
        screen = self._screen
        match event:
            case {"type": "TEXT_MESSAGE_START", "messageId": message}:
                self._texts[message] = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": words}:
                self._texts[message] = self._texts.get(message, "") + words
                screen.words(words)
            case {"type": "TEXT_MESSAGE_END"}:
                screen.end_line()
            case {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name}:
                self._calls[call] = f"{name} "
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": args} if call in self._calls:
                self._calls[call] += args
            case {"type": "TOOL_CALL_END", "toolCallId": call} if call in self._calls:
                screen.item(self._calls.pop(call), "  →", "dim")
            case {"type": "TOOL_CALL_RESULT", "content": content}:
                self._show_result(json.loads(content))
            case {"type": "STATE_SNAPSHOT", "snapshot": {"plan": plan}}:
                self._show_plan(plan)
            case {"type": "STATE_DELTA", "delta": changes}:
                self._show_plan(_patched(self.plan, changes))
            case {"type": "CUSTOM", "name": "attempt"}:
                screen.note("(another process has taken the turn over and begins it again)")
            case {"type": "CUSTOM", "name": "replay_gap"}:
                screen.note("(some of what happened meanwhile is not shown)")
            case {"type": "CUSTOM", "name": "tool_state", "value": {"tool_name": tool, "state": state}}:
                if not state["available"]:
                    screen.problem(f"  {tool} is out: {state['reason']}")
            case {"type": "RUN_FINISHED", "result": answer}:
                self._finish(answer)
            case {"type": "RUN_ERROR"}:
                screen.problem(turn_problem(event))

    def _show_result(self, reference: dict[str, Any]) -> None:
        if reference["status"] == "succeeded":
            self._screen.item(reference["summary"], "  ←", "dim")
        else:
            text = f"{reference['tool_name']} {reference['status']}: {reference['summary']}"
            self._screen.item(text, "  ←", "red")

    def _show_plan(self, plan: dict[str, Any] | None) -> None:
        before, self.plan = self.plan, plan
        if plan is None:
            return
        if before is None or before["id"] != plan["id"] or len(before["steps"]) != len(plan["steps"]):
            self._screen.plan(plan)
            return
        for was, step in zip(before["steps"], plan["steps"], strict=True):
            if was["status"] != step["status"]:
                self._screen.step(step)

    def _finish(self, answer: dict[str, Any]) -> None:
        self.answered = True
        message = answer["message"]
        if self._texts.get(message["id"], "") != message["content"]:
            self._screen.line(message["content"])
        if answer["plan"] is not None:
            self._show_plan(answer["plan"])


def _patched(plan: dict[str, Any] | None, changes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the plan after the JSON patches that Segue emits, which only replace values below `/plan`."""
    state: Any = {"plan": deepcopy(plan)}
    for change in changes:
        *above, last = (int(name) if name.isdigit() else name for name in change["path"].split("/")[1:])
        place = state
        for name in above:
            place = place[name]
        place[last] = change["value"]
    patched: dict[str, Any] | None = state["plan"]
    return patched


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
