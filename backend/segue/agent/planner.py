"""What the model is asked about plans: to make or change one, to fill in a step's arguments, to read a reply to one.

The model only proposes. Its answer to a question of a tool may only copy the user: a text that stands in none of the
user's messages is dropped. Rules come first where they can tell.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson
from anyio import to_thread
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, field_validator

from segue.agent import prompts
from segue.agent.state import TurnContext, TurnState
from segue.agent.tool_choice import FIND_TOOLS
from segue.agent.turn_calls import TurnCalls, mark_refused
from segue.db.redis_keys import plan_cache_key, plans_of_owner_key
from segue.domain.ids import digest_of_json
from segue.domain.plan import Plan, Step
from segue.domain.tool import Tool, ToolSpec
from segue.domain.user_request import UserRequest
from segue.language.utterance import words_of
from segue.memory.history import recent_user_messages, said_by_user
from segue.models.reply import ANSWER, PLAN, READING, AnswerReading, AnswerSchema, Reading, Reply
from segue.plans.plan_parser import Unresolved, first_object, missing, parse_plan, resolve
from segue.plans.policy import WEB_SEARCH, without_forbidden
from segue.plans.value_origins import stands_in
from segue.tools.availability import ToolGuard
from segue.tools.input_schema import accepts
from segue.tools.normalize import clean
from segue.tools.paging import at_path
from segue.tools.results import StoredResult
from segue.tools.tool_health import is_blocked
from segue.tools.user_requests import choices_of, faults_of_answer

MAX_MESSAGES = 50  # in which a text of an answer may stand

AskModel = Callable[[str, Sequence[ToolSpec], Mapping[str, Tool]], Awaitable[str]]


class _Classification(BaseModel):
    verdict: Reading


async def make_plan(context: TurnContext, state: TurnState) -> tuple[Step, ...]:
    """Returns no steps if the model sees no need for any or writes nothing usable."""

    async def ask(note: str, offered: Sequence[ToolSpec], tools: Mapping[str, Tool]) -> str:
        conversation = prompts.with_instruction(state["prompt"], note)
        if state["search"].search and WEB_SEARCH in tools:
            conversation = prompts.with_note(conversation, prompts.TEXTS["search_wanted"])
        # The key has all that the planner is shown, what was said before too, but not the time of day.
        texts = [[message.type, prompts.TIME_OF_DAY.sub(r"\1", message.text, count=1)] for message in conversation]
        shown = [[tool.name, tool.description, tool.input_schema] for tool in offered]
        key = plan_cache_key(context.owner, digest_of_json([context.model.small_name, shown, *texts]))
        text = await context.cache.get_json(key)
        if not isinstance(text, str):
            text = (await _ask(context, conversation, offered, PLAN)).text
            await context.cache.set_listed(key, text, listing=plans_of_owner_key(context.owner), ttl_s=600)
        return text

    steps = await _steps(context, state, ask)
    acting = (step.id for step in steps if step.tool or step.requires_confirmation)
    return steps[: max(acting, default=0)]  # what is only written behind them is the answer


async def amend_plan(context: TurnContext, state: TurnState, plan: Plan) -> tuple[Step, ...]:
    """Returns the steps still to be done; none if the model writes nothing usable."""

    async def ask(note: str, offered: Sequence[ToolSpec], _: Mapping[str, Tool]) -> str:
        about = prompts.with_plan(f"{note}\n\n{prompts.TEXTS['amender']}", plan)
        return (await _ask(context, prompts.with_instruction(state["prompt"], about), offered, PLAN)).text

    return await _steps(context, state, ask, done=len(plan.started_steps))


async def _steps(context: TurnContext, state: TurnState, ask: AskModel, *, done: int = 0) -> tuple[Step, ...]:
    """Returns the steps of the planner's answer. It is asked again, once, if it looks for tools instead."""
    chooser, usable = context.chooser, without_forbidden(context.guard.tools(), state["search"])
    lasting = {name: tool for name, tool in usable.items() if not tool.spec.ephemeral}
    states = context.guard.states(tool.spec for tool in lasting.values())
    # An earlier step may unlock a tool, but none can mend one that has failed.
    tools = {name: tool for name, tool in lasting.items() if not is_blocked(states[name])}
    offered, note = _offered(context.guard, tools, state)
    text = await ask(note, offered, tools)
    if FIND_TOOLS in offered:
        found = parse_plan(text, tools={*tools, FIND_TOOLS.name})
        if searches := [step for step in found if step.tool == FIND_TOOLS.name]:
            queries = [str((step.args or {}).get("query") or step.description) for step in searches]
            more = [definition for query in queries for definition in await chooser.find(query)]
            note = f"{note}\n{prompts.fenced_json(prompts.TEXTS['more_tools'], *more)}" if more else note
            text = await ask(note, offered, tools)
    # JSON can spell out what Postgres refuses in a text, such as `\u0000`.
    steps = tuple(
        replace(step, description=clean(step.description), args=None if step.args is None else clean(step.args))
        for step in parse_plan(text, tools=tools, done=done)
    )
    await chooser.add(step.tool for step in steps if step.tool)
    return steps


async def complete_args(
    turn: TurnCalls, plan: Plan, step: Step, tool: Tool, results: Mapping[int, StoredResult]
) -> dict[str, Any]:
    """Returns a step's arguments: references resolved, and what is open filled by one model call. Raises Unresolved."""
    args = await resolve(
        step.args, results, at_path=lambda found, path: at_path(found.content or "", path, is_json=found.kind == "json")
    )
    open_arguments = missing(args, tool.spec.input_schema, step.args or ())
    if not open_arguments and accepts(tool, args):
        return args
    messages = prompts.with_instruction(turn.conversation, prompts.fill_step_note(plan, step, args, open_arguments))
    reply = await turn.context.model.reply(messages, [tool.spec], tool_choice="required")
    await mark_refused(turn, reply)
    written = next((call.args for call in reply.calls if call.name == tool.spec.name and call.args is not None), {})
    filled = {name: value for name, value in written.items() if value not in (None, "")}
    merged = {**filled, **args}
    complete: dict[str, Any] = clean(merged if accepts(tool, merged) else filled)
    if still_open := missing(complete, tool.spec.input_schema, step.args or ()):
        raise Unresolved(f"{', '.join(still_open)} could not be found for {tool.spec.name}")
    return complete


async def classify_reply(context: TurnContext, state: TurnState, plan: Plan) -> Reading:
    """Returns how the model reads a message the rules could not. Never enough to approve what changes the world."""
    offered = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
    conversation = prompts.with_instruction(state["prompt"], prompts.with_plan(prompts.TEXTS["reader"], plan))
    return _verdict_in(await _ask(context, conversation, offered, READING))


async def ask_reader(context: TurnContext, reader: str, question: str, known: Mapping[str, Any]) -> Reading:
    """Asks the small model a question about what is `known`, which is data."""
    messages = [SystemMessage(reader), HumanMessage(prompts.fenced_json(question, known))]
    return _verdict_in(await context.model.reply(messages, small=True, schema=READING))


def _verdict_in(reply: Reply) -> Reading:
    found = first_object(reply.text, _Classification)
    return found.verdict if found else "none"


async def _ask(
    context: TurnContext, conversation: Sequence[BaseMessage], offered: Sequence[ToolSpec], schema: AnswerSchema
) -> Reply:
    # With the tools that the loop offers the request begins as the loop's does, and providers have it in their cache.
    return await context.model.reply(conversation, offered, tool_choice="none", small=True, schema=schema)


def _offered(guard: ToolGuard, plannable: Mapping[str, Tool], state: TurnState) -> tuple[list[ToolSpec], str]:
    """Returns the tools that the loop offers, and the planner's instruction with how they differ from `plannable`."""
    offered = guard.offered(without_forbidden(guard.tools(), state["search"]))
    names = [spec.name for spec in offered]
    shown = {*names, *guard.later_names}
    locked = [tool.spec for name, tool in guard.chosen(plannable).items() if name not in shown]
    barred = [name for name in names if name not in plannable and name != FIND_TOOLS.name]
    note = prompts.planner_note(locked=locked, barred=barred)
    return offered, f"{note}\n{prompts.TEXTS['plan_to_find']}" if FIND_TOOLS in offered else note


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """How a message answers: `incomplete` has some values, and others are needed. `values` are all that are known."""

    reading: Literal["complete", "incomplete", "decline", "other"]
    values: Mapping[str, Any] = field(default_factory=dict)


class _AnswerRead(BaseModel):
    reading: AnswerReading
    values: dict[str, Any] | str | None = None  # a strict schema asks for the text of an object

    @field_validator("values")
    @classmethod
    def _of_text(cls, value: dict[str, Any] | str | None) -> dict[str, Any]:
        try:
            values = orjson.loads(value) if isinstance(value, str) else value
        except orjson.JSONDecodeError:
            return {}
        return values if isinstance(values, dict) else {}


async def read_answer(context: TurnContext, state: TurnState, plan: Plan, asks: UserRequest) -> ReadAnswer:
    """Returns how the message answers what a tool asks: by the rules if they can tell, else as the model reads it."""
    verdict = state["acknowledgement"].verdict
    if verdict == "reject":
        return ReadAnswer("decline")
    if asks.mode == "url":  # what is done elsewhere only has to be called done
        done = "confirm" if verdict == "confirm" else await classify_reply(context, state, plan)
        return ReadAnswer("complete" if done == "confirm" else "decline" if done == "reject" else "other")
    if (values := _plain_answer(state, asks)) is not None:
        return _answer(asks, values)
    question = {"message": asks.message, "schema": asks.schema, "given": asks.given}
    note = prompts.fenced_json(prompts.TEXTS["answer_reader"], question)
    reply = await context.model.reply(prompts.with_instruction(state["prompt"], note), small=True, schema=ANSWER)
    read = first_object(reply.text, _AnswerRead) or _AnswerRead(reading="other")
    if read.reading != "answer":
        return ReadAnswer(read.reading)
    values = clean(read.values)
    return _answer(asks, await _said_by_user(context, state, asks, values), read_any=bool(values))


def _plain_answer(state: TurnState, asks: UserRequest) -> dict[str, Any] | None:
    """Returns what a yes, or a choice by its name, number or title, says to a form that needs nothing else."""
    fields, missing = (asks.schema or {}).get("properties", {}), asks.missing
    says_yes = state["acknowledgement"].verdict == "confirm"
    if not missing and says_yes:
        return {}
    if len(missing) != 1:
        return None
    of = fields[missing[0]]
    if of["type"] == "boolean" and says_yes and len(fields) == 1:
        return {missing[0]: True}
    message = words_of(state["message"])
    for number, (value, title) in enumerate(choices_of(of).items(), start=1):
        if message in (words_of(value), words_of(title), (str(number),)):
            return {missing[0]: [value] if of["type"] == "array" else value}
    return None


async def _said_by_user(
    context: TurnContext, state: TurnState, asks: UserRequest, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values without texts that are in none of the user's messages and in no fact about them."""
    messages = await context.transact(recent_user_messages, context.owner, context.turn.session_id, limit=MAX_MESSAGES)
    fields = (asks.schema or {})["properties"]

    def is_said(name: str, value: Any, texts: Sequence[str]) -> bool:
        of = fields.get(name, {})
        is_free = of.get("type") == "string" and not choices_of(of) and of.get("format") not in ("date", "date-time")
        return not is_free or any(stands_in(_plain(str(value)), text) for text in texts)

    def find() -> dict[str, Any]:
        texts = [_plain(text) for text in (*map(said_by_user, messages), *(fact.content for fact in state["facts"]))]
        return {name: value for name, value in values.items() if is_said(name, value, texts)}

    return await to_thread.run_sync(find)


def _plain(text: str) -> str:
    """Returns a text for comparison: case, spaces and punctuation around it do not matter."""
    return " ".join(text.lower().split()).strip(" \"'“”«».,;:!?。，！？")


def _answer(asks: UserRequest, values: Mapping[str, Any], *, read_any: bool = True) -> ReadAnswer:
    """Returns the answer without values that do not fit, which are asked for again."""
    known = dict(asks.given or {})
    for name, value in values.items():
        if not any(fault.startswith(f"$.{name}:") for fault in faults_of_answer(asks, {**known, name: value})):
            known[name] = value
    return ReadAnswer("complete" if read_any and not faults_of_answer(asks, known) else "incomplete", known)
