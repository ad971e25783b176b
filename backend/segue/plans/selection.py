"""Which of several things asked about at once a reply picks: `only the first`, «tutte tranne l'ultima». Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from segue.language.lexicon import UNKNOWN, kinds_of, languages_of, parse_lexicon, phrases_of
from segue.language.utterance import parse_own_words
from segue.language.word_lists import Phrase, WordList
from segue.plans.acknowledgement import LEXICON

_PLACES: Final = ("first", "second", "third", "fourth", "fifth")
_RANGES: Final = {"first_two": slice(2), "first_three": slice(3), "last": slice(-1, None), "last_two": slice(-2, None)}
_PICKS: Final = frozenset({"all", "both", "only", "but", *_PLACES, *_RANGES})
_WORDS: Final = _PICKS | {"and"}
# Kinds of the lexicon that pick nothing, and leave a pick a pick.
_BESIDE: Final = frozenset(
    {"yes", "accept", "go_ahead", "polite", "thanks", "glue", "object", "filler", "vocative", "repeats"}
)
# Where what is left out is named before the word that leaves it out: `sonuncusu hariç`.
_AFTERTHOUGHTS: Final = frozenset({"ja", "ko", "tr", "hi"})

SELECTION: Final = WordList("selection.toml", partial(parse_lexicon, kinds=_WORDS))


def chosen_of(message: str, ids: Sequence[int]) -> frozenset[int] | None:
    """Returns which of the `ids`, in the order in which they were asked about, a message picks; None if it picks none
    or says anything else.
    """
    utterance = parse_own_words(message)
    if utterance.asks or utterance.quotes or not utterance.words:
        return None
    readings = (
        _chosen(utterance.words, language, ids)
        for language in dict.fromkeys(
            (*languages_of(utterance.words, SELECTION.now), *languages_of(utterance.words, LEXICON.now))
        )
    )
    return next(filter(None, readings), None)


def _chosen(words: Phrase, language: str, ids: Sequence[int]) -> frozenset[int] | None:
    said: list[str] = []
    for kind, phrase in phrases_of(words, language, SELECTION.now):
        said += [kind] if kind != UNKNOWN else kinds_of(phrase, language, LEXICON.now)
    at_pick = next((at for at, kind in enumerate(said) if kind in _PICKS), len(said))
    picks = [kind for kind in said if kind in _PICKS]
    # `Thanks for everything` picks nothing, nor does `all good`, and `not only the first` says nothing of the others.
    if not {*said} <= _WORDS | _BESIDE or "thanks" in said[:at_pick] or {"but", "only"} <= {*picks}:
        return None
    if ("both" in picks and len(ids) != 2) or {*picks} & {*_PLACES[len(ids) :]}:  # noqa: PLR2004 (both are two)
        return None
    left_out, named = set[int](), set[int]()
    at_but = picks.index("but") if "but" in picks else None
    for at, kind in enumerate(picks):
        is_after = at_but is not None and (at < at_but if language in _AFTERTHOUGHTS else at > at_but)
        (left_out if is_after else named).update(_places(kind, ids))
    if named or left_out or at_but is not None:
        return frozenset((named or set(ids)) - left_out) if left_out or at_but is None else None
    is_all = {"all", "both"} & {*picks} and {"accept", "filler", "yes"}.isdisjoint(said[at_pick:])
    return frozenset(ids) if is_all else None


def _places(kind: str, ids: Sequence[int]) -> Sequence[int]:
    if kind in _PLACES:
        return ids[_PLACES.index(kind) :][:1]
    return ids[_RANGES[kind]] if kind in _RANGES else ()
