"""A session as one client after the other would see it: messages in order, turns that wait, one that runs, one plan.

A step of the search is a method of `Seen`, what stood in the stores in the end: it can happen if it leads there. Order
is the `seq` of what was stored.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

ROOM = 11  # one that runs and ten that wait
ANY = 0  # a version that nobody was told

Waiting = tuple[str, int]  # a plan and the version at which it waits


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user's, or an answer. `words` are those it can be told by, `turn_at` is the seq of its turn."""

    id: str
    at: int
    turn_at: int
    text: str
    words: tuple[str, ...] = ()
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """`heard` are the words of the messages that the model had before it as it wrote the answer. `plan` is that in the
    answer, with its version and status; `ran` the one whose destructive calls it made.
    """

    id: str
    key: str | None
    at: int
    status: str
    opening: Said
    code: str | None = None
    answer: Said | None = None
    heard: tuple[str, ...] | None = None
    plan: tuple[str, int, str] | None = None
    ran: str | None = None
    read_by: str | None = None


class State(NamedTuple):
    """`log` is the history; `open` are turns that have not ended, of which the first may run. `plan` is the one that
    waits, `made` one that has taken its place and does not ask yet. `before` is the plan that waited when the message
    of an open turn came, and the turn that ran. `stopped` are those that may end cancelled, `doomed` those that have
    to. `over` are plans, and versions of plans, that no yes is for any more. `asked` is the turn whose answer asked
    last, `answered` the one that was answered last.
    """

    log: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    seq: int = 0
    plan: Waiting | None = None
    made: str | None = None
    over: frozenset[str | Waiting] = frozenset()
    before: frozenset[tuple[str, Waiting | None, str | None]] = frozenset()
    stopped: frozenset[str] = frozenset()
    doomed: frozenset[str] = frozenset()
    asked: str | None = None
    answered: str | None = None

    @property
    def head(self) -> str | None:
        return self.open[0] if self.open else None

    def waits(self, plan: Waiting | None) -> bool:
        is_same = plan and self.plan and plan[0] == self.plan[0] and ANY in (plan[1], self.plan[1])
        return self.plan == plan or bool(is_same)

    def was_shown(self, turn: Turn) -> bool:
        return any(turn_id == turn.id and self.waits(plan) for turn_id, plan, _ in self.before)

    def without(self, turn: Turn) -> "State":
        return self._replace(
            open=tuple(each for each in self.open if each != turn.id),
            before=frozenset(each for each in self.before if each[0] != turn.id),
            stopped=self.stopped - {turn.id},
            doomed=self.doomed - {turn.id},
        )

    def decided(self, *, ends: bool) -> "State":
        over: list[str | Waiting] = [self.plan] if self.plan else []
        if ends:
            over += [plan for plan in (self.plan and self.plan[0], self.made) if plan]
        return self._replace(plan=None, made=None, over=self.over.union(over))


@dataclass(frozen=True)
class Seen:
    """The turns, messages and plans by id; a plan is its version, its status and the message that it was made for."""

    turns: Mapping[str, Turn]
    messages: Mapping[str, Said]
    plans: Mapping[str, tuple[int, str, str]] = field(default_factory=dict)
    seq: int = 0

    @cached_property
    def log(self) -> tuple[str, ...]:
        return tuple(each.id for each in sorted(self.messages.values(), key=lambda said: said.at) if not each.branch)

    @cached_property
    def state(self) -> State:
        """The one that the next round begins in."""
        waiting = next(
            ((plan, version) for plan, (version, status, _) in self.plans.items() if status == "waiting"), None
        )
        made = next((plan for plan, (_, status, _) in self.plans.items() if status == "active"), None)
        over = [plan for plan, (_, status, _) in self.plans.items() if status not in ("active", "waiting")]
        return State(self.log, seq=self.seq, plan=waiting, made=made, over=frozenset(over))

    @cached_property
    def _stored(self) -> list[int]:
        said = [turn.opening if turn.read_by else turn.answer for turn in self.turns.values()]
        return sorted({turn.at for turn in self.turns.values()} | {each.at for each in said if each})

    def _follows(self, at: int, state: State) -> bool:
        return self._stored[bisect_right(self._stored, state.seq) :][:1] == [at]

    # --- what clients ask for ---

    def accept(self, turn: Turn, room: int, state: State) -> State | None:
        if not self._follows(turn.at, state) or len(state.open) >= room:
            return None
        before = state.before | {(turn.id, state.plan, state.head)}
        return state._replace(
            log=(*state.log, turn.opening.id), open=(*state.open, turn.id), seq=turn.at, before=before
        )

    def decide(self, turn: Turn, plan: Waiting, decision: str, state: State) -> State | None:
        """A button on the version of the plan that its client was shown."""
        if not state.waits(plan):
            return None
        return self.accept(turn, ROOM, state._replace(plan=plan).decided(ends=decision == "reject"))

    def edit(self, turn: Turn, message: str, state: State) -> State | None:
        """What left the history with the message is one branch, and nothing else is in it."""
        if message not in state.log:
            return None
        said, named = self.messages, self.messages[message]
        left = {each for each in state.log if said[each].turn_at >= named.turn_at}
        if named.branch is None or left != {each.id for each in said.values() if each.branch == named.branch}:
            return None
        log = tuple(each for each in state.log if each not in left)
        return self.accept(turn, 1, state.decided(ends=True)._replace(log=log, asked=None, answered=None))

    def refuse(self, code: str, about: Waiting | str | None, state: State) -> State | None:
        """`about` is the turn that runs, the plan or the message that the refusal is about."""
        explains = {
            "turn_in_progress": about in state.open[:1],
            "too_many_queued": len(state.open) >= ROOM,
            "plan_changed": state.plan != about,
            "no_open_plan": state.plan is None and state.made is None,
            "not_in_history": not state.open and about not in state.log,
        }
        return state if explains.get(code, True) else None

    def cancel(self, turn_id: str, state: State) -> State | None:
        """One that waits has ended; the one that runs may have its answer now. What it was to read ends too."""
        if turn_id not in state.open:
            return state
        with_it = state.open if turn_id == state.head else (turn_id,)
        return state._replace(stopped=state.stopped | {*with_it}, doomed=state.doomed | ({turn_id} - {state.head}))

    def cancel_before(self, turn: Turn, state: State) -> State | None:
        if turn.at > state.seq:
            return None
        before = state.open[: state.open.index(turn.id)] if turn.id in state.open else ()
        return state._replace(stopped=state.stopped | {*before}, doomed=state.doomed | {*before[1:]})

    def read(self, shown: tuple[str, ...], state: State) -> State | None:
        return state if state.log == shown else None

    def look(self, plan: Waiting | None, active: str | None, state: State) -> State | None:
        """`active` is a plan that is open and does not wait: it does not ask yet, or it was said yes to."""
        may = state.made in (None, active) and active not in state.over
        return state if state.waits(plan) and (plan or may) else None

    # --- what happens by itself ---

    def make(self, turn: Turn, plan: str, state: State) -> State | None:
        """The turn stores its plan, at once in place of the one before it, a moment before it asks."""
        is_there = plan in (state.made, state.plan and state.plan[0])
        if turn.id != state.head or plan in state.over or is_there:
            return None
        return state.decided(ends=True)._replace(made=plan)

    def offer(self, turn: Turn, plan: Waiting, state: State) -> State | None:
        """The turn asks for a yes. A plan that waits meanwhile is superseded; what is over is never offered again."""
        if turn.id != state.head or {plan, plan[0]} & state.over:
            return None
        is_there = plan[0] in (state.made, state.plan and state.plan[0])
        state = state if is_there else state.decided(ends=True)
        return state._replace(plan=plan, made=None, asked=turn.id)

    def wait_again(self, plan: str, state: State) -> State | None:
        """A plan whose turn ended before it did waits again once another turn runs."""
        may = state.open and not state.plan and state.made in (None, plan) and plan not in state.over
        return state._replace(plan=(plan, ANY), made=None) if may else None

    def lose(self, plan: str, state: State, *, steered: bool) -> State | None:
        """A plan is over though nobody decided: it fails before it asks, or its turn reads a message as it asks."""
        waits = state.plan is not None and state.plan[0] == plan
        return state.decided(ends=True) if state.open and (state.made == plan or (steered and waits)) else None

    def say_yes(self, turn: Turn, plan: str | None, state: State) -> State | None:
        """A yes in words is for the plan that waited as it was said."""
        may = turn.id == state.head and state.plan and plan in (None, state.plan[0]) and state.was_shown(turn)
        return state.decided(ends=False) if may else None

    def say_no(self, turn: Turn, plan: str, state: State) -> State | None:
        may = turn.id == state.head and state.plan and state.plan[0] == plan
        return state.decided(ends=True) if may else None

    def be_read(self, turn: Turn, state: State) -> State | None:
        """The turn that ran as a message was sent to it reads it: it stands behind what was said until then."""
        message, sent_to = turn.opening, [each[2] for each in state.before if each[0] == turn.id]
        if [state.head] != sent_to or state.head != turn.read_by or turn.id in state.doomed:
            return None
        log = (*(each for each in state.log if each != message.id), message.id)
        return state.without(turn)._replace(log=log, seq=message.at) if self._follows(message.at, state) else None

    def complete(self, turn: Turn, state: State) -> State | None:
        """The answer is to all that was said before, and a plain yes to the question before it was taken."""
        if turn.answer is None or turn.id != state.head or turn.id in state.doomed:
            return None
        if not self._follows(turn.answer.at, state) or turn.heard not in (None, self._words(turn, state)):
            return None
        was_asked = state.asked is not None and state.asked == state.answered
        if turn.opening.text == "yes" and was_asked and state.plan and state.was_shown(turn):
            return None
        return state.without(turn)._replace(log=(*state.log, turn.answer.id), seq=turn.answer.at, answered=turn.id)

    def stop(self, turn: Turn, state: State) -> State | None:
        return state.without(turn) if turn.id in state.stopped else None

    def fail(self, turn: Turn, state: State) -> State | None:
        """Its process died too often, or another decision came before that of its message."""
        explains = {"turn_gave_up": True, "plan_changed": not state.was_shown(turn)}
        return state.without(turn) if turn.id == state.head and explains.get(turn.code or "") else None

    def rest(self, state: State) -> State | None:
        """All turns have ended, and the stores hold this state."""
        is_left = state.waits(self.state.plan) and state.made in (None, self.state.made)
        return state if not state.open and state.log == self.log and is_left else None

    def _words(self, turn: Turn, state: State) -> tuple[str, ...]:
        waiting = {self.turns[each].opening.id for each in state.open[1:]}
        said = [self.messages[each] for each in state.log if each not in waiting]
        said = sorted((each for each in said if each.turn_at <= turn.at), key=lambda each: (each.turn_at, each.at))
        return tuple(word for each in said for word in each.words)
