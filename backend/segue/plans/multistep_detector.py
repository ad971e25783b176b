"""Does this message ask for several things in a row? Cheap signs in many languages, from `cues.toml`.

Pure. Each true costs a model call, so a sequence word counts only between two requests. Knows nothing of tools and
plans; `policy.py` stands above, `wordlists.py` and `utterance.py` below.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Final, Literal, get_args

from segue.language.utterance import words_of
from segue.language.word_lists import Phrase, kinds_by_phrase, listed, read_toml

VerbPlace = Literal["first", "last", "either", "anywhere"]

KINDS: Final = frozenset(
    {"act", "act_and", "tell", "sequence", "having", "joiner", "shield", "idle", "asking", "explaining"}
)
VERB_PLACES: Final[Mapping[str, VerbPlace]] = {place: place for place in get_args(VerbPlace)}

LONGEST_READ: Final = 2_000  # characters; a longer message is read up to here
SHORTEST_STEM: Final = 3
ANY_ENDING: Final = "*"
VERBS: Final = frozenset({"act", "tell"})
BOUNDARIES: Final = frozenset({"comma", "joiner", "sequence"})
WORDS_BEFORE_VERB: Final = 5  # as in `I would like you to find`
WORDS_AFTER_VERB: Final = 2
MANY_REQUESTS: Final = 3  # in separate sentences

_QUOTED: Final = re.compile(
    r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|«[^»]*»|“[^”]*”|„[^“”]*[“”]|「[^」]*」|『[^』]*』", re.DOTALL
)
_SENTENCE_END: Final = re.compile(r"[.!?]+(?=\s|$)|[。！？；;؛؟।\n]+")
_PIECE_END: Final = re.compile(r"[,，、،:：&+]|[-=]>|→|\s[-–—]+\s")
_ITEM: Final = re.compile(r"^[ \t]*(?:\(?\d{1,2}[.)、．）:]|\(?[a-h]\)|[-*•‣▪◦·–—]\s|[①-⑳])[ \t]*(\S.*)$", re.MULTILINE)
_INLINE_ITEMS: Final = re.compile(r"(?:(?<![\w.])1[.)、．）]|①)(.+?)(?:(?<![0-9A-Za-z.])2[.)、．）]|②)(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cue:
    language: str
    phrase: Phrase
    kind: str


@dataclass(frozen=True, slots=True)
class Cues:
    """`phrases` by first word, shortest first; `stems` by the letters that a word begins with."""

    phrases: Mapping[str, tuple[Cue, ...]]
    stems: Mapping[str, tuple[Cue, ...]]
    verb_place: Mapping[str, VerbPlace]
    attached: Mapping[str, frozenset[str]]


# The cue of each language that begins at a word, and whether a joiner is written onto it.
Found = Mapping[str, tuple[Cue, bool]]


@dataclass(frozen=True, slots=True)
class _Clause:
    """`sequenced` is true after a sequence word; `follows_verb` where a verb stood just before it (`lies sie dann`)."""

    kinds: tuple[str, ...]
    place: VerbPlace
    sequenced: bool
    follows_verb: bool

    @property
    def requests(self) -> list[str]:
        """The kinds of its verbs that ask for something; one a clause, unless each verb form is a clause of its own."""
        asked = [kind for at, kind in enumerate(self.kinds) if kind in VERBS and self._asks(at)]
        return asked if self.place == "anywhere" else sorted(asked)[:1]

    @property
    def has_one_done_first(self) -> bool:
        return "having" in self.kinds

    def _asks(self, at: int) -> bool:
        if at and self.kinds[at - 1] == "shield":
            return False
        first, last = at < WORDS_BEFORE_VERB, at >= len(self.kinds) - 1 - WORDS_AFTER_VERB
        return {"first": first, "last": last, "either": first or last, "anywhere": True}[self.place]


Sentence = Sequence[_Clause]


def asks_for_several_steps(message: str) -> bool:
    text = _QUOTED.sub(" ", message[:LONGEST_READ])
    return any(map(_are_in_a_row, _read(text).values())) or any(map(_asks, _items(text)))


def _items(text: str) -> Sequence[str]:
    """The items of a list with two or more, one a line or `1) … 2) …` in a line."""
    items: list[str] = _ITEM.findall(text)
    inline = _INLINE_ITEMS.search(text)
    return items if len(items) > 1 else inline.groups() if inline else ()


def _asks(text: str) -> bool:
    return any(clause.requests for sentences in _read(text).values() for sentence in sentences for clause in sentence)


def _are_in_a_row(sentences: Iterable[Sentence]) -> bool:
    acts, asked_before = 0, False
    for sentence in sentences:
        asked_here = any(clause.has_one_done_first for clause in sentence)
        for clause in sentence:
            for request in clause.requests:
                if (asked_before and clause.sequenced) or (asked_here and request == "act"):
                    return True
                asked_before = asked_here = True
                acts += request == "act"
    return acts >= MANY_REQUESTS


def _read(text: str) -> dict[str, list[Sentence]]:
    """The sentences of a text, by each language that has a verb in them."""
    read: dict[str, list[Sentence]] = defaultdict(list)
    for sentence in _SENTENCE_END.split(text):
        pieces = [_find_cues(words) for words in map(words_of, _PIECE_END.split(sentence)) if words]
        for language in _languages_with_verbs(pieces):
            kinds = _until_asking([kind for piece in pieces for kind in (*_kinds(piece, language), "comma")])
            read[language].append(_clauses(kinds, CUES.verb_place[language]))
    return read


def _find_cues(words: Phrase) -> list[Found]:
    return [_cues_at(words, at) for at in range(len(words))]


def _cues_at(words: Phrase, at: int) -> Found:
    found = {cue.language: (cue, False) for cue in _cues_with(words[at], words[at + 1 :])}
    for language, joiners in CUES.attached.items():
        if language not in found and words[at][0] in joiners:
            cues = _cues_with(words[at][1:], words[at + 1 :])
            found.update({cue.language: (cue, True) for cue in cues if cue.language == language})
    return found


def _cues_with(word: str, following: Phrase) -> list[Cue]:
    """Shortest first, so that of one language the longest is the last."""
    stems = [CUES.stems[word[:length]] for length in range(SHORTEST_STEM, len(word) + 1) if word[:length] in CUES.stems]
    return [
        cue
        for cue in chain(*stems, CUES.phrases.get(word, ()))
        if len(cue.phrase) == 1 or _begins_with(following, cue.phrase[1:])
    ]


def _begins_with(words: Phrase, phrase: Phrase) -> bool:
    *whole, last = phrase
    if len(words) < len(phrase) or words[: len(whole)] != tuple(whole):
        return False
    return words[len(whole)].startswith(last[:-1]) if last.endswith(ANY_ENDING) else words[len(whole)] == last


def _languages_with_verbs(pieces: Iterable[Iterable[Found]]) -> Iterable[str]:
    return dict.fromkeys(
        language
        for piece in pieces
        for found in piece
        for language, (cue, _) in found.items()
        if cue.kind in ("act", "act_and", "tell")
    )


def _kinds(piece: Sequence[Found], language: str) -> Iterator[str]:
    at = 0
    while at < len(piece):
        cue, attached = piece[at].get(language, (None, False))
        if attached:
            yield "joiner"
        yield from ("act", "joiner") if cue and cue.kind == "act_and" else (cue.kind if cue else "word",)
        at += len(cue.phrase) if cue else 1


def _until_asking(kinds: list[str]) -> list[str]:
    if kinds[0] == "asking":
        return []
    return kinds[: kinds.index("explaining")] if "explaining" in kinds else kinds


def _clauses(kinds: Iterable[str], place: VerbPlace) -> Sentence:
    clauses: list[_Clause] = []
    clause: list[str] = []
    sequenced = follows_verb = False
    for kind in kinds:
        if kind not in BOUNDARIES:
            clause.append(kind)
            continue
        if clause:
            clauses.append(_Clause(tuple(clause), place, sequenced, follows_verb))
            sequenced, follows_verb = False, not VERBS.isdisjoint(clause[-2:])
            clause = []
        sequenced |= kind == "sequence"
    if clause:
        clauses.append(_Clause(tuple(clause), place, sequenced, follows_verb))
    return _with_words_after_the_verb(clauses)


def _with_words_after_the_verb(clauses: Sentence) -> Sentence:
    """`lies dann die neueste` is as sequenced as `dann lies die neueste`."""
    return [
        replace(clause, sequenced=True) if following and _belongs_to_verb_before(following) else clause
        for clause, following in zip_longest(clauses, clauses[1:])
    ]


def _belongs_to_verb_before(clause: _Clause) -> bool:
    return clause.sequenced and clause.follows_verb and not clause.requests


def parse_cues(toml: str) -> Cues:
    """Raises ValueError on a list it does not know, a short stem, or a phrase in two lists of one language."""
    sections = tomllib.loads(toml)
    cues = [cue for language, section in sections.items() for cue in _section(language, section)]
    return Cues(
        phrases=_by_first_word(cue for cue in cues if not _is_stem(cue)),
        stems={word.removesuffix(ANY_ENDING): stems for word, stems in _by_first_word(filter(_is_stem, cues)).items()},
        verb_place={language: _verb_place(language, section["verb"]) for language, section in sections.items()},
        attached={
            language: frozenset(listed(section["attached"]))
            for language, section in sections.items()
            if "attached" in section
        },
    )


def _section(language: str, section: Mapping[str, str]) -> list[Cue]:
    lists = {name: words for name, words in section.items() if name not in ("verb", "attached")}
    kinds = kinds_by_phrase(language, lists, KINDS, phrase_of=_phrase)
    for phrase, kind in kinds.items():
        if phrase[0].endswith(ANY_ENDING) and (len(phrase) > 1 or len(phrase[0]) <= SHORTEST_STEM):
            raise ValueError(f"[{language}] {kind} has {' '.join(phrase)!r}: too little to tell a word by")
    return [Cue(language, phrase, kind) for phrase, kind in kinds.items()]


def _verb_place(language: str, name: str) -> VerbPlace:
    if name not in VERB_PLACES:
        raise ValueError(f"[{language}] verb is {name!r}; it is one of {', '.join(VERB_PLACES)}")
    return VERB_PLACES[name]


def _phrase(text: str) -> Phrase:
    words = words_of(text)
    return (*words[:-1], words[-1] + ANY_ENDING) if words and text.endswith(ANY_ENDING) else words


def _is_stem(cue: Cue) -> bool:
    return cue.phrase[0].endswith(ANY_ENDING)


def _by_first_word(cues: Iterable[Cue]) -> dict[str, tuple[Cue, ...]]:
    """Shortest phrase first."""
    grouped: dict[str, list[Cue]] = defaultdict(list)
    for cue in sorted(cues, key=lambda cue: len(cue.phrase)):
        grouped[cue.phrase[0]].append(cue)
    return {word: tuple(entries) for word, entries in grouped.items()}


CUES: Final = parse_cues(read_toml("multistep.toml"))
