"""What a value in the arguments of a call has to be: bounds of mandates, and of rules about who approves. Pure."""

import math
import re
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segue.domain.field_types import doc

USER: Final = "user"  # the origin of what was typed with a decision
_FROM_USER: Final = (USER, "message:", "fact:")
_ITEMS: Final = re.compile(r"(?:\[\d+\])*")
_BELOW: Final = re.compile(r"[.\[]")

ArgumentPath = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
BoundText = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]
Number = Annotated[int | float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Scalar = BoundText | bool | Number
BoundOrigin = Literal["user", "due", "any"]


class Given(BaseModel):
    """What people write: nothing in it is unknown, or of another type than it should be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Bound(Given):
    """What a value has to be. One with several has to keep to all."""

    equals: Annotated[Scalar | None, doc("Exactly this.")] = None
    one_of: Annotated[
        list[Scalar] | None, Field(min_length=1, max_length=50, description="One of these, each exactly.")
    ] = None
    max: Annotated[Annotated[Number, Field(ge=0)] | None, doc("A number from 0 to this.")] = None
    prefix: Annotated[BoundText | None, doc("A text that begins so, and has no `/..`.")] = None
    origin: Annotated[
        BoundOrigin | None,
        doc(
            "Who said it: `user`, as without a bound; `due`, also the schedule or trigger that began the turn; `any`, "
            "as with one of the others."
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

    def holds(self, value: object, origin: str, *, brought_by: str | None) -> bool:
        broken = (
            (self.equals is not None and not _same(value, self.equals))
            or (self.one_of is not None and not any(_same(value, each) for each in self.one_of))
            or (self.max is not None and not 0 <= as_number(value) <= self.max)
            or (self.prefix is not None and not _begins(value, self.prefix))
        )
        is_due = self.origin == "due" and brought_by is not None and origin == f"program:{brought_by}"
        is_free = self.origin == "any" or (self.origin is None and self.fixes)
        return not broken and (is_free or is_due or is_users(origin))


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


def _begins(value: object, prefix: str) -> bool:
    return isinstance(value, str) and value.startswith(prefix) and "/.." not in value


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)
