"""Makes visible what a text could hide from the person who approves it: a character that prints nothing, reverses the
text or looks like a space becomes ‹U+202E›. What scripts and emoji need stays. Every `‹` is escaped too.
"""

import re
import unicodedata
from typing import Final

MOST_MARKS: Final = 4  # on one letter; Hindi, Thai, Hebrew and Vietnamese need no more
MOST_JOINED: Final = 12  # characters that belong together: an emoji with its joiners, or an escape

# Not printable are all control, format, private and unassigned characters and separators. These print as nothing too:
# blank letters and marks, strokes through the letter before, and variation selectors.
_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U0001d159"
_HIDDEN: Final = {*_BLANK, *map(chr, (*range(0x334, 0x339), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))}

_JOINING: Final = "\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_FLAG_LETTERS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_EMOJI: Final = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
_ARABIC: Final = "\u0620-\u0655\u066e-\u06d3\u06d5\u06ee\u06ef\u06fa-\u06ff\u0750-\u077f\u08a0-\u08c7"
_VIRAMAS: Final = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca"
_WIDE: Final = "\u3001-\u303f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uff01-\uff60"
_KEPT: Final = re.compile(
    rf"(?<=[{_ARABIC}])\u200c(?=[{_ARABIC}])"  # Persian and Urdu part words with it
    rf"|(?<=[{_VIRAMAS}])[\u200c\u200d](?=[\u0900-\u0dff])"  # conjuncts of Indic scripts
    rf"|(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])|(?<=[{_EMOJI}])[\ufe0e\ufe0f]|(?<=[0-9#*])\ufe0f?\u20e3"
    r"|(?<=«)[\u00a0\u202f](?=\S)|(?<=\S)[\u00a0\u202f](?=[:;!?»%€])|(?<=\d)[\u00a0\u202f](?=\d)"  # French
    rf"|\u3000{{1,2}}(?=[{_WIDE}])"  # begins a paragraph in Chinese and Japanese
    r"|[\u0600-\u0605\u06dd]"  # Arabic number signs are format characters, and print
)
_REPEATED: Final = re.compile(r"‹(U\+[0-9A-F]+)›(?:‹\1›)+")


def visible(text: str) -> str:
    """Returns the text with what it hides written out; a run of the same as ‹U+200B×40›. No two texts become one."""
    if text.isascii() and text.isprintable():
        return text
    kept = {at for found in _KEPT.finditer(text) for at in range(*found.span())}
    shown, marks = [], MOST_MARKS + 1  # a mark needs a letter before it
    for at, char in enumerate(text):
        category = unicodedata.category(char)
        marks = marks + 1 if category[0] == "M" else 0
        hides = at not in kept and (marks > MOST_MARKS or _hides(char, category))
        shown.append(f"‹U+{ord(char):04X}›" if hides else char)
        if hides or char == " ":
            marks = MOST_MARKS + 1
    return _REPEATED.sub(lambda run: f"‹{run[1]}×{len(run[0]) // (len(run[1]) + 2)}›", "".join(shown))


def whole_before(text: str, at: int) -> int:
    """Returns the place at or shortly before `at` where a text can be cut: not in a letter, an emoji or an escape."""
    for place in range(at, max(at - MOST_JOINED, 0), -1):
        if not _is_within(text, place):
            return place
    return at


def _hides(char: str, category: str) -> bool:
    return not char.isprintable() or char == "‹" or category == "Me" or char in _HIDDEN


def _is_within(text: str, at: int) -> bool:
    if at >= len(text):
        return False
    before, char = text[max(at - MOST_JOINED, 0) : at], text[at]
    joins = unicodedata.category(char)[0] == "M" or char in _JOINING or before[-1:] == "\u200d"
    splits_flag = char in _FLAG_LETTERS and (len(before) - len(before.rstrip(_FLAG_LETTERS))) % 2
    return joins or bool(splits_flag) or before.rfind("‹") > before.rfind("›")
