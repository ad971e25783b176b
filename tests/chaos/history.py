"""What clients asked of a session and heard, and what stood in the stores in the end, as events to be explained."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from tests.chaos.model import ANY, ROOM, Seen, State, Turn
from tests.chaos.search import Event, Step, drawn, unexplained

ASKING = ("chat", "decision", "edit", "regenerate")
REFUSED = ("turn_in_progress", "too_many_queued", "plan_changed", "no_open_plan", "not_in_history", "cannot_edit_steer")
ENDS = {"turn_cancelled": "cancelled", "turn_gave_up": "failed", "plan_changed": "failed"}


@dataclass(slots=True)
class Op:
    """One operation of one client: `kind` is one of ASKING, cancel, read or look; `about` is what it names: a plan and
    its version, a turn or a message. `heard` is the answer, None if the client gave up; `tried` is when it asked last,
    `lost` how many answers were lost.
    """

    kind: str
    key: str
    body: Mapping[str, Any]
    about: Any = None
    invoked: float = 0.0
    tried: float = 0.0
    returned: float = inf
    lost: int = 0
    heard: Any = None

    def __str__(self) -> str:
        told = self.heard or {"code": "unknown"}
        outcome = told.get("code") or (told.get("message") or {}).get("content") or told.get("status") or told
        asked = " ".join(map(str, filter(None, [self.key, self.kind, *self.body.values(), self.about])))
        return f"{asked} -> {told.get('turn_id', '')} {str(outcome)[:60]}".replace("\n", " ")

    @property
    def refusal(self) -> str | None:
        code: str | None = (self.heard or {}).get("code")
        accepted = code == "plan_changed" and "turn_id" in self.heard
        return code if code in REFUSED and not accepted else None

    @property
    def ended(self) -> tuple[str, str] | None:
        """The turn whose end was heard, and how it ended."""
        if self.kind not in (*ASKING, "cancel") or "turn_id" not in (self.heard or {}) or self.refusal:
            return None
        status = ENDS.get(self.heard.get("code")) or self.heard.get("status")
        return (self.heard["turn_id"], status) if status in ("completed", "cancelled", "failed") else None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool that is not repeated. `step` is the plan and the number of the step, None without."""

    turn: str
    thing: str
    status: str
    destroys: bool = False
    step: tuple[str, int] | None = None


@dataclass(slots=True)
class Round:
    """What was asked until all turns had ended, and what was seen then. `effects` counts what the tools did."""

    ops: Sequence[Op]
    seen: Seen
    start: State = field(default_factory=State)
    calls: Sequence[Call] = ()
    effects: Mapping[str, int] = field(default_factory=dict)

    def wrongs(self) -> list[str]:
        """Returns what is wrong, with the part of the history that nothing explains. Raises Undecided."""
        events = list(self._events())
        part = unexplained(events, self.start)
        whole = sorted(events, key=lambda event: (event.returned, event.invoked))
        told = ["no order explains", *part, "of", self.start, *drawn(whole, marked=part), self.seen.plans]
        return [*(["\n  ".join(map(str, told))] if part else ()), *self._wrong_answers(), *self._wrong_effects()]

    @property
    def _turns(self) -> list[Turn]:
        return [turn for turn in self.seen.turns.values() if turn.at > self.start.seq]

    def _events(self) -> Iterator[Event]:
        """In the order of turns, then of time: what is unexplained is the first thing that is."""
        asking = {op.key: op for op in self.ops if op.kind in ASKING}
        for turn in sorted(self._turns, key=lambda turn: turn.at):
            if (op := asking.pop(turn.key or "", None)) is not None:
                yield from self._asked(op, turn)
            else:
                yield Event(f"{turn.id} was asked for by nobody", _never)
                yield Event(turn.id, partial(self.seen.accept, turn, 2**31))
            yield from self._of_turn(turn)
        for op in self.ops:
            if op.key in asking or op.kind not in ASKING:
                yield from self._asked(op, None) if op.kind in ASKING else self._looked(op)
        stalled = sum(turn.status != "completed" for turn in self.seen.turns.values())
        reading = {turn.read_by for turn in self._turns}
        steered = {turn.opening.id for turn in self._turns if turn.id in reading}
        for plan, (version, status, origin) in self.seen.plans.items():
            for _ in range(min(stalled, version // 2)):
                yield Event(f"{plan} waits again", partial(self.seen.wait_again, plan), certain=False)
            if status == "failed" or (status == "superseded" and origin in steered):
                losing = partial(self.seen.lose, plan, steered=origin in steered)
                yield Event(f"{plan} is lost", losing, certain=False)
        yield Event("the end", self.seen.rest, max((op.invoked for op in self.ops), default=0.0), looks=True)

    def _asked(self, op: Op, turn: Turn | None) -> Iterator[Event]:
        last = op.returned if op.heard and not op.refusal else inf
        if turn is not None:
            yield Event(str(op), self._accepting(op, turn), op.invoked, last)
            if op.body.get("on_busy") == "interrupt":
                stopping = partial(self.seen.cancel_before, turn)
                yield Event(f"{op.key} interrupts", stopping, op.invoked, last, certain=last < inf)
        elif last < inf:
            yield Event(f"{op}, of which nothing is left", _never, op.invoked, last)
        if op.refusal:
            about = op.heard.get("turn_id") if op.refusal == "turn_in_progress" else op.about
            refusing = partial(self.seen.refuse, op.refusal, about)
            yield Event(str(op), refusing, op.tried, op.returned, looks=True)

    def _accepting(self, op: Op, turn: Turn) -> Step:
        match op.kind:
            case "decision":
                return partial(self.seen.decide, turn, op.about, op.body["decision"])
            case "edit" | "regenerate":
                return partial(self.seen.edit, turn, op.about)
        room = {"reject": 1, "interrupt": 2**31}.get(op.body.get("on_busy", ""), ROOM)
        return partial(self.seen.accept, turn, room)

    def _looked(self, op: Op) -> Iterator[Event]:
        seen = self.seen
        if op.kind == "cancel":
            for _ in range(op.lost):
                yield Event(f"{op}, lost", partial(seen.cancel, op.about), op.invoked, certain=False)
            if op.heard is not None:
                yield Event(str(op), partial(seen.cancel, op.about), op.tried, op.returned)
        elif op.heard is not None:
            heard = op.heard
            looking = partial(seen.look, heard.get("plan"), heard.get("active"))
            step = partial(seen.read, heard["shown"]) if op.kind == "read" else looking
            yield Event(str(op), step, op.tried, op.returned, looks=True)

    def _of_turn(self, turn: Turn) -> Iterator[Event]:
        told = min((op.returned for op in self.ops if _tells_end(op, turn)), default=inf)
        if turn.read_by is not None:
            yield Event(f"{turn.id} is read by {turn.read_by}", partial(self.seen.be_read, turn), returned=told)
            return
        yield from self._of_plan(turn, told)
        ends = {"completed": self.seen.complete, "cancelled": self.seen.stop, "failed": self.seen.fail}
        what = (
            f"{turn.id} ({turn.opening.text}) is {turn.status} {turn.code or ''} {turn.heard or ''} {turn.plan or ''}"
        )
        yield Event(what, partial(ends[turn.status], turn), returned=told)

    def _of_plan(self, turn: Turn, told: float) -> Iterator[Event]:
        """A yes has been said if something ran or the plan moved on; one of a turn that was cut off may have been."""
        (plan, version, status), seen = turn.plan or ("", 0, ""), self.seen
        if turn.opening.text == "yes":
            certain = turn.ran is not None or status in ("completed", "failed")
            yes_to = turn.ran or (plan if certain else None)
            saying, by = partial(seen.say_yes, turn, yes_to), told if certain else inf
            yield Event(f"{turn.id} says yes to {yes_to or 'what waits'}", saying, returned=by, certain=certain)
        if turn.opening.text == "no" and status == "cancelled":
            yield Event(f"{turn.id} says no to {plan}", partial(seen.say_no, turn, plan), returned=told)
        if status == "waiting":
            yield Event(f"{turn.id} asks about {plan}", partial(seen.offer, turn, (plan, version)), returned=told)
        for made, (_, _, origin) in seen.plans.items():
            if origin != turn.opening.id:
                continue
            asks = (made, status) == (plan, "waiting")
            if not asks or any(op.kind == "look" and op.heard and op.heard.get("active") == made for op in self.ops):
                yield Event(f"{turn.id} makes {made}", partial(seen.make, turn, made), certain=False)
            if not asks:
                yield Event(f"{turn.id} may ask about {made}", partial(seen.offer, turn, (made, ANY)), certain=False)

    def _wrong_answers(self) -> Iterator[str]:
        for op in self.ops:
            if op.ended is None:
                continue
            turn, told = self.seen.turns.get(op.ended[0]), op.heard.get("message")
            stored = turn.answer if turn else None
            if turn is None or turn.status != op.ended[1]:
                yield f"another end is stored: {op}, {turn}"
            elif told and (stored is None or (told["id"], told["content"]) != (stored.id, stored.text)):
                yield f"another answer is stored: {op}, {stored}"

    def _wrong_effects(self) -> Iterator[str]:
        decided = {op.key: op.about[0] for op in self.ops if op.body.get("decision") == "confirm"}
        steps = Counter(call.step for call in self.calls if call.step and call.status != "failed")
        yield from (f"step ran twice: {step}" for step, count in steps.items() if count > 1)
        for call in self.calls:
            turn = self.seen.turns[call.turn]
            plan = decided.get(turn.key or "", turn.ran if turn.opening.text == "yes" else None)
            if (
                call.status == "failed"
            ):  # refused before it ran, as of a tool that is out; an effect of it is told below
                continue
            if call.destroys and turn.at > self.start.seq and (call.step is None or call.step[0] != plan):
                yield f"ran without a yes: {call}"
        for thing in {call.thing for call in self.calls} | self.effects.keys():
            made = Counter(call.status for call in self.calls if call.thing == thing)
            least, most = made["succeeded"], made["succeeded"] + made["unknown"]
            if not least <= (count := self.effects.get(thing, 0)) <= most:
                yield f"{thing} happened {count} times, recorded are {dict(made)}"


def _never(_: State) -> None:
    """Nothing explains it."""


def _tells_end(op: Op, turn: Turn) -> bool:
    told = op.ended[0] if op.ended else None
    return told == turn.id or (op.key == turn.key and told is not None and told == turn.read_by)
