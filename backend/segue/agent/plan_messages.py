"""What the engine tells the user about a plan, in their language; also an account of calls the model has no words for.

The user approves what is shown here, so the engine writes it and not the model. What a result says about the object of
a call is data: it comes only from the tool's own server, and the question names that tool.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from anyio import to_thread

from segue.agent.call_approval import MAX_RESULT_BYTES
from segue.agent.prompts import denied_because
from segue.agent.state import TurnState, language_of, running_plan
from segue.agent.turn_calls import TurnCalls
from segue.domain.plan import Plan, Step
from segue.domain.tool import Reference, Tool, ToolCall
from segue.domain.user_request import UserRequest, question_of_step
from segue.domain.visible import visible
from segue.language.shown_call import CallView, code, plain, quoted, translate
from segue.plans.asked_words import tool_words
from segue.plans.store import StoredPlan
from segue.plans.value_origins import not_from_user
from segue.tools.results import load_results
from segue.tools.summaries import identifiers, object_with, one_line
from segue.tools.user_requests import choices_of

MAX_LINE_CHARS = 160
MAX_ERROR_CHARS = 500
MAX_TOLD_CHARS = 80
BLOCK = "```text\n{}\n```"  # every frontend shows it as it is; Open WebUI draws one that is indented as a single line
MAX_RESULTS = 5
MAX_CALLS_TOLD = 20
# Of each row the first that the object has: what it is called, who it is from, when it was.
FIELDS = (
    ("subject", "title", "name", "label", "filename"),
    ("from", "sender", "author", "owner", "to"),
    ("date", "sent_at", "received_at", "start", "created_at", "updated_at"),
)


def ask(
    stored: StoredPlan,
    language: str,
    *,
    changed: Mapping[str, Sequence[str]] | None = None,
    blocked: Mapping[str, str] = MappingProxyType({}),
    is_away: bool = False,
    known: Mapping[int, str] = MappingProxyType({}),
    results: Mapping[str, str] = MappingProxyType({}),
    unseen: Mapping[str, Any] = MappingProxyType({}),
    left: int = 0,
) -> str:
    """Returns what is done, the steps that wait with their exact arguments, and the question that a plain yes answers.

    `changed`, unless it is None, says that the plan differs from the approved one, and by tool how its definition does.
    `blocked` has the tools that cannot run now and the reasons; `is_away` if an approved plan waits for one of them.
    `known` has by step what `known_thing` returns, `results` the tools' names by the ids of calls. `unseen` are the
    values that are new to a user who has agreed to the rest; `left` is the number of calls too many for one question.
    """
    plan, step = stored.plan, stored.plan.waiting_step
    if step is None:
        return ended(plan, language)
    parts = [done(plan, language)]
    if changed is not None:
        differences = (f"`{tool}`: {', '.join(f'`{what}`' for what in each)}." for tool, each in changed.items())
        parts.append(" ".join((translate("changed", language), *differences)))
    for tool, reason in blocked.items():
        parts.append(translate("blocked", language, tool=tool, reason=_line(reason)))
    if step.asks is not None:
        return "\n\n".join(part for part in (*parts, *_tool_question(stored, step, step.asks, language)) if part)
    if unseen:
        parts.append(translate("unseen", language, values=_view(stored, language).in_line(unseen)))
    for each in plan.waiting_steps:
        parts += [*([] if unseen else [_next_step(each, language)]), *_call_block(stored, each, language)]
        parts.append(known.get(each.id, ""))
        parts += _not_from_you(stored, each, language, results)
    if plan.waits_for is None and len(plan.waiting_steps) > 1:
        rest = translate("ask_rest", language, count=left) if left else ""
        parts.append(f"{translate('ask_several', language, count=len(plan.waiting_steps))} {rest}".rstrip())
    parts.append(translate("waits_for_tool", language) if is_away else _asks_for(plan, language, "ask"))
    return "\n\n".join(part for part in parts if part)


def opening(plan: Plan, language: str) -> str:
    """Returns how a question begins if nothing has changed and nothing is blocked."""
    step = plan.waiting_step
    return "\n\n".join(part for part in (done(plan, language), _next_step(step, language)) if part) if step else ""


def ask_again(stored: StoredPlan, language: str) -> str:
    """Returns one line: what would happen, each argument or its two ends once, and that a plain yes or no is needed."""
    step = stored.plan.waiting_step
    if step is None:
        return ended(stored.plan, language)
    if step.asks is not None:
        return "\n\n".join(_tool_question(stored, step, step.asks, language))
    steps = ((_next_step(each, language), _call_line(stored, each, language)) for each in stored.plan.waiting_steps)
    parts = *chain.from_iterable(steps), _asks_for(stored.plan, language, "ask_again_plainly")
    return " — ".join(part for part in parts if part)


def _asks_for(plan: Plan, language: str, question: str) -> str:
    """Returns the question to the user or, if others decide, for whom it waits."""
    waits = plan.waits_for
    return translate("waits_for", language, group=plain(waits.told)) if waits else translate(question, language)


def waits(stored: StoredPlan, language: str) -> str:
    """Returns the note that nothing is done until the user says so, and the calls that wait."""
    return _with_calls(translate("waits", language), stored, language)


def not_changed(stored: StoredPlan, language: str) -> str:
    """Returns the note that a change could not be made, and the calls that a yes would run as they are."""
    sentence = _with_calls(translate("not_changed", language), stored, language)
    return f"{sentence}\n\n{_asks_for(stored.plan, language, 'ask_again_plainly')}"


def done(plan: Plan, language: str) -> str:
    """Returns a line for each step that is complete."""
    complete = (step for step in plan.steps if step.status == "complete")
    shown = ((_line(step.description), _line(step.result_preview or "")) for step in complete)
    return "\n".join(translate("done_step", language, description=step, summary=result) for step, result in shown)


def ended(plan: Plan, language: str) -> str:
    """Returns how a plan ended: cancelled, expired, superseded, or what was done, failed or is unknown."""
    match plan.status:
        case "cancelled" if no := next((step.others for step in plan.steps if step.others and step.others.no_by), None):
            said = {"who": _line(no.no_by or ""), "group": plain(no.by.group), "reason": _line(no.reason or "—", 500)}
            return translate("rejected_by", language, **said)
        case "cancelled" | "expired":
            return translate(plan.status, language)
        case "superseded":
            return superseded(plan, language)
        case _:
            lines = [done(plan, language)]
            for step in plan.steps:
                if step.status in ("failed", "unknown"):
                    said = {"description": _line(step.description), "error": _line(step.error or "", MAX_ERROR_CHARS)}
                    lines.append(translate(step.status, language, number=step.id, **said))
            return "\n".join(filter(None, lines))


def account(state: TurnState, tools: Mapping[str, Tool]) -> str:
    """Returns the outcomes of the turn's calls, and that the model gave no answer. A plan that ran lists its own."""
    calls, plan, language = state.get("tool_calls", ()), running_plan(state), language_of(state)
    outcomes = [outcome_line(call, tools, language) for call in calls if plan is None or call.plan_id != plan.id]
    lines = "\n".join([*(["…"] if len(outcomes) > MAX_CALLS_TOLD else []), *outcomes[-MAX_CALLS_TOLD:]])
    return "\n\n".join(filter(None, (translate("no_words", language), ended(plan, language) if plan else "", lines)))


def outcome_line(call: ToolCall, tools: Mapping[str, Tool], language: str) -> str:
    title = _line(called(call.tool_name, tools))
    if reason := denied_because(call):
        return translate("call_denied", language, description=title, reason=_line(reason, MAX_ERROR_CHARS))
    match call.status:
        case "succeeded":
            return translate("done_step", language, description=title, summary=_line(call.metadata.summary))
        case "failed":
            return f"✗ {title} — {_line(call.error or '', MAX_ERROR_CHARS)}"
        case _:
            return translate("call_unknown", language, description=title)


def called(name: str, tools: Mapping[str, Tool]) -> str:
    """Returns what people call a tool: its title, else the words in its name. Its description is written for models."""
    spec = tools[name].spec if name in tools else None
    return (spec and spec.title) or " ".join(tool_words((spec and spec.original_name) or name)) or name


def superseded(plan: Plan, language: str) -> str:
    """Returns the note that a new plan has taken this one's place."""
    return translate("superseded", language, goal=_line(plan.goal))


def still_waiting(stored: StoredPlan, language: str) -> str:
    """Returns the reminder that follows an answer about something else: a yes to it runs what it shows."""
    sentence = translate("still_waiting", language, goal=_line(stored.plan.goal))
    return _with_calls(_asks_for(stored.plan, language, "") if stored.plan.waits_for else sentence, stored, language)


def _with_calls(text: str, stored: StoredPlan, language: str) -> str:
    return " — ".join(filter(None, (text, *(_call_line(stored, step, language) for step in stored.plan.waiting_steps))))


def _tool_question(stored: StoredPlan, step: Step, asks: UserRequest, language: str) -> list[str]:
    """Returns a tool's question in its own words, and how to answer. A call that runs anew is shown."""
    question = question_of_step(stored.answers, step.id)
    parts = [_next_step(step, language)]
    if question is None or not question.may_repeat:
        parts += [translate("runs_anew", language), *_call_block(stored, step, language)]
    parts.append(translate("tool_asks", language, tool=step.tool, source=_line(asks.source)))
    parts.append(_block(quoted(asks.message)))
    if asks.mode == "url" and asks.url is not None:
        return [*parts, asks.url, translate("answer_url", language, host=urlsplit(asks.url).netloc)]
    parts.append("\n".join(_field_line(asks, name, language) for name in asks.fields))
    if asks.given and asks.missing:
        parts.append(translate("still_needed", language, fields=_line(", ".join(asks.missing))))
    return [*filter(None, parts), translate("answer_form", language)]


def _field_line(asks: UserRequest, name: str, language: str) -> str:
    field, prefilled = (asks.schema or {})["properties"][name], asks.given or {}
    choices = ", ".join(f"{number}. {title}" for number, title in enumerate(choices_of(field).values(), start=1))
    label = " — ".join(filter(None, (field.get("title", name), field.get("description"), choices)))
    mark = "*" if name in asks.required else ""
    shown = f": {CallView(language, None).brief(str(prefilled[name]))}" if name in prefilled else ""
    return f"- {_line(label, MAX_ERROR_CHARS)}{mark}{shown}"


def _next_step(step: Step, language: str) -> str:
    return translate("ask_step", language, description=_line(step.description, MAX_ERROR_CHARS))


def _call_block(stored: StoredPlan, step: Step, language: str) -> list[str]:
    """Returns the tool, and its arguments as they will be sent in a block of their own."""
    if step.tool is None:
        return []
    return [f"`{step.tool}`", _block(_view(stored, language).lines(step.args or {})) if step.args else ""]


def _block(lines: Iterable[str]) -> str:
    """Returns lines of which none begins with a backtick, which could end their block."""
    return BLOCK.format("\n".join(lines))


def _call_line(stored: StoredPlan, step: Step, language: str) -> str:
    if not step.tool:
        return ""
    named = {path for values in not_from_user(step.args, step.args_origin).values() for path in values}
    rest = {name: value for name, value in (step.args or {}).items() if not (name in named and name.isidentifier())}
    call = f"`{step.tool}` {_view(stored, language).in_line(rest)}".strip()
    return " — ".join((call, *_not_from_you(stored, step, language)))


def _not_from_you(stored: StoredPlan, step: Step, language: str, results: Mapping[str, str] | None = None) -> list[str]:
    """Returns lines on the values that are not the user's, with the tool of each if `results` names it."""
    lines = []
    for origin, values in not_from_user(step.args, step.args_origin).items():
        shown = _view(stored, language).in_line(values, shown_above=results is not None)
        tool = (results or {}).get(origin.removeprefix("result:"))
        source = translate("from_result", language, values=shown, tool=tool) if tool else None
        lines.append(source or translate("not_from_you", language, values=shown))
    return lines


def _view(stored: StoredPlan, language: str) -> CallView:
    return CallView(language, f"GET /sessions/{stored.session_id}/plan")


def _line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """Returns data in one line that hides nothing and that no renderer turns into something else."""
    return plain(one_line(text, limit))


async def known_thing(turn: TurnCalls, step: Step, references: Sequence[Reference], language: str) -> str:
    """Returns what the newest of these results say of the thing that a step names; nothing if it only reads."""
    tool = turn.tools.get(step.tool or "")
    things = identifiers(step.args) if tool and tool.spec.effect != "read_only" else ()
    if not things or tool is None:
        return ""
    sources = {name: each.spec.source for name, each in turn.tools.items()}
    tools_by_call = {
        reference.tool_call_id: reference.tool_name
        for reference in references
        if reference.status == "succeeded" and 0 < reference.size_bytes <= MAX_RESULT_BYTES
        if sources.get(reference.tool_name) == tool.spec.source
    }
    newest = dict(list(tools_by_call.items())[:MAX_RESULTS])
    if not newest:
        return ""
    context = turn.context
    results = await context.transact(load_results, context.turn.session_id, newest, now=context.clock())

    def find() -> str:
        values = [(name, results[call_id].value()) for call_id, name in newest.items() if call_id in results]
        for thing, (name, value) in product(things, values):
            if (item := object_with(thing, value)) and (detail := _telling(item)):
                return translate("told", language, tool=name, thing=code(visible(thing)), said=code(visible(detail)))
        return ""

    return await to_thread.run_sync(find)


def _telling(item: Mapping[str, Any]) -> str:
    named = (next((key for key in row if isinstance(item.get(key), str) and item[key].strip()), None) for row in FIELDS)
    return "; ".join(f"{key}: {one_line(item[key], MAX_TOLD_CHARS)}" for key in named if key is not None)
