"""Finds the values of a call that the user has neither said nor been shown. Pure.

A value counts in the ways people write it: `2024-05-20` as "May 20th", 1194 as "$1,194". One with signs other than
letters, digits and spaces counts only to the letter. A key that the tool's schema does not name is a value too. A
record may stand for its ids: "the card ending in 7447". The ids at the top level of a call must be named by the nearest
text that names anything of that kind, so a yes to one booking covers no other. A value known only from a tool's text
counts as not shown, whatever the model says: a text can ask for anything.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice, takewhile
from typing import Any, Final

from segue.language.detect_language import ENGLISH, detect_language
from segue.language.lexicon import UNKNOWN, Phrase, kinds_of
from segue.language.utterance import sentences_of, words_of
from segue.language.written_values import CURRENCIES, dates_in, numbers_in, prices_in, times_in, told_of, without_dates
from segue.plans.acknowledgement import LEXICON
from segue.plans.asked_words import ACTIONS, AND, clauses_of, is_named, tool_words, unquoted
from segue.plans.value_origins import MAX_LEAVES, leaves, open_keys, stands_in
from segue.tools.summaries import kind_of_key

MAX_CHECKS: Final = 20_000  # whether a text shows a value, for one call
MAX_RECORDS: Final = 2_000
MAX_DETAILS: Final = 40  # of a record
MAX_TEXT_CHARS: Final = 8_000
STEM: Final = 5  # letters of the name of a flag: `baggages` is `baggage`
SHORTEST_DETAIL: Final = 3  # characters
MOST_WORDS_OF_A_NAME: Final = 3
NEAREST: Final = 5  # texts: what the reply and the offer say of the call, and both whole, with the answer
MOST_TEXTS: Final = 20  # in which is looked for other names

_JOINERS: Final = re.compile(r"[-_‐‑]")
_PLAIN: Final = re.compile(r"[\w '’-]+")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::\d\d)?")
_TOP_LEVEL: Final = re.compile(r"\w+(?:\[\d+\])?")
_INDEX: Final = re.compile(r"\[\d+\]")
_TOKEN: Final = re.compile(r"[^\s,;:()\[\]{}<>\"'`*«»“”，。；：！？、؟،؛]+")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_ID: Final = re.compile(
    r"([A-Za-z]{1,12}[-_#])\w*\d\w*|[^@]+(@)[^@]+|[\w.-]+(\.)(?!(?:com|org|net|io)$)[A-Za-z]\w{0,7}"
)
_CODE: Final = re.compile(r"(?=\w*\d)[A-Z0-9]{5,}|\d{4,}")
_NAMES: Final = re.compile(r"[^\W\d]\w*")
_NOES: Final = frozenset({"no", "negator", "0", "none", "without"})
_FLAGS: Final = frozenset({"yes", "no", "true", "false"})


@dataclass(frozen=True)
class SeenText:
    """A text that the user has written or read, or what is `about` the call's action; `left_out` is kept from it."""

    text: str
    by_user: bool = False
    about: bool = False
    left_out: str = ""

    own = cached_property(lambda self: unquoted(self.text[:MAX_TEXT_CHARS]))
    dates = cached_property(lambda self: dates_in(self.text[:MAX_TEXT_CHARS]))
    times = cached_property(lambda self: times_in(self.text[:MAX_TEXT_CHARS]))
    numbers = cached_property(lambda self: numbers_in(without_dates(self.own)))
    prices = cached_property(lambda self: prices_in(self.own))
    money = cached_property(lambda self: {amount for amount, _ in self.prices})
    currencies = cached_property(lambda self: {code for _, code in self.prices})
    words = cached_property(lambda self: _words(self.own))
    lists = cached_property(lambda self: ACTIONS.now.get(detect_language(self.own), ACTIONS.now[ENGLISH]))
    clauses = cached_property(lambda self: [SeenText(each) for each in clauses_of(self.own)])
    without = cached_property(lambda self: SeenText(self.left_out))
    sides = cached_property(lambda self: [*map(self.lists.sides, sentences_of(self.own))])

    @cached_property
    def names(self) -> frozenset[str]:
        """The words, folded, that begin large within a sentence and are no thing."""
        within = chain.from_iterable(each.split()[1:] for each in sentences_of(self.own))
        named = chain.from_iterable(_words(word) for word in within if word.istitle() and len(word) > 1)
        return frozenset(word for word in named if not _is_listed(word, self.own))

    @cached_property
    def receivers(self) -> frozenset[str]:
        """The words, folded, of the names behind a `to`, of `the link to Zoom` none, and of those joined to them."""
        found, is_open, lists = set[str](), False, self.lists
        for at, word in enumerate(self.words):
            is_name = (word in self.names or not word.islower()) and _is_strange(word, self.own)
            is_to = "to" in lists.cues_at(self.words, at) and not (at and "leads" in lists.cues_at(self.words, at - 1))
            is_open = is_to or (is_open and (is_name or word in lists.joins))
            found.update({word} if is_open and is_name else ())
        return frozenset(found)

    @cached_property
    def ids(self) -> Mapping[str, frozenset[str]]:
        """The words that look like an id or an address, by their form."""
        found: dict[str, set[str]] = defaultdict(set)
        for token in (each.rstrip(".!?").lstrip("#") for each in _TOKEN.findall(self.own)):
            if form := _form(token):
                found[form].add(token)
        return {form: frozenset(tokens) for form, tokens in found.items()}

    def shows(self, value: object) -> bool:
        """Returns whether a text or number stands in it, in one of its written forms."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) in self.numbers
        text = str(value)
        if text in self.currencies or (_NUMBER.fullmatch(text) and float(text) in self.numbers):
            return True
        if match := _DATE.fullmatch(text):
            year, month, day = map(int, match.groups()[:3])
            is_dated = not self.dates.isdisjoint({(year, month, day), (None, month, day)})
            return is_dated and (match[4] is None or (int(match[4]), int(match[5])) in self.times)
        if match := _TIME.fullmatch(text):
            return (int(match[1]), int(match[2])) in self.times
        whole = self.text if " " in text.strip() else self.own
        is_plain = _PLAIN.fullmatch(text) and text == " ".join(text.split())
        return stands_in(_plain(text), _plain(whole)) if is_plain else stands_in(text, whole)

    def says(self, name: str) -> bool | None:
        """Returns whether its last sentence with a word that begins so says yes or no to it, None if it has none."""
        whole = f"{self.left_out}\n{self.text}"[:MAX_TEXT_CHARS]
        sentences = (words_of(each) for each in reversed(sentences_of(whole)))
        words = next((each for each in sentences if any(word.startswith(name) for word in each)), None)
        if words is None:
            return None
        return _NOES.isdisjoint((*words, *kinds_of(words, detect_language(self.text), LEXICON.now)))

    def like(self, value: object) -> AbstractSet[object]:
        """Returns what it has of the kind of a value: numbers, days, hours, ids of one form, or names."""
        text = str(value)
        if isinstance(value, int | float):
            return self.numbers
        if _DATE.fullmatch(text):
            return {each[1:] for each in self.dates}
        if _TIME.fullmatch(text):
            return self.times
        return self.names if text.istitle() and not any(map(str.isdigit, text)) else frozenset()

    def ids_like(self, value: object) -> frozenset[str]:
        return self.ids.get(_form(str(value)) or "", frozenset())


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """An object in a result."""

    place: tuple[str, frozenset[str]]  # records of one place are of one kind
    has: Mapping[str, str]  # its own texts and numbers by key; under `""` the key it stands under, if that is its id
    details: frozenset[str]  # these and those of the objects in it
    around: "Record | None"
    result: int

    @property
    def id(self) -> str | None:
        """The value that tells it from others of its kind."""
        kinds = {key: kind_of_key(key) if key else 0 for key in self.has}
        return next((self.has[key] for of_id in (0, 1) for key, kind in kinds.items() if kind == of_id), None)


@dataclass(frozen=True, eq=False)
class _Values:
    """The values of a call, and the schema of its tool, which has choices and, of arguments, defaults."""

    values: frozenset[str]
    schema: Mapping[str, Any]

    enumerations = cached_property(lambda self: [*_enumerations(self.schema)])
    seen = cached_property(lambda self: SeenText("\n".join(self.values)))
    words = cached_property(lambda self: frozenset([*self.seen.words, *(hour for hour, _ in self.seen.times)]))

    def has_default(self, path: str, value: object) -> bool:
        properties = self.schema.get("properties")
        own = properties.get(path) if isinstance(properties, dict) else None
        default = own.get("default") if isinstance(own, dict) else None
        return default == value and isinstance(default, bool) is isinstance(value, bool)


class _TooMuch(Exception):
    """There is more to compare than a call is worth: then it is asked about."""


class Shown:
    """What a user was shown. `texts` and `results`, JSON values, are newest first; `quoted` are not all the user's."""

    def __init__(self, texts: Sequence[SeenText], results: Sequence[Any], quoted: Sequence[str] = ()) -> None:
        self._texts = texts
        self._replies = [*takewhile(lambda each: each.by_user, texts)]
        self._offers = [each for each in texts[:NEAREST] if not each.by_user]
        self._offer = next((each for each in texts if each.about and not each.by_user), SeenText(""))
        found = (record for number, result in enumerate(results) for record in _records(result, number))
        self._from_tools = frozenset(str(leaf) for result in results for _, leaf in islice(leaves(result), MAX_LEAVES))
        self._texts_of_others = [text.lower() for text in (*quoted, *self._from_tools)]
        self._holders: dict[str, list[tuple[Record, str]]] = defaultdict(list)
        self._records_at: dict[tuple[str, frozenset[str]], list[Record]] = defaultdict(list)
        self._ids_with_detail: dict[tuple[object, str], set[str | None]] = defaultdict(set)
        for record in islice(found, MAX_RECORDS):
            self._records_at[record.place].append(record)
            for key, value in record.has.items():
                self._holders[value].append((record, key))
            for detail in record.details:
                self._ids_with_detail[record.place, detail].add(record.id)
        self._checks_left = MAX_CHECKS

    def missing(self, args: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns by path the values of a call, under the `schema` of its tool, that are new to the user."""
        values = dict(leaves(args))
        filled = {path: value for path, value in values.items() if value not in (None, "", [], {})}
        call = _Values(frozenset(map(str, filled.values())), schema)
        try:
            new = {path for path, value in filled.items() if not self._has(path, value, call)}
            new |= self._mixed({path: value for path, value in filled.items() if path not in new}, call)
            unnamed = ((path, key) for path, keys in open_keys(args, schema).items() for key in keys)
            new |= {path for path, key in unnamed if self._is_only_from_tools(key) or not self._is_shown(key)}
        except _TooMuch:
            return filled
        return {path: value for path, value in values.items() if path in new}

    def _has(self, path: str, value: Any, call: _Values) -> bool:
        text = str(value)
        if isinstance(value, bool) or text.lower() in _FLAGS:
            return self._is_flag_meant(path, value, call)
        if value == 0:
            return self._is_flag_meant(path, value, call) or self._is_shown(value)
        if choices := next((each for each in (CURRENCIES, *call.enumerations) if text in each), None):
            return self._is_nearest(text, choices - {text})
        is_told = isinstance(value, str) and text not in self._from_tools and self._is_only_from_tools(text)
        if is_told or self._is_left_out(value):
            return False
        if _TOP_LEVEL.fullmatch(path):
            is_number = isinstance(value, int | float)
            return self._is_amount_meant(path, value, call) if is_number else self._is_meant(text, call)
        return any(self._names(each, value, call) for each in self._texts)

    def _shows(self, text: SeenText, value: object) -> bool:
        self._spend(1)
        return text.shows(value)

    def _spend(self, checks: int) -> None:
        self._checks_left -= checks
        if self._checks_left < 0:
            raise _TooMuch

    def _is_shown(self, value: object) -> bool:
        return any(self._shows(each, value) for each in self._texts)

    def _is_only_from_tools(self, value: str) -> bool:
        """Returns whether only results have the value, and no text of the user's."""
        is_from_others = any(stands_in(value.lower(), text) for text in self._texts_of_others)
        return is_from_others and not any(each.by_user and self._shows(each, value) for each in self._texts)

    def _is_flag_meant(self, path: str, value: object, call: _Values) -> bool:
        """Returns whether the nearest sentence with a flag's name says so, or none has it and it is the default."""
        # A name without letters that `tool_words` knows is one word, and a number is none.
        words = [word for name in _NAMES.findall(path)[-1:] for word in tool_words(name) or (name.casefold(),)]
        is_yes = str(value).lower() not in ("no", "false", "0")
        found = (each.says(words[-1][:STEM]) for each in self._texts if words)
        is_free = isinstance(value, bool) or not any(
            each.numbers - call.seen.numbers for each in self._texts if each.about
        )
        unsaid = is_yes if is_free and call.has_default(path, value) else None
        return next((reading for reading in found if reading is not None), unsaid) is is_yes

    def _is_nearest(self, value: str, others: frozenset[str]) -> bool:
        """Returns whether the nearest text with one of several choices has this one."""
        shown = ({one for one in (value, *others) if self._shows(each, one)} for each in self._texts)
        return value in next(filter(None, shown), ())

    def _is_left_out(self, value: object) -> bool:
        """Returns whether the nearest text that has a value keeps it from what is agreed to."""
        for each in self._texts if any(each.left_out for each in self._texts) else ():
            if self._shows(each, value):
                return False
            if each.left_out and self._shows(each.without, value):
                return True
        return False

    def _mixed(self, values: Mapping[str, Any], call: _Values) -> set[str]:
        """Returns the paths of values that an offer has for another, or for another argument."""
        checks = (self._is_of_another, self._is_told_otherwise, self._is_for_others)
        mixed = {path for path, value in values.items() if any(check(path, value, call) for check in checks)}
        return mixed | self._beyond(values, call)

    def _is_of_another(self, path: str, value: object, call: _Values) -> bool:
        """Returns whether an answer has a value for another: 300 of `Anna gets 500, Marco 300. Shall I pay Anna?`"""
        others = [each for each in call.values - {str(value)} if self._shows(self._offer, each)]
        clauses = chain.from_iterable(each.clauses for each in self._offers)
        beside = [clause for clause in clauses if any(self._shows(clause, other) for other in others)]
        if not _TOP_LEVEL.fullmatch(path) or any(self._shows(clause, value) for clause in beside):
            return False
        return any(each.ids_like(value) - call.values or self._names_another(each, value, call) for each in beside)

    def _is_told_otherwise(self, path: str, value: object, call: _Values) -> bool:
        """Returns whether an offer has another number, day or side for this argument: `2 people and 3 nights`."""
        name = " ".join(tool_words(_INDEX.sub("", path).rpartition(".")[2]))
        is_old, is_new = (is_named(name, kind) for kind in ("olds", "news"))
        for text in self._offers:
            told = [*map(SeenText, told_of(name, text.own))] if any(map(str.isdigit, str(value))) else []
            if any(each.like(value) or each.ids_like(value) for each in told):
                return not any(self._names(each, value, call) for each in told)
            for old, new in filter(any, text.sides if is_old or is_new else ()):
                own, other = (
                    self._names(SeenText(each), value, call) for each in ((old, new) if is_old else (new, old))
                )
                return other and not own
        return False

    def _beyond(self, values: Mapping[str, Any], call: _Values) -> set[str]:
        """Returns the paths of what a list, or those who get something, have more than an offer that names some."""
        groups: dict[str, list[str]] = defaultdict(list)
        for path in values:
            groups["to" if is_named(path, "receivers") else _INDEX.sub("[]", path)].append(path)
        texts, beyond = (self._offer, *self._replies), set[str]()
        for paths in groups.values():
            named = {path for path in paths if any(self._names(each, values[path], call) for each in texts)}
            beyond.update({*paths} - named if any(self._names(texts[0], values[path], call) for path in paths) else ())
        return beyond

    def _names(self, text: SeenText, value: object, call: _Values) -> bool:
        return self._shows(text, value) or self._is_described(str(value), call, text)

    def _is_for_others(self, path: str, found: object, call: _Values) -> bool:
        """Returns whether an offer names those who get something, others than the one whom a call gives it to."""
        offer, value = self._offer, str(found)
        if not is_named(path, "receivers") or not offer.receivers:
            return False
        details = chain.from_iterable(record.details for record, _ in self._holders.get(value, ()))
        is_none_of_them = offer.receivers.isdisjoint(_words(" ".join((value, *details))))
        is_name = value.replace(" ", "").isalpha()  # an address beside a name may be theirs: `to Luca (lb@x.example)`
        return is_none_of_them and (is_name if self._shows(offer, value) else self._is_described(value, call, offer))

    def _names_another(self, text: SeenText, value: object, call: _Values) -> bool:
        """Returns whether a text that lacks a value has another of its kind, which no argument has."""
        if text.like(value) - call.seen.like(value) - call.words:
            return True
        name = _words(str(value))
        if any(map(str.isdigit, str(value))) or len(name) > MOST_WORDS_OF_A_NAME:
            return False
        beside = {other for one, other in self._joined if one in (*name[:1], *name[-1:])}
        return any(_is_strange(each, self._texts[0].own) for each in beside.intersection(text.words) - call.words)

    @cached_property
    def _joined(self) -> list[tuple[str, str]]:
        """The pairs of words that an `and` or an `or` joins, in either order: they name things of one kind."""
        texts = ((each.lists, each.words) for each in self._texts[:MOST_TEXTS])
        threes = ((lists, *three) for lists, words in texts for three in zip(words, words[1:], words[2:], strict=False))
        pairs = [
            (one, other) for lists, one, join, other in threes if join in lists.joins or lists.has_cue(join, "either")
        ]
        return [*pairs, *(pair[::-1] for pair in pairs)]

    def _is_amount_meant(self, path: str, value: float, call: _Values) -> bool:
        """Returns whether the nearest text with amounts has this one: 2 of `2 pizzas for 30 euros` is no price."""
        if any(value not in each.numbers and self._names_another(each, value, call) for each in self._replies):
            return False
        if is_named(path, "counts"):
            return any(value in each.numbers - each.money for each in self._texts)
        if is_named(path, "prices"):
            told = (each.money or each.numbers for each in self._texts if each.money or value in each.numbers)
            return value in next(told, ())
        if any(value in each.money for each in self._texts):
            return value in next(each.money for each in self._texts if each.money)
        return self._is_shown(value)

    def _is_meant(self, value: str, call: _Values) -> bool:
        """Returns whether the nearest text that names a thing of its kind names this one."""
        # Beside it are what other records have in the same place.
        places = {(record.place, key) for record, key in self._holders.get(value, ())}
        self._spend(sum(len(self._records_at[place]) for place, _ in places) // 10)
        found = (each.has.get(key) for place, key in places for each in self._records_at[place])
        others = set(filter(None, found)) - {value}
        of_other_kinds = self._from_tools - others
        for each in self._texts:
            if self._shows(each, value):
                return True
            own = call.values if each.by_user else {value}
            known = own if each.about else of_other_kinds | own
            if each.ids_like(value) - known or self._names_another(each, value, call):
                return False
            if any(self._shows(each, other) for other in others):
                return False
            if self._is_described(value, call, each):
                return True
            if any(self._is_described(other, call, each) for other in others):
                return False
        return False

    def _is_described(self, value: str, call: _Values, text: SeenText) -> bool:
        """Returns whether every record of one result with the value was shown by a detail peculiar to it."""
        self._spend(1)
        by_result: dict[int, list[tuple[Record, str]]] = defaultdict(list)
        for record, key in self._holders.get(value, ()):
            by_result[record.result].append((record, key))
        return any(all(self._is_known(*detail, call, text) for detail in found) for found in by_result.values())

    def _is_known(self, record: Record, key: str, call: _Values, text: SeenText) -> bool:
        value, around = record.has.get(key, ""), record.around
        peculiar = (detail for detail in record.details - {value} if self._is_peculiar(detail, record, call))
        if any(self._shows(text, detail) for detail in peculiar):
            return True
        # All of its kind that the record around it has, such as the flights of a booking.
        of_kind = {each.has.get(key, "") for each in self._records_at[record.place] if each.around is around}
        return around is not None and call.values >= of_kind and self._is_known(around, "", call, text)

    def _is_peculiar(self, detail: str, record: Record, call: _Values) -> bool:
        """Returns whether no other record of its kind has a detail, and the tool's schema does not list it."""
        is_listed = any(detail in each for each in call.enumerations)
        return not is_listed and self._ids_with_detail[record.place, detail] == {record.id}


def _is_strange(word: str, text: str) -> bool:
    """Returns whether a word of a text may name something: no list of its language has it."""
    is_new = kinds_of((word,), detect_language(text), LEXICON.now) == [UNKNOWN]
    return is_new and not word.isdigit() and not _is_listed(word, text)


def _is_listed(word: str, text: str) -> bool:
    lists = ACTIONS.now.get(detect_language(text))
    return lists is not None and bool(lists.acts_at((word,), 0) or lists.thing_at((word,), 0)[0])


def _words(text: str) -> Phrase:
    """Returns the folded words of a text, the Arabic `and` as a word of its own."""
    parts = ((AND, word[1:]) if word[0] == AND and len(word) > SHORTEST_DETAIL else (word,) for word in words_of(text))
    return tuple(chain.from_iterable(parts))


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
    objects = (each for each in value.values() if isinstance(each, dict))
    inner = (str(item) for each in objects for item in each.values() if _is_scalar(item))
    telling = (text for text in (*has.values(), *inner) if len(text) >= SHORTEST_DETAIL and text.lower() not in _FLAGS)
    return frozenset(islice(telling, MAX_DETAILS))


def _is_scalar(item: object) -> bool:
    return isinstance(item, str | int | float) and not isinstance(item, bool)


def _form(token: str) -> str | None:
    """Returns the same for addresses, for ids and files of one kind, and for codes of one length; None for a word."""
    if match := _ID.fullmatch(token):
        return "".join(filter(None, match.groups()))
    return str(len(token)) if _CODE.fullmatch(token) else None


def _enumerations(schema: Any) -> Iterator[frozenset[str]]:
    if isinstance(schema, dict):
        if isinstance(choices := schema.get("enum"), list):
            yield frozenset(map(str, choices))
        schema = [*schema.values()]
    for item in schema if isinstance(schema, list) else ():
        yield from _enumerations(item)


@lru_cache(maxsize=256)
def _plain(text: str) -> str:
    """Returns one spelling for case, spaces, hyphens and underscores."""
    return " ".join(_JOINERS.sub(" ", unicodedata.normalize("NFC", text[:MAX_TEXT_CHARS]).lower()).split())
