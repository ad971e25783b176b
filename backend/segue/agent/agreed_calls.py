"""Whether a call that needs a yes has one: to what the model offered in its own words, or the user's for the session.

The first covers a call if the offer is of that action, the reply is a strong yes, and the user said or was shown every
value; each call once, and none that the session has made already. docs/security.md says what an operator who leaves
CONFIRM_WORDS on relies on. Asked right before a call runs: what was revoked meanwhile counts no more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
from anyio import to_thread

from segue.agent.planner import classify_agreement
from segue.agent.shown_values import SeenText, Shown
from segue.agent.state import TurnState
from segue.agent.turn_calls import Agreement, TurnCalls, call_key
from segue.domain.errors import AppError
from segue.domain.session import Message, RequestedCall
from segue.domain.tool import Reference, Tool, ToolSpec, canonical_args
from segue.language.utterance import own_words, parse_utterance, sentences_of, words_of
from segue.memory.history import BY_PROGRAM, recent_texts, recent_user_messages, said_by_user
from segue.plans.approvals import is_granted
from segue.plans.arguments import is_users, leaves, origins_of
from segue.plans.policy import Ruling
from segue.plans.question import is_about, is_value, names_action, offer_in
from segue.tools.results import StoredResult, load_results, recent_references

MAX_TEXTS = 100
MAX_SHOWN_RESULTS = 40
MAX_RESULT_BYTES = 200_000
MAX_MESSAGES = 200  # of the user's, in which a value may stand
MAX_RESULTS = 20

log = structlog.get_logger()


def agreement_in(state: TurnState) -> Agreement | None:
    """Returns the yes of the user's message to an offer in the last answer; None if a plan waited: it was for that."""
    read, answer = state["acknowledgement"], state["answered"]
    is_yes = read.carries_yes or (read.verdict == "confirm" and read.strength == "strong")
    if not is_yes or not state["approves"] or state["shown_plan"] is not None or answer is None or not offer_in(answer):
        return None
    is_strong = read.verdict == "confirm"
    earlier = state["earlier"].calls if state["earlier"] else ()
    made = {(each.call.tool_name, canonical_args(each.call.args)) for each in earlier}
    return Agreement(answer, own_words(state["message"]), is_strong, read.added, made)


async def not_covered(turn: TurnCalls, request: RequestedCall, tool: Tool) -> Mapping[str, Any] | None:
    """Returns None if the user has agreed to this call, which uses that up; else the values that are new to them."""
    agreement = turn.agreement
    if agreement is None or turn.context.settings.confirm_words == "never" or tool.spec.always_asks:
        return {}
    if call_key(request) in agreement.used or not _offers(agreement, tool.spec):
        return {}
    said, results, succeeded = await _seen(turn)
    if call_key(request) in succeeded:
        return {}

    def find() -> Mapping[str, Any]:
        own = [(each, said_by_user(each)) for each in said]
        quoted = [str(each.content) for each, text in own if each.role == "user" and text != each.content]
        shown = Shown(_texts(agreement, tool.spec, own), results, quoted)
        return shown.missing(request.args, tool.spec.input_schema)

    missing = await to_thread.run_sync(find)
    if missing or not await _is_yes(turn, agreement, request):
        return missing
    agreement.used.add(call_key(request))
    return None


def _offers(agreement: Agreement, tool: ToolSpec) -> bool:
    """Returns whether the action of the call is what was offered, or what the user asks for with their yes. An offer
    that names no action, as "shall I go on with this?", is about what the answer says before it.
    """
    offer = offer_in(agreement.answer) or ""
    name = tool.original_name or tool.name
    named = is_about(offer, name) or is_about(agreement.reply, name)
    return named or (not names_action(offer) and is_about(agreement.answer, name))


async def _seen(turn: TurnCalls) -> tuple[list[Message], list[Any], set[tuple[str, str]]]:
    """Returns what was said up to the yes and what the tools gave, the newest first, and the calls that succeeded."""
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        said = await recent_texts(connection, context.owner, session_id, limit=MAX_TEXTS)
        references = await recent_references(connection, session_id)
        ids = [reference.tool_call_id for reference in references[:MAX_SHOWN_RESULTS]]
        kept = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)
    made = {(each.tool_name, canonical_args(each.args)) for each in references if each.status == "succeeded"}
    before = [each for each in said if each.role == "user" or each.turn_id != context.turn.turn_id]
    return before, [_shown_result(each, kept.get(each.tool_call_id)) for each in references], made


def _shown_result(reference: Reference, kept: StoredResult | None) -> Any:
    """Returns a result, or what is known of one that failed, is no longer kept or is too large."""
    return kept.value() if kept and kept.content else " ".join((reference.preview, *reference.identifiers))


def _texts(agreement: Agreement, tool: ToolSpec, said: Sequence[tuple[Message, str]]) -> list[SeenText]:
    """Returns what the user has read and written, that which the yes is closest to first."""
    name = tool.original_name or tool.name
    about = " ".join(sentence for sentence in sentences_of(agreement.reply) if is_about(sentence, name))
    nearest = [SeenText(about, by_user=True), SeenText(agreement.reply, by_user=True)]
    nearest += [SeenText(offer_in(agreement.answer) or ""), SeenText(agreement.answer)]
    return nearest + [
        SeenText(own, by_user=True) if each.role == "user" else SeenText(str(each.content)) for each, own in said
    ]


def _repeats(agreement: Agreement, request: RequestedCall) -> bool:
    """Returns whether what the user adds to the yes is in the call, or is a word of the answer that is no name."""
    values = {word for _, value in leaves(request.args) for word in words_of(str(value))}
    small = [word for word in agreement.answer.split() if word[0].islower() and not is_value(word)]
    plain = set(words_of(" ".join(small)))
    return not parse_utterance(agreement.reply).asks and (values | plain).issuperset(agreement.added)


async def _is_yes(turn: TurnCalls, agreement: Agreement, request: RequestedCall) -> bool:
    """Returns whether the reply is a strong yes to this call: by the rules, or by these and a model together."""
    if agreement.is_strong or _repeats(agreement, request):
        return True
    try:
        return await classify_agreement(turn.context, agreement.answer, agreement.reply, request) == "confirm"
    except AppError as error:  # then the service asks
        log.warning("agreement_not_read", code=error.code)
        return False


async def find_origins(
    turn: TurnCalls, args: Mapping[str, Any], schema: Mapping[str, Any], *, every: bool = False
) -> dict[str, str]:
    """Returns where each value of a call comes from, as `Step.args_origin`; `every` includes those too short."""
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        said = await recent_user_messages(connection, context.owner, session_id, limit=MAX_MESSAGES)
        references = (await recent_references(connection, session_id))[:MAX_RESULTS]
        ids = [reference.tool_call_id for reference in references]
        kept = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)

    def find() -> dict[str, str]:
        words = [(message, said_by_user(message)) for message in said]
        own = [(f"message:{message.id}", text) for message, text in words]
        others = (message for message, text in words if text != message.content)
        quoted = [
            (f"{'program' if BY_PROGRAM in each.metadata else 'quoted'}:{each.id}", str(each.content))
            for each in others
        ]
        facts = [(f"fact:{fact.id}", fact.content) for fact in turn.facts]
        return origins_of(args, [*own, *facts, *quoted, *_results(references, kept)], schema, every=every)

    return await to_thread.run_sync(find)


def _results(references: Sequence[Reference], kept: Mapping[str, StoredResult]) -> Iterator[tuple[str, str]]:
    for reference in reversed(references):  # the first that has a value: later ones repeat what they were asked
        result = kept.get(reference.tool_call_id)
        content = result.content if result else None
        values = [str(value) for _, value in leaves(result.value())] if result and content else []
        known = [reference.summary, reference.preview, *reference.identifiers, content or "", *values]
        yield f"result:{reference.tool_call_id}", "\n".join(known)


async def runs_under_grant(turn: TurnCalls, call: RequestedCall, tool: Tool, ruling: Ruling) -> bool:
    """Returns whether the call may run unasked, and then notes that it does so under a grant, and what that covers.

    A grant does not answer what the operator's rule asks, and covers no value that the user did not say, but in a call
    that only reads.
    """
    if ruling != "allow":
        return False
    async with turn.context.transaction() as connection:
        if not await is_granted(connection, turn.context.turn.session_id, tool.spec):
            return False
    origins = await find_origins(turn, call.args, tool.spec.input_schema, every=True)
    if tool.spec.effect != "read_only" and not all(map(is_users, origins.values())):
        return False
    turn.granted[call.id] = origins
    return True
