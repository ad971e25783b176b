"""An agent: who answers in a session, with which instructions, model and tools; and the providers of models. No I/O."""

import hashlib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Annotated, Final, Literal, get_args

import orjson
from pydantic import ConfigDict, Field

from segue.domain.approval_rule import ApprovalRule
from segue.domain.errors import app_error
from segue.domain.plan import Confirm, ConfirmWords, Planning

DEFAULT_AGENT: Final = "segue"  # there always is one of this id
MAX_INSTRUCTIONS_CHARS: Final = 32_000
# They only find what a session has or may use, so patterns of `tools` need not name them; `not_tools` may.
OF_THE_ENGINE: Final = frozenset({"get_tool_result", "find_tools"})
NOT_RELIED_ON: Final = {"description", "greeting", "examples", "models", "options", "users", "groups", "approvals"}
# In the place of the service's own.
LIMITS: Final = ("planning", "confirm", "confirm_words", "max_rounds", "max_tool_calls", "max_parallel_calls")

Line = Annotated[str, Field(max_length=200, pattern=r"^\S.*$")]
Lines = Annotated[tuple[Line, ...], Field(max_length=200)]
NameList = Annotated[Lines, Field(min_length=1)]
Paragraph = Annotated[str, Field(max_length=2000)]
Rounds = Annotated[int, Field(ge=1, le=1000)]
ToolCalls = Annotated[int, Field(ge=1, le=10_000)]
ParallelCalls = Annotated[int, Field(ge=1, le=100)]
# What a client may ask of a turn, by the names of TurnOptions; `model` has a key of its own.
TurnOption = Literal["output_schema", "stop", "max_tokens", "temperature", "instructions"]
TURN_OPTIONS: Final[tuple[TurnOption, ...]] = get_args(TurnOption)
OFFLINE: Final = "offline"  # the name of the model that answers while none is configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What is None is as the settings say. A step keeps its rule of `approvals`, so that no yes relies on these."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    name: Line = "Segue"
    description: Paragraph = ""
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)] = ""
    model: Line | None = None
    small_model: Line | None = None
    models: Lines = ()  # a client may ask for one of these in the place of `model`
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    reasoning_effort: Line | None = None
    tools: Lines | None = None  # patterns of the names it may use, as a shell has them, None for all
    not_tools: Lines = ()  # what fits one of these it may not use
    confirm: Confirm | None = None
    confirm_words: ConfirmWords | None = None
    planning: Planning | None = None
    max_rounds: Rounds | None = None
    max_tool_calls: ToolCalls | None = None
    max_parallel_calls: ParallelCalls | None = None
    web_search: bool | None = None
    greeting: Paragraph | None = None
    examples: Lines = ()
    options: tuple[TurnOption, ...] = TURN_OPTIONS  # what clients may ask of its turns
    users: NameList | None = None  # it is for these and those in `groups`, if either is given
    groups: NameList | None = None
    approvals: Annotated[tuple[ApprovalRule, ...], Field(max_length=100)] = ()  # the first that is about a call decides

    @property
    def digest(self) -> str:
        """Covers what a user's yes to something it asked relies on. A field that a later release adds changes none."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in NOT_RELIED_ON}
        changed = [(name, value) for name, value in values.items() if value != getattr(_PLAIN, name)]
        return hashlib.sha256(orjson.dumps(changed)).hexdigest()[:32]

    def is_for(self, user: str, groups: Iterable[str]) -> bool:
        is_for_all = self.users is None and self.groups is None
        return is_for_all or user in (self.users or ()) or not set(self.groups or ()).isdisjoint(groups)

    def check_options(self, given: Iterable[str]) -> None:
        """Raises AppError `option_not_allowed` if a client may not ask all of this of a turn."""
        for name in given:
            if name in TURN_OPTIONS and name not in self.options:
                raise app_error("option_not_allowed", name=name, extra={"param": name})

    @property
    def may_use_all(self) -> bool:
        return self.tools is None and not self.not_tools

    def may_use(self, tool: str) -> bool:
        if _fits(tool, self.not_tools):
            return False
        return self.tools is None or tool in OF_THE_ENGINE or _fits(tool, self.tools)


_PLAIN: Final = Agent()


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# OpenAI's protocols. `auto` takes the Responses API where OpenAI itself answers, and the other one if one refuses.
ProviderApi = Literal["auto", "chat", "responses"]


@dataclass(frozen=True, slots=True)
class ModelProvider:
    """`key` and `base_url` are names of settings."""

    key: str
    base_url: str
    default_url: str
    package: str = ""  # what the `extra` of this project installs
    extra: str = ""
    traced_as: str = "openai"  # its name by OpenTelemetry's conventions


_ROWS: Final = tomllib.loads(files("segue.domain").joinpath("providers.toml").read_text("utf-8"))
PROVIDERS: Final = {name: ModelProvider(**row) for name, row in _ROWS.items()}
OPENAI: Final = PROVIDERS["openai"]


def provider_and_id(model: str) -> tuple[ModelProvider, str]:
    """Returns a model's provider and the id it has there. Only a known prefix names one: `qwen3:8b` is an id."""
    prefix, _, rest = model.partition(":")
    provider = PROVIDERS.get(prefix)
    return (provider, rest) if provider and rest else (OPENAI, model)
