"""The question about the step of a plan that waits, as the form that an MCP client shows to the person before it.

MCP calls that elicitation. The model that called the tool neither sees the form nor can fill it in.
"""

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import ElicitRequestFormParams, ElicitResult

from segue.commands.chat.api import waiting_step, waiting_steps
from segue.commands.terminal import one_line
from segue.language.shown_call import CallView

_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Run this step?",
            "description": "confirm runs exactly what is shown, reject ends the plan, amend takes what you say below.",
            "enum": ["confirm", "reject", "amend"],
        },
        "change": {"type": "string", "title": "What should be different", "description": "Only with amend."},
    },
    "required": ["decision"],
}


def question(plan: Mapping[str, Any], whole: str) -> str:
    """Returns the steps that wait as they would run. `whole` is where all of a long call can be read."""
    lines = [f"Plan: {one_line(plan['goal'])}"]
    for step in waiting_steps(plan):
        lines.append(f"Step {step.get('id')}: {one_line(step.get('description') or '')}")
        if step.get("tool"):
            lines.append(f"Tool: {one_line(step['tool'])}")
            lines += [f"  {line}" for line in CallView("en", whole).lines(step.get("args") or {})]
    if asks := (waiting_step(plan) or {}).get("asks"):
        shown = {"the_tool_says": asks["message"]} | ({"follow_this_link_first": asks["url"]} if asks["url"] else {})
        lines += CallView("en", whole).lines(shown)
    return "\n".join(lines)


def fills_in(plan: Mapping[str, Any]) -> bool:
    """Whether the step waits for values that its tool asks for, instead of a decision."""
    asks = (waiting_step(plan) or {}).get("asks")
    return asks is not None and asks["mode"] == "form"


def form(plan: Mapping[str, Any], whole: str) -> ElicitRequestFormParams:
    """Of values that a tool asks for, those that were given in words stand in the form for the person to see."""
    step, schema = waiting_step(plan), _FORM
    if step is not None and fills_in(plan):
        given, asked = step["asks"]["given"] or {}, step["asks"]["schema"]
        fields = {
            name: {**of, "default": given[name]} if name in given else of for name, of in asked["properties"].items()
        }
        schema = {**asked, "properties": fields}
    return ElicitRequestFormParams(message=question(plan, whole), requested_schema=schema)


def decision(answer: ElicitResult, version: int, *, filled_in: bool) -> dict[str, Any] | None:
    """Returns the body of a decision; None if the person left it open. A yes with a change in it is a change."""
    if filled_in and answer.action == "accept":
        return {"decision": "confirm", "version": version, "answer": answer.content or {}}
    given = answer.content or {} if answer.action == "accept" else {}
    decided = "reject" if answer.action == "decline" else given.get("decision")
    change = str(given.get("change") or "").strip()
    if decided != "reject" and change:
        return {"decision": "amend", "version": version, "message": change}
    return {"decision": decided, "version": version} if decided in ("confirm", "reject") else None
