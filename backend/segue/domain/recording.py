"""A recorded conversation: the file that `GET /sessions/{id}/export` returns and `segue replay` plays.

docs/replay.md says what each field means for a replay. Parses and formats; reads and writes no file.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segue.domain.plan import Confirm, Decision, Planning, PlanStatus, StepStatus
from segue.domain.session import Strength, Verdict
from segue.domain.tool import DependencyGroup, Effect

VERSION = 1
SHOWN_FAULTS = 3


class BrokenRecording(Exception):
    """The file is not a valid recording; the message says what to correct."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedTool(Part):
    """A tool as the service offered it: a replay serves it under the same name."""

    name: str
    description: str = ""
    input_schema: dict[str, Any]
    source: str = "builtin"
    effect: Effect = "write"
    idempotent: bool = False
    confirm: bool | None = None
    depends_on: tuple[DependencyGroup, ...] = ()


class RecordedCall(Part):
    """A call and what came of it. Where the result was `omitted`, `result` is its reference instead."""

    tool: str
    args: dict[str, Any]
    status: Literal["succeeded", "failed", "unknown"] = "succeeded"
    result: Any = None
    error: str | None = None
    omitted: Literal["expired", "too_large"] | None = None


class Round(Part):
    """One message of the assistant before its answer, with the calls in it.

    `model`: the model asked for the calls. `plan`: a step the engine carried out, or, without a call, the text the
    model wrote for one. `search`: the web search the engine makes ahead of the model.
    """

    by: Literal["model", "plan", "search"] = "model"
    text: str = ""
    calls: tuple[RecordedCall, ...] = ()


class RecordedStep(Part):
    id: int
    description: str
    tool: str | None = None
    args: dict[str, Any] | None = None
    status: StepStatus
    requires_confirmation: bool = False


class RecordedPlan(Part):
    """A plan as a turn left it; `number` counts the plans of the conversation from 1."""

    number: int
    version: int
    status: PlanStatus
    steps: tuple[RecordedStep, ...]


class RecordedUsage(Part):
    """What the model calls of a turn took; `cost` is in dollars."""

    llm_calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class RecordedAcknowledgement(Part):
    """How the message was read."""

    verdict: Verdict
    strength: Strength | None = None
    rule: str


class RecordedTurn(Part):
    """A message and what came of it.

    `decision` is a button's, whose message is only its sign. `said` is the model's part of the answer where the engine
    added words of its own, `reading` how the model read a reply to a plan. `plan` is the one this turn touched.
    """

    message: str
    decision: Decision | None = None
    force_web_search: bool = False
    rounds: tuple[Round, ...] = ()
    acknowledgement: RecordedAcknowledgement | None = None
    reading: str | None = None
    plan: RecordedPlan | None = None
    status: Literal["completed", "failed", "cancelled"] = "completed"
    answer: str | None = None
    said: str | None = None
    usage: RecordedUsage | None = None

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return tuple(call for each in self.rounds for call in each.calls)


class RecordedSettings(Part):
    """What the service's own decisions depended on."""

    planning: Planning = "auto"
    confirm: Confirm = "destructive"


class Recording(Part):
    format: Literal["segue-recording"]
    version: Literal[1]
    title: str | None = None
    language: str | None = None
    time_zone: str = "UTC"
    metadata: dict[str, Any] = {}
    settings: RecordedSettings = RecordedSettings()
    tools: tuple[RecordedTool, ...] = ()
    turns: Annotated[tuple[RecordedTurn, ...], Field(min_length=1)]


def recording_text(recording: Recording) -> str:
    """Formats for version control: indented, in a fixed order, without default values."""
    shown = recording.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(shown, ensure_ascii=False, indent=1) + "\n"


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
        raise BrokenRecording(_faults_in(error)) from error


def _faults_in(error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)]
    more = f" (and {len(faults) - SHOWN_FAULTS} more)" if len(faults) > SHOWN_FAULTS else ""
    return f"it has to be corrected: {'; '.join(faults[:SHOWN_FAULTS])}{more}"
