"""What `segue chat` prints. A model or a tool wrote it, so none of its control characters reaches the terminal."""

import json
from typing import Any, TextIO

from rich.console import Console

from segue.around.service_client import WHAT_TO_DO, StreamEvent, turn_problem
from segue.around.terminal import one_line, printable
from segue.domain.plan import patched

MARKS: dict[str, tuple[str, str | None]] = {  # and the style
    "pending": ("[ ]", None), "running": ("[>]", "cyan"), "waiting": ("[?]", "yellow"), "complete": ("[x]", "green"),
    "failed": ("[!]", "red"), "skipped": ("[-]", None), "unknown": ("[!?]", "red"),
}  # fmt: skip


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
                self._show_plan(patched(self.plan, changes))
            case {"type": "CUSTOM", "name": "attempt"}:
                screen.note("(another process has taken the turn over and begins it again)")
            case {"type": "CUSTOM", "name": "effects", "value": effects}:
                screen.item(" · ".join(f"{each['title']}: {each['outcome']}" for each in effects), "  ∙", "dim")
            case {"type": "CUSTOM", "name": "replay_gap"}:
                screen.note("(some of what happened meanwhile is not shown)")
            case {"type": "CUSTOM", "name": "tool_state", "value": {"tool_name": tool, "state": state}}:
                if not state["available"]:
                    screen.problem(f"  {tool} is out: {state['reason']}")
            case {"type": "RUN_FINISHED", "result": answer}:
                self._finish(answer)
            case {"type": "RUN_ERROR"}:
                screen.problem(turn_problem(event, WHAT_TO_DO))

    def _show_result(self, reference: dict[str, Any]) -> None:
        well = reference["status"] == "succeeded"
        ended = "" if well else f"{reference['tool_name']} {reference['status']}: "
        self._screen.item(f"{ended}{reference['summary']}", "  ←", "dim" if well else "red")

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
