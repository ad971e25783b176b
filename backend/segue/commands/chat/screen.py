"""What is printed: words as they come, one line for each call of a tool, plans step by step.

What others wrote is data here too: control characters never reach the terminal. Colours only on a terminal.
"""

import json
import os
import re
from typing import Any, TextIO

import typer

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
_COLOURS = {"complete": "green", "failed": "red", "unknown": "red", "waiting": "yellow", "running": "cyan"}

# Control characters but tab and line feed, and what turns the direction of text around.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

Json = dict[str, Any]


class Screen:
    """In a pipe `out` is what was said and done; what is said about it goes to `aside`."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = out
        self._aside = out if out.isatty() else aside
        self._colourful = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._within_line = False

    def words(self, text: str) -> None:
        """A piece of a text: the next may go on with its line."""
        if shown := _UNSEEN.sub("", text):
            self._out.write(shown)
            self._out.flush()
            self._within_line = not shown.endswith("\n")

    def end_line(self) -> None:
        if self._within_line:
            self.words("\n")

    def line(self, text: str = "", colour: str | None = None, *, dim: bool = False) -> None:
        """Lines of their own."""
        self._write_line(self._out, text, colour, dim=dim)

    def item(self, text: str, mark: str = " ", colour: str | None = None) -> None:
        """One line of a list, whatever it holds."""
        self.line(f"{mark} {one_line(text)}", colour)

    def note(self, text: str) -> None:
        self._write_line(self._aside, text, dim=True)

    def problem(self, text: str) -> None:
        self._write_line(self._aside, text, "red")

    def _write_line(self, where: TextIO, text: str, colour: str | None = None, *, dim: bool = False) -> None:
        self.end_line()
        shown = _UNSEEN.sub("", text)
        where.write(f"{typer.style(shown, fg=colour, dim=dim) if self._colourful else shown}\n")
        where.flush()

    def call(self, name: str, args: str) -> None:
        self.line(f"  → {name} {one_line(args)}", dim=True)

    def result(self, reference: Json) -> None:
        if reference["status"] == "succeeded":
            self.line(f"  ← {one_line(reference['summary'])}", dim=True)
        else:
            self.line(f"  ← {reference['tool_name']} {reference['status']}: {one_line(reference['summary'])}", "red")

    def step(self, step: Json) -> None:
        tool = f" ({step['tool']})" if step["tool"] else ""
        error = f": {step['error']}" if step["error"] else ""
        text = one_line(f"{step['id']}. {step['description']}{tool}{error}")
        self.line(f"  {MARKS.get(step['status'], '[ ]')} {text}", _COLOURS.get(step["status"]))

    def plan(self, plan: Json) -> None:
        self.line(f"Plan, {plan['status']}: {one_line(plan['goal'])}", "cyan")
        for step in plan["steps"]:
            self.step(step)

    def waiting(self, step: Json) -> None:
        """Exactly what a yes would run."""
        for name, value in (step["args"] or {}).items():
            self.line(f"      {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= MAX_LINE_CHARS else f"{joined[: MAX_LINE_CHARS - 1]}…"
