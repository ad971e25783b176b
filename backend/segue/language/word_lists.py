"""Reads and checks the word lists, which are TOML files that a speaker of a language can correct without reading code.

The lists are a process's: those that ship, and what the folder LANGUAGE_DIR adds to them. Knows nothing of what a list
is for.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from segue.domain.errors import AppError
from segue.language.utterance import words_of

Phrase = tuple[str, ...]
Joined = str  # the words of a phrase with a space between each: takes a third less memory
ListItem = TypeVar("ListItem")
Table = Mapping[str, Any]

_LANGUAGE: Final = re.compile("[a-z]{2,3}")
_WHOLE: Final = frozenset({"verb", "letters"})  # are no lists of phrases
_LISTS: Final[dict[str, "WordList[Any]"]] = {}


class WordList(Generic[ListItem]):
    """A word list file: `now` is what `read` makes of it. A folder replaces whole `sentences`, and adds to lists. A
    phrase stands in one list of its language, unless lists `share` it.
    """

    def __init__(
        self, name: str, read: Callable[[dict[str, Any]], ListItem], *, sentences: bool = False, share: bool = False
    ) -> None:
        self.sentences = sentences
        self.share = share
        self.read = read
        self.shipped = self.now = read(load_toml(name))
        _LISTS[name] = self


def use_folder(folder: Path | None) -> None:
    """Adds the lists of a folder to those that ship, in place of those of a folder before.

    Raises AppError `language_invalid`, which names the file and what to correct; then nothing changes.
    """
    found = {each: each.shipped for each in _LISTS.values()}
    if folder is not None and not folder.is_dir():
        raise _invalid(f"LANGUAGE_DIR={folder} is no folder. Correct it, or leave it out for the lists that ship.")
    for path in sorted(folder.glob("*.toml")) if folder else ():
        if path.name not in _LISTS:
            raise _invalid(f"{path} is no word list: those are {', '.join(sorted(_LISTS))}.")
        try:
            found[_LISTS[path.name]] = _read_with(_LISTS[path.name], path)
        except KeyError as error:
            raise _invalid(f"{path} lacks {error} for a language of its own.") from error
        except (OSError, ValueError) as error:
            raise _invalid(f"{path} cannot be used: {error}.") from error
    for each, read in found.items():
        each.now = read


def _read_with(words: WordList[ListItem], path: Path) -> ListItem:
    own, shipped = tomllib.loads(path.read_text(encoding="utf-8")), load_toml(path.name)
    return words.read(_merged(shipped, own, [shipped], words))


def _merged(shipped: Table, own: Table, siblings: Sequence[Table], words: WordList[Any]) -> dict[str, Any]:
    """`siblings` are the tables that ship beside this one: what they have, it may have."""
    known = {name for table in siblings for name in table}
    by_language = "en" in known
    shares = by_language or words.share or words.sentences
    merged = dict(shipped) if shares else _without_moved(shipped, own)
    for name, value in own.items():
        if name not in known and not (by_language and _LANGUAGE.fullmatch(name)):
            raise ValueError(f"it has {name!r}, which none of the lists that ship has")
        before = [each for table in siblings for at, each in table.items() if by_language or at == name]
        if not all(isinstance(value, type(each)) for each in before[:1]):
            raise ValueError(f"{name!r} has to be {'a table' if isinstance(before[0], dict) else 'a text'}")
        if isinstance(value, dict):
            merged[name] = _merged(
                merged.get(name, {}), value, [each for each in before if isinstance(each, dict)], words
            )
        elif words.sentences or name in _WHOLE:
            merged[name] = value
        else:
            merged[name] = f"{merged.get(name, '')}, {value}"
    return merged


def _without_moved(shipped: Table, own: Table) -> dict[str, Any]:
    """Returns what ships without the phrases that have another list in `own`."""
    lists = {name: value for name, value in own.items() if isinstance(value, str)}
    moved = {_phrase(each): name for name, listed in lists.items() for each in split_list(listed)}
    return {
        name: ", ".join(each for each in split_list(listed) if moved.get(_phrase(each), name) == name)
        if isinstance(listed, str) and name not in _WHOLE
        else listed
        for name, listed in shipped.items()
    }


def _phrase(text: str) -> tuple[Phrase, bool]:
    return words_of(text), text.endswith("*")


def _invalid(detail: str) -> AppError:
    return AppError("language_invalid", status=500, title="A word list cannot be used", detail=detail)


def load_toml(name: str, *, package: str = "segue.language") -> dict[str, Any]:
    """Returns the content of a TOML file that ships as data of `package`."""
    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))


def split_list(words: str) -> list[str]:
    """Returns the entries of a comma-separated list."""
    return [word.strip() for word in words.split(",") if word.strip()]


def kinds_by_phrase(
    language: str,
    lists: Mapping[str, str],
    kinds: Collection[str],
    *,
    phrase_of: Callable[[str], Phrase] = words_of,
) -> dict[Joined, str]:
    """Returns the phrases of a language, each with the name of its list, which is its kind.

    Raises ValueError if a list is none of `kinds`, or if a phrase is in two lists.
    """
    found: dict[Joined, str] = {}
    for kind, words in lists.items():
        if kind not in kinds:
            raise ValueError(f"[{language}] has a list called {kind!r}; the lists are {', '.join(sorted(kinds))}")
        for said in filter(None, map(phrase_of, split_list(words))):
            phrase = " ".join(said)
            if found.setdefault(phrase, kind) != kind:
                raise ValueError(f"[{language}] has {phrase!r} in both {found[phrase]!r} and {kind!r}")
    return found
