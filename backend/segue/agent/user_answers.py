"""Reads a message as the answer to what a tool asks: by rules where they can tell, else by the model.

The model only copies what the user said: a text that stands in none of the user's messages is not taken from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anyio import to_thread
from pydantic import BaseModel, TypeAdapter, ValidationError

from segue.agent import prompts
from segue.agent.context import TurnContext
from segue.agent.llm import answer_schemas
from segue.agent.llm.answer_schemas import AnswerReading
from segue.agent.planner import classify_reply
from segue.agent.state import TurnState
from segue.domain.plan import Plan
from segue.domain.user_request import UserRequest
from segue.language.utterance import words_of
from segue.memory.history import recent_user_messages, said_by_user
from segue.plans.argument_origins import stands_in
from segue.plans.plan_parser import first_object
from segue.tools.normalize import clean
from segue.tools.user_requests import choices_of, faults_of_answer

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
