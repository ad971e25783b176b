"""Is this message a yes, a no, a yes with a change, or none of these? Read whole, against `lexicon.toml`.

Pure. Every word must be accounted for: a yes with anything more in it is not a yes. Knows nothing of the plan that
waits; the nodes of `agent/` stand above, `lexicon.py` and `utterance.py` below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from segue.domain.session import Verdict
from segue.language.phrase_matcher import ANY_LANGUAGE, UNKNOWN, kinds_of, languages_of, load_lexicon, unstretch
from segue.language.utterance import hear, is_emoji

LONGEST_MESSAGE: Final = 1_000
MOST_WORDS: Final = 60
MOST_ADDED_WORDS: Final = 10
# `start at noon` changes the plan, `start looking for a cheaper hotel` is a new request.
MOST_WORDS_ADDED_TO_AN_ORDER: Final = 2

APPROVALS: Final = frozenset({"yes", "accept", "go_ahead"})
DECISIONS: Final = frozenset({"yes", "accept", "no", "negator"})
RESTATEMENTS: Final = frozenset({"act", "thing", "task"})
PREAMBLE: Final = frozenset({"filler", "vocative", "thanks", "polite", "praise"})
STRETCHABLE: Final = APPROVALS | {"no", "stop", "praise", "thanks", "polite"}
KINDS: Final = (APPROVALS | RESTATEMENTS | PREAMBLE | STRETCHABLE) | {
    "cancel", "closing", "condition", "doubt", "glue", "indefinite", "later", "negator", "object", "question", "turn",
    "verdict_frame", "why_not",
}  # fmt: skip
LEXICON: Final = load_lexicon("lexicon.toml", kinds=KINDS, stretchable=STRETCHABLE)

_EMOJI: Final = {word: kind for word, ((_, kind), *_) in LEXICON.phrases[ANY_LANGUAGE].items() if is_emoji(word)}
_SAFEST_FIRST: Final = ("reject", "amend", "confirm", "none")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`rule` names what decided, for the logs and the answer; `language` is an ISO 639-1 code."""

    verdict: Verdict
    rule: str
    language: str | None = None


def detect_acknowledgement(message: str) -> bool:
    return classify(message).verdict == "confirm"


def classify(text: str) -> Acknowledgement:
    """Never raises; a message too long to be a reply to a question is `none`."""
    heard = hear(text[: LONGEST_MESSAGE + 1])
    if len(text) > LONGEST_MESSAGE or len(heard.words) > MOST_WORDS:
        return Acknowledgement("none", "too_long")
    words = _without_trimmings([unstretch(word, LEXICON) for word in heard.words])
    readings = [_read(words, language, asks=heard.asks) for language in languages_of(words, LEXICON)]
    return min(readings, key=lambda reading: reading.misfit).found


def _without_trimmings(words: list[str]) -> tuple[str, ...]:
    """Emoji that mean nothing here go; so does a thumb up after words, which must speak for themselves."""
    spoken = next((at for at, word in enumerate(words) if not is_emoji(word)), len(words))
    return tuple(
        word
        for at, word in enumerate(words)
        if not is_emoji(word) or (word in _EMOJI and (at < spoken or _EMOJI[word] not in APPROVALS))
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """A message as one language has it. The fewest unknown words fit best, then the longest phrases, then safety."""

    found: Acknowledgement
    unknown: int
    phrases: int

    @property
    def misfit(self) -> tuple[int, int, int]:
        return self.unknown, self.phrases, _SAFEST_FIRST.index(self.found.verdict)


def _read(words: tuple[str, ...], language: str, *, asks: bool) -> _Reading:
    kinds = kinds_of(words, language, LEXICON)
    message = _message_of(_after_turn(kinds), asks=asks)
    rule, verdict = next((rule, verdict) for rule, verdict, holds in _RULES if holds(message))
    found = Acknowledgement(verdict, rule, None if language == ANY_LANGUAGE else language)
    return _Reading(found, unknown=kinds.count(UNKNOWN), phrases=len(kinds))


def _after_turn(kinds: list[str]) -> list[str]:
    """`yes, but actually no` is a no."""
    if "turn" not in kinds:
        return kinds
    turn = len(kinds) - 1 - kinds[::-1].index("turn")
    before, after = kinds[:turn], kinds[turn + 1 :]
    if DECISIONS.isdisjoint(after):
        return [*before, "condition", *after]
    return [kind for kind in before if kind not in DECISIONS] + after


@dataclass(frozen=True, slots=True)
class _Message:
    """What a message says: its kinds of words, the one it opens with, and how many words no kind accounts for."""

    kinds: frozenset[str]
    opening: str
    added: int
    asks: bool

    def has(self, *kinds: str) -> bool:
        return not self.kinds.isdisjoint(kinds)

    @property
    def approves(self) -> bool:
        return not self.kinds.isdisjoint(APPROVALS)

    @property
    def whole(self) -> bool:
        return not self.added and "condition" not in self.kinds

    @property
    def changes(self) -> bool:
        """A decision and then something more, short enough to be about the plan."""
        most = MOST_WORDS_ADDED_TO_AN_ORDER if self.opening == "go_ahead" else MOST_ADDED_WORDS
        return not self.added or (self.added <= most and self.opening in {*APPROVALS, "no", "condition"})


def _message_of(kinds: list[str], *, asks: bool) -> _Message:
    said = set(kinds)
    if "praise" in said and "verdict_frame" in kinds[: len(kinds) - kinds[::-1].index("praise")]:
        said.add("accept")
    if "why_not" in said:
        said.add("yes")
    if "cancel" in said and "thing" in kinds[kinds.index("cancel") :] and said & APPROVALS:
        said.remove("cancel")
    return _Message(
        kinds=frozenset(said),
        opening=next((kind for kind in kinds if kind not in PREAMBLE), ""),
        added=kinds.count(UNKNOWN) + _loose_restatements(kinds),
        asks="question" in said or (asks and "why_not" not in said),
    )


def _loose_restatements(kinds: list[str]) -> int:
    """How many words that may repeat the plan do not: `yes, book it` repeats it, `yes, hotel` adds to it."""
    return sum(not _restates(at, kinds) for at, kind in enumerate(kinds) if kind in RESTATEMENTS)


def _restates(at: int, kinds: list[str]) -> bool:
    before, others = kinds[:at], {*kinds[:at], *kinds[at + 1 :]}
    if kinds[at] == "task":
        return bool(others & {"go_ahead", "act", "stop", "cancel", "no", "negator"})
    if others.isdisjoint({*APPROVALS, "negator"}):
        return False
    match kinds[at], before[-1:]:
        case "act", _:
            return bool(others & {"negator", "go_ahead", "object", *RESTATEMENTS})
        case _, ["indefinite"] if "yes" not in before:
            return False
        case _, ["object" | "verdict_frame"]:
            return True
        case _:
            return bool(others & {"act", "cancel", "go_ahead"})


_Rule = tuple[str, Verdict, Callable[[_Message], bool]]

# The first that holds decides.
_RULES: Final[tuple[_Rule, ...]] = (
    ("question", "none", lambda m: m.asks and m.added > 0),
    ("doubt", "none", lambda m: m.has("doubt") and not m.has("no", "stop", "later")),
    ("no_with_a_reason", "reject", lambda m: m.opening == "no" and m.has("thanks", "closing", "negator", "later")),
    (
        "no_with_a_change",
        "amend",
        lambda m: m.has("no") and m.has("condition", "act") and m.changes and not m.has("thanks"),
    ),
    ("no_and_go_ahead", "none", lambda m: m.has("no") and m.has("go_ahead") and not m.has("negator", "stop", "cancel")),
    ("no", "reject", lambda m: m.has("no") and not m.added),
    ("stop", "reject", lambda m: m.has("stop") and m.whole),
    ("no_and_more", "reject", lambda m: m.opening == "no" and m.changes),
    ("yes_with_a_change", "amend", lambda m: m.approves and m.has("condition", "later") and m.changes),
    ("yes_or_cancel", "none", lambda m: m.approves and m.has("cancel")),
    ("cancel", "reject", lambda m: m.has("cancel") and m.whole),
    ("later", "reject", lambda m: m.has("later") and m.whole),
    ("negated", "reject", lambda m: m.has("negator") and m.whole),
    ("yes_and_more", "amend", lambda m: m.approves and m.added > 0 and m.changes),
    ("more_than_a_reply", "none", lambda m: not m.whole),
    ("question", "none", lambda m: m.asks),
    ("order", "none", lambda m: m.has("thing") and not m.has("yes", "accept")),
    ("goodbye", "none", lambda m: m.has("closing")),
    ("yes", "confirm", lambda m: m.has("yes", "accept")),
    ("go_ahead", "confirm", lambda m: m.has("go_ahead")),
    ("thanks_alone", "none", lambda m: m.has("thanks")),
    ("praise_alone", "none", lambda m: m.has("praise")),
    ("nothing_decided", "none", lambda _: True),
)
