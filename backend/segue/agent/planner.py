"""Asks the model for a plan, for a changed plan, and how to read a reply to one. The model only proposes.

Reads a message as the answer to what a tool asks: by rules where they can tell, else by the model.

The model only copies what the user said: a text that stands in none of the user's messages is not taken from it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anyio import to_thread
from langchain_core.messages import BaseMessage
from pydantic import BaseModel, TypeAdapter, ValidationError

from segue.agent import prompts
from segue.agent.context import TurnContext
from segue.agent.state import TurnState
from segue.agent.tool_choice import FIND_TOOLS, PLAN_TO_FIND
from segue.db.redis import plan_cache_key, plans_of_owner_key
from segue.domain.digests import digest_of_json
from segue.domain.plan import Plan, Step
from segue.domain.session import RequestedCall
from segue.domain.tool import Tool, ToolSpec
from segue.domain.user_request import UserRequest
from segue.language.utterance import words_of
from segue.memory.history import recent_user_messages, said_by_user
from segue.models import answer_schemas
from segue.models.answer_schemas import AnswerReading, AnswerSchema, Reading
from segue.models.reply import Reply
from segue.plans.arguments import stands_in
from segue.plans.plan_parser import first_object, parse_plan
from segue.plans.policy import WEB_SEARCH, without_forbidden
from segue.tools.availability import ToolGuard
from segue.tools.normalize import clean
from segue.tools.tool_health import is_blocked
from segue.tools.user_requests import choices_of, faults_of_answer

CACHE_TTL_S = 600

AskModel = Callable[[str, Sequence[ToolSpec]], Awaitable[str]]


class _Classification(BaseModel):
    verdict: Reading


async def make_plan(context: TurnContext, state: TurnState) -> tuple[Step, ...]:
    """Returns no steps if the model sees no need for any or writes nothing usable."""
    tools = _plannable(context.guard, state)

    async def ask(note: str, offered: Sequence[ToolSpec]) -> str:
        conversation = prompts.with_instruction(state["prompt"], note)
        if state["search"].search and WEB_SEARCH in tools:
            conversation = prompts.with_note(conversation, prompts.SEARCH_WANTED)
        # Every word the planner is shown is in the key, so a request that leans on what was said before is another.
        key = plan_cache_key(context.owner, _digest(context.model.small_name, conversation, offered))
        text = await context.cache.get_json(key)
        if not isinstance(text, str):
            text = (await _ask(context, conversation, offered, answer_schemas.PLAN)).text
            await context.cache.set_listed(key, text, listing=plans_of_owner_key(context.owner), ttl_s=CACHE_TTL_S)
        return text

    return await _steps(context, state, tools, ask)


async def amend_plan(context: TurnContext, state: TurnState, plan: Plan) -> tuple[Step, ...]:
    """Returns the steps still to be done; none if the model writes nothing usable."""

    async def ask(note: str, offered: Sequence[ToolSpec]) -> str:
        conversation = prompts.with_instruction(state["prompt"], prompts.amender_note(note, plan))
        return (await _ask(context, conversation, offered, answer_schemas.PLAN)).text

    return await _steps(context, state, _plannable(context.guard, state), ask, done=len(plan.started_steps))


async def _steps(
    context: TurnContext, state: TurnState, tools: Mapping[str, Tool], ask: AskModel, *, done: int = 0
) -> tuple[Step, ...]:
    """Returns the steps of the planner's answer. It is asked again, once, if it looks for tools instead."""
    chooser = context.chooser
    offered, note = _offered(context.guard, tools, state)
    text = await ask(note, offered)
    if FIND_TOOLS in offered and (wanted := _looked_for(parse_plan(text, tools={*tools, FIND_TOOLS.name}))):
        for query in wanted:
            await chooser.find(query)
        offered, note = _offered(context.guard, tools, state)
        text = await ask(note, offered)
    steps = _storable(parse_plan(text, tools=tools, done=done))
    await chooser.add(step.tool for step in steps if step.tool)
    return steps


def _looked_for(steps: Iterable[Step]) -> list[str]:
    return [str((step.args or {}).get("query") or step.description) for step in steps if step.tool == FIND_TOOLS.name]


async def classify_reply(context: TurnContext, state: TurnState, plan: Plan) -> Reading:
    """Returns how the model reads a message the rules could not. Never enough to approve what changes the world."""
    offered = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
    conversation = prompts.with_instruction(state["prompt"], prompts.reader_note(plan))
    reply = await _ask(context, conversation, offered, answer_schemas.READING)
    answer = first_object(reply.text, _Classification)
    return answer.verdict if answer else "none"


async def classify_agreement(context: TurnContext, answer: str, reply: str, call: RequestedCall) -> Reading:
    """Returns how the model reads a reply to what an answer offered, with a call that it may be a yes to in view."""
    asked = prompts.agreement_prompt(answer, reply, call)
    read = await context.model.reply(asked, small=True, schema=answer_schemas.READING)
    found = first_object(read.text, _Classification)
    return found.verdict if found else "none"


async def _ask(
    context: TurnContext, conversation: Sequence[BaseMessage], offered: Sequence[ToolSpec], schema: AnswerSchema
) -> Reply:
    # With the tools that the loop offers the request begins as the loop's does, and providers have it in their cache.
    return await context.model.reply(conversation, offered, tool_choice="none", small=True, schema=schema)


def _storable(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    # JSON can spell out what Postgres refuses in a text, such as `\u0000`.
    return tuple(
        replace(step, description=clean(step.description), args=None if step.args is None else clean(step.args))
        for step in steps
    )


def _plannable(guard: ToolGuard, state: TurnState) -> dict[str, Tool]:
    """Returns the tools a plan may name: an earlier step may unlock one, but none can mend one that has failed."""
    usable = without_forbidden(guard.tools(), state["search"])
    tools = {name: tool for name, tool in usable.items() if not tool.spec.ephemeral}
    states = guard.states(tool.spec for tool in tools.values())
    return {name: tool for name, tool in tools.items() if not is_blocked(states[name])}


def _offered(guard: ToolGuard, plannable: Mapping[str, Tool], state: TurnState) -> tuple[list[ToolSpec], str]:
    """Returns the tools that the loop offers, and the planner's instruction with how they differ from `plannable`."""
    offered = guard.offered(without_forbidden(guard.tools(), state["search"]))
    names = [spec.name for spec in offered]
    locked = [tool.spec for name, tool in guard.chosen(plannable).items() if name not in names]
    barred = [name for name in names if name not in plannable and name != FIND_TOOLS.name]
    note = prompts.planner_note(locked=locked, barred=barred)
    return offered, f"{note}\n{PLAN_TO_FIND}" if FIND_TOOLS in offered else note


def _digest(model: str, conversation: Sequence[BaseMessage], offered: Sequence[ToolSpec]) -> str:
    said = [[message.type, prompts.without_time(message.text)] for message in conversation]
    texts = [model, [[tool.name, tool.description, tool.input_schema] for tool in offered], *said]
    return digest_of_json(texts)


MAX_MESSAGES = 50

_JSON: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """How a message answers: `incomplete` has some values, and others are needed. `values` are all that are known."""

    reading: Literal["complete", "incomplete", "decline", "other"]
    values: Mapping[str, Any] = field(default_factory=dict)


class _Read(BaseModel):
    reading: AnswerReading
    values: dict[str, Any] | str | None = None


async def read_answer(context: TurnContext, state: TurnState, plan: Plan, asks: UserRequest) -> ReadAnswer:
    if state["acknowledgement"].verdict == "reject":
        return ReadAnswer("decline")
    if asks.mode == "url":
        return await _read_done(context, state, plan)
    if (told := _told_plainly(state, asks)) is not None:
        return _answer(asks, told)
    read = await _read_by_model(context, state, asks)
    if read.reading != "answer":
        return ReadAnswer(read.reading)
    values = clean(_values(read))
    return _answer(asks, await _said_by_user(context, state, asks, values), read_any=bool(values))


async def _read_done(context: TurnContext, state: TurnState, plan: Plan) -> ReadAnswer:
    """What is done elsewhere needs no more than to be called done."""
    if state["acknowledgement"].verdict == "confirm":
        return ReadAnswer("complete")
    match await classify_reply(context, state, plan):
        case "confirm":
            return ReadAnswer("complete")
        case "reject":
            return ReadAnswer("decline")
        case _:
            return ReadAnswer("other")


def _told_plainly(state: TurnState, asks: UserRequest) -> dict[str, Any] | None:
    """Returns what a yes, or a choice by its name, number or title, says to a form that needs nothing else."""
    fields, wanted = (asks.schema or {}).get("properties", {}), asks.missing
    says_yes = state["acknowledgement"].verdict == "confirm"
    if not wanted and says_yes:
        return {}
    if len(wanted) != 1:
        return None
    of = fields[wanted[0]]
    if of["type"] == "boolean" and says_yes and len(fields) == 1:
        return {wanted[0]: True}
    message = words_of(state["message"])
    for number, (value, title) in enumerate(choices_of(of).items(), start=1):
        if message in (words_of(value), words_of(title), (str(number),)):
            return {wanted[0]: [value] if of["type"] == "array" else value}
    return None


async def _read_by_model(context: TurnContext, state: TurnState, asks: UserRequest) -> _Read:
    conversation = prompts.with_instruction(state["prompt"], prompts.answer_reader_note(asks))
    reply = await context.model.reply(conversation, small=True, schema=answer_schemas.ANSWER)
    return first_object(reply.text, _Read) or _Read(reading="other")


def _values(read: _Read) -> dict[str, Any]:
    """Returns an object that was written as one, or as its text."""
    try:
        return _JSON.validate_json(read.values) if isinstance(read.values, str) else read.values or {}
    except ValidationError:
        return {}


async def _said_by_user(
    context: TurnContext, state: TurnState, asks: UserRequest, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values without the texts that stand in nothing that the user said or is known to have said."""
    session_id = context.turn.session_id
    async with context.transaction() as connection:
        said = await recent_user_messages(connection, context.owner, session_id, limit=MAX_MESSAGES)
    fields = (asks.schema or {})["properties"]

    def find() -> dict[str, Any]:
        texts = [_plain(text) for text in (*map(said_by_user, said), *(fact.content for fact in state["facts"]))]
        return {
            name: value
            for name, value in values.items()
            if not _is_free(fields.get(name, {})) or any(stands_in(_plain(str(value)), text) for text in texts)
        }

    return await to_thread.run_sync(find)


def _plain(text: str) -> str:
    """Case, spaces and what stands around a text do not matter: it is shown nowhere before it is sent."""
    return " ".join(text.lower().split()).strip(" \"'“”«».,;:!?。，！？")


def _is_free(of: Mapping[str, Any]) -> bool:
    return of.get("type") == "string" and not choices_of(of) and of.get("format") not in ("date", "date-time")


def _answer(asks: UserRequest, values: Mapping[str, Any], *, read_any: bool = True) -> ReadAnswer:
    """Leaves out what does not fit, to be asked for again."""
    known = dict(asks.given or {})
    for name, value in values.items():
        if not any(fault.startswith(f"$.{name}:") for fault in faults_of_answer(asks, {**known, name: value})):
            known[name] = value
    complete = read_any and not faults_of_answer(asks, known)
    return ReadAnswer("complete" if complete else "incomplete", known)
