"""The dates, times and numbers that a text has, in the ways people write them. Pure; names of months are CLDR's."""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

from babel.dates import get_month_names

from segue.language.utterance import fold

LANGUAGES: Final = ("en", "it", "es", "fr", "de", "pt", "nl", "pl", "ru", "tr", "ar", "zh", "ja", "ko", "hi")

# A number in front of a unit of time or in a longer code is another thing.
_BEFORE, _AFTER = r"(?<![\w.,/-])(?<!\d[:'’])", r"(?!\w|[.,:/'’-]\w)"
_THOUSANDS: Final = r"\d{1,3}(?:[,'’\u00a0\u202f]\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}"  # the second is India's
_GROUPED: Final = re.compile(rf"{_BEFORE}({_THOUSANDS}|\d+)(\.\d+)?{_AFTER}")
_WITH_COMMA: Final = re.compile(rf"{_BEFORE}(\d{{1,3}}(?:[.\u00a0\u202f]\d{{3}})+|\d+),(\d{{1,2}}){_AFTER}")
_CURRENCY: Final = r"(?:[$€£¥₹₽₩₺]|元|円|원|(?:USD|EUR|GBP|CHF|JPY|CNY|dollars?|euros?|pounds?)\b)"
_AMOUNT: Final = r"(\d(?:[\d.,'’\u00a0\u202f]*\d)?)"
_MONEY: Final = re.compile(rf"{_CURRENCY}\s?{_AMOUNT}|(?<![\w.,]){_AMOUNT}\s?{_CURRENCY}", re.IGNORECASE)
_NO_DIGIT: Final = re.compile(r"\D")
_DOTTED_THOUSANDS: Final = re.compile(r"\d{1,3}(?:\.\d{3})+")
_DATES: Final = (
    re.compile(r"(?<!\d)(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"(?:(?<!\d)(?P<y>\d{4})\s?[年년]\s?)?(?<!\d)(?P<m>\d{1,2})\s?[月월]\s?(?P<d>\d{1,2})\s?[日号號일]"),
    re.compile(r"(?<![\d/.-])(?P<d>1[3-9]|2\d|3[01])[/.](?P<m>\d{1,2})[/.](?P<y>\d{4})(?!\d)"),
    re.compile(r"(?<![\d/.-])(?P<m>\d{1,2})[/](?P<d>1[3-9]|2\d|3[01])[/](?P<y>\d{4})(?!\d)"),
)
_TIME: Final = re.compile(r"(?i)(?<![\d:.])(\d{1,2})(?:[:.h](\d{2}))?(?::\d{2})?(?:\s?([ap])\.?m\b)?(?![\d:])")

MonthDay = tuple[int | None, int, int]  # the year, if it is said, the month and the day


def dates_in(text: str) -> set[MonthDay]:
    """Returns the dates in a text. `03/04/2026` is none: which is the month depends on who wrote it."""
    found = {
        (int(match["y"]) if match["y"] else None, int(match["m"]), int(match["d"]))
        for pattern in _DATES
        for match in pattern.finditer(text)
    }
    folded = fold(text)
    for match in _month_dates().finditer(folded):
        year, day = match["y"] or match["yy"], match["d"] or match["dd"]
        found.add((int(year) if year else None, _months()[match["m"] or match["mm"]], int(day)))
    return found


def times_in(text: str) -> set[tuple[int, int]]:
    """Returns the hours and minutes in a text, of 24 hours: `5 pm` is 17:00."""
    found = (match.groups() for match in _TIME.finditer(text) if match[2] or match[3])
    hours = ((int(hour) % 12 + 12 * (half in "pP") if half else int(hour), minute) for hour, minute, half in found)
    return {(hour, int(minute or 0)) for hour, minute in hours}


def numbers_in(text: str) -> set[float]:
    """Returns the numbers that stand alone in a text: `1,194` and, of money, `1.194` are 1194, `51,00` is 51."""
    found = {_number(*groups) for pattern in (_GROUPED, _WITH_COMMA) for groups in pattern.findall(text)}
    return found | money_in(text)


def money_in(text: str) -> set[float]:
    """Returns the amounts that have a currency."""
    return {amount for match in _MONEY.finditer(text) for amount in _amount(match[1] or match[2])}


def _amount(written: str) -> Iterator[float]:
    if _DOTTED_THOUSANDS.fullmatch(written):
        yield float(written.replace(".", ""))
    elif match := _WITH_COMMA.fullmatch(written) or _GROUPED.fullmatch(written):
        yield _number(match[1], match[2] or "")


def _number(whole: str, part: str) -> float:
    return float(f"{_NO_DIGIT.sub('', whole)}.{part.lstrip('.') or 0}")


@cache
def _months() -> dict[str, int]:
    """Returns the month by its folded names, whole and short, in LANGUAGES."""
    return {
        fold(name).rstrip("."): month
        for language in LANGUAGES
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
