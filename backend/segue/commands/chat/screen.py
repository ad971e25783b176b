"""Prints a conversation: words as they come, one line for each tool call, plans step by step.

What a model or a tool wrote is data: none of its control characters reaches the terminal.
"""

import json
import re
from copy import deepcopy
from typing import Any, TextIO

from rich.console import Console

from segue.commands.chat.api import Event, problem_line

MAX_LINE_CHARS = 160
MARKS = {
    "pending": "[ ]",
    "running": "[>]",
    "waiting": "[?]",
    "complete": "[x]",
    "failed": "[!]",
    "skipped": "[-]",
    "unknown": "[!?]",
}
_STYLES = {"complete": "green", "failed": "red", "unknown": "red", "waiting": "yellow", "running": "cyan"}

# Control characters except tab and line feed, and those that change the direction of text. rich lets ESC through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

Json = dict[str, Any]


class Screen:
    """Prints the conversation to `out`, and remarks about it to `aside`, or to `out` if that is a terminal."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = Console(file=out, highlight=False)
        self._aside = Console(file=out if out.isatty() else aside, highlight=False)
        self._within_line = False

    def words(self, text: str) -> None:
        """Prints a piece of a text; the next piece continues its line."""
        if printable := _CONTROL.sub("", text):
            self._out.out(printable, end="")
            self._within_line = not printable.endswith("\n")

    def end_line(self) -> None:
        if self._within_line:
            self.words("\n")

    def line(self, text: str = "", style: str | None = None) -> None:
        """Prints one line or several."""
        self._print(self._out, text, style)

    def item(self, text: str, mark: str = " ", style: str | None = None) -> None:
        """Prints one line of a list."""
        self.line(f"{mark} {one_line(text)}", style)

    def note(self, text: str) -> None:
        self._print(self._aside, text, "dim")

    def problem(self, text: str) -> None:
        self._print(self._aside, text, "red")

    def _print(self, console: Console, text: str, style: str | None) -> None:
        self.end_line()
        console.out(_CONTROL.sub("", text), style=style)

    def call(self, name: str, args: str) -> None:
        self.line(f"  → {name} {one_line(args)}", "dim")

    def result(self, reference: Json) -> None:
        if reference["status"] == "succeeded":
            self.line(f"  ← {one_line(reference['summary'])}", "dim")
        else:
            self.line(f"  ← {reference['tool_name']} {reference['status']}: {one_line(reference['summary'])}", "red")

    def step(self, step: Json) -> None:
        tool = f" ({step['tool']})" if step["tool"] else ""
        error = f": {step['error']}" if step["error"] else ""
        text = one_line(f"{step['id']}. {step['description']}{tool}{error}")
        self.line(f"  {MARKS.get(step['status'], '[ ]')} {text}", _STYLES.get(step["status"]))

    def plan(self, plan: Json) -> None:
        self.line(f"Plan, {plan['status']}: {one_line(plan['goal'])}", "cyan")
        for step in plan["steps"]:
            self.step(step)

    def waiting(self, step: Json) -> None:
        """Prints the arguments that a yes would run the step with."""
        for name, value in (step["args"] or {}).items():
            self.line(f"      {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


class TurnView:
    """Prints the events of one turn. `answered` is True once the turn has ended well; `plan` is the plan it changed."""

    def __init__(self, screen: Screen) -> None:
        self.answered = False
        self.plan: Json | None = None
        self._screen = screen
        self._calls: dict[str, list[str]] = {}
        self._texts: dict[str, str] = {}

    def show(self, event: Event) -> None:  # noqa: C901 (one line or two per kind of event)
        match event:
            case {"type": "TEXT_MESSAGE_START", "messageId": message}:
                self._texts[message] = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": words}:
                self._texts[message] = self._texts.get(message, "") + words
                self._screen.words(words)
            case {"type": "TEXT_MESSAGE_END"}:
                self._screen.end_line()
            case {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name}:
                self._calls[call] = [name, ""]
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": args} if call in self._calls:
                self._calls[call][1] += args
            case {"type": "TOOL_CALL_END", "toolCallId": call} if call in self._calls:
                self._screen.call(*self._calls.pop(call))
            case {"type": "TOOL_CALL_RESULT", "content": content}:
                self._screen.result(json.loads(content))
            case {"type": "STATE_SNAPSHOT", "snapshot": {"plan": plan}}:
                self._show_plan(plan)
            case {"type": "STATE_DELTA", "delta": changes}:
                self._show_plan(_patched(self.plan, changes))
            case {"type": "CUSTOM", "name": name, "value": value}:
                self._custom(name, value)
            case {"type": "RUN_FINISHED", "result": answer}:
                self._finished(answer)
            case {"type": "RUN_ERROR"}:
                self._failed(event)

    def _show_plan(self, plan: Json | None) -> None:
        before, self.plan = self.plan, plan
        if plan is None:
            return
        if before is None or before["id"] != plan["id"] or len(before["steps"]) != len(plan["steps"]):
            self._screen.plan(plan)
            return
        for was, step in zip(before["steps"], plan["steps"], strict=True):
            if was["status"] != step["status"]:
                self._screen.step(step)

    def _custom(self, name: str, value: Any) -> None:
        if name == "attempt":
            self._screen.note("(another process has taken the turn over and begins it again)")
        elif name == "replay_gap":
            self._screen.note("(some of what happened meanwhile is not shown)")
        elif name == "tool_state" and not value["state"]["available"]:
            self._screen.problem(f"  {value['tool_name']} is out: {value['state']['reason']}")

    def _finished(self, answer: Json) -> None:
        self.answered = True
        message = answer["message"]
        if self._texts.get(message["id"], "") != message["content"]:
            self._screen.line(message["content"])
        if answer["plan"] is not None:
            self._show_plan(answer["plan"])

    def _failed(self, event: Event) -> None:
        problem = event.get("metadata", {}).get("problem", {})
        line = problem_line(problem.get("title", "The turn failed"), event["message"], status=problem.get("status", 0))
        self._screen.problem(line)


def _patched(plan: Json | None, changes: list[Json]) -> Json | None:
    """Returns the plan after the JSON patches that Segue emits, which only replace values below `/plan`."""
    state: Any = {"plan": deepcopy(plan)}
    for change in changes:
        *above, last = (int(name) if name.isdigit() else name for name in change["path"].split("/")[1:])
        place = state
        for name in above:
            place = place[name]
        place[last] = change["value"]
    patched: Json | None = state["plan"]
    return patched


def one_line(text: str) -> str:
    """Returns the text without line breaks, cut to a readable length."""
    joined = " ".join(text.split())
    return joined if len(joined) <= MAX_LINE_CHARS else f"{joined[: MAX_LINE_CHARS - 1]}…"
