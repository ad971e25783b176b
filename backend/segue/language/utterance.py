"""A chat message as folded words: one spelling for case, accents, width, marks and held letters. Pure. Chinese,
Japanese, Korean and Thai come out one character a word, so a phrase is a sequence of words in every script.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff"
)
_INDIC: Final = "\u0900-\u0963\u0966-\u0dff"  # `\w` does not match its vowel signs
_EMOJI: Final = "\u2190-\u21ff\u2300-\u2bff\U0001f000-\U0001faff"
_WORD: Final = re.compile(rf"[{UNSPACED}{_EMOJI}]|\+1\b|(?:[^\W_{UNSPACED}]|[{_INDIC}])+")
_HELD_LETTER: Final = re.compile(r"(.)\1\1")
_EMOTICON: Final = re.compile(r"(?<!\w)(?:[:;=x]['-]?[)(\]\[dp3*/|]+|<3+)(?!\w)")
_UNSPACED_LETTER: Final = re.compile(f"[{UNSPACED}]")

QUOTED: Final = '"'  # stands before a word of a quotation, which is in no word list so
QUOTATION: Final = re.compile(
    '"([^"]*)"|“([^“”]*)”|„([^„“”]*)[“”]|«([^«»]*)»|「([^「」]*)」|『([^『』]*)』|《([^《》]*)》'
    r"|(?<!\w)'([^'\n]+)'(?!\w)|(?<!\w)‘([^‘’\n]+)’(?!\w)"
)
_NAME_FOLLOWS: Final = (
    r"(?<!\b[DMSdhH]r\.|\bMs\.|\bSt\.)(?<!\b(?:Mrs|sig|Sig|avv|Avv|ing|art|Sra)\.)(?<!\b(?:dott|Dott|prof|Prof)\.)"
)
# The first ends also stand in names and numbers.
_SENTENCE_END: Final = re.compile(rf"(?<=[.!?…;]){_NAME_FOLLOWS}(?<!\bn\.)\s+|(?<=[。！？；؟؛।\n])")

# What a gateway or a template wraps, up to the last closing tag of its kind: what is in between may have one too.
_TAG: Final = re.compile(
    r"<(/?)\s{0,9}((?:attachment|context|document|file|quote|search_result|source)[\w-]{0,40})(?=[\s/>])(?:[^<>]{0,999}>)?",
    re.IGNORECASE,
)
_QUOTED_LINE: Final = re.compile(r"\s*[>＞]")
_DIVIDER: Final = re.compile(r"-{4,20}[^\w\n]{0,9}[^\W\d_][^\n]{2,60}-{4}")  # `-----Original Message-----`
_RULE: Final = re.compile(r"[_-]{8}")
_FROM: Final = re.compile(
    r"[\s*_]*(?:from|da|de|von|van|od|от|kimden|من|发件人|寄件者|差出人|보낸\s?사람|प्रेषक)[\s*_]*[:：]", re.IGNORECASE
)
_HEADER: Final = re.compile(r"[\s*_]*[^\W\d_][^:：\n]{0,30}[:：]")
_WROTE: Final = re.compile(
    r"\b(?:wrote|ha scritto|escribió|a écrit|schrieb|schreef|escreveu|napisał\w*|пиш\w+|написал\w*|yazdı)\b"
    r"|写道|寫道|書きました|작성|كتب|लिखा",
    re.IGNORECASE,
)
_MARKS_OF_ANOTHER: Final = frozenset(">＞-_")
_DATED: Final = re.compile(r"[\d@]")
_CLOCK: Final = re.compile(r"\d[:.h]\d\d")

_MARKS: Final = (
    (0x0300, 0x036F), (0x0483, 0x0489), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F),
    (0x0610, 0x061A), (0x064B, 0x065F), (0x06D6, 0x06ED),
)  # fmt: skip
_UNSEEN: Final = ((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2069), (0xFE00, 0xFE0F), (0x1F3FB, 0x1F3FF))
_DROPPED: Final = "'’‘ʼ`´′\u00ad\u034f\u061c\u0640\u0670\u093c\u180e\ufeff♀♂"
_REPLACED: Final = {"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ة": "ه", "ى": "ي", "ی": "ي", "ک": "ك", "ँ": "ं", "妳": "你"}
_BEGIN, _BEGIN_KEPT = ("بدأ", "بدا\u0654"), "بدء"  # `ابدأ`, begin, is not `أبدا`, never; else a hamza does not matter
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

_LETTERS: Final = [*filter(str.isalpha, map(chr, (*range(0x61, 0x250), *range(0x621, 0x64B))))]  # Latin and Arabic
# What a search takes a letter for: devices write ’ for ', and people e for è.
PLAIN_LETTERS: Final = {letter: unicodedata.normalize("NFD", letter)[0] for letter in _LETTERS} | {
    "'": "'", "’": "'", "ى": "ي", "ة": "ه",
}  # fmt: skip
# `الميزانية` is in `ميزانية المشروع` without its article, `fatture` in `una fattura` without its ending.
_AFFIXES: Final = re.compile(r"^[وف]?(?:[بك]?ال|لل)|(?:[aeiou]*s|[aeiouy]+|ات|ون|ين|[ةه])$")

SHORTEST: Final = 4  # letters of a word that may be misspelt, and of one without its ending
_ENDINGS: Final = frozenset("aeiouysdnrtm")  # a word that differs in its last letter only is often another form of it

WordsByLetter = Mapping[str, Sequence[tuple[str, str]]]  # each with its language, by the letter that it begins with


@dataclass(frozen=True, slots=True)
class Utterance:
    """`asks` is true if the text has a question mark in it, `quotes` if it has words or lines that another said."""

    words: tuple[str, ...]
    asks: bool
    quotes: bool = False


def parse_utterance(text: str) -> Utterance:
    """Emoticons such as `:)` are no words; emoji are."""
    folded = fold(text)
    return Utterance(tuple(_WORD.findall(_EMOTICON.sub(" ", folded))), asks="?" in folded or "؟" in folded)


def parse_own_words(text: str) -> Utterance:
    """Reads what the writer says: without quoted lines (`> yes`), and with QUOTED before each word of a quotation."""
    own = own_words(text)
    parts = QUOTATION.split(own)
    every = QUOTATION.groups + 1  # `split` puts the groups between the parts that are not quoted
    words = [
        word if at % every == 0 else f"{QUOTED}{word}"
        for at, part in enumerate(parts)
        if part
        for word in parse_utterance(part).words
    ]
    return Utterance(tuple(words), parse_utterance(own).asks, quotes=len(parts) > 1 or own != text)


def own_words(text: str) -> str:
    """Returns, to the letter, what the writer of a message says: not what is wrapped in tags, quoted or forwarded."""
    left = _without_wrapped(text)
    own: list[str] = []
    plain = left.translate(_WITHOUT_UNSEEN).split("\n")  # it may stand before a `>`, which looks the same
    for at, line in enumerate(left.split("\n")):
        current, before = plain[at].strip(), plain[at - 1] if at else ""
        if current[:1] in _MARKS_OF_ANOTHER or ":" in current or "：" in current:
            if _QUOTED_LINE.match(current):
                continue
            if _DIVIDER.match(current) or _begins_mail(current, next(iter(plain[at + 1 : at + 2]), "")):
                break
            if wrote := _lines_of_who_wrote(current, before):
                own[len(own) + 1 - wrote :] = []
                if not _QUOTED_LINE.match(next(filter(str.strip, plain[at + 1 : at + 4]), "")):
                    break
                continue
        own.append(line)
    return "\n".join(own)


def _without_wrapped(text: str) -> str:
    tags = [(tag.start(), tag.end(), tag[1], tag[2].lower()) for tag in _TAG.finditer(text)]
    last = {name: end for _, end, closes, name in tags if closes}
    own, at = [], 0
    for start, end, closes, name in tags:
        if start >= at:
            own.append(text[at:start])
            at = end if closes else max(end, last.get(name, 0))
    return "\n".join([*own, text[at:]])


def _begins_mail(line: str, following: str) -> bool:
    if _RULE.match(line):
        return _FROM.match(following) is not None
    return "@" in line and _FROM.match(line) is not None and _HEADER.match(following) is not None


def _lines_of_who_wrote(line: str, before: str) -> int:
    """Returns how many lines, up to this one, say whose words follow, as mail programs do: `On May 3 Ann wrote:`."""
    if not line.endswith((":", "：")):
        return 0
    is_verb_last = _WROTE.search(line[-200:]) is not None
    if ("<" in line and "@" in line and _CLOCK.search(line)) or (is_verb_last and _DATED.search(line)):
        return 1
    goes_on = line.count(" ") <= 1 and _CLOCK.search(before)
    return 2 if goes_on and _WROTE.search(f"{before[-20:].rstrip()} {line}") else 0


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


def with_plain_letters(text: str) -> str:
    """Returns a text, as long as before, in PLAIN_LETTERS."""
    for letter, plain in PLAIN_LETTERS.items():
        if letter != plain and letter in text:
            text = text.replace(letter, plain)
    return text


def stem_of(word: str) -> str:
    """Returns a word without article and ending, by which a search finds other forms; whole if it is too short."""
    stem = _AFFIXES.sub("", word)
    return stem if len(stem) >= SHORTEST else word


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


def words_near(word: str, known: WordsByLetter) -> Iterator[tuple[str, str]]:
    """Yields the words, with their language, that begin as `word` does and differ from it by one edit."""
    if len(word) >= SHORTEST:
        for plain, language in known.get(word[0], ()):
            if abs(len(word) - len(plain)) <= 1 and _is_slip(word, plain):
                yield plain, language


def _is_slip(word: str, plain: str) -> bool:
    """Returns whether one letter is too many, missing, wrong or swapped, and not an ending."""
    if word == plain:
        return False
    if word[:-1] in (plain, plain[:-1]) or word == plain[:-1]:
        return _ENDINGS.isdisjoint((word[-1], plain[-1]))
    at = next(at for at, (one, other) in enumerate(zip(word, plain, strict=False)) if one != other)
    rest, plain_rest = word[at:], plain[at:]
    swapped = rest[:2] == plain_rest[1::-1] and rest[2:] == plain_rest[2:]
    return swapped or plain_rest[1:] in (rest, rest[1:]) or rest[1:] == plain_rest
