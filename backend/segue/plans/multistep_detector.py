"""Whether a message asks for several things in a row, and what it says about the web. Each yes costs a model call, so a
word such as "then" counts only between two requests. The words: `multistep.toml`, `search.toml`. Pure.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Literal, get_args

from segue.language import lexicon
from segue.language.utterance import fold, parse_utterance, sentences_of, split_folded, words_of

LONGEST_READ: Final = 2_000  # characters; the rest of a longer message does not count

SEARCH_WORD_KINDS: Final = frozenset({"request", "search", "web", "topic"})
# What may stand in a message that is a query as it is.
QUERY_KINDS: Final = SEARCH_WORD_KINDS | {"general", "greeting", "lead", "origin", "newest", lexicon.UNKNOWN}
# What stands around the question itself.
REQUEST_KINDS: Final = frozenset({"request", "search", "web", "greeting", "lead", "thanks"})
SEARCH_KINDS: Final = QUERY_KINDS - {lexicon.UNKNOWN} | {
    "earlier", "forbid", "private", "own", "deed", "task", "personal", "thanks", "from_newest", "aside",
}  # fmt: skip
SEARCH_LEXICON: Final = lexicon.WordList("search.toml", partial(lexicon.parse_lexicon, kinds=SEARCH_KINDS))

_WORD_START: Final = re.compile(r"(?<!\w)\w|[\u3040-\u30ff\u3400-\u9fff]")
_AROUND_A_QUESTION: Final = " ,.;:!–—-、，。！،"
_MOST_AROUND: Final = 16  # words, or letters of a script without spaces
# The kinds of the words of a message as a text of letters, of which patterns say what stands near what.
_LETTERS: Final = {"own": "o", "newest": "n", "from_newest": "f", "origin": "s", "task": "d", "deed": "d", "aside": "d"}
_NEWEST_OF_OWN: Final = re.compile(r"[nf].{0,3}o")
_FROM_OWN: Final = re.compile(r"(?:s.{0,8}n|f).{0,3}o|n.{0,3}o.{0,4}s.*d")  # Japanese has it before the verb


def search_readings(message: str) -> list[list[str]]:
    """Returns the kinds of the words in a message, in every language that uses most of them."""
    words, known = parse_utterance(message[:LONGEST_READ]).words, SEARCH_LEXICON.now
    return [lexicon.kinds_of(words, language, known) for language in lexicon.languages_of(words, known)]


def without_request(message: str) -> str:
    """Returns a message without the request for a search around it: `please search the web for …, thanks`."""
    for language in lexicon.languages_of(parse_utterance(message).words, SEARCH_LEXICON.now):
        starts = [start for start in map(re.Match.start, _WORD_START.finditer(message)) if start]
        before = (at for at in starts[:_MOST_AROUND] if _is_around(message[:at], language))
        after = (at for at in starts[-_MOST_AROUND:] if _is_around(message[at:], language))
        begin, end = max(before, default=0), min(after, default=len(message))
        if (begin or end < len(message)) and begin < end:
            return message[begin:end].strip(_AROUND_A_QUESTION)
    return message


def _is_around(part: str, language: str) -> bool:
    return REQUEST_KINDS.issuperset(lexicon.kinds_of(words_of(part), language, SEARCH_LEXICON.now))


def asks_for_the_web(kinds: Sequence[str]) -> bool:
    return "request" in kinds or ("search" in kinds and "web" in kinds)


def needs_own_things_first(message: str) -> bool:
    """Returns whether the newest mail, file or such has to be read before a search or an action."""
    for kinds in search_readings(message):
        letters = "".join(_LETTERS.get(kind, "-") for kind in kinds)
        searches = asks_for_the_web(kinds) and _NEWEST_OF_OWN.search(letters)
        if searches or ("d" in letters and _FROM_OWN.search(letters)):
            return True
    return False


VerbPlace = Literal["first", "last", "either", "anywhere"]

VERB_PLACES: Final[Mapping[str, VerbPlace]] = {place: place for place in get_args(VerbPlace)}

VERBS: Final = frozenset({"act", "tell"})
READ: Final = VERBS | {"act_and", "first", "sequence"}  # a sentence counts in each language that has one of these in it
KINDS: Final = READ | {"having", "joiner", "shield", "idle", "asking", "explaining"}
WORDS_BEFORE_VERB: Final = 5  # as in `I would like you to find`
WORDS_AFTER_VERB: Final = 2
MANY_REQUESTS: Final = 3  # in separate sentences

_QUOTED: Final = re.compile(
    r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|«[^»]*»|“[^”]*”|„[^“”]*[“”]|「[^」]*」|『[^』]*』"
    r"|(?<!\w)'[^'\n]+'(?!\w)",
    re.DOTALL,
)
_PIECE_END: Final = re.compile(r"[,，、،:：&+]|[-=]>|→|\s[-–—]+\s")
_ITEM: Final = re.compile(r"^[ \t]*(?:\(?\d{1,2}[.)、．）:]|\(?[a-h]\)|[-*•‣▪◦·–—]\s|[①-⑳])[ \t]*(\S.*)$", re.MULTILINE)
_INLINE_ITEMS: Final = re.compile(  # only the first beginning is tried: what follows no other 1) follows it
    r"\A(?>.*?(?:(?<![\w.])1[.)、．）]|①))(.+?)(?:(?<![0-9A-Za-z.])2[.)、．）]|②)(.+)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Cues:
    """`phrases` gives language and kind of a phrase; `joiners` are those a language writes onto the next word."""

    phrases: lexicon.PhraseMatcher[tuple[str, str]]
    verb_place: Mapping[str, VerbPlace]
    joiners: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Cue:
    """`words` is its length; `joined` is true if a joiner is written onto it."""

    kind: str
    words: int
    joined: bool


CuesAtWord = Mapping[str, _Cue]  # the longest cue of each language that begins at a word


@dataclass(frozen=True, slots=True)
class _Clause:
    """`sequenced` is true after a sequence word; `follows_verb` if a verb is just before it (`lies sie dann`)."""

    kinds: tuple[str, ...]
    place: VerbPlace
    sequenced: bool
    follows_verb: bool

    @property
    def requests(self) -> list[str]:
        """The kinds of its verbs that ask for something: one a clause, unless each verb form is a clause of its own."""
        asked = [kind for at, kind in enumerate(self.kinds) if kind in VERBS and self._asks(at)]
        return asked if self.place == "anywhere" else sorted(asked)[:1]

    def _asks(self, at: int) -> bool:
        if at and self.kinds[at - 1] == "shield":
            return False
        first, last = at < WORDS_BEFORE_VERB, at >= len(self.kinds) - 1 - WORDS_AFTER_VERB
        return {"first": first, "last": last, "either": first or last, "anywhere": True}[self.place]


Sentence = Sequence[_Clause]


def asks_for_several_steps(message: str) -> bool:
    """Returns whether a plan may be worth a model call. What stands in quotation marks does not count."""
    text = _QUOTED.sub(" ", message[:LONGEST_READ])
    if any(map(_are_in_a_row, _sentences(text).values())) or needs_own_things_first(text):
        return True
    listed: list[str] = _ITEM.findall(text)  # a list has two items or more, one a line or `1) … 2) …` in a line
    inline = _INLINE_ITEMS.search(text)
    items = listed if len(listed) > 1 else inline.groups() if inline else ()
    read_items = (sentences for item in items for sentences in _sentences(item).values())
    return any(clause.requests for sentences in read_items for sentence in sentences for clause in sentence)


def _are_in_a_row(sentences: Iterable[Sentence]) -> bool:
    """Two requests with a sequence word between them or after a `first`, two in a sentence, or MANY_REQUESTS in all."""
    acts, asked_before, is_first_asked = 0, False, False
    for sentence in sentences:
        asked_here = any("having" in clause.kinds for clause in sentence)
        for clause in sentence:
            if is_first_asked and clause.sequenced and clause.kinds[0] != "shield":
                return True
            is_first_asked |= "first" in clause.kinds[:2] and "shield" not in clause.kinds[:2]
            for request in clause.requests:
                if (asked_before and clause.sequenced) or (asked_here and request == "act"):
                    return True
                asked_before = asked_here = True
                acts += request == "act"
    return acts >= MANY_REQUESTS


def _sentences(text: str) -> dict[str, list[Sentence]]:
    """Returns the sentences of a text by language."""
    read: dict[str, list[Sentence]] = defaultdict(list)
    for sentence in sentences_of(text):
        spoken = filter(None, map(words_of, _PIECE_END.split(sentence)))
        pieces = [[_cues_at(words, at) for at in range(len(words))] for words in spoken]
        cues = (cue for piece in pieces for found in piece for cue in found.items())
        for language in dict.fromkeys(language for language, cue in cues if cue.kind in READ):
            kinds = [kind for piece in pieces for kind in (*_kinds(piece, language), "comma")]
            if kinds[0] == "asking":  # what is asked about is not asked for, as in `tell me how to …`
                kinds = []
            elif "explaining" in kinds:
                kinds = kinds[: kinds.index("explaining")]
            read[language].append(_clauses(kinds, CUES.now.verb_place[language]))
    return read


def _cues_at(words: lexicon.Phrase, at: int) -> CuesAtWord:
    found: dict[str, _Cue] = {}
    for length, (language, kind) in CUES.now.phrases.all_at(words, at):
        found.setdefault(language, _Cue(kind, length, joined=False))
    for joining, joiners in CUES.now.joiners.items():
        if joining not in found and words[at][0] in joiners:
            for length, (language, kind) in CUES.now.phrases.all_at((words[at][1:], *words[at + 1 :]), 0):
                if language == joining:
                    found.setdefault(language, _Cue(kind, length, joined=True))
    return found


def _kinds(piece: Sequence[CuesAtWord], language: str) -> Iterator[str]:
    at = 0
    while at < len(piece):
        cue = piece[at].get(language)
        if cue is None:
            yield "word"
            at += 1
            continue
        if cue.joined:
            yield "joiner"
        yield from ("act", "joiner") if cue.kind == "act_and" else (cue.kind,)
        at += cue.words


def _clauses(kinds: Iterable[str], place: VerbPlace) -> Sentence:
    clauses: list[_Clause] = []
    clause: list[str] = []
    sequenced = follows_verb = False
    for kind in (*kinds, "comma"):
        if kind not in ("comma", "joiner", "sequence"):
            clause.append(kind)
            continue
        if clause:
            clauses.append(_Clause(tuple(clause), place, sequenced, follows_verb))
            sequenced, follows_verb = False, not VERBS.isdisjoint(clause[-2:])
            clause = []
        sequenced |= kind == "sequence"
    return [  # `lies dann die neueste` is as sequenced as `dann lies die neueste`
        replace(clause, sequenced=True)
        if following and following.sequenced and following.follows_verb and not following.requests
        else clause
        for clause, following in zip_longest(clauses, clauses[1:])
    ]


def parse_cues(sections: Mapping[str, Mapping[str, Any]]) -> Cues:
    """Reads `multistep.toml`. Raises ValueError for unknown lists and places, short stems, and phrases in two lists."""
    entries: list[tuple[str, tuple[str, str]]] = []
    places: dict[str, VerbPlace] = {}
    for language, section in sections.items():
        if (place := section["verb"]) not in VERB_PLACES:
            raise ValueError(f"[{language}] verb is {place!r}; it is one of {', '.join(VERB_PLACES)}")
        places[language] = VERB_PLACES[place]
        lists = {name: fold(words) for name, words in section.items() if name not in ("verb", "attached")}
        kinds = lexicon.kinds_by_phrase(language, lists, KINDS, phrase_of=_phrase)
        entries += ((phrase, (language, kind)) for phrase, kind in kinds.items())
    attached = {language: section["attached"] for language, section in sections.items() if "attached" in section}
    joiners = {language: frozenset(lexicon.split_list(words)) for language, words in attached.items()}
    return Cues(lexicon.match_phrases(entries), places, joiners)


def _phrase(folded: str) -> lexicon.Phrase:
    words = split_folded(folded)
    return (*words[:-1], words[-1] + lexicon.ANY_ENDING) if words and folded.endswith(lexicon.ANY_ENDING) else words


CUES: Final = lexicon.WordList("multistep.toml", parse_cues)
