"""Asks the model what a message tells about the user. The model only proposes: the caller keeps what the user said."""

from collections.abc import Sequence
from datetime import date

from pydantic import BaseModel, Field, ValidationError

from segue.agent.llm.answer_schemas import FACTS
from segue.agent.llm.model import ChatModel
from segue.agent.prompts import EXTRACTOR, as_json
from segue.agent.untrusted import neutralised
from segue.domain.memory import MAX_CONTENT_CHARS, MAX_IMPORTANCE, MIN_IMPORTANCE, Memory, MemoryKind, NewFact
from segue.plans.plan_parser import first_object
from segue.tools.normalize import clean
from segue.usage.account import Account

MAX_FACTS = 10
MAX_CONTEXT_CHARS = 1000
DEFAULT_IMPORTANCE = 3


class _Fact(BaseModel):
    content: str = Field(min_length=1, max_length=MAX_CONTENT_CHARS)
    kind: MemoryKind = "fact"
    importance: int = DEFAULT_IMPORTANCE
    supersedes: str | None = None


class _Facts(BaseModel):
    facts: list[object]


async def propose_facts(
    model: ChatModel,
    message: str,
    *,
    said_on: date,
    answers: str | None,
    known: Sequence[Memory],
    account: Account,
) -> list[NewFact]:
    """Returns the facts the model finds, at most MAX_FACTS. `answers` is the assistant's text before the message,
    `said_on` the day of the message where the user is.

    Raises AppError if the model cannot be asked.
    """
    given = {
        "user_said": message,
        "said_on": f"{said_on:%A}, {said_on}",
        "assistant_said_before": (answers or "")[:MAX_CONTEXT_CHARS],
        "known": [{"id": fact.id, "kind": fact.kind, "fact": fact.content} for fact in known],
    }
    text = await model.complete(EXTRACTOR, neutralised(as_json(given)), schema=FACTS, account=account)
    answer = first_object(text, _Facts)
    known_ids = {memory.id for memory in known}
    facts = (_read_fact(fact, known_ids) for fact in (answer.facts[:MAX_FACTS] if answer else ()))
    return [fact for fact in facts if fact is not None]


def _read_fact(value: object, known_ids: set[str]) -> NewFact | None:
    """Returns None for a malformed fact: the others stand."""
    try:
        fact = _Fact.model_validate(clean(value))
    except ValidationError:
        return None
    return NewFact(
        content=fact.content,
        kind=fact.kind,
        importance=min(max(fact.importance, MIN_IMPORTANCE), MAX_IMPORTANCE),
        supersedes=fact.supersedes if fact.supersedes in known_ids else None,
    )
