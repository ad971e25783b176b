"""Is a message a yes, a no, a yes with a change, or none of these?

Every word gets a kind from `lexicon.toml`, in the language that uses most of the words; the first of `_RULES` that
holds for these kinds decides. Each word counts: a yes with anything more in it is no plain yes. Pure; knows nothing of
the plan that waits for the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from segue.domain.session import Verdict
from segue.language.lexicon import ANY_LANGUAGE, UNKNOWN, kinds_of, languages_of, parse_lexicon, unstretch
from segue.language.utterance import is_emoji, parse_utterance
from segue.language.word_lists import load_toml

LONGEST_MESSAGE: Final = 1_000  # characters
MOST_WORDS: Final = 60
MOST_ADDED_WORDS: Final = 10
# `start at noon` changes the plan, `start looking for a cheaper hotel` is a new request.
MOST_WORDS_ADDED_TO_AN_ORDER: Final = 2

# The kinds of words; `lexicon.toml` says what each is, with examples.
APPROVALS: Final = frozenset({"yes", "accept", "go_ahead"})
DECISIONS: Final = frozenset({"yes", "accept", "no", "negator"})
RESTATEMENTS: Final = frozenset({"act", "thing", "task"})
PREAMBLE: Final = frozenset({"filler", "vocative", "thanks", "polite", "praise"})
STRETCHABLE: Final = APPROVALS | {"no", "stop", "praise", "thanks", "polite"}
KINDS: Final = (APPROVALS | RESTATEMENTS | PREAMBLE | STRETCHABLE) | {
    "cancel", "change_of_mind", "closing", "condition", "doubt", "glue", "indefinite", "later", "negator", "object",
    "question", "verdict_frame", "why_not",
}  # fmt: skip
LEXICON: Final = parse_lexicon(load_toml("lexicon.toml"), kinds=KINDS, stretchable=STRETCHABLE)

_EMOJI: Final = {
    word: kind
    for (word, *more), ((_, kind),) in LEXICON.phrases[ANY_LANGUAGE].matches.items()
    if is_emoji(word) and not more
}
_SAFEST_FIRST: Final = ("reject", "amend", "confirm", "none")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`rule` is the name of the rule that decided, for logs and the answer; `language` is an ISO 639-1 code."""

    verdict: Verdict
    rule: str
    language: str | None = None


def detect_acknowledgement(message: str) -> bool:
    """Returns whether a message is a plain yes."""
    return classify(message).verdict == "confirm"


def classify(text: str) -> Acknowledgement:
    """Returns how a message answers a question. Never raises; a message too long to be an answer is `none`."""
    utterance = parse_utterance(text[: LONGEST_MESSAGE + 1])
    if len(text) > LONGEST_MESSAGE or len(utterance.words) > MOST_WORDS:
        return Acknowledgement("none", "too_long")
    words = _without_decoration([unstretch(word, LEXICON) for word in utterance.words])
    readings = [_read(words, language, asks=utterance.asks) for language in languages_of(words, LEXICON)]
    return min(readings, key=lambda reading: reading.misfit).found


def _without_decoration(words: list[str]) -> tuple[str, ...]:
    """Drops emoji of no kind, and approving ones after a word: `thanks 👍` is thanks, `👍` alone is a yes."""
    first_spoken = next((at for at, word in enumerate(words) if not is_emoji(word)), len(words))
    return tuple(
        word
        for at, word in enumerate(words)
        if not is_emoji(word) or (word in _EMOJI and (at < first_spoken or _EMOJI[word] not in APPROVALS))
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """A message read in one language: the verdict, and how many words and phrases it was read as."""

    found: Acknowledgement
    unknown: int
    phrases: int

    @property
    def misfit(self) -> tuple[int, int, int]:
        """The reading with the fewest unknown words is best, then the one with the longest phrases, then the safest."""
        return self.unknown, self.phrases, _SAFEST_FIRST.index(self.found.verdict)


def _read(words: tuple[str, ...], language: str, *, asks: bool) -> _Reading:
    kinds = kinds_of(words, language, LEXICON)
    reply = _reply_of(_after_change_of_mind(kinds), asks=asks)
    rule, verdict = next((rule, verdict) for rule, verdict, holds in _RULES if holds(reply))
    found = Acknowledgement(verdict, rule, None if language == ANY_LANGUAGE else language)
    return _Reading(found, unknown=kinds.count(UNKNOWN), phrases=len(kinds))


def _after_change_of_mind(kinds: list[str]) -> list[str]:
    """Drops the decision that the user takes back: `yes, but actually no` is a no.

    If no decision follows, something else does: `yes, actually Friday` has a condition.
    """
    if "change_of_mind" not in kinds:
        return kinds
    last = len(kinds) - 1 - kinds[::-1].index("change_of_mind")
    before, after = kinds[:last], kinds[last + 1 :]
    if DECISIONS.isdisjoint(after):
        return [*before, "condition", *after]
    return [kind for kind in before if kind not in DECISIONS] + after


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the rules look at: the kinds in the message, the one it opens with, and how many words add to the plan."""

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
    def is_whole(self) -> bool:
        """Nothing in it changes or adds to the plan."""
        return not self.added and "condition" not in self.kinds

    @property
    def may_change_the_plan(self) -> bool:
        """It opens with a decision, and what it adds is short enough to be about the plan."""
        most = MOST_WORDS_ADDED_TO_AN_ORDER if self.opening == "go_ahead" else MOST_ADDED_WORDS
        return not self.added or (self.added <= most and self.opening in {*APPROVALS, "no", "condition"})


def _reply_of(kinds: list[str], *, asks: bool) -> _Reply:
    found = set(kinds)
    if "praise" in found and "verdict_frame" in kinds[: len(kinds) - kinds[::-1].index("praise")]:
        found.add("accept")  # `that's perfect`; praise alone approves nothing
    if "why_not" in found:
        found.add("yes")
    if "cancel" in found and "thing" in kinds[kinds.index("cancel") :] and found & APPROVALS:
        found.remove("cancel")  # `yes, cancel the booking` repeats a plan to cancel it
    return _Reply(
        kinds=frozenset(found),
        opening=next((kind for kind in kinds if kind not in PREAMBLE), ""),
        added=kinds.count(UNKNOWN)
        + sum(kind in RESTATEMENTS and not _restates(at, kinds) for at, kind in enumerate(kinds)),
        asks="question" in found or (asks and "why_not" not in found),
    )


def _restates(at: int, kinds: list[str]) -> bool:
    """Returns whether the word at this place repeats the plan: it does in `yes, book it`, it adds in `yes, hotel`."""
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


_Rule = tuple[str, Verdict, Callable[[_Reply], bool]]

# The first rule that holds decides; tests/plans has an example of each. A doubtful yes is no yes: a second question
# costs little, a wrong yes runs what the user did not approve.
_RULES: Final[tuple[_Rule, ...]] = (
    ("question", "none", lambda r: r.asks and r.added > 0),
    ("doubt", "none", lambda r: r.has("doubt") and not r.has("no", "stop", "later")),
    ("no_with_a_reason", "reject", lambda r: r.opening == "no" and r.has("thanks", "closing", "negator", "later")),
    (
        "no_with_a_change",
        "amend",
        lambda r: r.has("no") and r.has("condition", "act") and r.may_change_the_plan and not r.has("thanks"),
    ),
    ("no_and_go_ahead", "none", lambda r: r.has("no") and r.has("go_ahead") and not r.has("negator", "stop", "cancel")),
    ("no", "reject", lambda r: r.has("no") and not r.added),
    ("stop", "reject", lambda r: r.has("stop") and r.is_whole),
    ("no_and_more", "reject", lambda r: r.opening == "no" and r.may_change_the_plan),
    ("yes_with_a_change", "amend", lambda r: r.approves and r.has("condition", "later") and r.may_change_the_plan),
    ("yes_or_cancel", "none", lambda r: r.approves and r.has("cancel")),
    ("cancel", "reject", lambda r: r.has("cancel") and r.is_whole),
    ("later", "reject", lambda r: r.has("later") and r.is_whole),
    ("negated", "reject", lambda r: r.has("negator") and r.is_whole),
    # A content word makes a yes a change even if it repeats the plan: another booking number would be another deed.
    ("yes_and_more", "amend", lambda r: r.approves and r.added > 0 and r.may_change_the_plan),
    ("more_than_a_reply", "none", lambda r: not r.is_whole),
    ("question", "none", lambda r: r.asks),
    ("order", "none", lambda r: r.has("thing") and not r.has("yes", "accept")),
    ("goodbye", "none", lambda r: r.has("closing")),
    ("yes", "confirm", lambda r: r.has("yes", "accept")),
    ("go_ahead", "confirm", lambda r: r.has("go_ahead")),
    ("thanks_alone", "none", lambda r: r.has("thanks")),
    ("praise_alone", "none", lambda r: r.has("praise")),
    ("nothing_decided", "none", lambda _: True),
)
