"""A recorded conversation, as a session's export and `segue replay` have it. docs/replay.md says what it lacks."""

import json
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segue.domain.field_types import doc
from segue.domain.plan import Confirm, ConfirmWords, Planning, PlanStatus, Pressed, StepStatus
from segue.domain.session import Strength, Verdict
from segue.domain.tool import DependencyGroup, Effect, RememberFor, ToolConfirm

VERSION = 1
SHOWN_FAULTS = 3


class BrokenRecording(Exception):
    """The file is not a valid recording; the message says what to correct."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedTool(Part):
    """A tool as the service offered it: a replay serves it under the same name."""

    name: Annotated[str, doc("The name that the model calls it by.")]
    description: Annotated[str, doc("What the model is told of it.")] = ""
    input_schema: Annotated[dict[str, Any], doc("JSON Schema of its arguments.")]
    source: Annotated[str, doc("`builtin`, `native` or `mcp:<server>`.")] = "builtin"
    effect: Annotated[Effect, doc("What a call does to the world.")] = "write"
    idempotent: Annotated[bool, doc("Whether a second call has no further effect.")] = False
    confirm: Annotated[ToolConfirm | None, doc("Whether it waits for a yes; null leaves that to `effect`.")] = None
    depends_on: Annotated[tuple[DependencyGroup, ...], doc("What has to have succeeded first.")] = ()


class RecordedCall(Part):
    """A call and what came of it."""

    tool: Annotated[str, doc("The tool's name.")]
    args: Annotated[dict[str, Any], doc("What it was called with.")]
    status: Annotated[Literal["succeeded", "failed", "unknown"], doc("What came of it.")] = "succeeded"
    result: Annotated[Any, doc("The result, or its reference if it was `omitted`.")] = None
    error: Annotated[str | None, doc("Why it failed.")] = None
    omitted: Annotated[Literal["expired", "too_large"] | None, doc("Why the result is not here.")] = None


class Round(Part):
    """One message of the assistant before its answer, with the calls in it."""

    by: Annotated[
        Literal["model", "plan", "search", "user"],
        doc(
            "The model; a step the engine carried out, or the text written for one; the search ahead of the model; the "
            "user, to the turn that ran."
        ),
    ] = "model"
    text: Annotated[str, doc("What was said with them.")] = ""
    calls: Annotated[tuple[RecordedCall, ...], doc("Those made at once.")] = ()


class RecordedStep(Part):
    """A step of a plan as a turn left it."""

    id: Annotated[int, doc("Its number in the plan.")]
    description: Annotated[str, doc("What it is to do.")]
    tool: Annotated[str | None, doc("The tool to call.")] = None
    args: Annotated[dict[str, Any] | None, doc("What it is called with.")] = None
    status: Annotated[StepStatus, doc("How it stood.")]
    requires_confirmation: Annotated[bool, doc("Whether it waits for a yes.")] = False


class RecordedPlan(Part):
    """A plan as a turn left it."""

    number: Annotated[int, doc("Counts the plans of the conversation, from 1.")]
    version: Annotated[int, doc("As the turn left it.")]
    status: Annotated[PlanStatus, doc("As the turn left it.")]
    steps: Annotated[tuple[RecordedStep, ...], doc("In their order.")]


class RecordedUsage(Part):
    """What the model calls of a turn took."""

    llm_calls: Annotated[int, doc("Calls of a model.")] = 0
    input_tokens: Annotated[int, doc("Tokens sent.")] = 0
    cached_tokens: Annotated[int, doc("Those of the input that the provider had cached.")] = 0
    output_tokens: Annotated[int, doc("Tokens received.")] = 0
    cost: Annotated[float | None, doc("In dollars.")] = None


class RecordedAcknowledgement(Part):
    """How the message was read."""

    verdict: Annotated[Verdict, doc("What it says to the plan that waits.")]
    strength: Annotated[Strength | None, doc("Of a `confirm`.")] = None
    rule: Annotated[str, doc("The rule that decided.")]


class RecordedTurn(Part):
    """A message and what came of it."""

    message: Annotated[str, doc("The user's message.")]
    decision: Annotated[Pressed | None, doc("Of a button. Its message is its sign, or what an `amend` changes.")] = None
    args: Annotated[dict[str, Any] | None, doc("Typed with a `confirm` in place of those that waited.")] = None
    remember: Annotated[RememberFor | None, doc("Given with a `confirm`: the tool need not ask again.")] = None
    force_web_search: Annotated[bool, doc("Whether the request had it.")] = False
    approves: Annotated[bool, doc("False: it is a program's message.")] = True
    rounds: Annotated[tuple[Round, ...], doc("What was called before the answer.")] = ()
    acknowledgement: Annotated[RecordedAcknowledgement | None, doc("How the message was read.")] = None
    reading: Annotated[str | None, doc("How the model read a reply to a plan.")] = None
    plan: Annotated[RecordedPlan | None, doc("The plan that this turn touched.")] = None
    status: Annotated[Literal["completed", "failed", "cancelled"], doc("How it ended.")] = "completed"
    answer: Annotated[str | None, doc("What the user was told.")] = None
    said: Annotated[str | None, doc("The model's part of the answer, if the engine added words of its own.")] = None
    usage: Annotated[RecordedUsage | None, doc("What the model calls took.")] = None

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return tuple(call for each in self.rounds for call in each.calls)

    @property
    def steers(self) -> tuple[tuple[int, str], ...]:
        """What the user said while the turn ran, each with the number of calls that had been made then."""
        before = accumulate(len(each.calls) for each in self.rounds)
        return tuple((made, each.text) for made, each in zip(before, self.rounds, strict=True) if each.by == "user")


class RecordedSettings(Part):
    """What the service's own decisions depended on."""

    planning: Annotated[Planning, doc("PLANNING as it was.")] = "auto"
    confirm: Annotated[Confirm, doc("CONFIRM as it was.")] = "destructive"
    confirm_words: Annotated[ConfirmWords, doc("CONFIRM_WORDS as it was.")] = "shown"


class Recording(Part):
    """A conversation that `segue replay` plays."""

    format: Annotated[Literal["segue-recording"], doc("Says that this is a recording.")]
    version: Annotated[Literal[1], doc("Of the format.")]
    title: Annotated[str | None, doc("The session's title.")] = None
    agent: Annotated[str | None, doc("The id of the agent that answers, if not the default one.")] = None
    language: Annotated[str | None, doc("The session's language.")] = None
    time_zone: Annotated[str, doc("The session's zone.")] = "UTC"
    metadata: Annotated[dict[str, Any], doc("The session's metadata.")] = {}
    settings: Annotated[RecordedSettings, doc("What the service's decisions depended on.")] = RecordedSettings()
    tools: Annotated[tuple[RecordedTool, ...], doc("Those the service offered.")] = ()
    turns: Annotated[tuple[RecordedTurn, ...], Field(min_length=1), doc("The conversation.")]


def recording_text(recording: Recording) -> str:
    """Formats for version control: indented, in a fixed order, without default values."""
    return json.dumps(recording.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False, indent=1) + "\n"


def read_recording(file: bytes) -> Recording:
    """Raises BrokenRecording."""
    try:
        raw = json.loads(file.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BrokenRecording("it is not UTF-8") from error
    except RecursionError as error:
        raise BrokenRecording("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise BrokenRecording(f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(raw, dict) or raw.get("format") != "segue-recording":
        raise BrokenRecording('it is no recording: there is no "format": "segue-recording" in it')
    if raw.get("version") != VERSION:
        raise BrokenRecording(f"it is of version {raw.get('version')}; this Segue reads version {VERSION}")
    try:
        return Recording.model_validate(raw)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)]
        more = f" (and {len(faults) - SHOWN_FAULTS} more)" if len(faults) > SHOWN_FAULTS else ""
        raise BrokenRecording(f"it has to be corrected: {'; '.join(faults[:SHOWN_FAULTS])}{more}") from error
