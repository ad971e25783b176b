"""Asks the model what a message tells of the user. It only proposes: `turn/afterwards.py` keeps what the user said."""

from collections.abc import Sequence

from pydantic import BaseModel, Field, ValidationError

from segue.agent import prompts
from segue.agent.model import ChatModel
from segue.domain.memory import MAX_CONTENT_CHARS, MAX_IMPORTANCE, MIN_IMPORTANCE, Memory, MemoryKind, NewFact
from segue.plans.plan_parser import objects_in
from segue.tools.normalize import clean

MOST_FACTS = 10
DEFAULT_IMPORTANCE = 3


class _Fact(BaseModel):
    content: str = Field(min_length=1, max_length=MAX_CONTENT_CHARS)
    kind: MemoryKind = "fact"
    importance: int = DEFAULT_IMPORTANCE
    supersedes: str | None = None


class _Facts(BaseModel):
    facts: list[object]


async def propose_facts(
    model: ChatModel, message: str, *, answers: str | None, known: Sequence[Memory]
) -> list[NewFact]:
    """None where the model sees none or writes nothing usable. Raises AppError where it cannot be asked."""
    reply = await model.reply(prompts.extraction(message, answers=answers, known=known))
    for value in objects_in(reply.text):
        try:
            proposed = _Facts.model_validate(value).facts[:MOST_FACTS]
        except ValidationError:
            continue
        facts = (_read(fact, {memory.id for memory in known}) for fact in proposed)
        return [fact for fact in facts if fact is not None]
    return []


def _read(value: object, known: set[str]) -> NewFact | None:
    """A malformed fact is dropped, the others stand."""
    try:
        fact = _Fact.model_validate(clean(value))
    except ValidationError:
        return None
    return NewFact(
        content=fact.content,
        kind=fact.kind,
        importance=min(max(fact.importance, MIN_IMPORTANCE), MAX_IMPORTANCE),
        supersedes=fact.supersedes if fact.supersedes in known else None,
    )
