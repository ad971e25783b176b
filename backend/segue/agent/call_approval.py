"""Decides whether a call that needs a yes has one: to an offer in the model's own words, or one that lasts (a mandate).

An offer covers calls of its action, each once, after a strong yes, with every value said by or shown to the user; what
CONFIRM_WORDS relies on is in docs/security.md. Asked right before a call runs, so a revoked yes does not count.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal

from anyio import to_thread
from pydantic import ValidationError

from segue.agent.false_claims import says_later
from segue.agent.planner import ask_reader
from segue.agent.prompts import TEXTS
from segue.agent.state import TurnState, running_plan
from segue.agent.turn_calls import Agreement, TurnCalls, call_key
from segue.agent.unseen_values import MAX_TEXT_CHARS, SeenText, Shown
from segue.db.engine import Database
from segue.domain import tool as domain
from segue.domain.approval_rule import RuledCall, Scalar, WaitsFor, is_users
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.field_types import doc
from segue.domain.plan import BUTTON_MESSAGES
from segue.domain.session import Message, RequestedCall
from segue.domain.tool import Tool, ToolContext, ToolRetry, ToolSpec, canonical_args, definition_of
from segue.events.user_feed import mandate_changed
from segue.language.detect_language import detect_language
from segue.language.utterance import own_words, parse_utterance, sentences_of, words_of
from segue.log import log
from segue.memory.history import BY_PROGRAM, recent_texts, recent_user_messages, said_by_user, user_messages_of
from segue.plans.acknowledgement import Acknowledgement, classify
from segue.plans.asked_words import is_about, is_agreed, is_named, is_value, offer_in, parted, question_in, tool_words
from segue.plans.mandates import Terms, give, mandates_for, revoke_all, use_of
from segue.plans.policy import Ruling, gives_leave
from segue.plans.value_origins import MAX_LEAVES, leaves, origins_of
from segue.tools.results import load_results, recent_references

MAX_SHOWN_RESULTS = 40
MAX_RESULT_BYTES = 200_000
MAX_SAID_SINCE = 20
MAX_MESSAGES = 200  # of the user's, in which a value may stand
MAX_RESULTS = 20
LONGEST_SAID = 1_000  # characters at the end of an answer, or of a value, in which is looked for another time
TIMED: Final = frozenset({"booking", "event", "flight", "hotel"})  # have a time of their own: `cancel it on Monday`
MOST_PARTED = 9  # texts in which is looked for what they keep from an action


def agreement_in(state: TurnState) -> Agreement | None:
    """Returns the yes of the user's message to an offer in the last answer; None if a plan waited, which it answers."""
    if not state["approves"] or state["shown_plan"] is not None:
        return None
    earlier = state["earlier"].calls if state["earlier"] else ()
    made = {(each.call.tool_name, canonical_args(each.call.args)) for each in earlier}
    return _agreement(state["answered"], own_words(state["message"]), state["acknowledgement"], made)


def _agreement(answer: str | None, reply: str, read: Acknowledgement, made: set[tuple[str, str]]) -> Agreement | None:
    if answer is None or not offer_in(answer) or not (read.strength == "strong" or read.carries_yes):
        return None
    return Agreement(answer, reply, read, made)


async def _agreed_before(turn: TurnCalls) -> Agreement | None:
    """Returns the yes to an offer of several calls, of which one was asked about since and got no more than a yes."""
    context, plan = turn.context, running_plan(turn.state)
    if plan is None or turn.brought_by is not None or any(step.status == "skipped" for step in plan.steps):
        return None
    messages = await context.transact(recent_texts, context.owner, context.turn.session_id, limit=MAX_SAID_SINCE)
    at = next((at for at, each in enumerate(messages) if each.id == plan.origin_message_id), len(messages))
    since = [said_by_user(each) for each in messages[:at] if each.role == "user"]
    is_yes = all(classify(each).strength == "strong" for each in since)
    before = messages[at + 1 : at + 2]
    if not is_yes or BUTTON_MESSAGES["confirm"] in since[1:] or not before or before[0].role != "assistant":
        return None  # a button may have picked some
    answer, reply = str(before[0].content), said_by_user(messages[at])
    made = {(each.tool_name, canonical_args(each.args)) for each in (*turn.references, *turn.state["earlier_results"])}
    return _agreement(answer, reply, classify(reply, question=question_in(answer)), made)


async def unseen_unless_agreed(turn: TurnCalls, request: RequestedCall, tool: Tool) -> Mapping[str, Any] | None:
    """Returns None if the user has agreed to this call, which uses that up; else the values that are new to them."""
    if turn.context.settings.confirm_words == "never" or tool.spec.always_asks:
        return {}
    agreement = turn.agreement = turn.agreement or await _agreed_before(turn)
    if agreement is None or call_key(request) in agreement.used:
        return {}
    name = tool.spec.original_name or tool.spec.name
    if not is_agreed(name, agreement.answer, agreement.reply) or _is_for_later(agreement.answer, name, request.args):
        return {}
    messages, results, succeeded = await _seen(turn)
    lapsed = turn.context.clock() - timedelta(seconds=turn.context.settings.plan_ttl_s)  # as a plan that waits does
    is_old = next((each.created_at < lapsed for each in messages if each.content == agreement.answer), False)
    if is_old or call_key(request) in succeeded:
        return {}

    def find() -> Mapping[str, Any]:
        own = [(each, said_by_user(each)) for each in messages]
        quoted = [str(each.content) for each, text in own if each.role == "user" and text != each.content]
        texts = _texts(agreement, name, own, request.args)
        return Shown(texts, results, quoted).missing(request.args, tool.spec.input_schema)

    missing = await to_thread.run_sync(find)
    if missing or not await _is_yes(turn, agreement, request):
        return missing
    agreement.used.add(call_key(request))
    return None


def _is_for_later(answer: str, tool: str, args: Mapping[str, Any]) -> bool:
    """Returns whether an offer is for another time than now (`delete it tomorrow`), and the call has no time at all."""
    question, language = question_in(answer), detect_language(answer)
    offer = SeenText(next((each for each in sentences_of(answer[-LONGEST_SAID:])[::-1] if is_about(each, tool)), ""))
    if not says_later(offer.own, language, of_things=False) or (question and not question.things.isdisjoint(TIMED)):
        return False
    timed = (is_named(path, "times") for path, _ in leaves(args))
    given = "\n".join(str(value)[:LONGEST_SAID] for _, value in islice(leaves(args), MAX_LEAVES))
    return not says_later(given[:MAX_TEXT_CHARS], language) and not any(timed)


async def _seen(turn: TurnCalls) -> tuple[list[Message], list[Any], set[tuple[str, str]]]:
    """Returns, newest first, the messages up to the yes and the texts of results; also the calls that succeeded."""
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        messages = await recent_texts(connection, context.owner, session_id, limit=100)
        references = await recent_references(connection, session_id)
        left = await recent_references(connection, session_id, left=True)  # what was taken back still took effect
        ids = [reference.tool_call_id for reference in references[:MAX_SHOWN_RESULTS]]
        results = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)
    made = {(each.tool_name, canonical_args(each.args)) for each in references if each.status == "succeeded"}
    made |= {(each.tool_name, canonical_args(each.args)) for each in left if each.status != "failed"}
    found = ((results.get(each.tool_call_id), each) for each in references)
    contents = [it.value() if it and it.content else " ".join((each.preview, *each.identifiers)) for it, each in found]
    return [each for each in messages if each.role == "user" or each.turn_id != context.turn.turn_id], contents, made


def _texts(
    agreement: Agreement, tool: str, messages: Sequence[tuple[Message, str]], args: Mapping[str, Any]
) -> list[SeenText]:
    """Returns the texts that the user has read and written, those closest to the yes first."""
    offer, reply = offer_in(agreement.answer) or "", agreement.reply
    of_reply, of_offer = ("\n".join(s for s in sentences_of(text) if is_about(s, tool)) for text in (reply, offer))
    # What is asked beside a yes names no value for it: `Yes, delete it. What does B say?` A model reads such a yes too.
    statements = " ".join(sentence for sentence in sentences_of(reply) if not parse_utterance(sentence).asks)
    seen = [SeenText(of_reply, by_user=True, about=True), SeenText(statements, by_user=True)]
    seen += [SeenText(of_offer, about=True), SeenText(offer), SeenText(agreement.answer)]
    seen += [
        SeenText(own, by_user=True) if each.role == "user" else SeenText(str(each.content)) for each, own in messages
    ]
    values = [value for _, value in leaves(args) if not isinstance(value, bool)]
    for at, each in enumerate(seen[:MOST_PARTED]):
        kept, left_out = parted(each.text, tool, lambda part: any(map(SeenText(part).shows, values)))
        seen[at] = replace(each, text=kept, left_out=left_out)
    return seen


async def _is_yes(turn: TurnCalls, agreement: Agreement, request: RequestedCall) -> bool:
    """Returns whether the reply is a strong yes to this call: by the rules, or by these and a model together."""
    # What the user adds to a yes may be in the call, or a word of the answer that is no name, but not what changes it.
    read, values = agreement.read, {word for _, value in leaves(request.args) for word in words_of(str(value))}
    words = (word.lstrip("(*_“«") for word in agreement.answer.split())
    small = [word for word in words if word[:1].islower() and not is_value(word)]
    names = (word for path, _ in leaves(request.args) for word in tool_words(path))
    adds_nothing = values.union(words_of(" ".join(small)), names).issuperset(read.added) and not read.changes
    if read.strength == "strong" or (adds_nothing and not parse_utterance(agreement.reply).asks):
        return True
    call = {"tool": request.name, "args": request.args}
    known = {"assistant_said": agreement.answer, "user_replied": agreement.reply, "call": call}
    try:
        return await ask_reader(turn.context, TEXTS["agreement_reader"], TEXTS["agreement"], known) == "confirm"
    except AppError as error:  # then the service asks
        log.warning("agreement_not_read", code=error.code)
        return False


async def find_origins(
    turn: TurnCalls, args: Mapping[str, Any], schema: Mapping[str, Any] | None, *, every: bool = False
) -> dict[str, str]:
    """Returns where each value of a call comes from, as `Step.args_origin`; `every` includes those too short."""
    context, session_id = turn.context, turn.context.turn.session_id
    async with context.transaction() as connection:
        messages = await recent_user_messages(connection, context.owner, session_id, limit=MAX_MESSAGES)
        references = (await recent_references(connection, session_id))[:MAX_RESULTS]
        ids = [reference.tool_call_id for reference in references]
        stored = await load_results(connection, session_id, ids, now=context.clock(), max_bytes=MAX_RESULT_BYTES)

    def find() -> dict[str, str]:
        words = [(message, said_by_user(message)) for message in messages]
        own = [(f"message:{message.id}", text) for message, text in words]
        quoted = [
            (f"{'program' if BY_PROGRAM in each.metadata else 'quoted'}:{each.id}", str(each.content))
            for each, text in words
            if text != each.content
        ]
        facts = [(f"fact:{fact.id}", fact.content) for fact in turn.state["facts"]]
        texts = []
        for each in reversed(references):  # the first that has a value: later ones repeat what they were asked
            result = stored.get(each.tool_call_id)
            values = [str(value) for _, value in leaves(result.value())] if result and result.content else []
            known = [each.summary, each.preview, *each.identifiers, (result and result.content) or "", *values]
            texts.append((f"result:{each.tool_call_id}", "\n".join(known)))
        return origins_of(args, [*own, *facts, *quoted, *texts], schema, every=every)

    return await to_thread.run_sync(find)


async def who_decides(turn: TurnCalls, call: RequestedCall, tool: Tool) -> WaitsFor | Literal["self"]:
    """Returns who approves a call, by the agent's first rule about it. Calls that leave no row are the user's alone."""
    context = turn.context
    if tool.spec.ephemeral or not context.approvals:
        return "self"
    values = dict(islice(leaves(call.args), MAX_LEAVES + 1)) if call.args else {}
    if len(values) > MAX_LEAVES:
        values = {}  # then no bound holds that a rule could let them off by
    origins: Mapping[str, str] = {}
    if any(rule.needs_origins for rule in context.approvals):
        origins = await find_origins(turn, call.args, tool.spec.input_schema, every=True)
    ruled = RuledCall(tool.spec.name, tool.spec.effect, call.args, values, origins, turn.brought_by)
    for number, rule in enumerate(context.approvals, start=1):
        if rule.is_about(ruled):
            return rule.waits_for(f"{context.agent}, rule {number}", ruled, context.clock())
    return "self"


async def runs_under_mandate(turn: TurnCalls, call: RequestedCall, tool: Tool, ruling: Ruling) -> bool:
    """Returns whether the call may run unasked. Notes its use of a mandate, which is booked when the call starts."""
    if ruling != "allow" or tool.spec.ephemeral:
        return False
    context = turn.context
    found = await context.transact(mandates_for, context.owner, context.turn.session_id, context.agent, tool.spec)
    if not found:
        return False
    origins = await find_origins(turn, call.args, tool.spec.input_schema, every=True)
    ruled, now = RuledCall(tool.spec.name, tool.spec.effect, call.args, {}, origins, turn.brought_by), context.clock()
    uses = (use_of(row, ruled, now) for row in found)
    if (use := next(filter(None, uses), None)) is None:
        return False
    turn.under[call.id] = use
    return True


async def proposed(turn: TurnCalls, args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the user is shown of a proposal. Raises ToolRetry if a message does not allow it or its values."""
    context = turn.context
    messages = await context.transact(user_messages_of, context.turn.turn_id)
    if not any(gives_leave(said_by_user(each)) for each in messages):
        raise ToolRetry("The user has not said in this message that anything may be done without asking. Ask as usual.")
    try:
        proposal = Proposal.model_validate(args)
    except ValidationError as fault:
        raise ToolRetry(f"It is no proposal: {fault.errors()[0]['msg']}") from fault
    tool = turn.tools.get(proposal.tool)
    if tool is None or tool.spec.always_asks or tool.spec.ephemeral:
        raise ToolRetry(f"{proposal.tool} takes no standing approval.")
    origins = await find_origins(turn, {"of": proposal.values}, {"properties": {"of": {}}}, every=True)
    if not all(map(is_users, origins.values())):
        raise ToolRetry("A bound has a value that the user has not said. Use only theirs, to the letter, or no bound.")
    is_open = any(bound.origin == "any" for bound in proposal.args.values())
    if is_open and not any(bound.fixes for bound in proposal.args.values()):
        raise ToolRetry("`origin: any` needs another argument that is bound to a value of the user's.")
    return proposal.whole | {"definition": definition_of(tool.spec)}


class Proposal(Terms):
    """What the model proposes to the user in their own words."""

    definition: Annotated[str | None, doc("Leave it out: the service sets it.")] = None

    @property
    def values(self) -> list[Scalar]:
        """The values in its bounds."""
        bounds = ([each.equals, *(each.one_of or ()), each.max, each.prefix] for each in self.args.values())
        return [value for each in (*bounds, [self.sum.max] if self.sum else []) for value in each if value is not None]

    @property
    def whole(self) -> dict[str, Any]:
        """All that the user has to be shown."""
        bounds = {path: bound.model_dump(exclude_none=True) for path, bound in self.args.items()}
        return self.model_dump(mode="json") | {"args": bounds}


def proposal_tool(
    database: Database, tools: Callable[[str, Collection[str]], Mapping[str, Tool]], tell: Callable[[str, bytes], None]
) -> Tool:
    """Returns the tool that stores a proposal. Its call waits for the user's yes to all that the proposal says, under
    every setting. `tools(owner, groups)` has those a user may use, by name; `tell(owner, event)` follows the commit.
    """

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        proposal = Proposal.model_validate(args)
        tool = tools(context.owner, context.groups).get(proposal.tool)
        if tool is None or definition_of(tool.spec) != proposal.definition:
            raise ToolRetry(f"{proposal.tool} has changed since the user was asked. Propose it anew.")
        mandate_id = f"man_{context.tool_call_id.removeprefix('call_')}"  # the same if the call is made again
        of = {"session_id": context.session_id, "agent": context.agent, "time_zone": context.time_zone}
        try:
            async with database.transaction() as connection:
                await give(connection, context.owner, proposal, tool.spec, now=context.now, mandate_id=mandate_id, **of)
        except InvalidRequest as refused:
            raise ToolRetry(refused.detail) from refused
        tell(context.owner, mandate_changed(mandate_id))
        return {"mandate_id": mandate_id}

    return Tool(PROPOSAL, run)


_PROPOSED: Final = (domain.PROPOSE_MANDATE, TEXTS["propose_mandate"], Proposal.model_json_schema())
PROPOSAL: Final = ToolSpec(*_PROPOSED, effect="write", confirm="always_ask", idempotent=True)


def ending_tool(database: Database, tell: Callable[[str, bytes], None]) -> Tool:
    """Returns the tool that ends standing approvals of a tool. It needs no yes: the user is asked more often then."""

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        ended = await database.transact(revoke_all, context.owner, args["tool"])
        for mandate_id in ended:
            tell(context.owner, mandate_changed(mandate_id))
        return {"ended": ended}

    named = {"type": "object", "properties": {"tool": {"type": "string"}}, "required": ["tool"]}
    spec = ToolSpec(domain.END_MANDATES, TEXTS["end_mandates"], named, effect="write", confirm=False, idempotent=True)
    return Tool(spec, run)
