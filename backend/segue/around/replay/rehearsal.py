"""Compares the effects of recorded sessions with those of a rehearsal, and judges the difference. Pure.

An effect is a call of a tool that does more than read and that arrived at it. Words and reads are no difference.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from segue.around.replay.fake_servers import in_common
from segue.around.replay.play import Playback, Played
from segue.domain.recording import RecordedCall, RecordedTurn, RecordedUsage
from segue.domain.tool import canonical_args

Kind = Literal["missing", "new", "args", "failed", "questions", "tokens", "dollars"]
KINDS: Final = get_args(Kind)
OF_ALL: Final = ("tokens", "dollars")  # judged over all sessions: one alone says little
QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")

Amounts = Mapping[Kind, tuple[float, float]]  # recorded and played


class InvalidLimit(Exception):
    """What --fail-on cannot mean; the message says what it can."""


@dataclass(frozen=True, slots=True)
class FailLimit:
    """How much more than recorded is still no failure: an amount, or a share of what was recorded."""

    kind: Kind
    more: float
    is_share: bool

    def is_exceeded(self, recorded: float, played: float) -> bool:
        return played - recorded > (self.more * recorded if self.is_share else self.more)


def read_limits(text: str) -> tuple[FailLimit, ...]:
    """Reads `missing,tokens:+20%,dollars:+0.5`. Raises InvalidLimit."""
    limits = []
    for part in text.split(","):
        name, _, more = part.strip().partition(":")
        number = more.removeprefix("+").removesuffix("%") or "0"
        if not (known := [kind for kind in KINDS if kind == name]) or not number.replace(".", "", 1).isdecimal():
            raise InvalidLimit(f"--fail-on cannot be {part!r}: it takes {', '.join(KINDS)}, bare or with :+2 or :+20%.")
        is_share = more.endswith("%")
        limits.append(FailLimit(known[0], float(number) / (100 if is_share else 1), is_share))
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class EffectDifference:
    """`recorded` and `played` are arguments. A turn that `failed` has its status in the place of a tool."""

    kind: Kind
    turn: int
    tool: str
    recorded: Mapping[str, Any] | None = None
    played: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        args = " -> ".join(canonical_args(each) for each in (self.recorded, self.played) if each is not None)
        return f"turn {self.turn}: {self.kind}: {self.tool} {args}".rstrip()


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One recorded session against its rehearsal, or all together. `exceeded` are the limits that it fails."""

    name: str
    same: int
    differences: Sequence[EffectDifference]
    amounts: Amounts
    exceeded: tuple[Kind, ...]

    @property
    def cells(self) -> list[str]:
        return [self.name, str(self.same), *(_shown(*self.amounts[kind]) for kind in KINDS)]


def report(
    playbacks: Iterable[Playback], limits: Iterable[FailLimit], ignored: Collection[str] = ()
) -> list[SessionReport]:
    """Returns a report for each session, and one for all together. `ignored` are arguments in which effects may differ,
    as `tool.argument`.
    """
    own = [limit for limit in limits if limit.kind not in OF_ALL]
    sessions = [_of_session(playback, own, ignored) for playback in playbacks]
    pairs = {kind: [each.amounts[kind] for each in sessions] for kind in KINDS}
    totals: Amounts = {kind: (sum(one for one, _ in of), sum(other for _, other in of)) for kind, of in pairs.items()}
    exceeded = _exceeded(totals, (limit for limit in limits if limit.kind in OF_ALL))
    return [*sessions, SessionReport("all together", sum(each.same for each in sessions), (), totals, exceeded)]


def _of_session(playback: Playback, limits: Iterable[FailLimit], ignored: Collection[str]) -> SessionReport:
    tried = list(enumerate(playback.tried, start=1))
    reads = {tool.name for tool in playback.recording.tools if tool.effect == "read_only"}
    same, differences = effect_differences(
        [(number, call) for number, turn in tried for call in turn.recorded.calls if call.tool not in reads],
        [(number, call) for number, turn in tried for call in turn.arrived if call.tool not in reads],
        ignored,
    )
    # A button with nothing to press is refused, which is no failure: the effects tell.
    differences += [
        EffectDifference("failed", number, each.status)
        for number, turn in tried
        for each in turn.played
        if turn.recorded.status == "completed" and each.status.startswith("failed")
    ]
    counts = Counter(each.kind for each in differences)
    amounts: Amounts = {
        **{kind: (0, counts[kind]) for kind in KINDS},
        "questions": (
            sum(asks(turn.recorded) for _, turn in tried),
            sum(asks(each) for _, turn in tried for each in turn.played),
        ),
        "tokens": _sums(playback, lambda usage: usage.input_tokens + usage.output_tokens),
        "dollars": _sums(playback, lambda usage: usage.cost),
    }
    ordered = sorted(differences, key=lambda each: each.turn)
    return SessionReport(playback.name, same, ordered, amounts, _exceeded(amounts, limits))


def effect_differences(
    recorded: Iterable[tuple[int, RecordedCall]], played: Iterable[tuple[int, RecordedCall]], ignored: Collection[str]
) -> tuple[int, list[EffectDifference]]:
    """Takes effects with their turns. Returns how many are the same, and what differs: what is left of a tool is paired
    by how many arguments are equal. One that failed when it was recorded may come again, and need not.
    """

    def told(call: RecordedCall) -> str:
        kept = {name: value for name, value in call.args.items() if f"{call.tool}.{name}" not in ignored}
        return f"{call.tool} {canonical_args(kept)}"

    left, others, same = list(recorded), [], 0
    for turn, call in played:
        if match := next((each for each in left if told(each[1]) == told(call)), None):
            left.remove(match)
            same += 1
        else:
            others.append((turn, call))
    left = [each for each in left if each[1].status != "failed"]
    found = []
    for turn, call in others:
        of_tool = [each for each in left if each[1].tool == call.tool]
        if near := max(of_tool, key=lambda each: in_common(each[1].args, call.args), default=None):
            left.remove(near)
        found.append(EffectDifference("args" if near else "new", turn, call.tool, near and near[1].args, call.args))
    return same, found + [EffectDifference("missing", turn, call.tool, call.args) for turn, call in left]


def asks(turn: RecordedTurn | Played) -> bool:
    """Whether the turn left the user with a question: a plan that waits, or an answer that ends with one."""
    status = turn.plan["status"] if isinstance(turn.plan, Mapping) else turn.plan and turn.plan.status
    ends_with_one = (turn.answer or "").rstrip(" *_)\"'»”\n").endswith(QUESTION_MARKS)
    return turn.status == "completed" and (status == "waiting" or ends_with_one)


def _sums(playback: Playback, of: Callable[[RecordedUsage], float | None]) -> tuple[float, float]:
    """Returns what was recorded and played in the turns of which both are known."""
    recorded = played = 0.0
    for turn in playback.tried:
        before = of(turn.recorded.usage) if turn.recorded.usage else None
        after = [of(each.usage) for each in turn.played if each.usage]
        if before is not None and after and None not in after:
            recorded, played = recorded + before, played + sum(filter(None, after))
    return recorded, played


def _exceeded(amounts: Amounts, limits: Iterable[FailLimit]) -> tuple[Kind, ...]:
    return tuple(limit.kind for limit in limits if limit.is_exceeded(*amounts[limit.kind]))


def _shown(recorded: float, played: float) -> str:
    share = f" ({(played - recorded) / recorded:+.0%})" if recorded else ""
    return f"{played:.6g}" if played == recorded else f"{recorded:.6g} -> {played:.6g}{share}"


def table(reports: Sequence[SessionReport]) -> Iterable[str]:
    """Yields a line for each report, with its differences below it, and what fails."""
    titles = ["session", "same", *KINDS]
    widths = [max(map(len, column)) for column in zip(titles, *(each.cells for each in reports), strict=True)]
    for cells, told in [(titles, ()), *((each.cells, each.differences) for each in reports)]:
        yield "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
        yield from (f"  {each}" for each in told)
    failing = "; ".join(f"{each.name} ({', '.join(each.exceeded)})" for each in reports if each.exceeded)
    yield f"fails: {failing or 'nothing'}"


def as_json(reports: Iterable[SessionReport]) -> list[dict[str, Any]]:
    return [asdict(each) for each in reports]


def as_junit(reports: Sequence[SessionReport]) -> bytes:
    """Returns a test case for each report."""
    failed = sum(bool(each.exceeded) for each in reports)
    suite = ET.Element("testsuite", name="segue rehearse", tests=str(len(reports)), failures=str(failed))
    for each in reports:
        case = ET.SubElement(suite, "testcase", classname="segue.rehearse", name=each.name)
        if each.exceeded:
            ET.SubElement(case, "failure", message=", ".join(each.exceeded)).text = "\n".join(
                map(str, each.differences)
            )
    return bytes(ET.tostring(suite, "utf-8", xml_declaration=True))
