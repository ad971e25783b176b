"""What a tool needs of the user before it can go on, and the answer. A tool raises `ToolAsks`, its question waits as a
step of a plan, and the call is made again with `ToolContext.answers`. No I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from segue.domain.field_types import doc
from segue.domain.ids import digest_of_json

MAX_QUESTIONS: Final = 5  # of one call
PAGE: Final = "page"  # the source of the client's own tools, and the mode in which their calls wait


@dataclass(frozen=True, slots=True)
class UserRequest:
    """What a tool asks of the user beyond a yes, in the tool's own words."""

    mode: Annotated[
        Literal["form", "url", "page"],
        doc(
            "`form`: asks for values that fit `schema`. `url`: asks to do something at `url`. `page`: the client has "
            "the tool and runs the call; the `answer` gives an `output` or `error` by the id of each waiting step."
        ),
    ]
    message: Annotated[str, doc("The tool's question. The words are not Segue's: show whose they are.")]
    source: Annotated[str, doc("Where the tool comes from, as its `source` in `GET /tools`.")] = ""
    schema: Annotated[
        Mapping[str, Any] | None, doc("JSON Schema of the answer: a flat object of texts, numbers and choices.")
    ] = None
    fields: Annotated[tuple[str, ...], doc("The names of the values, in the order of the form.")] = ()
    url: Annotated[str | None, doc("The link to open. It leads out of Segue: show its host.")] = None
    given: Annotated[Mapping[str, Any] | None, doc("The values that the user has so far given in words.")] = None

    @property
    def required(self) -> tuple[str, ...]:
        return tuple((self.schema or {}).get("required", ()))

    @property
    def missing(self) -> tuple[str, ...]:
        """The required values that the user has not given."""
        return tuple(name for name in self.required if name not in (self.given or {}))

    @property
    def key(self) -> str:
        """The same for the same question. The link of one may be another each time, its host may not."""
        parts = [self.mode, self.message, self.schema, urlsplit(self.url).netloc if self.url else None]
        return digest_of_json(parts)[:32]


BY_PAGE: Final = UserRequest(PAGE, "", source=PAGE)
NO_RESULT: Final = {"error": "The page gave no result."}


class ToolAsks(Exception):
    """The tool needs something of the user first. Counts neither as its failure nor as a success. `state` is a JSON
    value that comes back with the answer, at most 64 kB. The user does not see it.
    """

    def __init__(self, request: UserRequest, *, state: Any = None) -> None:
        super().__init__(request.message)
        self.request = request
        self.state = state


@dataclass(frozen=True, slots=True)
class UserAnswer:
    """A question of a step's call and, unless `action` is None, the user's answer."""

    step: int
    to: str  # the key of the question
    action: Literal["accept", "decline"] | None = None
    content: dict[str, Any] | None = None  # what was filled in
    state: Any = None  # what the tool left with its question
    may_repeat: bool = False  # the call may be made again without a yes


def answers_to(answers: Sequence[UserAnswer], step: int) -> tuple[UserAnswer, ...]:
    """Returns what the user has answered to the call of a step, in order."""
    return tuple(each for each in answers if each.step == step and each.action is not None)


def with_question(answers: Sequence[UserAnswer], asked: UserAnswer) -> tuple[UserAnswer, ...]:
    """Returns the answers with a new question of a step. What other steps were asked is not kept."""
    return (*answers_to(answers, asked.step), asked)


def with_answer(
    answers: Sequence[UserAnswer],
    step: int,
    request: UserRequest,
    decision: Literal["confirm", "reject"],
    filled_in: Mapping[str, Any] | None,
) -> tuple[UserAnswer, ...]:
    """Returns the answers with that to the question of a step that waits."""
    question = question_of_step(answers, step) or UserAnswer(step, request.key)
    accepts = decision == "confirm"
    content = {**(request.given or {}), **(filled_in or {})} if accepts and request.mode == "form" else None
    return (*answers_to(answers, step), replace(question, action="accept" if accepts else "decline", content=content))


def answers_of_page(steps: Iterable[int], results: Mapping[str, Any]) -> tuple[UserAnswer, ...]:
    """Returns what the page gave for the calls of steps that wait for it."""
    return tuple(UserAnswer(step, PAGE, "accept", results.get(str(step), NO_RESULT)) for step in steps)


def has_run_in_page(answers: Sequence[UserAnswer], step: int) -> bool:
    """Returns whether the page has given what its call of a step gave."""
    return any(each.step == step and each.to == PAGE for each in answers)


def question_of_step(answers: Sequence[UserAnswer], step: int) -> UserAnswer | None:
    """Returns the question of a step that has no answer yet."""
    return next((each for each in answers if each.step == step and each.action is None), None)
