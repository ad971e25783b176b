"""Compares a replayed turn with the recorded one. Pure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segue.domain.recording import RecordedPlan, RecordedTurn, RecordedUsage
from segue.domain.tool import canonical_args

SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """`turn` counts from 1. `recorded` is None if it was not recorded, `played` is None if it did not happen."""

    turn: int
    what: str
    recorded: str | None
    played: str | None

    def __str__(self) -> str:
        shown = [f"turn {self.turn}: {self.what}"]
        if self.recorded is not None:
            shown.append(f"    recorded: {_short(self.recorded)}")
        if self.played is not None:
            shown.append(f"    played:   {_short(self.played)}")
        return "\n".join(shown)


@dataclass(frozen=True, slots=True)
class Played:
    """A turn as the API returns it. `usage` is None if it ended without an answer."""

    status: str
    answer: str | None = None
    calls: Sequence[Mapping[str, Any]] = ()
    plan: Mapping[str, Any] | None = None
    usage: RecordedUsage | None = None


def differences(number: int, turn: RecordedTurn, played: Played, *, in_words: bool = True) -> Iterable[Difference]:
    """Another answer counts `in_words`: no two models say the same."""
    if (turn.status == "completed") != (played.status == "completed"):
        yield Difference(number, "it ended otherwise", turn.status, played.status)
    elif in_words and turn.answer != played.answer:
        yield Difference(number, "another answer", turn.answer or "", played.answer or "")
    recorded = [_call_line(call.tool, call.args, call.status) for call in turn.calls]
    happened = [_call_line(call["tool_name"], call["args"], call["status"]) for call in played.calls]
    for tag, start, end, begin, until in difflib.SequenceMatcher(None, recorded, happened, False).get_opcodes():
        if tag != "equal":
            yield from _unlike_calls(number, recorded[start:end], happened[begin:until])
    if turn.status == "completed" and played.status == "completed":
        before, after = _plan_lines(turn.plan), _plan_lines(played.plan)
        if before != after:
            yield Difference(number, "the plan stands otherwise", before, after)


def usage_line(usage: RecordedUsage | None) -> str:
    if usage is None:
        return "not known"
    cost = "" if usage.cost is None else f", ${usage.cost:.6f}"
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    return f"{usage.llm_calls} calls, {usage.input_tokens} tokens in{cached}, {usage.output_tokens} out{cost}"


def _unlike_calls(number: int, recorded: Sequence[str], happened: Sequence[str]) -> Iterable[Difference]:
    common = min(len(recorded), len(happened))
    for before, after in zip(recorded[:common], happened[:common], strict=True):
        yield Difference(number, "another call", before, after)
    for missing in recorded[common:]:
        yield Difference(number, "a call is missing", missing, None)
    for extra in happened[common:]:
        yield Difference(number, "a call that was not recorded", None, extra)


def _call_line(tool: str, args: Mapping[str, Any], status: str) -> str:
    """An interrupted call cannot be interrupted again, so it counts as failed."""
    return f"{tool} {canonical_args(args)} {'succeeded' if status == 'succeeded' else 'failed'}"


def _plan_lines(plan: RecordedPlan | Mapping[str, Any] | None) -> str | None:
    if plan is None:
        return None
    shown = plan.model_dump() if isinstance(plan, RecordedPlan) else plan
    steps = (
        f"{step['tool']} {canonical_args(step['args'] or {})} {step['status'].replace('unknown', 'failed')}"
        for step in shown["steps"]
    )
    return "; ".join([shown["status"], *steps])


def _short(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
