"""Who approves a call, if it is not the user alone: an agent's rules, and the bounds of rules and mandates on values. A
step keeps what it needs of its rule, so a question is decided as it was asked. Pure.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segue.domain.field_types import doc
from segue.domain.identity import Identity
from segue.domain.ids import digest_of_json
from segue.domain.tool import Effect

Who = Literal["self", "approver", "other", "two"]
OthersWho = Literal["approver", "other", "two"]
Shows = Literal["call", "conversation"]
RuleOrigin = Literal["user", "other", "model", "result", "quoted", "program"]
GroupName = Annotated[str, Field(max_length=200, pattern=r"^\S.*$")]
RuleSeconds = Annotated[int, Field(ge=1, le=31_622_400)]
MAX_REASON_CHARS: Final = 500

USER: Final = "user"  # the origin of what was typed with a decision
_FROM_USER: Final = (USER, "message:", "fact:")
_ITEMS: Final = re.compile(r"(?:\[\d+\])*")
# What leads out of a folder: a browser reads `\\..`, `/%2e%2e` and `/.<tab>.` as `/..`.
_UP: Final = re.compile(r"(?:[/\\]|%2f|%5c)[\t\r\n]*(?:\.|%2e)[\t\r\n]*(?:\.|%2e)", re.IGNORECASE)
_BELOW: Final = re.compile(r"[.\[]")

ArgumentPath = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
BoundText = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]
Number = Annotated[int | float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Scalar = BoundText | bool | Number


class Given(BaseModel):
    """What people write: nothing in it is unknown, or of another type than it should be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Bound(Given):
    """A bound on a value of a tool call. If it has several members, the value has to keep to all."""

    equals: Annotated[Scalar | None, doc("The value has to equal this.")] = None
    one_of: Annotated[
        list[Scalar] | None, Field(min_length=1, max_length=50, description="The value has to equal one of these.")
    ] = None
    max: Annotated[Annotated[Number, Field(ge=0)] | None, doc("The value has to be a number from 0 to this.")] = None
    prefix: Annotated[BoundText | None, doc("The value has to be a text that begins so and has no `/..`.")] = None
    origin: Annotated[
        Literal["user", "due", "any"] | None,
        doc(
            "Who has to have said the value: `user`, as without a bound; `due`, also the schedule or trigger that "
            "began the turn; `any`, as with one of the other bounds."
        ),
    ] = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.origin is None and not self.fixes:
            raise ValueError("give `equals`, `one_of`, `max`, `prefix` or `origin`")
        return self

    @property
    def fixes(self) -> bool:
        """Whether it is a bound on the value, and not only on who said it."""
        return any(each is not None for each in (self.equals, self.one_of, self.max, self.prefix))

    def holds(self, path: str, leaf: str, value: object, call: "RuledCall") -> bool:
        """Returns whether a value of a call, which stands at `leaf`, keeps to this bound on `path`."""
        origin, brought_by = call.origins.get(leaf, "model"), call.brought_by
        is_due = self.origin == "due" and brought_by is not None and origin == f"program:{brought_by}"
        is_free = self.origin == "any" or (self.origin is None and self.fixes)
        is_meant = is_at(path, leaf) or not self.fixes
        return is_meant and self._allows(value) and (is_free or is_due or is_users(origin))

    def _allows(self, value: object) -> bool:
        """Returns whether the bound allows this value. Where the value is from is not looked at here."""
        if self.equals is not None and not _same(value, self.equals):
            return False
        if self.one_of is not None and not any(_same(value, each) for each in self.one_of):
            return False
        if self.max is not None and not 0 <= as_number(value) <= self.max:
            return False
        if self.prefix is None:
            return True
        return isinstance(value, str) and value.startswith(self.prefix) and _UP.search(value) is None


def is_users(origin: str) -> bool:
    """Returns whether the user typed or said what comes from there."""
    return origin.startswith(_FROM_USER)


def is_at(path: str, leaf: str) -> bool:
    """Returns whether a value stands at the path, or is an item of the list there."""
    return leaf.startswith(path) and _ITEMS.fullmatch(leaf, len(path)) is not None


def is_over(path: str, leaf: str) -> bool:
    """Returns whether a value stands at the path or below it."""
    return leaf == path or (leaf.startswith(path) and _BELOW.match(leaf, len(path)) is not None)


def as_number(value: object) -> float:
    """Returns NaN, which no bound holds for, if it is no number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


class RuleBound(Bound):
    """What a value has to be for a rule to be about its call. `above` stands alone; what is missing, or no number, is
    above everything.
    """

    above: Annotated[Number | None, doc("The value has to be a number greater than this.")] = None

    @model_validator(mode="after")
    def _stands_alone(self) -> Self:
        if self.above is not None and self.model_fields_set != {"above"}:
            raise ValueError("`above` stands alone")
        return self

    @property
    def fixes(self) -> bool:
        return self.above is not None or super().fixes

    def written(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def fits(self, path: str, call: "RuledCall") -> bool:
        over = {leaf: value for leaf, value in call.values.items() if is_over(path, leaf)}
        if self.above is not None:
            return not over or any(not as_number(value) <= self.above for value in over.values())
        return bool(over) and all(self.holds(path, leaf, value, call) for leaf, value in over.items())


@dataclass(frozen=True, slots=True)
class RuledCall:
    """A call that rules see. `values` and `origins` are by path, `brought_by` is what began a turn if no user did."""

    tool: str
    effect: Effect
    args: Mapping[str, Any]
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    brought_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    """The calls that it is about are those for which all that it says holds. `group` names a group or a role."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    tool: Annotated[str, Field(min_length=1, max_length=200)] = "*"
    args: dict[ArgumentPath, RuleBound] = field(default_factory=dict)
    effect: Effect | None = None
    origin: RuleOrigin | None = None
    unattended: bool | None = None
    who: Who
    group: GroupName | None = None
    shows: Shows = "call"
    may_change_args: bool = False
    escalate_after_s: RuleSeconds | None = None
    escalate_to: GroupName | None = None
    expires_after_s: RuleSeconds | None = None

    def __post_init__(self) -> None:
        of_others = self.may_change_args or self.escalate_to or self.expires_after_s or self.shows != "call"
        if (self.who == "self") != (self.group is None) or (self.who == "self" and of_others):
            raise ValueError('`who = "self"` takes no `group` and nothing about others, and the others need a `group`')
        if (self.escalate_to is None) != (self.escalate_after_s is None):
            raise ValueError("`escalate_to` and `escalate_after_s` go together")
        if self.who == "two" and self.may_change_args:
            raise ValueError("two people have to say yes to the same arguments: `may_change_args` cannot be")

    @property
    def needs_origins(self) -> bool:
        return self.origin is not None or any(bound.origin is not None for bound in self.args.values())

    def is_about(self, call: RuledCall) -> bool:
        return (
            fnmatchcase(call.tool, self.tool)
            and self.effect in (None, call.effect)
            and self.unattended in (None, call.brought_by is not None)
            and (self.origin is None or any(_is_from(self.origin, each) for each in call.origins.values()))
            and all(bound.fits(path, call) for path, bound in self.args.items())
        )

    def waits_for(self, name: str, call: RuledCall, now: datetime) -> "WaitsFor | Literal['self']":
        if self.who == "self" or self.group is None:
            return "self"
        later, expires = self.escalate_after_s, self.expires_after_s
        return WaitsFor(
            group=self.group,
            who=self.who,
            rule=name,
            of_call=digest_of_call(call.tool, call.args),
            shows=self.shows,
            may_change_args=self.may_change_args,
            escalates_to=self.escalate_to,
            escalates_at=now + timedelta(seconds=later) if later else None,
            expires_at=now + timedelta(seconds=expires) if expires else None,
        )


def _is_from(wanted: RuleOrigin, origin: str) -> bool:
    match wanted:
        case "user":
            return is_users(origin)
        case "other":
            return not is_users(origin)
        case _:
            return origin == wanted or origin.startswith(f"{wanted}:")


def digest_of_call(tool: str, args: Mapping[str, Any]) -> str:
    return digest_of_json([tool, args])


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsFor:
    """The people who decide on a step, by the agent's rule as it was when the question was asked."""

    group: Annotated[str, doc("The group or role of the people who decide.")]
    who: Annotated[OthersWho, doc("`approver`: one of them; `other`: one but not the user; `two`: two of them.")]
    rule: Annotated[str, doc("The agent's id and the number of its rule, such as `segue, rule 1`.")]
    of_call: Annotated[str, doc("The SHA-256 digest of the call that was asked about.")]
    shows: Annotated[Shows, doc("What they see: only the call, or also the conversation.")] = "call"
    may_change_args: Annotated[bool, doc("Whether those who decide may change the arguments.")] = False
    escalates_to: Annotated[str | None, doc("Another group or role that may decide too after a time.")] = None
    escalates_at: Annotated[datetime | None, doc("When that group or role may decide too; null without one.")] = None
    expires_at: Annotated[datetime | None, doc("When the question expires; null if the rule does not say.")] = None

    def is_for(self, identity: Identity, now: datetime) -> bool:
        """Returns whether the question is shown to them: whether they may decide it is another matter."""
        is_late = self.escalates_to is not None and self.escalates_at is not None and self.escalates_at <= now
        return identity.has(self.group) or (is_late and identity.has(self.escalates_to or ""))

    def asks_same(self, other: object) -> bool:
        """Returns whether another rule asks the same people."""
        mine = (self.group, self.who, self.escalates_to)
        return isinstance(other, WaitsFor) and mine == (other.group, other.who, other.escalates_to)

    @property
    def told(self) -> str:
        """Who it waits for, in a word."""
        return f"{self.group} × 2" if self.who == "two" else self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What people other than the user decided on a step."""

    by: Annotated[WaitsFor, doc("The rule by which they decide.")]
    yes_by: Annotated[tuple[str, ...], doc("The users who said yes.")] = ()
    no_by: Annotated[str | None, doc("The user who said no; null if nobody did.")] = None
    reason: Annotated[str | None, doc("Why that user said no, in their own words.")] = None

    @property
    def agree(self) -> bool:
        """Whether as many have said yes as the rule wants."""
        return self.no_by is None and len(self.yes_by) >= (2 if self.by.who == "two" else 1)

    def cover(self, waits: "WaitsFor", call: str) -> bool:
        """Returns whether they agree to the call with this digest, which waits for these by the rules of now."""
        return self.agree and (self.by.of_call == call or self.by.asks_same(waits))
