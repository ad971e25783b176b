"""What a client of AG-UI asks for with a run: a message, an answer to an interrupt, or to be shown the session.

A client sends its whole history with every run, of which only what the user said last is new. Pure.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from segue.api.doors.client_sessions import MAX_CLIENT_ID_CHARS
from segue.api.doors.sent_files import is_file, parts_unsupported
from segue.api.schemas import MAX_MESSAGE_CHARS, MAX_VERSION, Body, FilledText, PlanDecision
from segue.domain.doc import doc
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.tool import RememberFor
from segue.plans.store import StalePlan

MAX_ENTRIES = 100
_INTERRUPT_ID = re.compile(r"(plan_[0-9a-hjkmnp-tv-z]{26}):([1-9]\d{0,8})")

Json = dict[str, Any]
ClientId = Annotated[str, Field(min_length=1, max_length=MAX_CLIENT_ID_CHARS)]


class _Input(BaseModel):
    """What it does not know is a newer client's."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class InterruptAnswer(Body):
    """What the user answers. Nothing in it approves exactly what was shown."""

    approved: Annotated[bool | None, doc("False rejects.")] = None
    args: Annotated[Json | None, doc("Approves, with these in the place of the step's arguments.")] = None
    message: Annotated[
        Annotated[FilledText, Field(max_length=MAX_MESSAGE_CHARS)] | None, doc("What is to be otherwise, in words.")
    ] = None
    remember: Annotated[RememberFor | None, doc("Approves, and the tool need not ask again in this session.")] = None
    answer: Annotated[Json | None, doc("Fills in the form that a tool asks for.")] = None
    reason: Annotated[str | None, doc("For the client alone.")] = None


class ResumeEntry(_Input):
    """The answer to an interrupt."""

    interrupt_id: Annotated[ClientId, doc("As the run that ended with it said.")]
    status: Annotated[Literal["resolved", "cancelled"], doc("`cancelled` rejects what was asked.")]
    payload: Annotated[InterruptAnswer | None, doc("Of a resolved one.")] = None


class ForwardedProps(_Input):
    """What the application asks of this service."""

    on_disconnect: Annotated[
        Literal["cancel", "continue"], doc("What becomes of the turn if the client goes away.")
    ] = "continue"


class RunAgentInput(_Input):
    """A request of AG-UI to run the agent. `state` and `context` are not read."""

    thread_id: Annotated[ClientId, doc("What the client calls the conversation: a session, made on first use.")]
    run_id: Annotated[ClientId, doc("Made by the client. The same run, sent again, is the same turn.")]
    messages: Annotated[
        list[Json], doc("The history as the client has it. Only what the user says last is read; empty: show it.")
    ]
    tools: Annotated[list[Json] | None, doc("Tools of the client. Refused, unless empty.")] = None
    forwarded_props: Annotated[ForwardedProps | None, doc("For this service.")] = None
    protocol_version: Annotated[str | None, Field(max_length=20), doc("Answered with this service's.")] = None
    resume: Annotated[list[ResumeEntry] | None, Field(max_length=MAX_ENTRIES), doc("The answer to the interrupt.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class AskedRun:
    """What a run asks for: words of the user's, a decision, or nothing but to be shown how the session stands.

    Words that the assistant has spoken after (not `is_new`) can only be those of a run that is sent again. `content` is
    what they stand in, which may have files. `before` are the messages up to them. `abandons` is a plan, by id and
    version, whose question was cancelled.
    """

    text: str | None = None
    content: object = None
    is_new: bool = True
    decision: PlanDecision | None = None
    plan_id: str | None = None
    abandons: tuple[str, int] | None = None
    before: Sequence[Json] = ()


def asked_of(body: RunAgentInput) -> AskedRun:
    """Raises AppError `client_tools`, `invalid_request`, `parts_unsupported`, StalePlan."""
    if body.tools:
        raise _client_tools(body.tools)
    resume = body.resume or []
    if len(resume) > 1:
        raise InvalidRequest("`resume` has more than one entry: a session asks one question at a time.")
    at = _newest(body.messages)
    is_new = at is not None and not any(each.get("role") == "assistant" for each in body.messages[at:])
    if resume:
        return _answered(resume[0], body.messages, at if is_new else None)
    if not body.messages:
        return AskedRun()
    if at is None:
        raise nothing_new()
    said = body.messages[at]
    return AskedRun(text_of(said), said["content"], is_new=is_new, before=body.messages[: at + 1])


def _newest(messages: Sequence[Json]) -> int | None:
    """Where the user's newest message is."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "user"), None)


def _answered(entry: ResumeEntry, messages: Sequence[Json], at: int | None) -> AskedRun:
    found = _INTERRUPT_ID.fullmatch(entry.interrupt_id)
    plan_id, version = (found[1], int(found[2])) if found else ("", MAX_VERSION)
    if entry.status == "cancelled":
        abandons = plan_id, version
        if at is not None:
            said = messages[at]
            return AskedRun(text_of(said), said["content"], abandons=abandons, before=messages[: at + 1])
        return AskedRun(decision=PlanDecision(decision="reject", version=version), plan_id=plan_id, abandons=abandons)
    if found is None:
        raise StalePlan
    given = entry.payload or InterruptAnswer()
    if given.approved is False:
        decision = PlanDecision(decision="reject", version=version)
    elif given.message is not None:
        decision = PlanDecision(decision="amend", version=version, message=given.message)
    else:
        decision = PlanDecision(
            decision="confirm", version=version, args=given.args, remember=given.remember, answer=given.answer
        )
    return AskedRun(decision=decision, plan_id=plan_id)


def text_of(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_of_part(part) for part in content if not is_file(part))
    if not isinstance(content, str) or not (text := content.strip()):
        raise InvalidRequest("The user's newest message has no text.")
    if len(text) > MAX_MESSAGE_CHARS:
        raise InvalidRequest(f"The user's newest message is longer than {MAX_MESSAGE_CHARS} characters.")
    return text


def _text_of_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise parts_unsupported(f"A part of the type {kind[:40]!r} cannot be read.")
    raise InvalidRequest("A part of the user's newest message is neither text nor a file.")


def key_of(body: RunAgentInput) -> str:
    """Some clients send the answer to an interrupt under the id of the run that asked."""
    answers = [entry.interrupt_id for entry in body.resume or ()]
    return f"agui:{hashlib.sha256(orjson.dumps([body.run_id, *answers])).hexdigest()}"


def nothing_new() -> AppError:
    return InvalidRequest("Nothing in `messages` is new: the user has said nothing after the assistant's last message.")


def _client_tools(tools: Sequence[Json]) -> AppError:
    names = ", ".join(str(tool.get("name"))[:40] for tool in tools[:5])
    return AppError(
        "client_tools",
        status=422,
        title="Tools of the client are not called",
        detail=f"Nothing was accepted: the agent calls its own tools only. Leave out those of the page ({names}).",
    )
