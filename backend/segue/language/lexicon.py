"""The words of a message by kind, in the language that it most likely is in.

The word lists are TOML files that a speaker can correct without reading code: those that ship, and what LANGUAGE_DIR
adds. The longest phrase at a word counts. `*` ends a stem. In scripts without spaces a word is a single character.
"""

import os
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property, lru_cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, Final, Generic, TypeVar

from segue.domain.errors import app_error
from segue.language.utterance import SHORTEST, WordsByLetter, fold, is_stretched, split_folded, squeeze, words_of

Phrase = tuple[str, ...]
Joined = str  # the words of a phrase with a space between each: takes a third less memory
ListItem = TypeVar("ListItem")
Table = Mapping[str, Any]

Meaning = TypeVar("Meaning")
Match = tuple[int, Meaning]  # how many words were found
# Of words, a place in them, and the length and kind of what the lexicon finds there: the length and kind to take.
Preference = Callable[[Phrase, int, int, str], tuple[int, str]]

ANY_LANGUAGE: Final = "any"
UNKNOWN: Final = "unknown"
ANY_ENDING: Final = "*"
SHORTEST_STEM: Final = 3  # letters
_ONE_WORD: Final = (1,)
_LANGUAGE: Final = re.compile("[a-z]{2,3}")
_WHOLE: Final = frozenset({"verb", "letters"})  # are no lists of phrases
_LISTS: Final[dict[str, "WordList[Any]"]] = {}


@dataclass(eq=False)
class WordList(Generic[ListItem]):
    """A word list file, read when it is first needed: `now` is what `read` makes of it. A folder replaces whole
    `sentences`, and adds to lists. A phrase stands in one list of its language, unless lists `share` it.
    """

    name: str
    read: Callable[[dict[str, Any]], ListItem]
    _: KW_ONLY
    sentences: bool = False
    share: bool = False
    own: ListItem | None = None  # what a folder makes of it

    def __post_init__(self) -> None:
        _LISTS[self.name] = self

    @cached_property
    def shipped(self) -> ListItem:
        return self.read(load_toml(self.name))

    @property
    def now(self) -> ListItem:
        return self.shipped if self.own is None else self.own


def read_all() -> None:
    """Reads what ships, which takes an eighth of the time of a start: a turn needs it, and no process to be ready."""
    for each in _LISTS.values():
        _ = each.now


def use_folder(folder: Path | None) -> None:
    """Adds a folder's lists to those that ship. Raises AppError `language_invalid`, and then nothing changes."""
    found = dict[WordList[Any], Any]()
    if folder is not None and not (os.access(folder, os.X_OK) and folder.is_dir()):
        raise app_error("language_dir_missing", folder=folder)
    for path in sorted(folder.glob("*.toml")) if folder else ():
        if path.name not in _LISTS:
            raise app_error("no_word_list", path=path, names=", ".join(sorted(_LISTS)))
        words = _LISTS[path.name]
        try:
            own, shipped = tomllib.loads(path.read_text(encoding="utf-8")), load_toml(path.name)
            found[words] = read = words.read(_merged(shipped, own, [shipped], words))
            _ = [made() for made in read.phrases.values()] if isinstance(read, Lexicon) else None  # to find its faults
        except KeyError as error:
            raise app_error("word_list_incomplete", path=path, what=error) from error
        except (OSError, ValueError) as error:
            raise app_error("language_invalid", path=path, why=error) from error
    for words in _LISTS.values():
        words.own = found.get(words)


def _merged(shipped: Table, own: Table, siblings: Sequence[Table], words: WordList[Any]) -> dict[str, Any]:
    """`siblings` are the tables that ship beside this one: what they have, it may have."""
    known = {name for table in siblings for name in table}
    by_language = "en" in known
    merged = dict(shipped) if by_language or words.share or words.sentences else _without_moved(shipped, own)
    for name, value in own.items():
        if name not in known and not (by_language and _LANGUAGE.fullmatch(name)):
            raise ValueError(f"it has {name!r}, which none of the lists that ship has")
        before = [each for table in siblings for at, each in table.items() if by_language or at == name]
        if not all(isinstance(value, type(each)) for each in before[:1]):
            raise ValueError(f"{name!r} has to be {'a table' if isinstance(before[0], dict) else 'a text'}")
        if isinstance(value, dict):
            tables = [each for each in before if isinstance(each, dict)]
            merged[name] = _merged(merged.get(name, {}), value, tables, words)
        elif words.sentences or name in _WHOLE:
            merged[name] = value
        else:
            merged[name] = f"{merged.get(name, '')}, {value}"
    return merged


def _without_moved(shipped: Table, own: Table) -> dict[str, Any]:
    """Returns what ships without the phrases that have another list in `own`."""
    lists = {name: value for name, value in own.items() if isinstance(value, str)}
    moved = {_phrase(each): name for name, listed in lists.items() for each in split_list(listed)}
    left = dict(shipped)
    for name, listed in shipped.items():
        if isinstance(listed, str) and name not in _WHOLE:
            left[name] = ", ".join(each for each in split_list(listed) if moved.get(_phrase(each), name) == name)
    return left


def _phrase(text: str) -> tuple[Phrase, bool]:
    return words_of(text), text.endswith("*")


def load_toml(name: str, *, package: str = "segue.language") -> dict[str, Any]:
    """Returns the content of a TOML file that ships as data of `package`."""
    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))


def split_list(words: str) -> list[str]:
    """Returns the entries of a comma-separated list."""
    return [word.strip() for word in words.split(",") if word.strip()]


def kinds_by_phrase(
    language: str, lists: Mapping[str, str], kinds: Collection[str], *, phrase_of: Callable[[str], Phrase]
) -> dict[Joined, str]:
    """Returns by phrase its list, which is its kind. Raises ValueError for unknown kinds and phrases in two lists."""
    found: dict[Joined, str] = {}
    for kind, words in lists.items():
        if kind not in kinds:
            raise ValueError(f"[{language}] has a list called {kind!r}; the lists are {', '.join(sorted(kinds))}")
        for said in filter(None, map(phrase_of, split_list(words))):
            phrase = " ".join(said)
            if found.setdefault(phrase, kind) != kind:
                raise ValueError(f"[{language}] has {phrase!r} in both {found[phrase]!r} and {kind!r}")
    return found


@dataclass(frozen=True, slots=True)
class PhraseMatcher(Generic[Meaning]):
    """Every step is a look-up by a whole phrase, so that the number of phrases does not matter."""

    matches: Mapping[Joined, tuple[Meaning, ...]]  # the values of a phrase
    lengths: Mapping[str, tuple[int, ...]]  # words of phrases that begin with a word, if one has more; longest first
    stem_lengths: Mapping[Joined, tuple[int, ...]]  # letters of stems that may follow some words, longest first

    def longest_at(self, words: Phrase, at: int) -> Match[Meaning] | None:
        found = self.all_at(words, at)
        return found[0] if found else None

    def all_at(self, words: Phrase, at: int) -> list[Match[Meaning]]:
        """Returns the value of every phrase that begins at this word, the longest first."""
        if not self.stem_lengths and words[at] not in self.lengths and words[at] not in self.matches:
            return []  # most words begin no phrase: this pays
        found: list[Match[Meaning]] = []
        for length in self.lengths.get(words[at], _ONE_WORD):
            here = words[at : at + length]
            if len(here) == length:
                found += [(length, value) for value in self.matches.get(" ".join(here), ())]
                if self.stem_lengths:
                    found += [(length, value) for value in self._stem_values(here)]
        return found

    def _stem_values(self, phrase: Phrase) -> Iterator[Meaning]:
        *before, last = phrase
        for letters in self.stem_lengths.get(" ".join(before), ()):
            if letters <= len(last):
                yield from self.matches.get(" ".join((*before, last[:letters] + ANY_ENDING)), ())


def match_phrases(entries: Iterable[tuple[Joined, Meaning]]) -> PhraseMatcher[Meaning]:
    """Raises ValueError if a phrase is a stem of fewer letters than SHORTEST_STEM, or begins with a stem."""
    matches: dict[Joined, tuple[Meaning, ...]] = {}
    shared: dict[tuple[Meaning, ...], tuple[Meaning, ...]] = {}  # tens of thousands of phrases have a few values
    lengths: dict[str, tuple[int, ...]] = {}
    stem_lengths: dict[Joined, tuple[int, ...]] = {}
    for phrase, value in entries:
        words = phrase.split(" ")
        first, last = words[0], words[-1]
        if last.endswith(ANY_ENDING):
            before = " ".join(words[:-1])
            stem_lengths[before] = _with_length(len(last) - 1, stem_lengths.get(before, ()))
        if first.endswith(ANY_ENDING) and (len(words) > 1 or len(last) <= SHORTEST_STEM):
            raise ValueError(f"{phrase!r}: too little to recognise a word by")
        values = (*matches.get(phrase, ()), value)
        matches[phrase] = shared.setdefault(values, values)
        if len(words) > 1:
            lengths[intern(first)] = _with_length(len(words), lengths.get(first, _ONE_WORD))
    return PhraseMatcher(matches, lengths, stem_lengths)


def match_lists(lists: Mapping[str, str]) -> PhraseMatcher[str]:
    """Returns what finds the names of the lists that have a phrase, which may be several."""
    folded = ((name, split_list(fold(words))) for name, words in lists.items())
    return match_phrases((" ".join(split_folded(phrase)), name) for name, phrases in folded for phrase in phrases)


@cache  # tens of thousands of words share a few
def _with_length(length: int, longest_first: tuple[int, ...]) -> tuple[int, ...]:
    return longest_first if length in longest_first else tuple(sorted((*longest_first, length), reverse=True))


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """`phrases` find kinds, `speakers` the languages of a word; `stretchable` has words by their squeezed form."""

    phrases: Mapping[str, Callable[[], PhraseMatcher[str]]]
    speakers: Mapping[str, tuple[str, ...]]
    stretchable: Mapping[str, str]


def parse_lexicon(
    sections: Mapping[str, Any], *, kinds: frozenset[str], stretchable: frozenset[str] = frozenset()
) -> Lexicon:
    """Reads languages, and `any`, which all share. `phrases` raise ValueError for unknown kinds, and phrases in two."""
    folded = {language: {kind: fold(words) for kind, words in lists.items()} for language, lists in sections.items()}
    speakers, stretched = dict[str, tuple[str, ...]](), dict[str, str]()
    for language, lists in folded.items():
        speaker = () if language == ANY_LANGUAGE else (language,)  # a shared word says nothing about the language
        for word in {word for words in lists.values() for word in split_folded(words)}:
            speakers[intern(word)] = _with(speaker, speakers.get(word, ()))
        phrases_held = (split_list(words) for kind, words in lists.items() if kind in stretchable)
        alone = (split_folded(phrase) for phrase in dict.fromkeys(chain(*phrases_held)) if " " not in phrase)
        stretched |= {squeeze(words[0]): words[0] for words in alone if len(words) == 1}

    def phrases_in(language: str) -> PhraseMatcher[str]:
        read = partial(kinds_by_phrase, kinds=kinds, phrase_of=split_folded)
        own, shared = (read(each, folded.get(each, {})) for each in (language, ANY_LANGUAGE))
        return match_phrases({**shared, **own}.items())

    return Lexicon({language: cache(partial(phrases_in, language)) for language in folded}, speakers, stretched)


def languages_of(words: Iterable[str], lexicon: Lexicon) -> list[str]:
    """Returns the languages that use most of the words, or `any` if no language uses one of them."""
    known = Counter(language for word in words for language in lexicon.speakers.get(word, ()))
    most = max(known.values(), default=0)
    return [language for language, count in known.items() if count == most] or [ANY_LANGUAGE]


def unstretch(word: str, lexicon: Lexicon) -> str:
    """Returns `yes` for `yesss`, and every word that the lexicon knows as it is."""
    if word in lexicon.speakers:
        return word
    plain = lexicon.stretchable.get(squeeze(word))
    return plain if plain and is_stretched(word, plain) else word


@lru_cache(maxsize=1)  # one reader asks for one set
def words_of_kinds(lexicon: Lexicon, kinds: frozenset[str]) -> WordsByLetter:
    """Returns the words of these kinds that may be misspelt, of all languages, for `words_near`."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for language, matcher in lexicon.phrases.items():
        for phrase, (kind, *_) in matcher().matches.items():
            if " " not in phrase and kind in kinds and language != ANY_LANGUAGE and len(phrase) >= SHORTEST:
                found[phrase[0]].append((phrase, language))
    return found


def kinds_of(words: Phrase, language: str, lexicon: Lexicon, prefer: Preference | None = None) -> list[str]:
    """Returns the kind of every phrase in order, with `unknown` for each word that is in no phrase."""
    return [kind for kind, _ in phrases_of(words, language, lexicon, prefer=prefer)]


def phrases_of(
    words: Phrase, language: str, lexicon: Lexicon, *, prefer: Preference | None = None
) -> list[tuple[str, Phrase]]:
    """Returns every phrase with its kind, `unknown` for a word in none. `prefer` may take another kind or length."""
    matcher = lexicon.phrases[language if language in lexicon.phrases else ANY_LANGUAGE]()
    phrases: list[tuple[str, Phrase]] = []
    at = 0
    while at < len(words):
        length, kind = matcher.longest_at(words, at) or (1, UNKNOWN)
        if prefer is not None:
            length, kind = prefer(words, at, length, kind)
        phrases.append((kind, words[at : at + length]))
        at += length
    return phrases


@cache  # most words share a few
def _with(speaker: tuple[str, ...], speakers: tuple[str, ...]) -> tuple[str, ...]:
    return speakers + speaker
