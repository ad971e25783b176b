"""Every text that Segue itself writes for the model: the system prompt, its blocks, and notes for single replies. Pure.

The texts are in `prompts.toml`. A prompt is a cache key, at providers and in Redis, so its beginning must not change:
instructions, summary, references, old messages. What changes from turn to turn goes into notes at the start of the
running turn's message; what only one request needs goes into an instruction at its end.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

import orjson
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from segue.domain.agent import Agent
from segue.domain.ids import offered_name
from segue.domain.plan import Confirm, Plan, Step
from segue.domain.session import LEFT_OUT, Memory, Message, Verdict
from segue.domain.tool import PROPOSE_MANDATE, ToolCall, ToolSpec, ToolState
from segue.language.lexicon import load_toml
from segue.memory.summary import SECTIONS
from segue.models.untrusted import CLOSE, CLOSE_NOTES, EARLIER_RESULTS, OPEN, OPEN_NOTES, clipped, fenced, without_notes
from segue.plans.policy import needs_confirmation
from segue.tools.normalize import described
from segue.tools.summaries import one_line

DATE, TIME_ZONE = "{date}", "{time_zone}"

_FENCES: Final = {"OPEN": OPEN, "CLOSE": CLOSE, "OPEN_NOTES": OPEN_NOTES, "CLOSE_NOTES": CLOSE_NOTES}
_MARKS: Final = {**_FENCES, "LEFT_OUT": LEFT_OUT, **{name: f"## {name}" for name in SECTIONS}}

_MARK: Final = re.compile("|".join(re.escape(f"{{{name}}}") for name in _MARKS))
_AS_WRITTEN: Final[Mapping[str, str]] = load_toml("prompts.toml", package="segue.agent")
TEXTS: Final = {name: _MARK.sub(lambda mark: _MARKS[mark[0][1:-1]], text) for name, text in _AS_WRITTEN.items()}
VERDICT_NOTES: Final[Mapping[Verdict, str]] = {"confirm": TEXTS["confirmed"], "reject": TEXTS["rejected"]}
TOOLS_SHOWN: Final = "tools"  # in the metadata of a message: definitions that go with it
CAME_AT: Final = "came_at"  # in that of a message of another day: when it came
TIME_OF_DAY: Final = re.compile(rf"^({OPEN_NOTES}\nIt is \w+, [\d-]+), \d\d:\d\d")
MAX_WITHHELD_CHARS: Final = 2000
MAX_WITHHELD_REASON_CHARS: Final = 300
MAX_NAMED_TOOLS: Final = 20
MAX_TOOLS_CHARS: Final = 24_000
MAX_STEP_ARGS_CHARS: Final = 8000
MAX_MENDED_CHARS: Final = 32_000

_FOR_PLANS: Final = ("planner", "reader", "answer_reader", "agreement", "carrying_out")
_FOR_ANSWERS: Final = ("out_of_rounds", "in_words", "approved_first", "mending")
INSTRUCTIONS: Final = [TEXTS[name] for name in _FOR_PLANS + _FOR_ANSWERS]


@dataclass(frozen=True, slots=True)
class Instructions:
    """An agent's instructions. `fixed` begins every prompt; `dated` lines change each day and stand among the notes."""

    fixed: str = TEXTS["system"]
    dated: str = ""

    def notes(self, now: datetime) -> str:
        return self.dated.replace(DATE, str(now.date())).replace(TIME_ZONE, str(now.tzinfo))


def confirmation_line(tools: Collection[ToolSpec], mode: Confirm, *, has_rule: bool) -> str:
    """Returns which calls wait for the user's yes, empty if none does. The operator's rule may hold more of them."""
    asking = (tool.name for tool in tools if needs_confirmation(tool, mode) and tool.name != PROPOSE_MANDATE)
    names = sorted(map(offered_name, asking))
    if not names:
        return TEXTS["may_be_asked"] if has_rule and any(not tool.ephemeral for tool in tools) else ""
    named = ", ".join(names if len(names) <= MAX_NAMED_TOOLS else [*names[:MAX_NAMED_TOOLS], "others"])
    return TEXTS["asked_first"].format(calls="Nearly all calls" if mode == "always" else f"Calls of {named}")


def instructions_of(agent: Agent, user: str, asked: str, *, from_client: str | None, is_gone: bool) -> Instructions:
    """Returns an agent's instructions and those `from_client`. `is_gone`: the session's agent no longer exists."""
    lines = agent.instructions.replace("{user}", user).splitlines()
    dated = [line for line in lines if DATE in line or TIME_ZONE in line]
    own = "\n".join(line for line in lines if line not in dated).strip()
    rules = "\n".join(filter(None, [TEXTS["system"], asked]))
    opening = rules.replace("You are Segue,", f"You are {agent.name},", 1)
    notes = [*dated, TEXTS["gone"]] if is_gone else dated
    of_client = f"{TEXTS['asked_by_client']}\n{fenced(from_client)}" if from_client else ""
    return Instructions("\n\n".join(filter(None, [opening, own, of_client])), "\n".join(notes))


def system_parts(instructions: str, summary: str | None, references: Sequence[str]) -> dict[str, str]:
    """Returns the parts of the system message by name; `references` are lines of JSON, one for each earlier result."""
    parts = {"instructions": instructions}
    if summary:
        parts["summary"] = fenced_json(TEXTS["summary"], summary)
    if references:
        parts["references"] = fenced_lines(EARLIER_RESULTS, references)
    return parts


def joined(system_parts: Mapping[str, str]) -> str:
    """Returns the whole system message. Strict providers refuse a second one."""
    return "\n\n".join(system_parts.values())


def turn_notes(now: datetime, own: str, facts: Sequence[Memory], language: str | None = None) -> str:
    """Returns the first of a turn's notes: its time, the language to answer in, the agent's lines, and dated facts."""
    text = f"It is {now:%A}, {now.date()}, {now:%H:%M} ({now.tzinfo}, {now:%z})."
    text += f" Answer in the language {language!r}, whatever language the user writes in." if language else ""
    dated = ((fact, fact.created_at.astimezone(now.tzinfo).date()) for fact in facts)
    known = [{"date": day, "kind": fact.kind, "fact": fact.content} for fact, day in dated]
    return "\n\n".join(filter(None, [text, own, fenced_json(TEXTS["facts"], *known) if known else ""]))


def with_notes(text: str, notes: str) -> str:
    """Returns the user's message with notes before it. Those of the running turn are never stored."""
    return f"{OPEN_NOTES}\n{notes}\n{CLOSE_NOTES}\n\n{text}"


def notes_and_message(text: str) -> tuple[str, str]:
    """Returns the notes of a user's message, empty if it has none, and its own text."""
    notes, closing, message = text.removeprefix(f"{OPEN_NOTES}\n").partition(f"\n{CLOSE_NOTES}\n\n")
    return (notes, message) if closing and text.startswith(OPEN_NOTES) else ("", text)


def note_of(message: Message) -> str | None:
    """Returns the notes on a user's message: files, its own note, tools that came with it, its time if it is old."""
    if not message.metadata:  # as of most
        return None
    carried, tools = defaultdict[str, list[object]](list), message.metadata.get(TOOLS_SHOWN)
    for file in message.metadata.get("attachments", ()):
        mark = file.get("mark")
        about = "attached" if mark is None else "rest_attached" if mark == LEFT_OUT else "sources"
        carried[about].append(file)
    came_at = message.metadata.get(CAME_AT)
    notes = [f"This message came on {came_at:%A}, {came_at.date()}, {came_at:%H:%M}."] if came_at else []
    notes += [fenced_json(TEXTS[about], *files) for about, files in carried.items()]
    notes += [message.metadata.get("note") or "", fenced_json(TEXTS["more_tools"], *tools) if tools else ""]
    return "\n\n".join(filter(None, notes)) or None


def denied_because(call: ToolCall) -> str | None:
    """Returns why a rule denied a call, None if none did."""
    before, _, after = TEXTS["denied"].partition("{reason}")
    opening, error = before.format(tool=call.tool_name), call.error or ""
    return error.removeprefix(opening).removesuffix(after) if error.startswith(opening) else None


def brought(event: str) -> str:
    """Returns the note stored with a trigger's message: the event's text, without any mark that could end the notes."""
    return f"{TEXTS['unattended']}\n\n{fenced_lines(TEXTS['brought'], [without_notes(event)])}"


def plan_block(plan: Plan) -> str:
    """Returns a plan's goal and a line of JSON for each step. Fenced, since steps quote what tools said."""
    steps = []
    for step in plan.steps:
        asks = replace(step.asks, schema=None) if step.asks else None
        known = asdict(replace(step, args_origin=None, asks=asks))
        args = {"args": clipped(described(step.args)[0], MAX_STEP_ARGS_CHARS)} if step.args else {}
        steps.append({name: value for name, value in known.items() if value not in (None, False, "self")} | args)
    return fenced_json(f"Goal: {plan.goal}", *steps)


def message_and_instruction(text: str) -> tuple[str, str]:
    """Returns a user's message and the instruction behind it, each empty if there is none."""
    starts = [at for opening in INSTRUCTIONS if (at := text.find(opening)) >= 0]
    return (text[: min(starts)].rstrip(), text[min(starts) :]) if starts else (text, "")


def in_own_words(text: str) -> str:
    """Returns what the user said in a message, without the engine's notes and instruction."""
    return message_and_instruction(notes_and_message(text)[1])[0]


def running_message(conversation: Sequence[BaseMessage]) -> int:
    """Returns the index of the message that opened the running turn, which the notes stand in."""
    of_user = [index for index, message in enumerate(conversation) if isinstance(message, HumanMessage)]
    return next((at for at in reversed(of_user) if conversation[at].text.startswith(OPEN_NOTES)), of_user[-1])


def steers_in(conversation: Sequence[BaseMessage]) -> list[str]:
    """Returns what the user has said since the running turn began, as far as it has been read."""
    since = conversation[running_message(conversation) + 1 :]
    return [message.text for message in since if isinstance(message, HumanMessage)]


def with_note(conversation: Sequence[BaseMessage], note: str) -> list[BaseMessage]:
    """Returns the conversation with one more note for the running turn, in the message that opened it."""
    at = running_message(conversation)
    notes, message = notes_and_message(conversation[at].text)
    noted = HumanMessage(with_notes(message, f"{notes}\n\n{note}" if notes else note))
    return [*conversation[:at], noted, *conversation[at + 1 :]]


def with_instruction(conversation: Sequence[BaseMessage], instruction: str) -> list[BaseMessage]:
    """Returns the conversation with an instruction for the next reply at its end: all before it stays as it is."""
    return [*conversation, SystemMessage(instruction)]


def withheld_note(states: Mapping[str, ToolState]) -> str | None:
    """Returns why tools that exist are not offered now, and what would unlock them; None if all are offered."""
    lines = [f"- {name}: {_why_withheld(state)}" for name, state in states.items() if not state.available]
    return f"{TEXTS['withheld']}\n{_bounded_lines(lines, MAX_WITHHELD_CHARS)}" if lines else None


def _why_withheld(state: ToolState) -> str:
    # A tool's own error text is data, and an endpoint's may quote it: it must not stand among instructions.
    if state.reason_code == "refused_by_model":
        return "it cannot be used with this model"
    if state.status == "failed":
        return f"it has failed; {'; '.join(state.suggested_actions)}"
    return one_line(state.reason or state.status, MAX_WITHHELD_REASON_CHARS)


def planner_note(*, locked: Sequence[ToolSpec], barred: Iterable[str]) -> str:
    """Returns the planner's instruction. A step may unlock the `locked` tools; none may use those that are `barred`."""
    without = f"{TEXTS['planner']}\n- No step uses {', '.join(barred)}." if barred else TEXTS["planner"]
    described = ({"name": tool.name, "description": tool.description, "args": tool.input_schema} for tool in locked)
    lines = _bounded_lines(map(as_json, described), MAX_TOOLS_CHARS)
    return f"{without}\n{TEXTS['locked']}\n{fenced(lines)}" if locked else without


def with_plan(text: str, plan: Plan) -> str:
    """Returns a note or an instruction that is about a plan."""
    return f"{text}\n{plan_block(plan)}"


def fill_step_note(plan: Plan, step: Step, args: Mapping[str, Any], missing: Sequence[str]) -> str:
    wanted = f" Missing: {', '.join(missing)}." if missing else ""
    call_it = TEXTS["fill_step"].format(tool=step.tool, id=step.id, description=step.description, wanted=wanted)
    known = fenced(as_json(clipped(dict(args), MAX_STEP_ARGS_CHARS)))
    return f"{with_plan(TEXTS['carrying_out'], plan)}\n{call_it}\n{known}"


def as_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def fenced_json(heading: str, *values: object) -> str:
    """Returns values as data under a heading, a line of JSON each."""
    return fenced_lines(heading, map(as_json, values))


def fenced_lines(heading: str, lines: Iterable[str]) -> str:
    return "\n".join((heading, fenced("\n".join(lines))))


def _bounded_lines(lines: Iterable[str], max_chars: int) -> str:
    listed = list(lines)
    sizes = accumulate(len(line) + 1 for line in listed)
    return "\n".join(line for line, size in zip(listed, sizes, strict=True) if size <= max_chars)
