"""Is a message a yes, a no, a yes with a change, or none of these, and how sure is it a yes? Pure.

Every word gets a kind from `lexicon.toml`; the first of `_RULES` that fits the kinds decides. Every word counts: a yes
with anything more in it is no plain yes, unless the question accounts for the rest.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from segue.domain.session import Strength, Verdict
from segue.language import lexicon
from segue.language.detect_language import detect_language
from segue.language.lexicon import ANY_LANGUAGE, UNKNOWN, Phrase, WordList, kinds_of, languages_of
from segue.language.utterance import Utterance, is_emoji, own_words, parse_own_words, sentences_of, words_near, words_of
from segue.language.written_values import with_plain_prices
from segue.plans.asked_words import AND, BESIDE, Question, is_value, joined, kind_beside, without_written

LONGEST_MESSAGE: Final = 1_000  # characters
LONGEST_REPLY: Final = 80  # of a stock reply
MOST_WORDS: Final = 60
MOST_ADDED_WORDS: Final = 10
MOST_IN_AN_ORDER: Final = 2  # `start at noon` changes the plan, `start looking for a cheaper hotel` is a new request

# The kinds of words; `lexicon.toml` says what each is, with examples.
APPROVALS: Final = frozenset({"yes", "accept", "go_ahead"})
RESTATEMENTS: Final = frozenset({"act", "thing", "task"})
REPEATED: Final = frozenset({"named", "repeats", "repeats_cancel"})  # what the question says too
ORDERS: Final = frozenset({"act", "go_ahead", "repeats", "repeats_cancel"})
STATEMENTS: Final = frozenset({"glue", "object", "indefinite"})  # open a sentence that may not be about the question
TELLING: Final = STATEMENTS | {"named"}  # a sentence that begins so tells something
MOST_TALK: Final = 2  # such words in a yes; more of them tell something
# Rules whose yes is not enough for what changes the world.
WEAK: Final = frozenset(
    {"praise", "praise_of_a_deed", "fact", "statement", "understood", "no_elsewhere", "asks_to", "unsure"}
)
NEVER_A_YES: Final = frozenset({"opinion", "past", "quoted", "reported", "thanks_alone"})  # nor for a model that reads
NOT_BEFORE: Final = "not_before"
POSTPONES: Final = frozenset({"later", NOT_BEFORE})  # rules whose no leaves the plan waiting
CHANGES: Final = frozenset({"addition", "change", "condition", "detail"})
DEEDS: Final = CHANGES | {"act"}
NOT: Final = frozenset({"negator", "no", "stop"})
TURNS: Final = NOT | {"condition", "later"}  # what a question with them asks is not plain
UNSETTLED: Final = TURNS | {"cancel", "doubt"}  # a yes beside them is not carried on
DECIDES: Final = (APPROVALS | RESTATEMENTS | REPEATED | CHANGES | {"other"}) - {"named", "detail"}  # more than a reason
MOST_MIXED: Final = 6  # words of a yes in two languages
MOST_REMARKED: Final = 4  # unknown words in a remark
TAKEN_BACK: Final = APPROVALS | {"no", "negator", "later"}  # by a change of mind and one of the next
DECISIONS: Final = TAKEN_BACK | {"stop", "cancel", "repeats", "repeats_cancel"}
ENDS: Final = frozenset({"cancel", "delete", "remove"})  # `I don't need it anymore` is why something is cancelled
CONTENT: Final = frozenset({"act", BESIDE, "detail", "other", "thing", UNKNOWN})
PREAMBLE: Final = frozenset({"filler", "vocative", "thanks", "polite", "praise", "applause", "opinion"})
PRAISES: Final = PREAMBLE | {"copula", "verdict_frame", "object"}
# Of a sentence beside a yes that asks for nothing: the rules that may read it, or the kinds of its words.
BESIDE_A_YES: Final = {"yes", "accept", "go_ahead", "praise", "statement", "thanks_alone", "opinion", "nothing_decided"}
REMARKS: Final = PREAMBLE | STATEMENTS | {"remark", "named", "repeats", "copula", "verdict_frame", BESIDE, UNKNOWN}
CLAUSE_END: Final = re.compile("[,:，：、،–—]")  # `thanks for the hint, keep a copy` asks for something
WAITS: Final = APPROVALS | PREAMBLE | STATEMENTS | REPEATED | {
    "later", "no", "closing", "condition", "copula", "doubt", "remark", "understood", "unsure", "verdict_frame",
}  # fmt: skip
POINTING: Final = APPROVALS | {"copula", "filler", "glue", "object", "only", "polite", "repeats", "thanks", "vocative"}
WAITS_UNTIL: Final = WAITS | {UNKNOWN, "detail", "other", "thing"}
STRETCHABLE: Final = APPROVALS | {"filler", "no", "stop", "praise", "thanks", "polite"}
KINDS: Final = (APPROVALS | RESTATEMENTS | PREAMBLE | STRETCHABLE) | {
    "addition", "cancel", "change", "change_of_mind", "closing", "condition", "copula", "detail", "doubt", "glue",
    "indefinite", "keep", "later", "needless", "negator", "object", "only", "other", "past", "question", "remark",
    "reported", "understood", "unsure", "verdict_frame", "why_not", "yet",
}  # fmt: skip
LEXICON: Final = WordList("lexicon.toml", partial(lexicon.parse_lexicon, kinds=KINDS, stretchable=STRETCHABLE))
ONLY_ALONE: Final = APPROVALS | {"applause"}
_SAFEST_FIRST: Final = ("reject", "amend", "confirm", "none")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a message is as a reply to a question."""

    verdict: Verdict
    rule: str  # the name of the rule that decided, for logs and the answer
    language: str | None = None  # an ISO 639-1 code
    strength: Strength | None = None  # of a `confirm`: whether it is enough for a step that changes the world
    carries_yes: bool = False  # of an `amend` or a `none`: it has an explicit yes that nothing takes back
    added: tuple[str, ...] = ()  # the content words, folded, that the question does not account for
    changes: bool = False  # of an `amend` or a `none` too: a word of it wants something else


def classify(text: str, *, question: Question | None = None) -> Acknowledgement:
    """Returns how a message answers a question. Never raises; a message too long to be an answer is `none`."""
    text = with_plain_prices(text, question.words) if question and len(text) <= LONGEST_MESSAGE else text
    own = own_words(text)
    utterance = parse_own_words(own[:LONGEST_MESSAGE])
    if len(own) > LONGEST_MESSAGE or len(utterance.words) > MOST_WORDS:
        return Acknowledgement("none", "too_long")
    whole = _read(utterance, own, question, corrects=True)
    if utterance.quotes or own != text:
        is_quotation = whole.found.rule in ("more_than_a_reply", "nothing_decided")
        return replace(whole.found, rule="quoted") if is_quotation else whole.found
    if whole.found.verdict == "reject" or whole.found.strength == "strong":
        return whole.found
    return _by_sentence(text, whole, question)


def _by_sentence(text: str, whole: "_Reading", question: Question | None) -> Acknowledgement:
    sentences, found = sentences_of(text), whole.found
    parts = [_read(parse_own_words(each), each, question) for each in sentences] if len(sentences) > 1 else [whole]
    shown = question.context_words if question else frozenset()
    if any(part.found.strength == "strong" for part in parts) and all(
        _asks_for_nothing(part, sentence, shown) for part, sentence in zip(parts, sentences, strict=True)
    ):
        return Acknowledgement("confirm", "yes_and_remarks", found.language, "strong")
    if whole.unknown and whole.phrases <= MOST_MIXED and _is_mixed_yes(text, question):
        return Acknowledgement("confirm", "yes_in_two_languages", None, "strong")
    if found.verdict == "confirm":
        return found
    if found.verdict == "none" and (refusal := _refusal_in(text, question)):
        return replace(refusal, added=found.added)
    # One of the sentences is a yes, and none takes it back.
    replies = [part.reply for part in parts]
    yeses = [r for r in replies if r.approves and not r.asks and not r.has("reported", "past") and r.may_change]
    carries_yes = bool(yeses) and not any(reply.is_unsettled for reply in replies)
    return replace(found, carries_yes=carries_yes, changes=whole.reply.has("change", "condition"))


def _refusal_in(text: str, question: Question | None) -> Acknowledgement | None:
    """Returns the no of a clause if the others only say why: `we stay at home tonight, leave it`."""
    clauses = [clause for sentence in sentences_of(text) for clause in CLAUSE_END.split(sentence) if words_of(clause)]
    parts = [_read(parse_own_words(each), each, question) for each in clauses] if len(clauses) > 1 else []
    refusals = [part.found for part in parts if part.found.verdict == "reject"]
    reasons = [part.reply for part in parts if part.found.verdict != "reject"]
    if any(each.asks or each.has(*DECIDES) or (each.has("reported") and not each.added) for each in reasons):
        return None
    return min(refusals, key=lambda found: found.rule in POSTPONES, default=None)


def _is_mixed_yes(text: str, question: Question | None) -> bool:
    """Returns whether the first word or two, and the rest, are each a strong yes in a language: `si, go ahead`."""

    def is_plain_yes(part: str) -> bool:
        reading = _read(parse_own_words(part), part, question)
        return reading.found.strength == "strong" and not reading.reply.has(*RESTATEMENTS)

    words = text.split()
    splits = ((words[:at], words[at:]) for at in range(1, min(len(words), 3)))
    return any(all(is_plain_yes(" ".join(part)) for part in parts) for parts in splits)


def _asks_for_nothing(part: "_Reading", sentence: str, shown: frozenset[str]) -> bool:
    """Returns whether a sentence beside a yes changes nothing: it repeats the question, praises, thanks or remarks."""
    reply, new = part.reply, {*part.found.added} - shown
    if reply.is_whole:
        return part.found.rule in BESIDE_A_YES
    if reply.opening != "remark" or reply.added > MOST_REMARKED or not reply.kinds <= REMARKS:
        return False
    goes_on = " و" in sentence or CLAUSE_END.search(sentence)
    return not goes_on and all(new.isdisjoint(words_of(each)) for each in sentence.split()[1:] if is_value(each))


def _read(utterance: Utterance, text: str, question: Question | None, *, corrects: bool = False) -> "_Reading":
    """Returns the reading in the language that fits best; one that `corrects` may find a misspelt yes."""
    question_words = question.words if question else frozenset()
    words = _without_decoration([each for word in utterance.words for each in _spelt(word, question_words)])
    read = partial(_read_in, asks=utterance.asks, question=question)
    readings = [read(words, language) for language in languages_of(without_written(question, words), LEXICON.now)]
    likely = detect_language(text) if len(readings) > 1 else None
    best = min(readings, key=lambda reading: (*reading.misfit, reading.found.language != likely))
    if best.found.strength == "strong" and best.found.language and _says_no_elsewhere(words, best.found.language):
        return replace(best, found=replace(best.found, rule="no_elsewhere", strength="weak"))
    is_typo = corrects and best.unknown == 1 and not best.reply.approves  # `yes, Anna` has a yes already
    return (_as_misspelt(words, read) if is_typo else None) or best


def _spelt(word: str, question_words: frozenset[str]) -> Phrase:
    """Returns a word as the lists have it, and an Arabic `and` apart from the word that it is written onto: `وشكرا`."""
    known, rest = LEXICON.now.speakers, word[1:]
    if word[0] == AND and word not in known and (rest in known or rest in question_words):
        return (AND, rest)
    return (word if word in question_words else lexicon.unstretch(word, LEXICON.now),)


def _as_misspelt(words: Phrase, read: "Callable[[Phrase, str], _Reading]") -> "_Reading | None":
    """Returns the weak yes that the message is if its one unknown word is a misspelt one."""
    for at, word in enumerate(words):
        near = () if word in LEXICON.now.speakers else words_near(word, lexicon.words_of_kinds(LEXICON.now, APPROVALS))
        for plain, language in near:
            corrected = read((*words[:at], plain, *words[at + 1 :]), language)
            if corrected.found.strength == "strong" and corrected.reply.opening in APPROVALS and not corrected.unknown:
                return replace(corrected, found=replace(corrected.found, rule="misspelt", strength="weak"))
    return None


def _says_no_elsewhere(words: Phrase, language: str) -> bool:
    """Returns whether a little word of this language is a no in most others: `s no` of a Portuguese `sim, no hotel`."""
    noes = [(word,) for word in words if kinds_of((word,), ANY_LANGUAGE, LEXICON.now) == ["no"]]
    return any(kinds_of(word, language, LEXICON.now)[0] in STATEMENTS for word in noes)


def _without_decoration(words: list[str]) -> Phrase:
    """Drops emoji of no kind, and approving ones after a word: `thanks 👍` is thanks, `👍` alone is a yes."""
    shared = LEXICON.now.phrases[ANY_LANGUAGE]().matches
    first_spoken = next((at for at, word in enumerate(words) if not is_emoji(word)), len(words))
    return tuple(
        word
        for at, word in enumerate(words)
        if not is_emoji(word) or (word in shared and (at < first_spoken or shared[word][0] not in ONLY_ALONE))
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """Words read in one language: the verdict, and the reply they were read as."""

    found: Acknowledgement
    reply: "_Reply"
    unknown: int
    phrases: int

    @property
    def misfit(self) -> tuple[int, int, int]:
        """The reading with the fewest unknown words is best, then the one with the longest phrases, then the safest."""
        return self.unknown, self.phrases, _SAFEST_FIRST.index(self.found.verdict)


def _read_in(words: Phrase, language: str, *, asks: bool, question: Question | None) -> _Reading:
    prefer = partial(kind_beside, question, language) if question else None
    phrases = lexicon.phrases_of(words, language, LEXICON.now, prefer=prefer)
    ends = question is not None and not ENDS.isdisjoint(question.actions)
    said = {kind for kind, _ in phrases}
    counts = question.counts if question else frozenset()
    counted = {_ALL_OF[kind] for kind in kinds_of(words, language, SELECTION.now) if kind in _ALL_OF}
    meant = {
        "cancel": "act" if question is None and {"yes", "go_ahead"} <= said else "cancel",  # `yes, go on and cancel it`
        "keep": "no" if ends and said.isdisjoint(CONTENT) else UNKNOWN,  # `keep the file`, but not `keep a copy`
        "needless": "remark" if ends else "no",
        "only": "glue" if counts == {1} and said <= POINTING else "condition",  # `only that one`
        "addition": "addition" if not counted else "named" if counted <= counts else "change",  # `both`, of two
        "yet": "later" if said & NOT and said <= WAITS | NOT | {"yet"} else "change",  # `still not`, or `still more`
    }
    phrases = [(meant.get(kind, kind), phrase) for kind, phrase in phrases]
    is_miscounted = question is not None and not counted <= counts  # `both`, of one, of three or of any number
    kinds = [*(kind for kind, _ in phrases), *["condition" if counts else "change"] * is_miscounted]
    reply = _reply_of(_after_change_of_mind(kinds), asks=asks)
    rule, verdict = next((rule, verdict) for rule, verdict, holds in _RULES if holds(reply))
    strength: Strength | None = ("weak" if rule in WEAK else "strong") if verdict == "confirm" else None
    added = tuple(word for kind, phrase in phrases if kind in CONTENT for word in phrase)
    found = Acknowledgement(verdict, rule, None if language == ANY_LANGUAGE else language, strength, added=added)
    return _Reading(found, reply, unknown=kinds.count(UNKNOWN), phrases=len(kinds))


def _after_change_of_mind(kinds: list[str]) -> list[str]:
    """Drops a decision that is taken back. What follows is another (`yes, but actually no`), else a condition."""
    if "change_of_mind" not in kinds:
        return kinds
    last = len(kinds) - 1 - kinds[::-1].index("change_of_mind")
    before, after = kinds[:last], kinds[last + 1 :]
    if DECISIONS.isdisjoint(after):
        return [*before, "condition", *after]
    return [kind for kind in before if kind not in TAKEN_BACK] + after


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the rules look at."""

    kinds: frozenset[str]  # those in the message
    opening: str  # the kind it opens with
    added: int  # how many words add to the plan
    talk: int  # how many are little words, of which sentences are made and answers are not
    repeated: int  # how many words the question says too
    asks: bool

    def has(self, *kinds: str) -> bool:
        return not self.kinds.isdisjoint(kinds)

    @property
    def approves(self) -> bool:
        return self.has(*APPROVALS)

    @property
    def is_whole(self) -> bool:
        """Whether nothing in it changes or adds to the plan."""
        return not self.added and self.kinds.isdisjoint(CHANGES)

    @property
    def is_unsettled(self) -> bool:
        """Whether it takes back a yes beside it. A mere question beside it (`can you check if …?`) does not."""
        if self.asks and not self.approves:
            return self.opening in UNSETTLED or self.has("later", "stop", "doubt")
        return self.has(*UNSETTLED)

    @property
    def may_change(self) -> bool:
        """Whether it opens with a decision, and adds so little that it may be about the plan."""
        most = MOST_IN_AN_ORDER if self.opening == "go_ahead" else MOST_ADDED_WORDS
        return not self.added or (self.added <= most and self.opening in {*APPROVALS, *CHANGES, "no"})


def _reply_of(kinds: list[str], *, asks: bool) -> _Reply:
    found = set(kinds)
    if "praise" in found and "verdict_frame" in kinds[: len(kinds) - kinds[::-1].index("praise")]:
        found.add("accept")  # `sounds perfect`
    found |= {meant for kind, meant in (("unsure", "accept"), ("why_not", "yes")) if kind in found}
    if not {("copula", each) for each in APPROVALS}.isdisjoint(pairwise(kinds)):
        found.discard("copula")  # `yes, 120 is right` is more than a fact
    if found & REPEATED or all(after in PREAMBLE for kind, after in pairwise([*kinds, ""]) if kind == "addition"):
        found.discard("addition")  # `yes, and cancel it`, `yes, and thanks`
    if "understood" in found and found & {"repeats", "polite"} | APPROVALS & {*kinds[kinds.index("understood") :]}:
        found.remove("understood")  # `ok, I see, do it`
    if kinds[-3:] in (["condition", "no", "repeats"], ["condition", "negator", "repeats"]):
        found.discard("condition")  # `ok, but don't send it` of a plan to send it
    if kinds.count("no") > 1:
        found.add("negator")  # `no, don't send it` in languages with one word for both
    from_cancel = {*kinds[kinds.index("cancel") :]} if "cancel" in found else set[str]()
    if from_cancel & {UNKNOWN, BESIDE} or (found & APPROVALS and from_cancel & {"thing", "act"}):
        found.remove("cancel")  # `cancel B` is more than a no, `yes, cancel the booking` repeats a plan to cancel it
    return _Reply(
        kinds=frozenset(found),
        opening=next((kind for kind in kinds if kind not in PREAMBLE), ""),
        added=sum(kind in (UNKNOWN, BESIDE, "other") for kind in kinds)
        + sum(kind in RESTATEMENTS and not _restates(at, kinds) for at, kind in enumerate(kinds)),
        talk=sum(kind in STATEMENTS for kind in kinds),
        repeated=sum(kind in REPEATED for kind in kinds),
        asks="question" in found or (asks and "why_not" not in found),
    )


def _restates(at: int, kinds: list[str]) -> bool:
    """Returns whether the word at this place repeats the plan: it does in `yes, book it`, it adds in `yes, hotel`."""
    before, others = kinds[:at], {*kinds[:at], *kinds[at + 1 :]}
    if kinds[at] == "task":
        return bool(others & {"go_ahead", "act", "repeats", "stop", "cancel", "no", "negator"})
    if others.isdisjoint({*APPROVALS, "negator"}):
        return False
    if kinds[at] == "act":
        return bool(others & {"negator", "go_ahead", "cancel", "object", *RESTATEMENTS})
    if before[-1:] == ["indefinite"] and "yes" not in before:
        return False
    return before[-1:] in (["object"], ["verdict_frame"]) or bool(others & {"act", "cancel", "go_ahead"})


# The first rule that holds decides; tests/plans has an example of each. A doubtful yes is no yes: a second question
# costs little, a wrong yes runs what the user did not approve.
_RULES: Final[tuple[tuple[str, Verdict, Callable[[_Reply], bool]], ...]] = (
    ("question", "none", lambda r: r.asks and r.added > 0),
    ("doubt", "none", lambda r: r.has("doubt") and not r.has("no", "stop", "later")),
    ("reported", "none", lambda r: r.has("reported") and r.opening != "no"),
    ("later", "reject", lambda r: r.has("later") and r.kinds <= WAITS),
    (NOT_BEFORE, "reject", lambda r: r.opening == "later" and r.added <= MOST_IN_AN_ORDER and r.kinds <= WAITS_UNTIL),
    ("no_with_a_reason", "reject", lambda r: r.opening == "no" and r.has("thanks", "closing", "negator", "later")),
    ("no_with_a_change", "amend", lambda r: r.has("no") and r.has(*DEEDS) and r.may_change and not r.has("thanks")),
    ("no_and_go_ahead", "none", lambda r: r.has("no") and r.has("go_ahead") and not r.has("negator", "stop", "cancel")),
    ("no", "reject", lambda r: r.has("no") and not r.added and not r.asks),
    ("stop", "reject", lambda r: r.has("stop") and r.is_whole),
    ("no_and_more", "reject", lambda r: r.opening == "no" and r.may_change and not r.asks),
    ("past", "none", lambda r: r.has("past")),
    ("question_with_a_detail", "none", lambda r: r.has("question") and r.has(*CHANGES)),
    ("negated", "reject", lambda r: r.has("negator") and r.is_whole and not r.asks),
    ("yes_with_a_change", "amend", lambda r: r.approves and r.has(*CHANGES, "later") and r.may_change),
    ("repeats_or_cancels", "none", lambda r: r.has("repeats_cancel") and not r.approves and not r.has("negator")),
    ("cancel", "reject", lambda r: r.has("cancel") and r.is_whole),
    # A content word makes a yes a change unless the question has it: another booking number would be another deed.
    ("yes_and_more", "amend", lambda r: r.approves and r.added > 0 and r.may_change),
    ("more_than_a_reply", "none", lambda r: not r.is_whole),
    ("question", "none", lambda r: r.has("question")),
    ("asks_to", "confirm", lambda r: r.asks and r.kinds >= {"yes", "polite"} and r.has(*ORDERS)),  # `yes, could you?`
    ("question", "none", lambda r: r.asks),
    ("order", "none", lambda r: r.has("thing") and not r.has("yes", "accept")),
    ("goodbye", "none", lambda r: r.has("closing")),
    ("opinion", "none", lambda r: r.has("opinion") and (r.opening in STATEMENTS or not r.approves)),
    ("statement", "confirm", lambda r: r.approves and (r.opening in TELLING or r.talk - r.repeated > MOST_TALK)),
    ("fact", "confirm", lambda r: {"yes", "copula", "named"} <= r.kinds <= TELLING | {"yes", "copula", "filler"}),
    (
        "praise_of_a_deed",
        "confirm",
        lambda r: r.kinds >= {"praise", "repeats"} and r.talk > 0 and r.opening != "yes" and not r.has("go_ahead"),
    ),
    ("understood", "confirm", lambda r: r.has("understood") and r.opening in ("yes", "accept")),
    ("unsure", "confirm", lambda r: r.has("unsure") and not r.has("go_ahead", "repeats")),
    ("yes", "confirm", lambda r: r.has("yes")),
    ("accept", "confirm", lambda r: r.has("accept") and not r.has("go_ahead", "repeats")),
    ("go_ahead", "confirm", lambda r: r.has("go_ahead", "repeats")),
    ("praise", "confirm", lambda r: r.has("praise", "applause") and r.kinds <= PRAISES),
    ("thanks_alone", "none", lambda r: r.has("thanks")),
    ("nothing_decided", "none", lambda _: True),
)

_PLACES: Final = ("first", "second", "third", "fourth", "fifth")
_RANGES: Final[Mapping[str, tuple[int, int | None]]] = {  # from which of those that wait, and up to which
    **{place: (at, at + 1) for at, place in enumerate(_PLACES)},
    "first_two": (0, 2),
    "first_three": (0, 3),
    "last": (-1, None),
    "last_two": (-2, None),
}
_ALL_OF: Final[Mapping[str, int]] = {"both": 2, "all_three": 3, "all_four": 4, "all_five": 5}
_PICKS: Final = frozenset({"all", "only", "but", *_ALL_OF, *_RANGES})
_WORDS: Final = _PICKS | {"and"}
# Kinds of the lexicon that pick nothing, and leave a pick a pick.
_BESIDE: Final = APPROVALS | {"polite", "thanks", "glue", "object", "filler", "vocative", "repeats", "named"}
# Where what is left out is named before the word that leaves it out: `sonuncusu hariç`.
_AFTERTHOUGHTS: Final = frozenset({"ja", "ko", "tr", "hi"})

SELECTION: Final = WordList("selection.toml", partial(lexicon.parse_lexicon, kinds=_WORDS))


def chosen_of(message: str, questions: Mapping[int, Question]) -> frozenset[int] | None:
    """Returns which of several steps a message picks: `yes, cancel B1`. None if it is for all or for none."""
    utterance = parse_own_words(message)
    if utterance.asks or utterance.quotes or not utterance.words:
        return None
    words, shown = utterance.words, joined(questions.values(), frozenset.intersection)
    languages = dict.fromkeys([*languages_of(words, SELECTION.now), *languages_of(words, LEXICON.now)])
    picked = filter(None, (_chosen(words, each, [*questions], shown) for each in languages))
    return next(picked, None) or _named(message, questions)


def _named(message: str, questions: Mapping[int, Question]) -> frozenset[int] | None:
    """Returns the steps without which the message, a strong yes to all, would say more than the question."""
    left = {each: joined([shown for at, shown in questions.items() if at != each]) for each in (None, *questions)}
    is_yes = {each: classify(message, question=shown).strength == "strong" for each, shown in left.items()}
    return frozenset(each for each in questions if is_yes[None] and not is_yes[each]) or None


def _chosen(words: Phrase, language: str, ids: Sequence[int], shown: Question) -> frozenset[int] | None:
    picks = _picks_in(words, language, shown)
    if any(_ALL_OF.get(pick, len(ids)) != len(ids) for pick in picks) or {*picks} & {*_PLACES[len(ids) :]}:
        return None
    picks = ["all" if pick in _ALL_OF else pick for pick in picks]
    left_out, named = set[int](), set[int]()
    at_but = picks.index("but") if "but" in picks else None
    for at, kind in enumerate(picks):
        is_after = at_but is not None and (at < at_but if language in _AFTERTHOUGHTS else at > at_but)
        (left_out if is_after else named).update(ids[slice(*_RANGES[kind])] if kind in _RANGES else ())
    if at_but is not None:
        is_split = named and language not in _AFTERTHOUGHTS  # `the first not, the second yes`: which is left out?
        return frozenset((named or {*ids}) - left_out) or None if left_out and not is_split else None
    if named and "all" not in picks:
        return frozenset(named)
    is_all = "all" in picks and (not named or picks == ["all", *_PLACES[len(ids) - 1 : len(ids)]])
    return frozenset(ids) if is_all else None  # `all 3` is all if there are three


def _picks_in(words: Phrase, language: str, shown: Question) -> list[str]:
    """Returns the words that pick, none if the message says more than that."""
    kinds: list[str] = []
    prefer = partial(kind_beside, shown, language)
    kinds_beside = partial(kinds_of, language=language, lexicon=LEXICON.now, prefer=prefer)
    for kind, phrase in lexicon.phrases_of(words, language, SELECTION.now):
        is_no = kind == UNKNOWN and kinds_of(phrase, ANY_LANGUAGE, LEXICON.now) == ["no"]  # `1 yes, 2 no`
        is_hour = phrase[0].isdigit() and kinds[-1:] in (["and"], ["glue"]) and _PICKS.isdisjoint(kinds)  # `at 2`
        kinds += ["no"] if is_no or is_hour else [kind] if kind != UNKNOWN else kinds_beside(phrase)
    places = [at for at, kind in enumerate(kinds) if kind in _PICKS] or [len(kinds)]
    picks, between = [kind for kind in kinds if kind in _PICKS], kinds[places[0] : places[-1]]
    # `Thanks for everything` picks nothing, nor do `all good` and `the first, I mean the second`; `not only the first`
    # says nothing of the others.
    allowed = _BESIDE if APPROVALS.isdisjoint(kinds) else _BESIDE | REPEATED  # `cancel both` alone is no yes to that
    if not {*kinds} <= _WORDS | allowed or "thanks" in kinds[: places[0]] or {"but", "only"} <= {*picks}:
        return []
    is_all_of_them = {"accept", "filler", "yes"}.isdisjoint(kinds[places[0] :]) or not {"all", *_ALL_OF} & {*picks}
    return picks if {*between} <= _WORDS | {"glue", "object"} and is_all_of_them else []


def conversation_language(newest_first: Iterable[str]) -> str | None:
    """Returns the language (ISO 639-1) of the newest message that shows one: stock replies of two languages do not."""
    replies: list[tuple[str, list[str]]] = []
    found = None
    for text in map(own_words, newest_first):
        if not (shown := detect_language(text, default="")):
            continue
        if not (languages := _languages_of_reply(text)):
            found = shown
            break
        replies.append((shown, languages))
    for shown, languages in reversed(replies):
        found = found if found in languages else shown
    return found


def _languages_of_reply(text: str) -> list[str]:
    """Returns the languages in which all of a text is words of the lexicon."""
    if len(text) > LONGEST_REPLY:
        return []
    words = tuple(lexicon.unstretch(word, LEXICON.now) for word in words_of(text))
    return [each for each in languages_of(words, LEXICON.now) if UNKNOWN not in kinds_of(words, each, LEXICON.now)]
