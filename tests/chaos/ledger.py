"""What was accepted, what was answered and which effects there were, and whether the stores agree with it."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import asyncpg

ENDED = ("completed", "failed", "cancelled")
ONCE = ("stamp", "carry", "delete")  # tools that may not be called twice for one thing


@dataclass(slots=True)
class Turn:
    """A message with a key of its own. `word` is the thing it is about; `outcome` is how it ended, as its client heard:
    completed, cancelled, or the code of a problem.
    """

    session: str
    message: str
    word: str
    key: str
    sent_at: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    turn_id: str | None = None
    outcome: str | None = None
    answer: str | None = None
    calls: dict[str, str] = field(default_factory=dict)

    def ended(self, outcome: str) -> None:
        self.outcome, self.seconds = outcome, time.monotonic() - self.sent_at

    def answered(self, answer: dict[str, Any]) -> None:
        self.ended("completed")
        self.turn_id = answer["turn_id"]
        self.answer = answer["message"]["content"]
        self.calls = {call["tool_name"].removeprefix("mcp_"): call["status"] for call in answer["tool_calls"]}


@dataclass(slots=True)
class Ledger:
    """`effects` counts what the tools did, by tool and thing, outside of what is tested. `approved` are things that may
    be deleted, `deleted` the sessions that were. `wrongs` are broken promises.
    """

    turns: list[Turn] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    approved: set[str] = field(default_factory=set)
    effects: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    words: int = 0

    def word(self, of: str = "w") -> str:
        self.words += 1
        return f"{of}{self.words}x"

    def wrong(self, what: str) -> None:
        self.wrongs.append(what)
        print(f"WRONG  {what}", flush=True)

    def turn(self, session: str, message: str, word: str) -> Turn:
        made = Turn(session, message, word, key=f"key-{len(self.turns)}")
        self.turns.append(made)
        return made

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(turn.outcome or "open" for turn in self.turns)

    async def check(self, database: asyncpg.Connection) -> list[str]:
        """Returns what is wrong now that every turn should have ended, and what was found wrong before."""
        self.check_effects()
        rows = {row["id"]: row for row in await database.fetch("SELECT id, session_id, status FROM turns")}
        said = await database.fetch("SELECT turn_id, role, content FROM messages WHERE role IN ('user', 'assistant')")
        messages = Counter((row["turn_id"], row["role"], row["content"]) for row in said)
        by_user = Counter(row["turn_id"] for row in said if row["role"] == "user")
        for turn in self.turns:
            if turn.turn_id is None or turn.session in self.deleted:
                continue
            row = rows.get(turn.turn_id)
            if row is None or (by_user[turn.turn_id], messages[turn.turn_id, "user", turn.message]) != (1, 1):
                self.wrong(f"message lost or doubled: {turn.message!r} of {turn.turn_id}")
            elif row["status"] not in ENDED:
                self.wrong(f"not terminal: {turn.message!r} of {turn.turn_id} is {row['status']}")
            elif turn.outcome == "completed" and not messages[turn.turn_id, "assistant", turn.answer]:
                self.wrong(f"answer lost: that to {turn.message!r} of {turn.turn_id}")
        for left in {row["session_id"] for row in rows.values()} & self.deleted:
            self.wrong(f"not deleted: turns of {left}")
        return self.wrongs

    def check_effects(self) -> None:
        for effect, count in self.effects.items():
            tool, thing = effect.split()
            if thing.startswith("h"):  # a history explains it
                continue
            if count > 1 and tool in ONCE:
                self.wrong(f"effect doubled: {effect}, {count} times")
            if tool == "delete" and thing not in self.approved:
                self.wrong(f"effect not approved: {effect}")
        for turn in self.turns:
            for tool, status in turn.calls.items():
                if status == "succeeded" and not self.effects[f"{tool} {turn.word}"]:
                    self.wrong(f"effect lost: {tool} {turn.word} succeeded, as {turn.turn_id} says")
