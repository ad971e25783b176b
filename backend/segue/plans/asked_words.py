"""What a question shows of the waiting step: a reply that only repeats that adds nothing. `actions.toml`. Pure."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final

from segue.language.detect_language import ENGLISH, detect_language
from segue.language.lexicon import UNKNOWN, Phrase, PhraseMatcher, WordList, match_lists, split_list
from segue.language.utterance import QUOTATION, QUOTED, UNSPACED, is_unspaced, sentences_of, words_of
from segue.language.written_values import HOUR, PRICED, SIGNS, WHOLE, is_written, names_in, prices_in, without_dates
from segue.plans.value_origins import leaves

LONGEST_DESCRIPTION: Final = 400  # characters
LONGEST_ARGUMENT: Final = 80  # characters; who is named in the text of a mail is not who it goes to
LONGEST_OFFER: Final = 1_000  # characters
LONGEST_ANSWER: Final = 4_000  # characters
SHORTEST_OFFER: Final = 4  # words; `shall I delete it?`
MOST_SENTENCES: Final = 3  # an offer stands in the last ones of an answer
LONGEST_WRITTEN: Final = 6  # words of a date or a price
LONGEST_CHOICE: Final = 4  # words behind an `or`: `or to Marco`, but not `or would you rather have a look at it first`
NEAR: Final = 3  # words between a `not` and the action
AND: Final = "و"  # is written onto the word behind it
ANY_ACTION: Final = "do"
CANCEL: Final = "cancel"
# Kinds of words that add nothing if the question has the words too.
ACCOUNTED: Final = frozenset({"act", "change", "detail", "glue", "other", "task", "thing", UNKNOWN})
BESIDE: Final = "beside"
REFUSALS: Final = ("no", "stop")  # Turkish `silme` is a deletion, and `do not delete`
BORROWED: Final = frozenset({"act", "cancel", "thing", UNKNOWN})  # may be an English word in any language

_NAME_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# A list with the line that announces it, if only one line follows it, or one in the last line.
_LIST: Final = re.compile(r"(?m)(^.*[:：][ *]*\n+)?(^ *([-*•]|\d+[.)、]) [^?？؟\n]*\n+)+.*\Z|\b1[.)、].*\b2[.)、].*+\Z")
_ITEM: Final = re.compile(r"(?:(?m:^) *[-*•]|(?<![^\s:：])(\d{1,2})[.)、])(?=\s|[^\W\d])")
_DETAIL: Final = re.compile(r"(?m)^ *(?:[-*•]|\d+[.)、]) [^\n:：\d.@]*[:：]")
_ID: Final = re.compile(r"(?<![a-z0-9_-])(?=[0-9_-]*[a-z]|\d{4})[a-z0-9_-]*\d[a-z0-9_-]*")  # or a long number
_NO_NAMES: Final[frozenset[str]] = frozenset()
_QUESTION_MARKS: Final = "?？؟"
_CLAUSE_END: Final = re.compile(r"(?<=[,;.!?…])\s+|(?<=[，；、。！？،؛؟)）\n])|(?=[(（])|\s[–—-]\s")
_QUOTED_NAME: Final = re.compile(rf".(?:[^\s{UNSPACED}]+|[{UNSPACED}]{{1,4}}).")
_PIECE: Final = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+|\s+")
_NO_CUES: Final = frozenset({"after", "attached", "before", "joins", "picks"})


@dataclass(frozen=True, slots=True)
class Question:
    """What a step does, to what, by lists of `actions.toml`, and its words. `context_words` are the whole answer."""

    actions: frozenset[str] = frozenset()
    things: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    context_words: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()  # of the offer alone, which offers no `other` of a sentence before it
    counts: frozenset[int] = frozenset()  # how many things it may be of: `both` is said of two


@dataclass(frozen=True, slots=True)
class ActionWords:
    """A language's words for actions and things, and its pronouns beside an action."""

    actions: PhraseMatcher[str]
    things: PhraseMatcher[str]
    attached: tuple[str, ...]  # pronouns on an action
    after: PhraseMatcher[str]  # pronouns after one
    before: PhraseMatcher[str]  # pronouns before one
    spoken: PhraseMatcher[str]  # numbers and hours in words, by how `words` of a question name them
    cues: PhraseMatcher[str]  # words that offer to do something or ask for something else
    first_person: PhraseMatcher[str]  # actions in the first person
    joins: frozenset[str]  # `and`, `but`
    picks: PhraseMatcher[str]  # what picks an item of a list, by its number
    covers: Mapping[str, frozenset[str]]  # what a tool named by a general action may do: `update_booking` may upgrade
    arguments: PhraseMatcher[str]  # words in the name of an argument that counts, has a price, a time, or a receiver

    def action_at(self, words: Phrase, at: int) -> tuple[int, frozenset[str]]:
        """Returns how many words from this one on name an action, pronouns included, and the names of that action."""
        start = at + _longest(self.before, words, at)[0]
        start = at if self.thing_at(words, start)[0] else start  # Portuguese `a reserva` is the booking
        length, names = _longest(self.actions, words, start)
        if not length and start < len(words):
            stems = (words[start].removesuffix(each) for each in self.attached if words[start].endswith(each))
            with_pronoun = (_longest(self.actions, (stem,), 0) for stem in stems)
            length, names = next((each for each in with_pronoun if each[0]), (0, _NO_NAMES))
        end = start + length
        while length and (more := _longest(self.after, words, end)[0]):
            end += more
        return (end - at if length else 0), names

    def thing_at(self, words: Phrase, at: int) -> tuple[int, frozenset[str]]:
        """Returns how many words from this one on name a thing, and the names of its kinds."""
        return _longest(self.things, words, at)

    def offers(self, words: Phrase, *, asks: bool) -> bool | None:
        """Returns whether a sentence offers to do one thing, None if nothing, False for a choice or a condition."""
        framed = False
        for at in range(len(words)):
            here = self.cues_at(words, at)
            if "asks" in here:
                return None
            acts = (framed or (asks and at == 0)) and self.action_at(words, at)[1] - {ANY_ACTION}
            if acts or "offer" in here or (asks and "asked" in here):
                return "only_if" not in _named(self.cues, words) and not self._is_either(words, at)
            framed = framed or "frame" in here
        return None

    def _is_either(self, words: Phrase, at: int) -> bool:
        """Returns whether an offer, from a word on, is of one thing or another: `keep it or delete it`, `A or B`."""
        turn, other = self.first("turns", words, at), self.first("either", words, at)
        if self.first("asks", words, min(turn, other)) < len(words):
            return False
        is_more = any(
            self.action_at(words, each)[0] or self.thing_at(words, each)[0] for each in range(turn + 1, len(words))
        )
        is_short = 0 < len(words) - other - 1 <= LONGEST_CHOICE
        return is_more or is_short or any(map(str.isdecimal, words[other:]))

    def has_value(self, text: str) -> bool:
        """Returns whether there is a digit in a text, or a name: a capital within a sentence that no thing has."""
        within = chain.from_iterable(each.split()[1:] for each in sentences_of(text))
        names = (word for word in within if is_value(word) and not self.thing_at(words_of(word), 0)[0])
        return any(map(str.isdigit, text)) or any(names)

    def cues_at(self, words: Phrase, at: int) -> frozenset[str]:
        return _longest(self.cues, words, at)[1]

    def first(self, cue: str, words: Phrase, start: int = 0) -> int:
        """Returns the place of the first word with a cue, how many words there are if none has it."""
        return next((at for at in range(start, len(words)) if cue in self.cues_at(words, at)), len(words))

    def has_cue(self, line: str, cue: str) -> bool:
        return cue in _named(self.cues, words_of(line))

    def acts_at(self, words: Phrase, at: int) -> frozenset[str]:
        return (self.action_at(words, at)[1] | _longest(self.first_person, words, at)[1]) - {ANY_ACTION}

    def clauses(self, sentence: str) -> Iterator[list[str]]:
        """Yields the clauses of a sentence, each as its words, letters of unspaced scripts, and spaces."""
        for part in _CLAUSE_END.split(sentence):
            clause: list[str] = []
            for piece in _PIECE.findall(part):
                if clause and (piece[0] == AND or piece.lower() in self.joins):
                    yield clause
                    clause = []
                clause.append(piece)
            yield clause

    def leaves_out_from(self, words: Phrase, actions: frozenset[str]) -> int | None:
        """Returns the word from which a clause says what is kept from an action: `delete A | except B`; or None."""
        at, before = 0, frozenset[str]()
        while at < len(words):
            (length, cues), acting = _longest(self.cues, words, at), self.action_at(words, at)[0]
            near = frozenset().union(*(self.acts_at(words, each) for each in range(at + 1, at + 1 + NEAR)))
            is_first = at == (words[0] in self.joins) and len(words) - at <= LONGEST_CHOICE  # `and not to Marco`
            if "spares" in cues or ("negates" in cues and (is_first or near & actions)):
                return at if before else 0
            before |= self.acts_at(words, at)
            at += max(length, acting, 1)
        return None

    def sides(self, sentence: str) -> tuple[str, str]:
        """Returns the old and the new in a sentence if it names both: `move it | from A | to B`, `replace A | by B`."""
        pieces = _PIECE.findall(sentence)
        words, places = _placed(pieces)
        for cue, turn in (("from", "to"), ("replaces", "by")):
            old = self.first(cue, words)
            new = self.first(turn, words, old + 2)
            if new < len(words) and self.joins.isdisjoint(words[old:new]):
                said, beside, *_ = *_CLAUSE_END.split("".join(pieces[places[new] :])), ""
                return "".join(pieces[places[old] : places[new]]), said + beside * beside.startswith(("(", "（"))
        return "", ""

    def meant(self, words: Phrase) -> frozenset[str]:
        """Returns the actions in an offer, by verbs, else by nouns: `cancel the booking` books none."""
        actions = [self.action_at(words, at) for at in range(len(words))]
        things = [self.thing_at(words, at) for at in range(len(words))]
        nouns = {at + word for at, (length, _) in enumerate(things) for word in range(length)}
        verbs = [names for at, (length, names) in enumerate(actions) if at + length - 1 not in nouns]
        by_verbs = _named(self.first_person, words).union(*verbs) - {ANY_ACTION}
        return by_verbs or frozenset().union(*(names for _, names in actions + things)) - {ANY_ACTION}

    def until(self, cue: str, words: Phrase) -> Phrase:
        return words[: self.first(cue, words)]

    def forms(self, action: str) -> frozenset[str]:
        """Returns the words for an action, those of one word also with a pronoun; none that names a thing as well."""
        listed = (phrase for phrase, names in self.actions.matches.items() if action in names)
        plain = {phrase for phrase in listed if phrase not in self.things.matches}
        return frozenset(plain | {word + ending for word in plain if " " not in word for ending in self.attached})


def question_of(tool: str | None, description: str, args: Mapping[str, Any] | None) -> Question:
    """Returns the question for a step: the names in its tool, its description and its short arguments."""
    description = description[:LONGEST_DESCRIPTION]
    named = _named_by(ACTIONS.now[ENGLISH], tool_words(tool)) if tool else Question()
    lists, described_words = ACTIONS.now.get(detect_language(description), ACTIONS.now[ENGLISH]), words_of(description)
    described = _named_by(lists, described_words, meant=named.actions)
    starts = (lists.action_at(described_words, at)[1] - {ANY_ACTION} for at in range(len(described_words)))
    acts = [bool(names) and not lists.thing_at(described_words, at)[0] for at, names in enumerate(starts)]
    if sum(act and not before for before, act in pairwise([False, *acts])) > 1:  # 转发 has 发 in it
        described, described_words = Question(), ()  # the words of a request for several steps say little of this one
    texts = (str(value) for _, value in leaves(args or {}) if value is not None)
    values = [each for each in texts if len(each) <= LONGEST_ARGUMENT]
    words = (*tool_words(tool or ""), *described_words, *chain.from_iterable(map(words_of, values)))
    shown = frozenset(words) | names_in(description, *values) | _amounts_in(args or {})
    sizes = [len(each) if isinstance(each, list) else each for each in (args or {}).values()]
    counts = frozenset([1, *(size for size in sizes if isinstance(size, int))])
    of = named.actions | described.actions, named.things | described.things
    return Question(*of, shown, offered=shown, counts=counts)


def joined(questions: Collection[Question], how: Callable[..., frozenset[Any]] = frozenset.union) -> Question:
    """Returns one question for several steps asked about together; with `frozenset.intersection` what all share."""
    whole = Question(*(how(*(getattr(each, name) for each in questions)) for name in Question.__slots__))
    return replace(whole, counts=frozenset({len(questions)})) if len(questions) > 1 else whole


def question_in(answer: str | None) -> Question | None:
    """Returns the question of the offer at the end of an answer, None if it ends with none."""
    offer = offer_in(answer)
    if answer is None or offer is None:
        return None
    lists = ACTIONS.now.get(detect_language(answer, default=detect_language(offer)))
    if lists is None or not lists.meant(words_of(unquoted(offer))):
        lists = ACTIONS.now[ENGLISH]  # `Shall I issue it?` looks Italian
    text = offer if lists.has_value(offer) else f"{_shown_before(offer, answer, lists)} {offer}"
    words, context = words_of(text), frozenset(words_of(answer[-LONGEST_ANSWER:]))
    items = {item[1] for item in _ITEM.finditer(offer) if item[1]} if _LIST.search(offer) else set()
    picks = items | {f"#{item}" for item in items} if "1" in items else set()  # `yes, 1` to a list is to one of it
    shown = (frozenset(words) | names_in(text)) - picks
    actions = lists.meant(words_of(unquoted(offer))) or lists.meant(words_of(unquoted(text)))
    of = actions, _named_by(lists, words).things, shown, context - picks
    return Question(*of, frozenset(words_of(offer)) - picks, _counts_in(text, lists))


def _counts_in(text: str, lists: ActionWords) -> frozenset[int]:
    """Returns how many things an offer may be of: as many as it lists, names, joins or says; none if it tells not."""
    if _LIST.search(text):
        return frozenset({len(_ITEM.findall(text))})
    bare = without_dates(unquoted(text))
    said = {int(name[1:]) for name in _named(lists.spoken, words_of(_ID.sub(" ", bare))) if name[0] == "#"}
    ids, clauses = {*_ID.findall(bare)}, [each for each in clauses_of(bare) if each.strip()]
    is_joined = any(each.startswith(AND) or not lists.joins.isdisjoint(words_of(each)[:1]) for each in clauses)
    return frozenset(said | {len(clauses) if is_joined and len(ids) <= 1 else len(ids)} - {0})


def is_value(word: str) -> bool:
    """Returns whether a word within a sentence may be a name, an id or a number."""
    return any(map(str.isdigit, word)) or (word[0].isupper() and re.split("['’.,!]", word, maxsplit=1)[0] != "I")


def _shown_before(offer: str, answer: str, lists: ActionWords) -> str:
    """Returns the words before an offer that may be of what it refers to: no names, and none if they have a turn."""
    before = " ".join(sentences_of(answer[-LONGEST_OFFER:])[: -len(sentences_of(offer))][-MOST_SENTENCES:])
    # A name in a sentence before may be another's than the one that is meant: what begins small is none.
    plain = (word for word in before.split() if word[0].islower() or any(map(str.isdigit, word)))
    return "" if lists.has_cue(before, "turns") else " ".join(plain)


def kind_beside(question: Question, language: str, words: Phrase, at: int, length: int, kind: str) -> tuple[int, str]:
    """Returns how many words to take here and their kind: `repeats` the action, `named` a word of the question."""
    number = max((_written_beside(question.words, words, at), "named"), _number_beside(question, language, words, at))
    return number if number[0] >= length else _action_beside(question, language, words, at, length, kind)


def without_written(question: Question | None, words: Phrase) -> Phrase:
    """Returns the words but for the dates and times of the question, which tell little of a language."""
    left: Phrase = ()
    while words:
        written = _written_beside(question.words, words, 0) if question else 0
        left, words = (*left, *words[: 0 if written else 1]), words[written or 1 :]
    return left


def _written_beside(shown: frozenset[str], words: Phrase, at: int) -> int:
    """Returns how many words write a date or a time of the question; 0 if none do."""
    for end in range(min(len(words), at + LONGEST_WRITTEN), at, -1):
        text = " ".join("".join(each if is_unspaced(each) else f" {each} " for each in words[at:end]).split())
        if is_written(text) and {each for each in names_in(text) if each[0] in "/@"} <= shown:
            return end - at
    return 0


def _number_beside(question: Question, language: str, words: Phrase, at: int) -> tuple[int, str]:
    """Returns how many words say a number or an hour that the question has, or another hour than it has; 0 if none."""
    lists = ACTIONS.now.get(language)
    spoken, names = _longest(lists.spoken, words, at) if lists else (0, _NO_NAMES)
    if not names.isdisjoint(question.words):
        return spoken, "named"
    has_hours = all(any(each.startswith(HOUR) for each in names_of) for names_of in (names, question.words))
    return (spoken if has_hours else 0), "detail"  # `at four`, of a table for four at eight


def _action_beside(
    question: Question, language: str, words: Phrase, at: int, length: int, kind: str
) -> tuple[int, str]:
    here = frozenset(word.removeprefix(QUOTED) for word in words[at : at + length])
    if kind == UNKNOWN and not here <= question.words:
        here = frozenset(word.removesuffix("s") for word in here)  # `Rossi's`
    lists = ACTIONS.now.get(language)
    acting, actions = lists.action_at(words, at) if lists else (0, frozenset())
    if not acting and kind in BORROWED:
        acting, actions = ACTIONS.now[ENGLISH].action_at(words, at)
    naming, things = lists.thing_at(words, at) if lists and kind not in REFUSALS else (0, frozenset())
    is_verb = acting > naming and not actions.isdisjoint(question.actions)  # `reserva la mesa`, book the table
    if naming >= length and things & (question.things | question.actions) and not is_verb:
        return naming, "named"
    if kind in (CANCEL, "stop") and lists and CANCEL in question.actions & lists.meant(words[at : at + length]):
        acting, actions = max(acting, length), frozenset({CANCEL})  # `I want to cancel`
    if (acting >= length and kind not in ("question", "yes")) or (acting and kind == "change"):
        if actions & question.actions:
            return acting, "repeats_cancel" if kind == "cancel" or CANCEL in actions else "repeats"
        other = kind if kind == "stop" else "other"  # `scrap that` of a booking
        return acting, "cancel" if CANCEL in actions else "repeats" if ANY_ACTION in actions else other
    if kind in ACCOUNTED and here <= (question.offered if kind == "change" else question.words):
        return length, "named"
    if naming >= length:
        return naming, kind if kind == CANCEL else "other"
    if kind == UNKNOWN and here <= question.context_words:
        kind = BESIDE
    return length, UNKNOWN if kind in ("act", "thing") else kind


def offer_in(text: str | None) -> str | None:
    """Returns the last sentences that offer to do something, with what a short one refers to; None if none does."""
    end = (text or "")[-LONGEST_OFFER:].rstrip()
    sentences = [each for each in sentences_of(end) if any(map(str.isalpha, each))]
    is_refused = False
    for at in range(-min(MOST_SENTENCES, len(sentences)), 0):
        words, asks = words_of(unquoted(sentences[at])), sentences[at].rstrip().endswith(tuple(_QUESTION_MARKS))
        readings = {lists.offers(words, asks=asks) for lists in ACTIONS.now.values()}
        if True in readings and False not in readings:
            acts, lists = names_action(sentences[at]), _lists_for(sentences[at])
            is_bare = not acts and not lists.has_value(sentences[at])  # `Do you want me to proceed?`, `진행할까요?`
            refers = len(words) <= SHORTEST_OFFER * (2 if is_bare else 1) and -at < len(sentences)
            if refers and (is_refused or _lists_for(sentences[at - 1]).has_cue(sentences[at - 1], "either")):
                return None
            listed = _listed(end, sentences[at])
            meant = _meant_of(listed, sentences[at])
            apart = "\n" if _ITEM.match(sentences[at - refers]) else " "
            return meant if listed and (acts or refers or meant != listed) else apart.join(sentences[at - refers :])
        is_refused = False in readings
    return None


def _listed(end: str, offer: str) -> str:
    """Returns the list that an answer ends with if its offer is of all of it: of actions, of details, or of `them`."""
    found, acts, lists = _LIST.search(end), names_action(offer), _lists_for(offer)
    listed = found[0].strip() if found else ""
    has_details = len(_DETAIL.findall(listed)) == len(_ITEM.findall(listed))
    if (has_details and not lists.has_value(offer)) or (acts and lists.has_cue(offer, "every")):
        return listed
    return listed if not acts and names_action(listed) else ""


def _meant_of(listed: str, offer: str) -> str | None:
    """Returns what an offer is of, of the list before it: all, the items that it picks, or none of a mere choice."""
    known, words = ACTIONS.now.values(), words_of(offer)
    places = {int(place) for lists in known for place in _named(lists.picks, words)}
    starts = [*(item.start() for item in _ITEM.finditer(listed)), len(listed)]
    items = [listed[start:end] for place, (start, end) in enumerate(pairwise(starts), 1) if place in places]
    if places:
        return " ".join((*items, offer))
    return None if any(lists.has_cue(listed[: starts[0]], "choice") for lists in known) else listed


def unquoted(text: str) -> str:
    """Returns a text without the quotations of more than one word, which say and offer nothing themselves."""
    return QUOTATION.sub(lambda found: found[0] if _QUOTED_NAME.fullmatch(found[0]) else " … ", text)


@lru_cache(maxsize=64)
def _lists_for(text: str) -> ActionWords:
    """Returns the lists that have most of a text's actions and of what it keeps from them: `cancello` looks Spanish."""
    words, likely = words_of(text[-LONGEST_OFFER:]), detect_language(text)

    def fit(language: str) -> tuple[int, bool]:
        lists, is_likely = ACTIONS.now[language], language == likely
        cues = (lists.acts_at(words, at) | lists.cues_at(words, at) & {"spares", "negates"} for at in range(len(words)))
        return sum(map(bool, cues)) + is_likely, is_likely

    return ACTIONS.now[max(ACTIONS.now, key=fit)]


def clauses_of(text: str) -> list[str]:
    lists = _lists_for(text)
    return ["".join(clause) for sentence in sentences_of(text) for clause in lists.clauses(sentence)]


def is_about(text: str, tool: str) -> bool:
    """Returns whether a text names a tool's action (not only how to do it) or, if it has none, its first word."""
    if actions := actions_of(tool):
        said = [_lists_for(text).until("tells", words) for words in _said(text)]
        return any(actions & lists.meant(words) for words in said for lists in ACTIONS.now.values())
    name = tuple(word for word in tool_words(tool) if word != "mcp")
    return any(word.startswith(name[:1]) for word in words_of(text))


def actions_of(tool: str) -> frozenset[str]:
    """Returns the actions that a tool's name says, and those that it may do besides; none if it says none."""
    actions = _named_by(ACTIONS.now[ENGLISH], tool_words(tool)).actions
    return actions.union(*(ACTIONS.now[ENGLISH].covers.get(action, ()) for action in actions))


def parted(text: str, tool: str, is_wanted: Callable[[str], bool]) -> tuple[str, str]:
    """Returns a text without what it keeps from a tool's action (`not B`, `from B`, `of 120`), and that."""
    lists, actions = _lists_for(text), actions_of(tool)
    kept, left_out, bare = list[str](), [found[0] for found in WHOLE.finditer(text)], WHOLE.sub(" ", text)
    if prices_in(PRICED.sub(" ", bare)):  # `40 euros for the order of 120`, not `the order of 120` alone
        left_out += [found[0] for found in PRICED.finditer(bare)]
        bare = PRICED.sub(" ", bare)
    for whole in sentences_of(bare):
        old, new = lists.sides(whole)
        is_left_behind = bool(old) and not is_wanted(new)
        left_out += [old] * is_left_behind
        sentence = whole.replace(old, " ", 1) if is_left_behind else whole
        is_left = False
        for clause in lists.clauses(sentence):
            words, places = _placed(clause)
            cut = lists.leaves_out_from(words, actions)
            is_left = cut is not None or (is_left and not any(lists.acts_at(words, at) for at in range(len(words))))
            first = places[cut or 0] if is_left else len(clause)
            kept.append("".join(clause[:first]))
            left_out.append("".join(clause[first:]))
    return (" ".join(kept), " ".join(left_out)) if any(map(str.strip, left_out)) else (text, "")


def _placed(pieces: Sequence[str]) -> tuple[Phrase, list[int]]:
    """Returns the words in pieces of a sentence, and the place of the piece of each, with the end behind the last."""
    owners = [(at, word) for at, piece in enumerate(pieces) for word in words_of(piece.removeprefix(AND))]
    return tuple(word for _, word in owners), [*(at for at, _ in owners), len(pieces)]


def is_agreed(tool: str, answer: str, reply: str) -> bool:
    """Returns whether the reply or the offer names a tool's action or, if the offer names none, the answer does."""
    offer = offer_in(answer) or ""
    # Of several actions that are offered, `yes, send the mail` picks one.
    named = is_about(reply, tool) or (is_about(offer, tool) and not names_same(reply, offer))
    return named or (not names_action(offer) and is_about(answer, tool))


def names_same(text: str, other: str) -> bool:
    """Returns whether two texts name the same action, in the language of either."""
    known = [ACTIONS.now.get(detect_language(each), ACTIONS.now[ENGLISH]) for each in (text, other)]
    one, two = ({each for lists in known for each in lists.meant(words_of(unquoted(said)))} for said in (text, other))
    return not one.isdisjoint(two)


def names_action(text: str) -> bool:
    """Returns whether a text names an action, other than to go on, before it asks for something else."""
    lists = ACTIONS.now.get(detect_language(text), ACTIONS.now[ENGLISH])
    return any(lists.meant(lists.until("asks", words)) for words in _said(text))


def _said(text: str) -> list[Phrase]:
    """Returns the words of each sentence at the end of a text, without quotations."""
    return [words_of(each) for each in sentences_of(unquoted(text[-LONGEST_OFFER:]))]


def last_question(text: str | None) -> str | None:
    """Returns the last question in a text, None if it asks nothing."""
    content = text or ""
    end = max(content.rfind(mark) for mark in _QUESTION_MARKS)
    return sentences_of(content[: end + 1])[-1] if end >= 0 else None


def tool_words(name: str) -> Phrase:
    """Returns the words in the name of a tool: `mcp_deleteEmail` gives `mcp`, `delete`, `email`."""
    return tuple(part.lower() for part in _NAME_PARTS.findall(name))


def is_named(path: str, kind: str) -> bool:
    """Returns whether the path of an argument has a word of a list of `arguments`, such as `prices`."""
    return kind in _named(ACTIONS.now[ENGLISH].arguments, tool_words(path))


def english_words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the English words for the actions, and for the things, that a text names in its language, or in any."""
    language, words = detect_language(text, default=""), words_of(text[:LONGEST_DESCRIPTION])
    known = [ACTIONS.now[language]] if language in ACTIONS.now else [*ACTIONS.now.values()]
    actions = {name for lists in known for at in range(len(words)) for name in lists.action_at(words, at)[1]}
    things = {name for lists in known for name in _named(lists.things, words)}
    english = ACTIONS.now[ENGLISH]
    listed = [*english.actions.matches.items(), *english.things.matches.items()]

    def single_words(names: set[str]) -> frozenset[str]:
        return frozenset(phrase for phrase, found in listed if " " not in phrase and not names.isdisjoint(found))

    return single_words(actions - {ANY_ACTION}), single_words(things)


def _named_by(lists: ActionWords, words: Phrase, *, meant: frozenset[str] = _NO_NAMES) -> Question:
    """Returns what words name. A word for both is a thing beside another action: `delete_order` buys nothing."""
    things = [lists.thing_at(words, at)[1] for at in range(len(words))]
    named = [lists.action_at(words, at)[1] - {ANY_ACTION} for at in range(len(words))]
    actions = [names & meant or names for names in named]
    plain = [found for found, thing in zip(actions, things, strict=True) if found and not thing]
    return Question(frozenset().union(*(plain or actions)), frozenset().union(*things))


def _amounts_in(args: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the prices in arguments: of numbers named so, or of the only one, and of currencies."""
    values = dict(leaves(args))
    numbers = {path: each for path, each in values.items() if isinstance(each, int | float)}
    named = {path for path in numbers if is_named(path.rpartition(".")[2], "prices")}
    amounts = [numbers[path] for path in named or (numbers if len(numbers) == 1 else ())]
    return SIGNS.intersection(f"${each}" for each in values.values() if each) | {f"${each:.15g}" for each in amounts}


def _spoken(numbers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the words for each number and each hour, from templates with an `N` for the number."""
    counted, hours = split_list(numbers.get("words", "")), split_list(numbers.get("hours", numbers.get("words", "")))
    spoken: dict[str, str] = {}
    clocks = (("clock", "@{}"), ("morning", "@{}am"), ("evening", "@{}pm"))
    for kind, name, forms in (("count", "#{}", counted), *((*clock, hours) for clock in clocks)):
        for at, form in enumerate(forms, 1):
            each = [*form.split("/"), str(at)]
            templates = split_list(numbers.get(kind, ""))
            spoken[name.format(at)] = ", ".join(one.replace("N", word) for one in templates for word in each)
    return spoken


def _longest(matcher: PhraseMatcher[str], words: Phrase, at: int) -> tuple[int, frozenset[str]]:
    found = matcher.all_at(words, at) if at < len(words) else []
    length = found[0][0] if found else 0
    return length, frozenset(name for words_found, name in found if words_found == length)


def _named(matcher: PhraseMatcher[str], words: Phrase) -> frozenset[str]:
    return frozenset(name for at in range(len(words)) for name in _longest(matcher, words, at)[1])


def _action_words(section: Mapping[str, Any]) -> ActionWords:
    first_person, picks = section.get("asked", {}), split_list(section.get("picks", ""))
    cues = {kind: words for kind, words in section.items() if isinstance(words, str) and kind not in _NO_CUES}
    return ActionWords(
        actions=match_lists(section["actions"]),
        things=match_lists(section["things"]),
        attached=tuple(chain.from_iterable(map(words_of, split_list(section.get("attached", ""))))),
        after=match_lists({"after": section.get("after", "")}),
        before=match_lists({"before": section.get("before", "")}),
        spoken=match_lists(_spoken(section.get("numbers", {}))),
        cues=match_lists(cues | {"asked": ", ".join(first_person.values())}),
        joins=frozenset(split_list(section.get("joins", ""))),
        first_person=match_lists(first_person),
        picks=match_lists({str(at): each.replace("/", ", ") for at, each in enumerate(picks, 1)}),
        covers={action: frozenset(split_list(covered)) for action, covered in section.get("covers", {}).items()},
        arguments=match_lists(section.get("arguments", {})),
    )


ACTIONS: Final[WordList[dict[str, ActionWords]]] = WordList(
    "actions.toml",
    lambda sections: {language: _action_words(section) for language, section in sections.items()},
    share=True,
)
