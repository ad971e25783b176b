"""A chat message as folded words: one spelling for case, accents, width, marks and held letters.

Chinese, Japanese, Korean and Thai come out one character a word, so a phrase is a sequence of words in every script.
Knows nothing of word lists and of what a word means.
"""

import re
import unicodedata
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff"
)
_INDIC: Final = "\u0900-\u0963\u0966-\u0dff"  # `\w` does not match its vowel signs
_EMOJI: Final = "\u2190-\u21ff\u2300-\u2bff\U0001f000-\U0001faff"
_WORD: Final = re.compile(rf"[{_UNSPACED}{_EMOJI}]|\+1\b|(?:[^\W_{_UNSPACED}]|[{_INDIC}])+")
_HELD_LETTER: Final = re.compile(r"(.)\1\1")
_EMOTICON: Final = re.compile(r"(?<!\w)(?:[:;=x]['-]?[)(\]\[dp3*/|]+|<3+)(?!\w)")
_UNSPACED_LETTER: Final = re.compile(f"[{_UNSPACED}]")

QUOTED: Final = '"'  # stands before a word of a quotation, which is in no word list so
_QUOTATION: Final = re.compile(
    '"([^"]*)"|“([^“”]*)”|„([^„“”]*)[“”]|«([^«»]*)»|「([^「」]*)」|『([^『』]*)』|《([^《》]*)》'
    r"|(?<!\w)'([^'\n]+)'(?!\w)|(?<!\w)‘([^‘’\n]+)’(?!\w)"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?؟…;])\s+|(?<=[。！？；।\n])")
_QUOTED_LINE: Final = re.compile(r"^\s*[>＞].*$", re.MULTILINE)

_MARKS: Final = (
    (0x0300, 0x036F), (0x0483, 0x0489), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F),
    (0x0610, 0x061A), (0x064B, 0x065F), (0x06D6, 0x06ED),
)  # fmt: skip
_UNSEEN: Final = ((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2069), (0xFE00, 0xFE0F), (0x1F3FB, 0x1F3FF))
_DROPPED: Final = "'’‘ʼ`´′\u00ad\u034f\u061c\u0640\u0670\u093c\u180e\ufeff♀♂"
_REPLACED: Final = {"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ة": "ه", "ى": "ي", "ی": "ي", "ک": "ك", "ँ": "ं", "妳": "你"}
_BEGIN, _BEGIN_KEPT = (
    ("بدأ", "بدا\u0654"),
    "بدء",
)  # `ابدأ`, begin, is not `أبدا`, never; elsewhere a hamza does not matter
_FOLDS: Final[dict[int, str | None]] = {
    **dict.fromkeys(chain.from_iterable(range(first, last + 1) for first, last in _MARKS + _UNSEEN)),
    **dict.fromkeys(map(ord, _DROPPED)),
    **{ord(letter): plain for letter, plain in _REPLACED.items()},
}


_WITHOUT_UNSEEN: Final[dict[int, None]] = dict.fromkeys(
    chain(
        *(range(first, last + 1) for first, last in (*_UNSEEN, (0, 8), (14, 31), (127, 159))),
        map(ord, "\u00ad\u034f\u061c\u180e\ufeff"),
    )
)


@dataclass(frozen=True, slots=True)
class Utterance:
    """`asks` is true if the text has a question mark in it, `quotes` if it has words or lines that another said."""

    words: tuple[str, ...]
    asks: bool
    quotes: bool = False


def parse_utterance(text: str) -> Utterance:
    """Emoticons such as `:)` are no words; emoji are."""
    folded = fold(text)
    asks = "?" in folded or "؟" in folded
    return Utterance(tuple(_WORD.findall(_EMOTICON.sub(" ", folded))), asks)


def parse_own_words(text: str) -> Utterance:
    """Reads what the writer says: without quoted lines (`> yes`), and with QUOTED before each word of a quotation."""
    text = text.translate(_WITHOUT_UNSEEN)  # it may stand before a `>`, which looks the same
    own = _QUOTED_LINE.sub("", text)
    parts = _QUOTATION.split(own)
    every = _QUOTATION.groups + 1  # `split` puts the groups between the parts that are not quoted
    words = [
        word if at % every == 0 else f"{QUOTED}{word}"
        for at, part in enumerate(parts)
        if part
        for word in parse_utterance(part).words
    ]
    return Utterance(tuple(words), parse_utterance(own).asks, quotes=len(parts) > 1 or own != text)


def sentences_of(text: str) -> list[str]:
    """Returns the sentences and lines of a text that have something in them, with their punctuation."""
    return [sentence for sentence in map(str.strip, _SENTENCE_END.split(text)) if sentence]


def words_of(text: str) -> tuple[str, ...]:
    return split_folded(fold(text))


def split_folded(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text))


def fold(text: str) -> str:
    """Returns one spelling: `SÌ`, `si` and `s\u0131\u0300` give `si`; Turkish dotted and dotless i are one letter."""
    for begin in _BEGIN:
        text = text.replace(begin, _BEGIN_KEPT)
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", decomposed).translate(_FOLDS))


def is_unspaced(word: str) -> bool:
    """Returns whether the word is one letter of a script that puts no spaces between words."""
    return _UNSPACED_LETTER.fullmatch(word) is not None


def is_emoji(word: str) -> bool:
    return len(word) == 1 and ("\u2190" <= word <= "\u2bff" or word >= "\U0001f000")


def squeeze(word: str) -> str:
    """Returns the word with each run of a letter as one letter: `siiii` and `si` both give `si`."""
    return "".join(letter for letter, _ in groupby(word))


def is_stretched(word: str, plain: str) -> bool:
    """`word` is `plain` with a letter held: three in a row, or the last one doubled (`yess`, not `noon`)."""
    return len(word) > len(plain) and (word[-2:] == word[-1] * 2 or _HELD_LETTER.search(word) is not None)
