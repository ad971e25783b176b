"""What the engine tells the user about a plan, in the user's language: what waits, is done, or how it ended. Pure.

The user approves what is shown here, so the engine writes it and the model does not.
"""

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from segue.domain.plan import Plan, Step
from segue.language.translations import translate
from segue.tools.summaries import one_line

MAX_ARGUMENT_CHARS = 4000
MAX_LINE_CHARS = 160
MAX_VALUE_CHARS = 80


def ask(plan: Plan, language: str, *, changed: bool = False, blocked: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns what is done, the step that waits with its exact arguments, and the question that a plain yes answers.

    `changed` says that it differs from what was approved, `blocked` holds tools that cannot run now and the reasons.
    """
    step = plan.waiting_step
    if step is None:
        return ended(plan, language)
    parts = [done(plan, language)]
    if changed:
        parts.append(translate("changed", language))
    for tool, reason in blocked.items():
        parts.append(translate("blocked", language, tool=tool, reason=one_line(reason, MAX_LINE_CHARS)))
    parts += [translate("ask_step", language, description=step.description), _call_block(step)]
    parts.append(translate("ask", language))
    return "\n\n".join(part for part in parts if part)


def ask_again(plan: Plan, language: str) -> str:
    """Returns one line: what would happen, each argument with its beginning, and that a plain yes or no is needed."""
    step = plan.waiting_step
    if step is None:
        return ended(plan, language)
    asked = translate("ask_step", language, description=one_line(step.description, MAX_LINE_CHARS))
    given = "; ".join(f"{name}: {_begun(value)}" for name, value in (step.args or {}).items())
    call = " ".join(part for part in (f"`{step.tool}`", given) if part) if step.tool else ""
    return " — ".join(part for part in (asked, call, translate("ask_again_plainly", language)) if part)


def done(plan: Plan, language: str) -> str:
    """Returns a line for each step that is complete."""
    return "\n".join(
        translate(
            "done_step",
            language,
            description=step.description,
            summary=one_line(step.result_preview or "", MAX_LINE_CHARS),
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


def still_waiting(plan: Plan, language: str) -> str:
    """Returns the reminder that follows an answer about something else."""
    return translate("still_waiting", language, goal=one_line(plan.goal, MAX_LINE_CHARS))


def superseded(plan: Plan, language: str) -> str:
    """Returns that a new plan has taken this one's place."""
    return translate("superseded", language, goal=one_line(plan.goal, MAX_LINE_CHARS))


def _call_block(step: Step) -> str:
    """Returns the tool and its arguments, one a line, exactly as they will be sent."""
    if step.tool is None:
        return ""
    lines = [f"{name}: {_shown(value)}" for name, value in (step.args or {}).items()]
    return "\n".join([f"`{step.tool}`", *(f"  {line}" for line in lines)])


def _failure_line(step: Step, language: str) -> str:
    match step.status:
        case "failed":
            return translate("failed", language, number=step.id, description=step.description, error=step.error or "")
        case "unknown":
            return translate("unknown", language, number=step.id, description=step.description)
        case _:
            return ""


def _begun(value: object) -> str:
    """Returns a value in one line; of a long one the beginning and how many characters it has."""
    text = _text(value)
    begun = one_line(text, MAX_VALUE_CHARS)
    return begun if begun == " ".join(text.split()) else f"{begun} ({len(text)})"


def _shown(value: object) -> str:
    text = _text(value)
    cut = text if len(text) <= MAX_ARGUMENT_CHARS else f"{text[:MAX_ARGUMENT_CHARS]}… ({len(text)})"
    return cut.replace("\n", "\n    ")


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
