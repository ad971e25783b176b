"""What the words of a message say about the web: they ask for it, forbid it, or speak of the user's own things.

Pure; knows nothing of what follows from it. The words are `search.toml`.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from segue.language.lexicon import UNKNOWN, kinds_of, languages_of, parse_lexicon
from segue.language.utterance import parse_utterance
from segue.language.word_lists import WordList

LONGEST_READ: Final = 2_000  # characters; the rest of a longer message does not count

SEARCH_WORD_KINDS: Final = frozenset({"request", "search", "web", "topic"})
# What may stand in a message that is a query as it is.
QUERY_KINDS: Final = SEARCH_WORD_KINDS | {"general", "greeting", "lead", "origin", "newest", UNKNOWN}
KINDS: Final = QUERY_KINDS - {UNKNOWN} | {
    "earlier", "forbid", "private", "own", "deed", "task", "personal", "thanks", "from_newest",
}  # fmt: skip
SEARCH_LEXICON: Final = WordList("search.toml", partial(parse_lexicon, kinds=KINDS))

_LETTERS: Final = {"own": "o", "newest": "n", "from_newest": "f", "origin": "s", "task": "d", "deed": "d"}
_NEWEST_OF_OWN: Final = re.compile(r"[nf].{0,3}o")
_FROM_OWN: Final = re.compile(r"(?:s.{0,8}n|f).{0,3}o")
_OWN_FROM: Final = re.compile(r"n.{0,3}o.{0,4}s")  # as Japanese and Korean say it, before the verb


def search_readings(message: str) -> list[list[str]]:
    """Returns the kinds of the words in a message, in every language that uses most of them."""
    words = parse_utterance(message[:LONGEST_READ]).words
    return [kinds_of(words, language, SEARCH_LEXICON.now) for language in languages_of(words, SEARCH_LEXICON.now)]


def asks_for_the_web(kinds: Sequence[str]) -> bool:
    return "request" in kinds or ("search" in kinds and "web" in kinds)


def needs_own_things_first(message: str) -> bool:
    """Returns whether what is asked for needs the newest mail, file or such read first: to search the web for what is
    in it, or to make something from it.
    """
    return any(_needs_own_things(kinds) for kinds in search_readings(message))


def _needs_own_things(kinds: Sequence[str]) -> bool:
    letters = "".join(_LETTERS.get(kind, "-") for kind in kinds)
    if asks_for_the_web(kinds) and _NEWEST_OF_OWN.search(letters):
        return True
    before_verb = _OWN_FROM.search(letters)
    return "d" in letters and (
        _FROM_OWN.search(letters) is not None or (before_verb is not None and "d" in letters[before_verb.end() :])
    )
