"""The sentences that the engine itself writes to a user, in the user's language. They are `translations.toml`.

Pure; knows nothing of plans and of who calls it.
"""

from collections.abc import Mapping
from string import Formatter
from typing import Final

from segue.language.word_lists import WordList

ENGLISH: Final = "en"

Sentences = Mapping[str, str]


def translate(key: str, language: str | None, /, **values: object) -> str:
    """Returns the sentence with its values, in English if the language is not known.

    Raises KeyError for an unknown key and for a field without a value.
    """
    primary = (language or ENGLISH).replace("_", "-").partition("-")[0].lower()
    return TRANSLATIONS.now.get(primary, TRANSLATIONS.now[ENGLISH])[key].format_map(values)


def check_translations(translations: Mapping[str, Sentences]) -> Mapping[str, Sentences]:
    """Returns them. Raises ValueError if a language lacks a sentence or a field of English, or has one more."""
    english = translations[ENGLISH]
    for language, sentences in translations.items():
        if sentences.keys() != english.keys():
            keys = ", ".join(sorted(sentences.keys() ^ english.keys()))
            raise ValueError(f"[{language}] and [{ENGLISH}] differ in {keys}")
        for key, sentence in sentences.items():
            if _fields(sentence) != _fields(english[key]):
                raise ValueError(f"[{language}] {key} must have the fields {sorted(_fields(english[key]))}")
    return translations


def _fields(sentence: str) -> frozenset[str]:
    """Returns each field whole: `{goal!r}` and `{goal.x}` are not `{goal}`."""
    parsed = Formatter().parse(sentence)
    return frozenset(f"{name}{f'!{how}' if how else ''}{spec}" for _, name, spec, how in parsed if name is not None)


TRANSLATIONS: Final = WordList("translations.toml", check_translations, sentences=True)
