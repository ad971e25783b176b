"""Word lists in TOML that a speaker can correct without reading code: a section per language, a list per kind of word.

Knows nothing of what a kind means. `lexicon.py`, `cues.py` and `phrases.py` stand above, `utterance.py` below.
"""

from collections.abc import Callable, Collection, Mapping
from importlib.resources import files

from segue.language.utterance import words_of

Phrase = tuple[str, ...]


def read_toml(name: str) -> str:
    """The text of `segue/plans/<name>`."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def kinds_by_phrase(
    language: str,
    lists: Mapping[str, str],
    kinds: Collection[str],
    *,
    phrase_of: Callable[[str], Phrase] = words_of,
) -> dict[Phrase, str]:
    """A section's phrases. Raises ValueError on a list that is none of `kinds` and on a phrase that stands in two."""
    section: dict[Phrase, str] = {}
    for kind, words in lists.items():
        if kind not in kinds:
            raise ValueError(f"[{language}] has a list called {kind!r}; the lists are {', '.join(sorted(kinds))}")
        for phrase in filter(None, map(phrase_of, listed(words))):
            if section.setdefault(phrase, kind) != kind:
                raise ValueError(f"[{language}] has {' '.join(phrase)!r} in both {section[phrase]!r} and {kind!r}")
    return section
