"""Builds the prompt of a turn: renders the pieces of a session, counts them, and keeps what fits the token budget.

What to reduce first `memory/window.py` decides. Each piece is rendered and counted once for each form it is tried in.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from langchain_core.messages import BaseMessage, SystemMessage

from segue.agent import prompts, render_messages
from segue.domain.memory import Memory
from segue.domain.plan import Plan
from segue.domain.session import Message
from segue.domain.tool import Reference
from segue.memory.token_count import Count
from segue.memory.window import Form, WindowCosts, WindowLimits, WindowParts, message_key, select_window

MESSAGE_TOKENS = 4  # what a provider adds to each message for its role


@dataclass(frozen=True, slots=True)
class SessionContent:
    """What a prompt can be made of. The history ends with the running turn; `earlier` results are newest first.

    `inline` holds by tool call the results that could be shown whole; results of calls in `expired` are deleted.
    """

    summary: str | None
    facts: Sequence[Memory]
    plan: Plan | None
    history: Sequence[Message]
    earlier: Sequence[Reference]
    inline: Mapping[str, str]
    expired: Collection[str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One system message, then the history as far as it fits, ending with the running turn.

    `cut_off` is the seq of the last turn that should go into the summary, if it is time for that.
    """

    messages: list[BaseMessage]
    cut_off: int | None


def build_prompt(session: SessionContent, limits: WindowLimits, count: Count) -> Prompt:
    """Returns what the model is shown of a session, within `limits`. `count` gives the tokens of a text."""
    calls = {call.id: call for message in session.history for call in message.tool_calls}
    messages = {message_key(message): message for message in session.history}
    references = {reference.tool_call_id: reference for reference in session.earlier}

    @cache
    def text(key: str, form: Form) -> str:
        return render_messages.shown_text(messages[key], form, inline=session.inline, expired=session.expired)

    @cache
    def line(call_id: str) -> str:
        return render_messages.listed_reference(references[call_id], session.expired)

    @cache
    def cost(key: str, form: Form) -> int:
        tokens = count(text(key, form)) + MESSAGE_TOKENS
        if (call := calls.get(key)) is not None:  # a call counts with its answer: both get shorter together
            tokens += count(prompts.as_json(render_messages.shown_call(call, brief=form == "brief").args))
        return tokens

    plan = session.plan
    fixed = count(prompts.fixed_text(session.summary))
    fixed += count(prompts.facts_block(session.facts)) if session.facts else 0
    fixed += count(prompts.plan_block(plan)) if plan else 0  # it is in the notes that a node may add
    origin_id = plan.origin_message_id if plan else None
    window = select_window(
        WindowParts(session.history, session.earlier, whole=session.inline, fixed=fixed, origin_id=origin_id),
        limits,
        WindowCosts(message=cost, reference=cache(lambda call_id: count(line(call_id)))),
    )
    system = prompts.system_text(
        session.summary, session.facts, [line(reference.tool_call_id) for reference in window.listed]
    )
    brief = {key for key, form in window.forms.items() if form == "brief"}
    shown = [
        render_messages.to_model(message, text(key := message_key(message), window.forms[key]), brief=brief)
        for message in window.history
    ]
    return Prompt([SystemMessage(system), *shown], window.cut_off)
