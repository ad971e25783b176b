"""The events of one turn, shown as they come. Keeps what it needs to tell what is new: calls, texts and the plan."""

import json
from copy import deepcopy
from typing import Any

from segue.commands.chat.api import problem_line
from segue.commands.chat.following import Event
from segue.commands.chat.screen import Json, Screen


class TurnView:
    """`answered` once it has ended well; `plan` is the plan it moved, if it moved one."""

    def __init__(self, screen: Screen) -> None:
        self.answered = False
        self.plan: Json | None = None
        self._screen = screen
        self._calls: dict[str, list[str]] = {}
        self._told: dict[str, str] = {}

    def show(self, event: Event) -> None:  # noqa: C901 (one line or two per kind of event)
        match event:
            case {"type": "TEXT_MESSAGE_START", "messageId": message}:
                self._told[message] = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": words}:
                self._told[message] = self._told.get(message, "") + words
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
                self._plan_is(plan)
            case {"type": "STATE_DELTA", "delta": changes}:
                self._plan_is(_patched(self.plan, changes))
            case {"type": "CUSTOM", "name": name, "value": value}:
                self._custom(name, value)
            case {"type": "RUN_FINISHED", "result": answer}:
                self._finished(answer)
            case {"type": "RUN_ERROR"}:
                self._failed(event)

    def _plan_is(self, plan: Json | None) -> None:
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
        if self._told.get(message["id"], "") != message["content"]:
            self._screen.line(message["content"])
        if answer["plan"] is not None:
            self._plan_is(answer["plan"])

    def _failed(self, event: Event) -> None:
        problem = event.get("metadata", {}).get("problem", {})
        line = problem_line(problem.get("title", "The turn failed"), event["message"], status=problem.get("status", 0))
        self._screen.problem(line)


def _patched(plan: Json | None, changes: list[Json]) -> Json | None:
    """The JSON patches that Segue writes: replacements below `/plan`."""
    state: Any = {"plan": deepcopy(plan)}
    for change in changes:
        *above, last = (int(name) if name.isdigit() else name for name in change["path"].split("/")[1:])
        place = state
        for name in above:
            place = place[name]
        place[last] = change["value"]
    patched: Json | None = state["plan"]
    return patched
