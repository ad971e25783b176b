"""The dates, times and numbers that a text has, in the ways people write them. Pure; names of months are CLDR's."""

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Final

from babel.dates import get_month_names

from segue.language.lexicon import load_toml
from segue.language.utterance import UNSPACED, fold, words_of

LOCALES: Final = ("en", "it", "es", "fr", "de", "pt", "nl", "pl", "ru", "tr", "ar", "ar_LB", "zh", "ja", "ko", "hi")

_FORMS: Final = load_toml("written_values.toml")
# A number in front of a unit of time or in a longer code is another thing.
_SCALE: Final = rf"\s?(?i:[km]\b|{'|'.join(_FORMS['scales'])})"
# Scripts without spaces put a number right beside words, but for a date, an hour, and a part of a longer number.
_LETTER: Final = rf"[^\W{UNSPACED}]"
_APART: Final = (
    rf"(?<!{_LETTER})(?<![第제零〇一二三四五六七八九十百千万萬亿億兆点點块塊])"
    r"(?<!\d[십백천만억조])(?<!\d[천만억조万萬亿億兆]\s)(?<!ร้อย|ล้าน)(?<!พัน|แสน)(?<!หมื่น)"
)
_BEFORE: Final = rf"{_APART}(?<![.,/-])(?<!\d[:'’])"
_AFTER: Final = rf"(?!{_LETTER}|[年月日号號点點时時分년월일시분]|[.,:/'’-]\w|[块塊]\d|{_SCALE})"
_THOUSANDS: Final = r"\d{1,3}(?:[,'’\u00a0\u202f]\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}"  # the second is India's
_GROUPED: Final = re.compile(rf"{_BEFORE}({_THOUSANDS}|\d+)(\.\d+)?{_AFTER}")
_WITH_COMMA: Final = re.compile(rf"{_BEFORE}(\d{{1,3}}(?:[.\u00a0\u202f]\d{{3}})+|\d+),(\d{{1,2}}){_AFTER}")
_CURRENCIES: Final[Mapping[str, str]] = _FORMS["currencies"]  # regular expressions by code
CURRENCIES: Final = frozenset(_CURRENCIES) - {""}
SIGNS: Final = frozenset(f"${code}" for code in _CURRENCIES)
_CURRENCY: Final = "|".join(_CURRENCIES.values())
_AMOUNT: Final = r"(\d+(?:[.,'’\u00a0\u202f]\d+)*)"
# An amount does not begin within another one: a long row of digits and signs would be read from each of its digits.
_MONEY: Final = re.compile(
    rf"({_CURRENCY})\s?{_AMOUNT}(?![a-z]|[.,'’]?\d|{_SCALE})"
    rf"|{_APART}(?<![.,])(?<!\d[ '’\u00a0\u202f]){_AMOUNT}\s?({_CURRENCY})",
    re.IGNORECASE,
)
WHOLE: Final = re.compile("|".join(_FORMS["wholes"]), re.IGNORECASE)  # of a part: `of the 120` behind `40`
PRICED: Final = re.compile("|".join(_FORMS["priced"]), re.IGNORECASE)
_ARABIC_SIGNS: Final = {ord("٬"): ",", ord("٫"): "."}
_NO_DIGIT: Final = re.compile(r"\D")
_DOTTED_THOUSANDS: Final = re.compile(r"\d{1,3}(?:\.\d{3})+")
_DATES: Final = (
    re.compile(r"(?<!\d)(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"(?:(?<!\d)(?P<y>\d{4})\s?[年년]\s?)?(?<!\d)(?P<m>\d{1,2})\s?[月월]\s?(?P<d>\d{1,2})\s?[日号號일]"),
    re.compile(r"(?<![\d/.-])(?P<d>1[3-9]|2\d|3[01])[-/.](?P<m>\d{1,2})[-/.](?P<y>\d{4})(?!\d)"),
    re.compile(r"(?<![\d/.-])(?P<m>\d{1,2})[/](?P<d>1[3-9]|2\d|3[01])[/](?P<y>\d{4})(?!\d)"),
)
_TIME: Final = re.compile(
    r"(?i)(?:(?P<before>上午|早上|凌晨|中午|下午|傍晚|晚上|午前|午後|오전|오후)\s?)?(?<![\d:.])(?P<h>\d{1,2})"
    r"(?:[:.h](?P<m>\d\d)(?::\d\d)?|(?P<clock>\s?(?:[点點时時시]|Uhr\b))(?:\s?(?P<mm>\d\d)[分분]?)?(?![半一三间間간后後]))?"
    r"(?:\s?(?P<half>[ap])\.?m\b|\s(?P<after>صباح|مساء|عصر))?(?![\d:])(?!\s?[点點时時시])"
)
_MORNING: Final = frozenset({"a", "A", "上午", "早上", "凌晨", "午前", "오전", "صباح"})
_NOON, _NIGHT = 12, "晚上"
HOUR: Final = "@"

MonthDay = tuple[int | None, int, int]  # the year, if it is said, the month and the day


def dates_in(text: str) -> set[MonthDay]:
    """Returns the dates in a text. `03/04/2026` is none: which is the month depends on who wrote it."""
    found = {
        (int(match["y"]) if match["y"] else None, int(match["m"]), int(match["d"]))
        for pattern in _DATES
        for match in pattern.finditer(text)
    }
    for match in _month_dates().finditer(fold(text)):
        year, day = match["y"] or match["yy"], match["d"] or match["dd"]
        found.add((int(year) if year else None, _months()[match["m"] or match["mm"]], int(day)))
    return found


def without_dates(text: str, instead: str = " ") -> str:
    """Returns a text in small letters with its dates and hours replaced: the 4 of `December 4 at 8 pm` is no number."""
    text = text.lower()
    for pattern in (*_DATES, _month_dates()):
        text = pattern.sub(instead, text)
    of_hour = ("before", "clock", "half", "after")
    return _TIME.sub(lambda found: instead if ":" in found[0] or any(found.group(*of_hour)) else found[0], text)


def is_written(text: str) -> bool:
    """Returns whether a folded text is a date or a time, and nothing else."""
    is_date = any(pattern.fullmatch(text) for pattern in (*_DATES, _month_dates()))
    return is_date or (_TIME.fullmatch(text) is not None and bool(times_in(text)))


def names_in(*texts: str) -> frozenset[str]:
    """Returns the names of what is written in texts: 4 is `#4`, 20:00 is `@20:00` and `@8pm`, and `@8` if no half of
    the day is said; 120 euros are `$120` and `$EUR`; 4 December 2026 is `/12-4` and `/2026-12-4`.
    They begin with what no word begins with. `8pm`, `20h` and 120 are words.
    """
    found = {f"#{number:.15g}" for text in texts for number in numbers_in(text)}
    for hour, minute in (time for text in texts for time in times_in(text)):
        of_half = f"{hour % _NOON or _NOON}{'pm' if hour >= _NOON else 'am'}"
        full = {f"{HOUR}{hour % _NOON or _NOON}", HOUR + of_half, of_half, f"{hour}h"}
        found |= {f"{HOUR}{hour}:{minute:02}"} | (set() if minute else full)
    for amount, code in (price for text in texts for price in prices_in(text)):
        found |= {f"${amount:.15g}", f"${code}", *words_of(f"{amount:.15g}")}
    for year, month, day in (dated for text in texts for dated in dates_in(text)):
        found |= {f"/{month}-{day}"} | ({f"/{year}-{month}-{day}"} if year else set())
        found |= {f"{day}{ending}" for ending in ("st", "nd", "rd", "th")}
    return frozenset(found)


def times_in(text: str) -> set[tuple[int, int]]:
    """Returns the hours and minutes in a text, of 24 hours: `5 pm` is 17:00."""
    found = _TIME.finditer(text)
    return {_time(match) for match in found if any(match.group("before", "m", "clock", "half", "after"))}


def _time(match: re.Match[str]) -> tuple[int, int]:
    hour, half = int(match["h"]), match["before"] or match["half"] or match["after"]
    if half and hour <= _NOON:
        is_first = half in _MORNING or (half == _NIGHT and hour == _NOON)
        hour = hour % _NOON + _NOON * (not is_first)
    return hour, int(match["m"] or match["mm"] or 0)


def numbers_in(text: str) -> set[float]:
    """Returns the numbers that stand alone in a text: `1,194` and, of money, `1.194` are 1194, `51,00` is 51."""
    text = text.translate(_ARABIC_SIGNS)
    found = {_number(*groups) for pattern in (_GROUPED, _WITH_COMMA) for groups in pattern.findall(text)}
    return found | {amount for amount, _ in prices_in(text)}


def with_plain_prices(text: str, shown: frozenset[str]) -> str:
    """Returns the text with prices that `shown` has as numbers alone, and ⇄, a change, behind others."""
    signs = shown & SIGNS

    def plain(price: re.Match[str]) -> str:
        is_meant = not signs or f"${_code(price[1] or price[4])}" in signs
        said = (f"{each:.15g}" for each in _amount(price[2] or price[3]))
        return next((f" {each} {'' if is_meant and f'${each}' in shown else '⇄'} " for each in said), price[0])

    return _MONEY.sub(plain, text.translate(_ARABIC_SIGNS)) if any(each.startswith("$") for each in shown) else text


def told_of(name: str, text: str) -> list[str]:
    """Returns what a text says of an argument: `13 May` in a line `Check-out: 13 May`, 2 of `2 people`."""
    forms = next((forms for names, forms in _FORMS["named"].items() if re.fullmatch(names, name)), "")
    said = forms or re.escape(name).replace(r"\ ", "[ -]")
    label = rf"(?im)^[^\w\n]{{0,9}}(?:{said})[* ]*[:：][^\w\n]{{0,9}}(\w.*)"
    counted = rf"|(?<![\w.,/-])(\d+)\s?(?:[^\W\d]{{1,20}}[ -]){{0,2}}(?:{said})(?!{_LETTER})"
    found = re.finditer(label + (counted if forms or name.endswith("s") else ""), text)
    return [each[each.lastindex or 0] for each in found]


def prices_in(text: str) -> set[tuple[float, str]]:
    """Returns the amounts that have a currency, with its code in ISO 4217; none if it may be of several countries."""
    found = _MONEY.finditer(text.translate(_ARABIC_SIGNS))
    return {(amount, _code(each[1] or each[4])) for each in found for amount in _amount(each[2] or each[3])}


def _code(written: str) -> str:
    return next(code for code, forms in _CURRENCIES.items() if re.fullmatch(forms, written, re.IGNORECASE))


def _amount(written: str) -> Iterator[float]:
    if _DOTTED_THOUSANDS.fullmatch(written):
        yield float(written.replace(".", ""))
    elif match := _WITH_COMMA.fullmatch(written) or _GROUPED.fullmatch(written):
        yield _number(match[1], match[2] or "")


def _number(whole: str, part: str) -> float:
    return float(f"{_NO_DIGIT.sub('', whole)}.{part.lstrip('.') or 0}")


@cache
def _months() -> dict[str, int]:
    """Returns the month by its folded names, whole and short, in LOCALES."""
    return {
        fold(name).rstrip("."): month
        for language in LOCALES
        for width in ("wide", "abbreviated")
        for context in ("format", "stand-alone")
        for month, name in get_month_names(width, context, language).items()
        if not name[:1].isdigit()
    }


@lru_cache(maxsize=1)
def _month_dates() -> re.Pattern[str]:
    names = "|".join(sorted(map(re.escape, _months()), key=len, reverse=True))
    # `fold` makes an `o` of º, and no word ends behind a vowel sign of Devanagari.
    day, year = r"(?<!\d)(?P<{}>\d{{1,2}})(?:st|nd|rd|th|\.?o|°|er|\.)?(?!\d)", r"(?P<{}>\d{{4}})"
    return re.compile(
        rf"(?<!\w)(?P<m>{names})(?!\w)\.?\s{{0,2}}{day.format('d')}(?:,?\s{{0,2}}{year.format('y')}(?!\d))?"
        rf"|{day.format('dd')}\s{{0,2}}(?:de\s|of\s)?(?P<mm>{names})(?!\w)\.?(?:(?:\sde)?,?\s{{0,2}}{year.format('yy')}(?!\d))?"
    )
