"""Judges how the effects of recorded sessions differ from those of a rehearsal. An effect is a call that arrived at a
tool which does more than read; words and reads are no difference. Pure.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from segue.around.replay.fake_servers import CannotPlay, in_common
from segue.around.replay.play import Playback, Played, Rehearsed
from segue.domain.recording import RecordedCall, RecordedTurn, RecordedUsage
from segue.domain.tool import canonical_args

Kind = Literal["missing", "new", "args", "failed", "questions", "tokens", "dollars"]
KINDS: Final = get_args(Kind)
OF_ALL: Final = ("tokens", "dollars")  # judged over all sessions: one alone says little
QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")

Amounts = Mapping[Kind, tuple[float, float]]  # recorded and played
Margins = dict[Kind, tuple[float, float]]  # how much more than recorded is no failure: an amount, and a share of it


def read_limits(text: str) -> Margins:
    """Reads `missing,tokens:+20%,dollars:+0.5`. Raises CannotPlay."""
    limits: Margins = {}
    for part in text.split(","):
        name, _, more = part.strip().partition(":")
        number = more.removeprefix("+").removesuffix("%") or "0"
        if name not in KINDS or not number.replace(".", "", 1).isdecimal():
            raise CannotPlay(f"--fail-on cannot be {part!r}: it takes {', '.join(KINDS)}, bare or with :+2 or :+20%.")
        limits[cast("Kind", name)] = (0, float(number) / 100) if more.endswith("%") else (float(number), 0)
    return limits


def exceeded(limits: Margins, amounts: Amounts) -> list[Kind]:
    recorded, played = ({kind: pair[at] for kind, pair in amounts.items()} for at in (0, 1))
    return [kind for kind, (more, share) in limits.items() if played[kind] > recorded[kind] * (1 + share) + more]


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
    exceeded: Sequence[Kind]


def report(playbacks: Sequence[Playback], limits: Margins, ignored: Collection[str] = ()) -> list[SessionReport]:
    """Returns a report for each session, and one for all. `ignored` are each a `tool.argument` that may differ."""
    tools = [tool for playback in playbacks for tool in playback.recording.tools]
    reads = {tool.name for tool in tools} - {tool.name for tool in tools if tool.effect != "read_only"}
    own: Margins = {kind: limit for kind, limit in limits.items() if kind not in OF_ALL}
    reports = [_report_of(playback, own, reads, ignored) for playback in playbacks]
    pairs = {kind: [each.amounts[kind] for each in reports] for kind in KINDS}
    totals: Amounts = {kind: (sum(one for one, _ in of), sum(other for _, other in of)) for kind, of in pairs.items()}
    of_all = exceeded({kind: limit for kind, limit in limits.items() if kind in OF_ALL}, totals)
    return [*reports, SessionReport("all together", sum(each.same for each in reports), (), totals, of_all)]


def _report_of(playback: Playback, limits: Margins, reads: Collection[str], ignored: Collection[str]) -> SessionReport:
    turns = playback.rehearsed
    recorded = [(turn.number, call) for turn in turns for call in turn.recorded.calls if call.tool not in reads]
    played = [(turn.number, call) for turn in turns for call in turn.arrived if call.tool not in reads]
    same, found = effect_differences(recorded, played, ignored)
    ended = [(turn, each) for turn in turns for each in turn.played]
    found += [
        EffectDifference("failed", turn.number, each.status)
        for turn, each in ended
        if turn.recorded.status == "completed" and each.status.startswith("failed")
    ]
    counts = Counter(each.kind for each in found)
    amounts: Amounts = {
        **{kind: (0, counts[kind]) for kind in KINDS},
        "questions": (sum(asks(turn.recorded) for turn in turns), sum(asks(each) for _, each in ended)),
        "tokens": _sums(turns, lambda usage: usage.input_tokens + usage.output_tokens),
        "dollars": _sums(turns, lambda usage: usage.cost),
    }
    found.sort(key=lambda each: each.turn)
    return SessionReport(playback.name, same, found, amounts, exceeded(limits, amounts))


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


def _sums(turns: Iterable[Rehearsed], of: Callable[[RecordedUsage], float | None]) -> tuple[float, float]:
    """Returns what was recorded and played in the turns of which both are known."""
    recorded = played = 0.0
    for turn in turns:
        took = [usage and of(usage) for usage in (turn.recorded.usage, *(each.usage for each in turn.played))]
        before, *after = [each for each in took if isinstance(each, int | float)] or [0]
        if len(after) == len(turn.played):
            recorded, played = recorded + before, played + sum(after)
    return recorded, played


def _shown(recorded: float, played: float) -> str:
    share = f" ({(played - recorded) / recorded:+.0%})" if recorded else ""
    return f"{played:.6g}" if played == recorded else f"{recorded:.6g} -> {played:.6g}{share}"


def table(reports: Iterable[SessionReport]) -> Iterator[str]:
    """Yields a line for each report, with its differences below it, and what fails."""
    rows = [(["session", "same", *KINDS], list[str]())]
    for each in reports:
        cells = [each.name, str(each.same), *(_shown(*each.amounts[kind]) for kind in KINDS)]
        rows.append((cells, list(map(str, each.differences))))
    widths = [max(map(len, column)) for column in zip(*(cells for cells, _ in rows), strict=True)]
    for cells, details in rows:
        yield "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
        yield from (f"  {line}" for line in details)
    yield from (f"fails: {each.name} ({', '.join(each.exceeded)})" for each in reports if each.exceeded)


def as_junit(reports: Sequence[SessionReport]) -> bytes:
    """Returns a test case for each report."""
    failed = sum(bool(each.exceeded) for each in reports)
    suite = ET.Element("testsuite", name="segue rehearse", tests=str(len(reports)), failures=str(failed))
    for each in reports:
        case = ET.SubElement(suite, "testcase", classname="segue.rehearse", name=each.name)
        if each.exceeded:
            failure = ET.SubElement(case, "failure", message=", ".join(each.exceeded))
            failure.text = "\n".join(map(str, each.differences))
    return bytes(ET.tostring(suite, "utf-8", xml_declaration=True))
