"""Which language a conversation is in: that of its newest message that shows one.

A short reply shows little: `vai pure` looks Portuguese, `vielen Dank` Dutch. Pure.
"""

from collections.abc import Iterable

from segue.language.detect_language import detect_language
from segue.language.lexicon import UNKNOWN, kinds_of, languages_of, unstretch
from segue.language.utterance import own_words, words_of
from segue.plans.acknowledgement import LEXICON

LONGEST_REPLY = 80  # characters


def conversation_language(newest_first: Iterable[str]) -> str | None:
    """Returns an ISO 639-1 code, None if no message shows a language.

    A message that is a stock reply in the language of those before it does not change the language.
    """
    replies: list[tuple[str, list[str]]] = []
    found = None
    for text in map(own_words, newest_first):
        shown = detect_language(text, default="")
        if not shown:
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
    words = tuple(unstretch(word, LEXICON.now) for word in words_of(text))
    return [each for each in languages_of(words, LEXICON.now) if UNKNOWN not in kinds_of(words, each, LEXICON.now)]
