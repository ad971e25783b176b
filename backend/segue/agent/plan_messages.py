"""What the engine tells the user about a plan, in the user's language: what waits, is done, or how it ended. Pure.

The user approves what is shown here, so the engine writes it and the model does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from segue.domain.plan import Plan, Step
from segue.domain.visible import visible
from segue.language.shown_call import CallView, code, plain
from segue.language.translations import translate
from segue.plans.argument_origins import not_from_user
from segue.plans.store import StoredPlan
from segue.tools.summaries import one_line

MAX_LINE_CHARS = 160
MAX_ERROR_CHARS = 500
MAX_TOLD_CHARS = 80
INDENT = " " * 4  # which Markdown shows as it is


@dataclass(frozen=True, slots=True)
class KnownThing:
    """What a tool's result says of the thing with an id: `said` is by the names of its fields. Data, as all results."""

    tool: str
    thing: str
    said: Mapping[str, str]


def ask(
    stored: StoredPlan,
    language: str,
    *,
    changed: bool = False,
    blocked: Mapping[str, str] = MappingProxyType({}),
    told: KnownThing | None = None,
    results: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Returns what is done, the step that waits with its exact arguments, and the question that a plain yes answers.

    `changed` says that it differs from what was approved, `blocked` holds tools that cannot run now and the reasons,
    `told` is what is known of the thing that the call names. `results` are the names of tools by the ids of calls.
    """
    plan, step = stored.plan, stored.plan.waiting_step
    if step is None:
        return ended(plan, language)
    parts = [done(plan, language)]
    if changed:
        parts.append(translate("changed", language))
    for tool, reason in blocked.items():
        parts.append(translate("blocked", language, tool=tool, reason=_line(reason)))
    parts += [_next_step(step, language), *_call_block(stored, step, language)]
    if told is not None:
        parts.append(_told_line(told, language))
    parts += _not_from_you(stored, step, language, results)
    parts.append(translate("ask", language))
    return "\n\n".join(part for part in parts if part)


def opening(plan: Plan, language: str) -> str:
    """Returns what a question begins with, if nothing has changed and nothing is blocked."""
    step = plan.waiting_step
    return "\n\n".join(part for part in (done(plan, language), _next_step(step, language)) if part) if step else ""


def ask_again(stored: StoredPlan, language: str) -> str:
    """Returns one line: what would happen, each argument or its two ends once, and that a plain yes or no is needed."""
    step = stored.plan.waiting_step
    if step is None:
        return ended(stored.plan, language)
    parts = _next_step(step, language), _call_line(stored, step, language), translate("ask_again_plainly", language)
    return " — ".join(part for part in parts if part)


def done(plan: Plan, language: str) -> str:
    """Returns a line for each step that is complete."""
    return "\n".join(
        translate(
            "done_step",
            language,
            description=_line(step.description),
            summary=_line(step.result_preview or ""),
        )
        for step in plan.steps
        if step.status == "complete"
    )


def ended(plan: Plan, language: str) -> str:
    """Returns how a plan ended: cancelled, expired, superseded, or what was done, failed or is unknown."""
    match plan.status:
        case "cancelled" | "expired":
            return translate(plan.status, language)
        case "superseded":
            return superseded(plan, language)
        case _:
            lines = [done(plan, language), *(_failure_line(step, language) for step in plan.steps)]
            return "\n".join(line for line in lines if line)


def still_waiting(stored: StoredPlan, language: str) -> str:
    """Returns the reminder that follows an answer about something else: a yes to it runs what it shows."""
    reminder, step = translate("still_waiting", language, goal=_line(stored.plan.goal)), stored.plan.waiting_step
    return " — ".join(part for part in (reminder, _call_line(stored, step, language) if step else "") if part)


def superseded(plan: Plan, language: str) -> str:
    """Returns that a new plan has taken this one's place."""
    return translate("superseded", language, goal=_line(plan.goal))


def _next_step(step: Step, language: str) -> str:
    return translate("ask_step", language, description=_line(step.description, MAX_ERROR_CHARS))


def _call_block(stored: StoredPlan, step: Step, language: str) -> list[str]:
    """Returns the tool, and its arguments as they will be sent in a block of their own."""
    if step.tool is None:
        return []
    lines = _view(stored, language).lines(step.args or {})
    return [f"`{step.tool}`", "\n".join(f"{INDENT}{line}" for line in lines)]


def _call_line(stored: StoredPlan, step: Step, language: str) -> str:
    if not step.tool:
        return ""
    named = {path for values in not_from_user(step.args, step.args_origin).values() for path in values}
    rest = {name: value for name, value in (step.args or {}).items() if not (name in named and name.isidentifier())}
    call = f"`{step.tool}` {_view(stored, language).in_line(rest)}".strip()
    return " — ".join((call, *_not_from_you(stored, step, language)))


def _not_from_you(
    stored: StoredPlan, step: Step, language: str, results: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Returns which values of the call are not the user's, and of what a known result has, which tool said it."""
    lines = []
    for origin, values in not_from_user(step.args, step.args_origin).items():
        shown, tool = _view(stored, language).in_line(values), results.get(origin.removeprefix("result:"))
        source = translate("from_result", language, values=shown, tool=tool) if tool else None
        lines.append(source or translate("not_from_you", language, values=shown))
    return lines


def _view(stored: StoredPlan, language: str) -> CallView:
    return CallView(language, f"GET /sessions/{stored.session_id}/plan")


def _told_line(told: KnownThing, language: str) -> str:
    said = "; ".join(f"{name}: {one_line(value, MAX_TOLD_CHARS)}" for name, value in told.said.items())
    return translate("told", language, tool=told.tool, thing=code(visible(told.thing)), said=code(visible(said)))


def _failure_line(step: Step, language: str) -> str:
    match step.status:
        case "failed":
            return translate(
                "failed",
                language,
                number=step.id,
                description=_line(step.description),
                error=_line(step.error or "", MAX_ERROR_CHARS),
            )
        case "unknown":
            return translate("unknown", language, number=step.id, description=_line(step.description))
        case _:
            return ""


def _line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """Returns data in one line that hides nothing and that no renderer turns into something else."""
    return plain(one_line(text, limit))
