"""Which values of a call the user has neither said nor been shown. Pure.

A value counts in the ways it is written: `2024-05-20` as "May 20th", `round_trip` as "round trip", 1194 as "$1,194".
Anything with other signs than letters, digits and spaces counts to the letter. What only a record says may stand for
its ids: "the card ending in 7447". What a call is about, its ids at the top level, has to be named by the nearest text
that names anything of that kind, so a yes to one booking covers no other. A value that only a text of a tool has told
is not shown, whatever the model says of it: a text can ask for anything. A key that the tool's schema does not name is
a value too.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final

from segue.language.written_values import dates_in, money_in, numbers_in, times_in
from segue.plans.argument_origins import leaves, open_keys, stands_in
from segue.tools.identifiers import kind_of_key

MAX_RECORDS: Final = 2_000
MAX_LEAVES: Final = 10_000  # of a result
MAX_DETAILS: Final = 40  # of a record
MAX_TEXT_CHARS: Final = 20_000
SHORTEST_DETAIL: Final = 3  # characters

_JOINERS: Final = re.compile(r"[-_‐‑]")
_PLAIN: Final = re.compile(r"[\w '’-]+")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::\d\d)?")
_TOP_LEVEL: Final = re.compile(r"\w+(?:\[\d+\])?")
_TOKEN: Final = re.compile(r"[^\s,;:()\[\]{}<>\"'`*«»“”，。；：！？、]+")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_ID: Final = re.compile(r"([A-Za-z]{1,12}[-_#])\w*\d\w*|[^@]+(@)[^@]+|[\w-]+(\.[A-Za-z]\w{0,7})")
_CODE: Final = re.compile(r"(?=\w*\d)[A-Z0-9]{5,}|\d{4,}")
_FLAGS: Final = frozenset({"yes", "no", "true", "false"})


@dataclass(frozen=True)
class SeenText:
    """A text that the user has written or read."""

    text: str
    by_user: bool = False

    @cached_property
    def plain(self) -> str:
        return _plain(self.text)

    @cached_property
    def dates(self) -> frozenset[tuple[int | None, int, int]]:
        return frozenset(dates_in(self.text))

    @cached_property
    def times(self) -> frozenset[tuple[int, int]]:
        return frozenset(times_in(self.text))

    @cached_property
    def numbers(self) -> frozenset[float]:
        return frozenset(numbers_in(self.text))

    @cached_property
    def money(self) -> frozenset[float]:
        return frozenset(money_in(self.text))

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(token.rstrip(".!?") for token in _TOKEN.findall(self.text))

    def shows(self, value: object) -> bool:
        """Returns whether a text or number stands in it, in one of its written forms."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) in self.numbers
        text = str(value)
        if match := _DATE.fullmatch(text):
            year, month, day = map(int, match.groups()[:3])
            is_dated = not self.dates.isdisjoint({(year, month, day), (None, month, day)})
            return is_dated and (match[4] is None or (int(match[4]), int(match[5])) in self.times)
        if match := _TIME.fullmatch(text):
            return (int(match[1]), int(match[2])) in self.times
        if _NUMBER.fullmatch(text) and float(text) in self.numbers:
            return True
        is_plain = _PLAIN.fullmatch(text) and text == " ".join(text.split())
        return stands_in(_plain(text), self.plain) if is_plain else stands_in(text, self.text)

    def names_another(self, value: str, known: frozenset[str]) -> bool:
        """Returns whether it has an id or an address of this form that is not `known` to be of another kind."""
        form = _form(value)
        others = (token for token in self.tokens if token != value and token not in known) if form else ()
        return any(_form(token) == form for token in others)


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """An object in a result. `has` are its own texts and numbers by their keys, under `""` the key that it stands under
    if that is its id; `details` are these and those of the objects in it. Records of one `place` are of one kind.
    """

    place: tuple[str, frozenset[str]]
    has: Mapping[str, str]
    details: frozenset[str]
    around: "Record | None"
    result: int

    @property
    def id(self) -> str | None:
        """What tells it from others of its kind."""
        own = ((0 if not key else kind_of_key(key), value) for key, value in self.has.items())
        return min(
            ((kind, value) for kind, value in own if kind in (0, 1)), key=lambda each: each[0] or 0, default=(0, None)
        )[1]

    def key_of(self, value: str) -> str | None:
        return next((key for key, own in self.has.items() if own == value), None)


class Shown:
    """What a session has shown to its user. `texts` and `results`, which are JSON values, come the newest first.
    `quoted` are messages of which the user has not said all.
    """

    def __init__(self, texts: Sequence[SeenText], results: Sequence[Any], quoted: Sequence[str] = ()) -> None:
        self._texts = texts
        found = (record for number, result in enumerate(results) for record in _records(result, number))
        self._records = list(islice(found, MAX_RECORDS))
        told = (str(leaf) for result in results for _, leaf in islice(leaves(result), MAX_LEAVES))
        self._told = frozenset(told)
        self._prose = [*quoted, *(text for text in self._told if " " in text)]
        self._peculiar: dict[Record, frozenset[str]] = {}

    def missing(self, args: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns by path the values of a call, under the `schema` of its tool, that are new to the user."""
        values, keys = dict(leaves(args)), open_keys(args, schema)
        told = {path: value for path, value in values.items() if value not in (None, "", [], {})}
        call = _Values(frozenset(map(str, told.values())), frozenset(map(str, _enumerated(schema))))
        new = {path for path, value in told.items() if not self._has(path, value, call)}
        new |= {path for path, names in keys.items() if not all(map(self._has_key, names))}
        return {path: value for path, value in values.items() if path in new}

    def _has(self, path: str, value: Any, call: "_Values") -> bool:
        text = str(value)
        if text in call.listed or isinstance(value, bool) or value == 0:
            return any(each.shows(value) for each in self._texts)
        if isinstance(value, str) and text not in self._told and self._is_only_told(text):
            return False
        if _TOP_LEVEL.fullmatch(path):
            return self._is_amount_meant(value) if isinstance(value, int | float) else self._is_meant(text, call)
        return any(each.shows(value) or self._is_described(text, call, each) for each in self._texts)

    def _has_key(self, key: str) -> bool:
        return not self._is_only_told(key) and any(each.shows(key) for each in self._texts)

    def _is_only_told(self, value: str) -> bool:
        """Returns whether a text of a result has the value, and none of the user's."""
        is_told = any(stands_in(value, text) for text in self._prose)
        return is_told and not any(each.by_user and each.shows(value) for each in self._texts)

    def _is_amount_meant(self, value: float) -> bool:
        """Returns whether the nearest text with amounts of money has this one, if it is shown as one."""
        if any(value in each.money for each in self._texts):
            return value in next(each.money for each in self._texts if each.money)
        return any(each.shows(value) for each in self._texts)

    def _is_meant(self, value: str, call: "_Values") -> bool:
        """Returns whether the nearest text that names a thing of its kind names this one."""
        beside = self._beside(value)
        for each in self._texts:
            if each.shows(value):
                return True
            if each.names_another(value, self._told - beside) or any(map(each.shows, beside)):
                return False
            if self._is_described(value, call, each):
                return True
            if any(self._is_described(other, call, each) for other in beside):
                return False
        return False

    def _beside(self, value: str) -> set[str]:
        """Returns what stands in the same place of other records as the value does in its own."""
        places = {(record.place, key) for record in self._records if (key := record.key_of(value)) is not None}
        return {
            own for place, key in places for each in self._records if each.place == place and (own := each.has.get(key))
        } - {value}

    def _is_described(self, value: str, call: "_Values", text: SeenText) -> bool:
        """Returns whether every record of a result that has the value has something shown that is peculiar to it."""
        holders: dict[int, list[Record]] = defaultdict(list)
        for record in self._records:
            if record.key_of(value) is not None:
                holders[record.result].append(record)
        return any(all(self._is_known(record, value, call, text) for record in found) for found in holders.values())

    def _is_known(self, record: Record, value: str, call: "_Values", text: SeenText) -> bool:
        if any(text.shows(detail) for detail in self._peculiar_to(record) - call.listed - {value}):
            return True
        # All of its kind that the record around it has, such as the flights of a booking.
        key, around = record.key_of(value) or "", record.around
        of_kind = {
            each.has.get(key, value) for each in self._records if each.around is around and each.place == record.place
        }
        return around is not None and call.values >= of_kind and self._is_known(around, value, call, text)

    def _peculiar_to(self, record: Record) -> frozenset[str]:
        """Returns the details that no other record of its kind has."""
        if record not in self._peculiar:
            others = (each.details for each in self._records if each.place == record.place and each.id != record.id)
            self._peculiar[record] = record.details.difference(*others)
        return self._peculiar[record]


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a call, and those that its tool's schema lists, which tell nothing of anything."""

    values: frozenset[str]
    listed: frozenset[str]


def _records(
    value: Any, result: int, place: str = "", around: Record | None = None, under: str = ""
) -> Iterator[Record]:
    match value:
        case dict() if value and all(isinstance(item, dict) for item in value.values()):
            for key, item in value.items():
                yield from _records(item, result, f"{place}{{}}", around, key)
        case dict():
            has = ({"": under} if under else {}) | {key: str(item) for key, item in value.items() if _is_scalar(item)}
            # What a whole result is shows in its keys; the items of a list are of one kind with any.
            kind = frozenset(() if under or place.endswith("[]") else has)
            record = Record((place, kind), has, _details(has, value), around, result)
            yield record
            for key, item in value.items():
                if not _is_scalar(item):
                    yield from _records(item, result, f"{place}.{key}", record)
        case list():
            for item in value:
                if _is_scalar(item):
                    yield Record((f"{place}[]", frozenset()), {"": str(item)}, frozenset(), around, result)
                else:
                    yield from _records(item, result, f"{place}[]", around)


def _details(has: Mapping[str, str], value: Mapping[str, Any]) -> frozenset[str]:
    inner = (
        str(item) for each in value.values() if isinstance(each, dict) for item in each.values() if _is_scalar(item)
    )
    telling = (text for text in (*has.values(), *inner) if len(text) >= SHORTEST_DETAIL and text.lower() not in _FLAGS)
    return frozenset(islice(telling, MAX_DETAILS))


def _is_scalar(item: object) -> bool:
    return isinstance(item, str | int | float) and not isinstance(item, bool)


def _form(token: str) -> str | None:
    """Returns the same for addresses, for ids and files of one kind, and for codes of one length; None for a word."""
    if match := _ID.fullmatch(token):
        return "".join(filter(None, match.groups()))
    return str(len(token)) if _CODE.fullmatch(token) else None


def _enumerated(schema: Any) -> Iterator[Any]:
    match schema:
        case dict():
            yield from schema.get("enum", ()) if isinstance(schema.get("enum"), list) else ()
            for item in schema.values():
                yield from _enumerated(item)
        case list():
            for item in schema:
                yield from _enumerated(item)


def _plain(text: str) -> str:
    """Returns one spelling for case, spaces, hyphens and underscores."""
    return " ".join(_JOINERS.sub(" ", unicodedata.normalize("NFC", text[:MAX_TEXT_CHARS]).lower()).split())
