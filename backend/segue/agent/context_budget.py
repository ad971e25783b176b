"""Writes the pieces of a session as the model would read them, counts them, and keeps what fits the budget.

What to reduce first `memory/recall.py` decides; how a piece is written `prompts.py`. Each is written and counted once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import orjson

from segue.agent import prompts, render_messages
from segue.domain.memory import Memory
from segue.domain.plan import Plan
from segue.domain.session import Message
from segue.domain.tool import Reference
from segue.memory.recall import Costs, Form, Pieces, RecallLimits, key_of, recall
from segue.memory.tokens import Count

MESSAGE_TOKENS = 4  # what a provider adds to each message for its role


@dataclass(frozen=True, slots=True)
class Material:
    """What there is to show of a session. The history ends with the running turn; `earlier` results are newest first.

    Of the results `inline` could be shown whole, by tool call, and `expired` are no longer kept.
    """

    summary: str | None
    facts: Sequence[Memory]
    plan: Plan | None
    history: Sequence[Message]
    earlier: Sequence[Reference]
    inline: Mapping[str, str]
    expired: Collection[str]


@dataclass(frozen=True, slots=True)
class Fitting:
    """`texts` is how each message is shown, `brief` which are shortened, `listed` are the references beside them."""

    history: list[Message]
    texts: dict[str, str]
    brief: frozenset[str]
    listed: tuple[str, ...]
    cut_off: int | None


def fit(session: Material, limits: RecallLimits, count: Count) -> Fitting:
    calls = {call.id: call for message in session.history for call in message.tool_calls}
    messages = {key_of(message): message for message in session.history}
    references = {reference.tool_call_id: reference for reference in session.earlier}

    @cache
    def text(key: str, form: Form) -> str:
        return render_messages.shown_text(messages[key], form, inline=session.inline, expired=session.expired)

    @cache
    def line(call_id: str) -> str:
        return render_messages.listed_reference(references[call_id], session.expired)

    @cache
    def cost(key: str, form: Form) -> int:
        """A call counts with its answer, since both get shorter together."""
        tokens = count(text(key, form)) + MESSAGE_TOKENS
        if (call := calls.get(key)) is not None:
            tokens += count(orjson.dumps(render_messages.shown_call(call, brief=form == "brief").args).decode())
        return tokens

    plan = session.plan
    fixed = count(prompts.fixed_text(session.summary))
    fixed += count(prompts.facts_block(session.facts)) if session.facts else 0
    fixed += count(prompts.plan_block(plan)) if plan else 0
    origin_id = plan.origin_message_id if plan else None
    recalled = recall(
        Pieces(session.history, session.earlier, whole=session.inline, fixed=fixed, origin_id=origin_id),
        limits,
        Costs(message=cost, reference=cache(lambda call_id: count(line(call_id)))),
    )
    forms = {key_of(message): recalled.forms[key_of(message)] for message in recalled.history}
    return Fitting(
        history=recalled.history,
        texts={key: text(key, form) for key, form in forms.items()},
        brief=frozenset(key for key, form in forms.items() if form == "brief"),
        listed=tuple(line(reference.tool_call_id) for reference in recalled.listed),
        cut_off=recalled.cut_off,
    )
