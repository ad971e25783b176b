"""Reads and checks the word lists, which are TOML files that a speaker of a language can correct without reading code.

Knows nothing of what a list is for.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from typing import Any

from segue.language.utterance import words_of

Phrase = tuple[str, ...]


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
) -> dict[Phrase, str]:
    """Returns the phrases of a language, each with the name of its list, which is its kind.

    Raises ValueError if a list is none of `kinds`, or if a phrase is in two lists.
    """
    found: dict[Phrase, str] = {}
    for kind, words in lists.items():
        if kind not in kinds:
            raise ValueError(f"[{language}] has a list called {kind!r}; the lists are {', '.join(sorted(kinds))}")
        for phrase in filter(None, map(phrase_of, split_list(words))):
            if found.setdefault(phrase, kind) != kind:
                raise ValueError(f"[{language}] has {' '.join(phrase)!r} in both {found[phrase]!r} and {kind!r}")
    return found
