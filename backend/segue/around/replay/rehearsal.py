"""Compares the effects of recorded sessions with those of a rehearsal, and judges the difference. Pure.

An effect is a call of a tool that does more than read and that arrived at it. Words and reads are no difference.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from segue.around.replay.fake_servers import in_common
from segue.around.replay.play import Playback, Played, TriedTurn
from segue.domain.recording import RecordedTurn, RecordedUsage
from segue.domain.tool import canonical_args

Kind = Literal["missing", "new", "args", "failed", "questions", "tokens", "dollars"]
KINDS: Final = get_args(Kind)
OF_EFFECTS: Final = ("missing", "new", "args")
OF_ALL: Final = ("tokens", "dollars")  # judged over all sessions: one alone says little
QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
COLUMNS: Final = ("session", "same", *KINDS)


class InvalidLimit(Exception):
    """What --fail-on cannot mean; the message says what it can."""


@dataclass(frozen=True, slots=True)
class FailLimit:
    """How much more than recorded is still no failure: an amount, or a share of what was recorded."""

    kind: Kind
    more: float = 0.0
    is_share: bool = False

    def is_exceeded(self, recorded: float, played: float) -> bool:
        return played - recorded > (self.more * recorded if self.is_share else self.more)


def read_limits(text: str) -> tuple[FailLimit, ...]:
    """Reads `missing,tokens:+20%,dollars:+0.5`. Raises InvalidLimit."""
    return tuple(_limit(part.strip()) for part in text.split(",") if part.strip())


def _limit(part: str) -> FailLimit:
    name, _, more = part.partition(":")
    kind = next((each for each in KINDS if each == name), None)
    number = more.removeprefix("+").removesuffix("%") or "0"
    if kind is None or not number.replace(".", "", 1).isdecimal():
        raise InvalidLimit(
            f"--fail-on cannot be {part!r}: it takes {', '.join(KINDS)}, each with :+2 or :+20% or bare."
        )
    is_share = more.endswith("%")
    return FailLimit(kind, float(number) / (100 if is_share else 1), is_share)


@dataclass(frozen=True, slots=True)
class Effect:
    """`turn` counts from 1. One that `failed` when it was recorded may come again, and need not."""

    turn: int
    tool: str
    args: Mapping[str, Any]
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.tool} {canonical_args(self.args)}"


@dataclass(frozen=True, slots=True)
class EffectDifference:
    """`recorded` is None for a new effect, `played` for a missing one."""

    kind: Kind
    recorded: Effect | None
    played: Effect | None

    @property
    def turn(self) -> int:
        return next(each.turn for each in (self.played, self.recorded) if each is not None)

    def __str__(self) -> str:
        return (
            f"turn {self.turn}: {self.kind}: {' -> '.join(str(each) for each in (self.recorded, self.played) if each)}"
        )


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One recorded session against its rehearsal. `amounts` are pairs, recorded and played; tokens and dollars are
    those of the turns for which both are known.
    """

    name: str
    same: int
    differences: tuple[EffectDifference, ...]
    failures: tuple[str, ...]
    amounts: Mapping[Kind, tuple[float, float]]

    def lines(self) -> Iterable[str]:
        yield from map(str, self.differences)
        yield from self.failures


def report_of(playback: Playback, ignored: Collection[str] = ()) -> SessionReport:
    """`ignored` are arguments in which effects may differ, as `tool.argument`."""
    acts = {tool.name for tool in playback.recording.tools if tool.effect != "read_only"}
    recorded, played = [], []
    for number, turn in enumerate(playback.tried, start=1):
        recorded += [
            Effect(number, call.tool, call.args, call.status == "failed")
            for call in turn.recorded.calls
            if call.tool in acts
        ]
        reads = {tool.name for tool in playback.recording.tools} - acts
        played += [Effect(number, call.tool, call.args) for call in turn.arrived if call.tool not in reads]
    same, differences = effect_differences(recorded, played, ignored)
    failures = tuple(_failures(playback.tried))
    counts = {kind: sum(each.kind == kind for each in differences) for kind in OF_EFFECTS} | {"failed": len(failures)}
    amounts: dict[Kind, tuple[float, float]] = {kind: (0, counts[kind]) for kind in KINDS if kind in counts}
    amounts["questions"] = (
        sum(asks(turn.recorded) for turn in playback.tried),
        sum(asks(each) for turn in playback.tried for each in turn.played),
    )
    amounts["tokens"] = _sums(playback.tried, lambda usage: usage.input_tokens + usage.output_tokens)
    amounts["dollars"] = _sums(playback.tried, lambda usage: usage.cost)
    return SessionReport(playback.name, same, differences, failures, amounts)


def effect_differences(
    recorded: Sequence[Effect], played: Sequence[Effect], ignored: Collection[str] = ()
) -> tuple[int, tuple[EffectDifference, ...]]:
    """Returns how many effects are the same, and what differs. What is left of a tool is paired by what arguments are
    most alike.
    """

    def told(effect: Effect) -> str:
        kept = {name: value for name, value in effect.args.items() if f"{effect.tool}.{name}" not in ignored}
        return f"{effect.tool} {canonical_args(kept)}"

    left, others, found = list(recorded), list[Effect](), list[EffectDifference]()
    for effect in played:
        if match := next((each for each in left if told(each) == told(effect)), None):
            left.remove(match)
        else:
            others.append(effect)
    left = [each for each in left if not each.failed]
    for effect in others:
        of_tool = [each for each in left if each.tool == effect.tool]
        near = max(of_tool, key=lambda each: in_common(each.args, effect.args), default=None)
        if near is not None:
            left.remove(near)
        found.append(EffectDifference("args" if near else "new", near, effect))
    found += [EffectDifference("missing", each, None) for each in left]
    return len(played) - len(others), tuple(sorted(found, key=lambda each: each.turn))


def asks(turn: RecordedTurn | Played) -> bool:
    """Whether the turn left the user with a question: a plan that waits, or an answer that ends with one."""
    match turn.plan:
        case None:
            status = None
        case Mapping() as plan:
            status = plan["status"]
        case plan:
            status = plan.status
    return turn.status == "completed" and (
        status == "waiting" or (turn.answer or "").rstrip(" *_)\"'»”\n").endswith(QUESTION_MARKS)
    )


def _failures(tried: Iterable[TriedTurn]) -> Iterable[str]:
    """Yields turns that failed and had not. A button with nothing to press is none: the effects tell."""
    for number, turn in enumerate(tried, start=1):
        for played in turn.played if turn.recorded.status == "completed" else ():
            if played.status.startswith("failed"):
                yield f"turn {number}: {played.status}"


def _sums(tried: Iterable[TriedTurn], of: Callable[[RecordedUsage], float | None]) -> tuple[float, float]:
    recorded = played = 0.0
    for turn in tried:
        before = of(turn.recorded.usage) if turn.recorded.usage else None
        after = [of(each.usage) for each in turn.played if each.usage]
        if before is not None and after and None not in after:
            recorded, played = recorded + before, played + sum(each or 0 for each in after)
    return recorded, played


# --- the report ---


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    sessions: tuple[SessionReport, ...]
    limits: tuple[FailLimit, ...]

    @property
    def totals(self) -> dict[Kind, tuple[float, float]]:
        return {
            kind: (
                sum(each.amounts[kind][0] for each in self.sessions),
                sum(each.amounts[kind][1] for each in self.sessions),
            )
            for kind in KINDS
        }

    @property
    def fails(self) -> bool:
        return bool(self.exceeded()) or any(self.exceeded(session) for session in self.sessions)

    def exceeded(self, session: SessionReport | None = None) -> list[str]:
        """Returns the limits that a session exceeds, or without one those that all together do."""
        amounts = session.amounts if session else self.totals
        judged = (limit for limit in self.limits if (limit.kind in OF_ALL) == (session is None))
        return [limit.kind for limit in judged if limit.is_exceeded(*amounts[limit.kind])]

    def lines(self) -> Iterable[str]:
        """Yields a table, with what differs under each session."""
        rows = [(each.name, _cells(each.same, each.amounts), list(each.lines())) for each in self.sessions]
        rows.append(("all", _cells(sum(each.same for each in self.sessions), self.totals), []))
        width = max(len(name) for name, _, _ in rows)
        widths = [max(len(title), *(len(cells[at]) for _, cells, _ in rows)) for at, title in enumerate(COLUMNS[1:])]
        for name, cells, told in ((COLUMNS[0], COLUMNS[1:], []), *rows):
            padded = (cell.rjust(most) for cell, most in zip(cells, widths, strict=True))
            yield f"{name.ljust(width)}  {'  '.join(padded)}"
            yield from (f"  {line}" for line in told)
        failing = [f"{each.name} ({', '.join(kinds)})" for each in self.sessions if (kinds := self.exceeded(each))]
        failing += [f"all together ({', '.join(kinds)})"] if (kinds := self.exceeded()) else []
        yield f"fails: {'; '.join(failing)}" if failing else "fails: nothing"

    def as_json(self) -> dict[str, Any]:
        return {
            "fails": self.fails,
            "exceeded": self.exceeded(),
            "totals": self.totals,
            "sessions": [
                {
                    "file": each.name,
                    "same": each.same,
                    "exceeded": self.exceeded(each),
                    "amounts": each.amounts,
                    "differences": [_difference(difference) for difference in each.differences],
                    "failures": each.failures,
                }
                for each in self.sessions
            ],
        }

    def as_junit(self) -> bytes:
        """Returns a test case for each session, and one for all together if tokens or dollars are limited."""
        told = [(each.name, self.exceeded(each), list(each.lines())) for each in self.sessions]
        if any(limit.kind in OF_ALL for limit in self.limits):
            totals = [f"{kind}: {_amount(*self.totals[kind])}" for kind in OF_ALL]
            told.append(("all together", self.exceeded(), totals))
        failed = str(sum(bool(kinds) for _, kinds, _ in told))
        suite = ET.Element("testsuite", name="segue rehearse", tests=str(len(told)), failures=failed)
        for name, kinds, lines in told:
            case = ET.SubElement(suite, "testcase", classname="segue.rehearse", name=name)
            if kinds:
                ET.SubElement(case, "failure", message=", ".join(kinds)).text = "\n".join(lines)
        return bytes(ET.tostring(suite, "utf-8", xml_declaration=True))


def _difference(difference: EffectDifference) -> dict[str, Any]:
    effects = {"recorded": difference.recorded, "played": difference.played}
    calls = {name: effect and {"tool": effect.tool, "args": effect.args} for name, effect in effects.items()}
    return {"kind": difference.kind, "turn": difference.turn, **calls}


def _cells(same: int, amounts: Mapping[Kind, tuple[float, float]]) -> list[str]:
    return [str(same), *(_amount(*amounts[kind]) for kind in KINDS)]


def _amount(recorded: float, played: float) -> str:
    share = f" ({(played - recorded) / recorded:+.0%})" if recorded else ""
    return f"{played:.6g}" if played == recorded else f"{recorded:.6g} -> {played:.6g}{share}"
