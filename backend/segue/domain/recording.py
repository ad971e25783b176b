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

    name: Annotated[str, doc("The name that the model calls the tool by.")]
    description: Annotated[str, doc("The description that the model reads.")] = ""
    input_schema: Annotated[dict[str, Any], doc("JSON Schema of the tool's arguments.")]
    source: Annotated[str, doc("Where the tool comes from: `builtin`, `native` or `mcp:<server>`.")] = "builtin"
    effect: Annotated[Effect, doc("Whether a call only reads, changes something, or destroys it.")] = "write"
    idempotent: Annotated[bool, doc("Whether a repeated call has no further effect.")] = False
    confirm: Annotated[ToolConfirm | None, doc("Whether calls wait for a yes; null leaves it to `effect`.")] = None
    depends_on: Annotated[tuple[DependencyGroup, ...], doc("The tools that have to have succeeded first.")] = ()


class RecordedCall(Part):
    """A tool call and its outcome."""

    tool: Annotated[str, doc("The name of the tool.")]
    args: Annotated[dict[str, Any], doc("The arguments of the call.")]
    status: Annotated[Literal["succeeded", "failed", "unknown"], doc("The outcome of the call.")] = "succeeded"
    result: Annotated[Any, doc("The result, or its reference if it was `omitted`.")] = None
    error: Annotated[str | None, doc("Why the call failed; null if it did not.")] = None
    omitted: Annotated[Literal["expired", "too_large"] | None, doc("Why the result is left out, if so.")] = None


class Round(Part):
    """One message of the assistant before its answer, with the calls in it."""

    by: Annotated[
        Literal["model", "plan", "search", "user"],
        doc(
            "Who said it. `plan`: a step the engine carried out, or the text written for one. `search`: the search "
            "ahead of the model. `user`: a message to the running turn."
        ),
    ] = "model"
    text: Annotated[str, doc("What was said together with the calls.")] = ""
    calls: Annotated[tuple[RecordedCall, ...], doc("The tool calls that were made at once.")] = ()


class RecordedStep(Part):
    """A step of a plan as a turn left it."""

    id: Annotated[int, doc("The number of the step in its plan, from 1.")]
    description: Annotated[str, doc("What the step is to do.")]
    tool: Annotated[str | None, doc("The name of the tool to call; null if the model writes the step.")] = None
    args: Annotated[dict[str, Any] | None, doc("The arguments that the tool is called with.")] = None
    status: Annotated[StepStatus, doc("The status of the step at the end of the turn.")]
    requires_confirmation: Annotated[bool, doc("Whether the step waits for the user's yes.")] = False


class RecordedPlan(Part):
    """A plan as a turn left it."""

    number: Annotated[int, doc("The number of the plan in the conversation, from 1.")]
    version: Annotated[int, doc("The version of the plan at the end of the turn.")]
    status: Annotated[PlanStatus, doc("The status of the plan at the end of the turn.")]
    steps: Annotated[tuple[RecordedStep, ...], doc("The steps of the plan, in their order.")]


class RecordedUsage(Part):
    """What the model calls of a turn used."""

    llm_calls: Annotated[int, doc("The number of model calls.")] = 0
    input_tokens: Annotated[int, doc("Tokens sent to models.")] = 0
    cached_tokens: Annotated[int, doc("The part of the input tokens that the provider had cached.")] = 0
    output_tokens: Annotated[int, doc("Tokens received from models.")] = 0
    cost: Annotated[float | None, doc("Cost in US dollars; null if it is not known.")] = None


class RecordedAcknowledgement(Part):
    """How the user's message was read as a reply to a plan."""

    verdict: Annotated[Verdict, doc("What the message says to the plan that waits.")]
    strength: Annotated[Strength | None, doc("The strength of a `confirm`; null for other verdicts.")] = None
    rule: Annotated[str, doc("The name of the rule that decided.")]


class RecordedTurn(Part):
    """A user's message and what came of it."""

    message: Annotated[str, doc("The user's message.")]
    decision: Annotated[Pressed | None, doc("The button pressed. `message` is its sign, or what to amend.")] = None
    args: Annotated[dict[str, Any] | None, doc("Arguments given with a `confirm`, in place of those shown.")] = None
    remember: Annotated[RememberFor | None, doc("Set by a `confirm` after which the tool need not ask again.")] = None
    force_web_search: Annotated[bool, doc("Whether the request set `force_web_search`.")] = False
    approves: Annotated[bool, doc("False if a program sent the message, which approves nothing.")] = True
    rounds: Annotated[tuple[Round, ...], doc("What the assistant said and called before the answer.")] = ()
    acknowledgement: Annotated[RecordedAcknowledgement | None, doc("How the message was read.")] = None
    reading: Annotated[str | None, doc("How the model read the message as a reply to a plan, if it did.")] = None
    plan: Annotated[RecordedPlan | None, doc("The plan that the turn made, advanced or ended, if any.")] = None
    status: Annotated[Literal["completed", "failed", "cancelled"], doc("How the turn ended.")] = "completed"
    answer: Annotated[str | None, doc("What the user was told; null if there was no answer.")] = None
    said: Annotated[str | None, doc("The model's part of the answer, if the engine added words of its own.")] = None
    usage: Annotated[RecordedUsage | None, doc("What the model calls of the turn used.")] = None

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return tuple(call for each in self.rounds for call in each.calls)

    @property
    def steers(self) -> tuple[tuple[int, str], ...]:
        """What the user said while the turn ran, each with the number of calls that had been made then."""
        before = accumulate(len(each.calls) for each in self.rounds)
        return tuple((made, each.text) for made, each in zip(before, self.rounds, strict=True) if each.by == "user")


class RecordedSettings(Part):
    """The settings on which the service's own decisions depended."""

    planning: Annotated[Planning, doc("The value of the setting PLANNING at the export.")] = "auto"
    confirm: Annotated[Confirm, doc("The value of the setting CONFIRM at the export.")] = "destructive"
    confirm_words: Annotated[ConfirmWords, doc("The value of CONFIRM_WORDS at the export.")] = "shown"


class Recording(Part):
    """A recorded conversation, which `segue replay` plays."""

    format: Annotated[Literal["segue-recording"], doc("Identifies the file as a recording.")]
    version: Annotated[Literal[1], doc("The version of the format.")]
    title: Annotated[str | None, doc("The title of the session; null if it has none.")] = None
    agent: Annotated[str | None, doc("The id of the agent that answers; null for the default one.")] = None
    language: Annotated[str | None, doc("The tag of the language to answer in; null: the user's own.")] = None
    time_zone: Annotated[str, doc("The IANA time zone of the session.")] = "UTC"
    metadata: Annotated[dict[str, Any], doc("The metadata that the client keeps with the session.")] = {}
    settings: Annotated[RecordedSettings, doc("What the service's own decisions depended on.")] = RecordedSettings()
    tools: Annotated[tuple[RecordedTool, ...], doc("The tools that the service offered.")] = ()
    turns: Annotated[tuple[RecordedTurn, ...], Field(min_length=1), doc("The turns of the conversation, in order.")]


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
