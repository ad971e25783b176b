"""The calls of a turn so far: their results, which need no repeat, and which need a yes. Also what changes them from
outside: tools that the model's endpoint refuses, and messages that the user sends meanwhile. Runs no call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from segue.agent import prompts
from segue.agent.render_messages import image_message
from segue.agent.state import TurnContext, TurnState, WriteWithStart
from segue.agent.stream_reply import CallIds
from segue.domain import tool as domain
from segue.domain.events import ToolStateChanged
from segue.domain.ids import new_id
from segue.domain.plan import MAX_STEPS, page_call_id
from segue.domain.session import READ_ATTACHMENT, RequestedCall, Source
from segue.domain.tool import CallEffect, EffectApproval, Reference, Tool, ToolCall, canonical_args
from segue.domain.user_request import PAGE, UserAnswer
from segue.log import log
from segue.memory.history import forget_opaque
from segue.models.normal_form import without_opaque
from segue.models.reply import ModelCall, Reply
from segue.models.untrusted import without_notes
from segue.plans.acknowledgement import Acknowledgement
from segue.plans.mandates import Use
from segue.plans.policy import Deny, Ruling, needs_confirmation, rule
from segue.plans.store import StoredPlan
from segue.tools.input_schema import accepts
from segue.tools.normalize import IMAGES, PDF, BinaryPart
from segue.tools.run import CallOutcome
from segue.tools.summaries import named_objects, one_line

MAX_IMAGES_BYTES = 6_000_000  # of a turn, and as much of PDFs: every later request of it repeats them
MAX_FOUND = 200  # objects of a result that can be named as sources
MAX_TITLE_CHARS = 200


def call_key(request: RequestedCall) -> tuple[str, str]:
    """Returns the same for calls that ask for the same."""
    return request.name, canonical_args(request.args)


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that may run, under our own id. `answers` are the user's to the call's earlier questions."""

    request: RequestedCall
    tool: Tool
    approved: bool = False
    answers: tuple[UserAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A `model_call` that waits for a yes or, `by_page`, to be run. `unseen` values are new to the user."""

    request: RequestedCall
    tool: Tool
    model_call: ModelCall
    unseen: Mapping[str, Any] = field(default_factory=dict)
    by_page: bool = False


@dataclass(frozen=True, slots=True)
class SettledCall:
    """A call whose outcome is known without running it. `tool` is None if no tool has its name."""

    request: RequestedCall
    tool: Tool | None
    outcome: CallOutcome


Prepared = ReadyCall | HeldCall | SettledCall


@dataclass(slots=True)
class Agreement:
    """A yes to what the model offered in words."""

    answer: str  # the one that made the offer
    reply: str  # the user's
    read: Acknowledgement  # how the rules read it: as a strong yes, or as one beside more
    used: set[tuple[str, str]] = field(default_factory=set)  # calls made since, none of which it covers once more


@dataclass(slots=True)
class TurnCalls:
    """The calls of a turn so far. `ledger` has them in the order they were made, by id: None for one that has not
    ended, or leaves no row. Keys of two texts are a tool and its canonical arguments.
    """

    context: TurnContext
    state: TurnState  # as the calls began
    tools: Mapping[str, Tool]
    conversation: list[BaseMessage]  # what the model has been shown in the turn
    ledger: dict[str, tuple[ToolCall, Reference] | None] = field(default_factory=dict)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)  # not run twice: they took effect or may have
    images: dict[str, tuple[BinaryPart, ...]] = field(default_factory=dict)  # by call, and PDFs: not shown to the model
    image_bytes_left: int = MAX_IMAGES_BYTES  # what further images may take, in all
    pdf_bytes_left: int = MAX_IMAGES_BYTES  # what further PDFs of the user's may take, in all
    count: int = 0  # all of them but those by which the engine shows the message's files
    stored_messages: int = 0  # those that they added to the history
    agreement: Agreement | None = None  # a yes to what the model offered in words
    approved: set[tuple[str, str]] = field(default_factory=set)  # said yes to, not made yet: each covers a call once
    rulings: dict[tuple[str, str], Ruling] = field(default_factory=dict)  # the policy's, of calls that have not run
    under: dict[str, Use] = field(default_factory=dict)  # what calls that run unasked take of which mandate, by id
    effects: dict[str, CallEffect] = field(default_factory=dict)  # of calls that have started, with who said yes
    yes: EffectApproval | None = None  # what the turn's message is if it approves something
    asked_in: str | None = None  # the turn whose answer asked for that
    asking: StoredPlan | None = None  # made by a call of the loop whose tool asks the user something first
    by_page: set[str] = field(default_factory=set)  # ids of calls that the client's page has run, and is not told of
    found: list[Source] = field(default_factory=list)  # what an answer may rest on
    account: str = ""

    @property
    def recorded(self) -> list[ToolCall]:
        """The calls that have ended and have a row, in the order they were made."""
        return [each[0] for each in self.ledger.values() if each is not None]

    @property
    def references(self) -> list[Reference]:
        """The references to their results, newest first."""
        return [each[1] for each in reversed(self.ledger.values()) if each is not None]

    @property
    def brought_by(self) -> str | None:
        """The message of a schedule, a trigger or a program that began the turn, None if the user did."""
        return None if self.state["approves"] else self.state["message_id"]

    @property
    def in_doubt(self) -> set[tuple[str, str]]:
        """The keys of earlier turns' calls that may have taken effect, and have not succeeded since."""
        earlier = (each for each in reversed(self.state["earlier_results"]) if each.status != "failed")
        newest = {(each.tool_name, canonical_args(each.args)): each.status for each in earlier}
        return {key for key, status in newest.items() if status == "unknown"}

    def needs_yes(self, request: RequestedCall, tool: Tool, ruling: Ruling) -> bool:
        """A denied call needs no yes. One that may repeat an effect does and, after a weak yes, any with an effect."""
        if ruling != "allow":
            return ruling == "ask"
        spec, mode = tool.spec, self.context.settings.confirm
        if spec.name == domain.PROPOSE_MANDATE:
            return True
        may_repeat = not spec.idempotent and call_key(request) in self.in_doubt
        is_asked = spec.effect != "read_only" and not spec.ephemeral and mode != "never"
        return needs_confirmation(spec, mode) or (is_asked and (may_repeat or self.state.get("cautious", False)))

    def runs_unasked(self, name: str) -> bool:
        """Returns whether nothing can hold back or deny a call of this tool, whatever its arguments are."""
        context, tool = self.context, self.tools.get(name)
        if tool is None or tool.spec.ephemeral or name in dict(self.in_doubt):
            return False
        is_ruled = context.settings.before_call is not None or bool(context.approvals)
        is_free = not is_ruled and not self.needs_yes(RequestedCall("", name, {}), tool, "allow")
        return is_free and context.guard.state(tool.spec).available

    def new_ids(self, page_version: int) -> CallIds:
        """Returns a function that gives ids to the calls of an answer that run unasked."""
        now, numbers = self.context.clock(), count(1)
        plan_id = new_id("plan", now)  # the page's calls are its steps; it will wait for the page at this version

        def id_of(name: str) -> str | None:
            if not self.runs_unasked(name):
                return None
            if self.tools[name].spec.source != PAGE:
                return new_id("call", now)
            number = next(numbers)
            return page_call_id(plan_id, page_version, number) if number <= MAX_STEPS else None

        return id_of

    def note_effect(self, call: RequestedCall, tool: Tool, yes: EffectApproval | None) -> None:
        """Notes, before a call is stored as started, that it may have an effect or was approved, if it can run."""
        spec, denied = tool.spec, isinstance(self.rulings.get(call_key(call)), Deny)
        asked_in = self.asked_in if yes else None
        if (use := self.under.get(call.id)) is not None:
            yes = EffectApproval("mandate", self.context.owner, mandate_id=use.mandate_id)
        if (spec.effect != "read_only" or yes) and not spec.ephemeral and accepts(tool, call.args):
            of_tool = (spec.effect, spec.title or spec.original_name or spec.name, domain.definition_of(spec))
            self.effects[call.id] = CallEffect(*of_tool, denied, asked_in, yes)

    @property
    def changed(self) -> list[domain.TurnEffect]:
        """The effects that the ended calls had, or may have had."""
        made = ((call, self.effects.get(call.tool_call_id)) for call in self.recorded)
        return [effect for call, noted in made if noted and (effect := domain.effect_of(call, noted))]

    async def ruling(self, call: RequestedCall, tool: Tool) -> Ruling:
        """Returns what the operator's policy says of a call. It is asked once before one runs, of reads never."""
        settings = self.context.settings
        if settings.before_call is None or tool.spec.ephemeral or not accepts(tool, call.args):
            return "allow"
        if (key := call_key(call)) not in self.rulings:
            who, timeout_s = self.context.caller(call.id), settings.tool_timeout_s
            self.rulings[key] = await rule(settings.before_call, call, tool.spec, who, timeout_s=timeout_s)
        return self.rulings[key]

    def keep_images(self, request: RequestedCall, outcome: CallOutcome) -> None:
        kept = []
        for part in outcome.payload.parts:
            if part.kind in IMAGES and part.size_bytes <= self.image_bytes_left:
                self.image_bytes_left -= part.size_bytes
                kept.append(part)
            elif part.kind == PDF and request.name == READ_ATTACHMENT and part.size_bytes <= self.pdf_bytes_left:
                self.pdf_bytes_left -= part.size_bytes
                kept.append(part)
        if kept:
            self.images[request.id] = tuple(kept)

    def keep_sources(self, request: RequestedCall, outcome: CallOutcome) -> None:
        """Keeps the sources that a result names, also those in a part of an earlier result that was loaded again."""
        value, loaded = outcome.payload.value, request.args.get("tool_call_id")
        if outcome.status != "succeeded" or request.name == READ_ATTACHMENT or not isinstance(value, dict | list):
            return
        of_earlier = request.name == "get_tool_result" and isinstance(loaded, str)
        call_id = str(loaded) if of_earlier else request.id
        for path, title, url in islice(named_objects(value), MAX_FOUND):
            part = path if path and not of_earlier else None
            self.found.append(Source("", one_line(title, MAX_TITLE_CHARS), url, call_id, part))

    def show_images(self) -> None:
        """Adds the images of calls that ended since as a message, and PDFs as another: a model may take only one."""
        new = {call_id: self.images.pop(call_id) for call_id in self.ledger if call_id in self.images}
        pdfs = {call_id: parts for call_id, parts in new.items() if parts[0].kind == PDF}
        images = {call_id: parts for call_id, parts in new.items() if call_id not in pdfs}
        self.conversation += [image_message(shown) for shown in (images, pdfs) if shown]

    def add_note(self, note: str) -> None:
        """Adds a note for the rest of the turn to the conversation."""
        self.conversation = prompts.with_note(self.conversation, note)


async def mark_refused(turn: TurnCalls, reply: Reply) -> None:
    """Stores which tools the endpoint refused, with its words. No later request has the parts it could not verify."""
    context = turn.context
    for name, reason in reply.left_out.items():
        spec = turn.tools[name].spec
        changed = await context.transact(context.guard.mark_refused, spec, reason)
        context.guard.take_over(spec, changed)
        if changed.moved:
            context.emit(ToolStateChanged(name, context.guard.state(spec)))
    if reply.opaque_is_dead:
        turn.conversation = without_opaque(turn.conversation) or turn.conversation
        await context.transact(forget_opaque, context.turn.session_id)
        log.warning("opaque_parts_dropped")


async def read_steers(turn: TurnCalls, *, also: WriteWithStart | None = None) -> bool:
    """Adds what the user has written since to the conversation. Returns whether there was anything; `also` is written
    in the same transaction then. It is no yes to anything: what was approved and has not run is asked about again.
    """
    context = turn.context
    if not await context.is_steered():
        return False
    async with context.transaction() as connection:
        read = await context.read_steers(connection)
        if read and also is not None:
            await also(connection)
    for steer in read:
        turn.conversation.append(HumanMessage(without_notes(str(steer.message.content))))
        context.emit(steer)
    turn.stored_messages += len(read)
    if read:
        turn.agreement = None
        turn.approved.clear()
    return bool(read)
