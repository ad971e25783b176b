"""How a call is shown to the person who approves it: to the letter, or with length and hash if it is too long. Pure.

A value's lines stand behind `│`, its continuations behind `┆`, and what is not of the call between `‹` and `›`, which
no value can write: no two calls look alike, and no value looks like another argument.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from string import Formatter
from typing import Any, Final

import orjson

from segue.domain.visible import visible, whole_before
from segue.language.detect_language import ENGLISH
from segue.language.lexicon import WordList

LONGEST_VALUE: Final = 4000  # characters; the values of a call share LONGEST_CALL
LONGEST_CALL: Final = 12_000
SHORTEST_CUT: Final = 300
LONGEST_IN_LINE: Final = 80
WIDTH: Final = 80
FIRST_LINES, LAST_LINES = 40, 20
FIRST_ARGUMENTS, LAST_ARGUMENTS = 30, 10

_PLAIN_NAME: Final = re.compile(r"[^\W\d][\w.-]{0,59}")
_MARKUP: Final = re.compile(r"[\\`*_~<>\[\]&|$]|://|\bwww\.")  # what Markdown would hide or turn into something else

Sentences = Mapping[str, str]


def translate(key: str, language: str | None, /, **values: object) -> str:
    """Returns the sentence with its values, in English for an unknown language. Raises KeyError for a missing one."""
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


@dataclass(frozen=True, slots=True)
class CallView:
    """`whole` is where everything can be read; without it nothing is cut."""

    language: str
    whole: str | None

    def lines(self, args: Mapping[str, Any]) -> Iterator[str]:
        """Yields the lines of all arguments, without indentation."""
        longest = max(SHORTEST_CUT, min(LONGEST_VALUE, LONGEST_CALL // max(len(args), 1)))
        names = list(args)
        left_out = names[FIRST_ARGUMENTS:-LAST_ARGUMENTS] if self.whole else []
        for name in names[:FIRST_ARGUMENTS] if left_out else names:
            yield from self._argument(name, _text(args[name]), longest)
        if left_out:
            yield self._cut("cut_arguments", len(left_out), len(names), _json({name: args[name] for name in left_out}))
            for name in names[-LAST_ARGUMENTS:]:
                yield from self._argument(name, _text(args[name]), longest)

    def in_line(self, args: Mapping[str, Any], *, shown_above: bool = False) -> str:
        """Returns all arguments in one line of code spans; only how they begin if they are `shown_above`."""
        brief = _beginning if shown_above else self.brief
        shown = islice(args.items(), FIRST_ARGUMENTS)
        parts = [code(f"{self._name(name)}: {brief(_text(value))}") for name, value in shown]
        if left_out := dict(islice(args.items(), FIRST_ARGUMENTS, None)):
            parts.append(self._cut("cut_arguments", len(left_out), len(args), _json(left_out)))
        return "; ".join(parts)

    def brief(self, text: str) -> str:
        """Returns a text in one line, of a long one the beginning and the end, unless saying so takes more room."""
        head, tail = _ends(text, LONGEST_IN_LINE) if self.whole else (text, "")
        if head == text:
            return visible(text)
        left = len(text) - len(head + tail)
        cut = self._cut("cut", left, len(text), text)
        return visible(text) if left <= len(cut) else f"{visible(head)} {cut} {visible(tail)}"

    def _argument(self, name: str, text: str, longest: int) -> Iterator[str]:
        head, tail = _ends(text, longest) if self.whole else (text, "")
        if len(text) <= WIDTH and "\n" not in text:
            yield f"{self._name(name)}: {visible(text)}"
            return
        yield f"{self._name(name)}:"
        yield from quoted(head)
        if head != text:
            yield f"  {self._cut('cut', len(text) - len(head + tail), len(text), text)}"
            yield from quoted(tail)

    def _name(self, name: str) -> str:
        return name if _PLAIN_NAME.fullmatch(name) else self.brief(_json(name))

    def _cut(self, sentence: str, left: int, total: int, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"‹{translate(sentence, self.language, left=left, total=total, digest=digest, whole=self.whole)}›"


def plain(text: str) -> str:
    """Returns one line of text that stands in a sentence, as code if a renderer would make something else of it."""
    shown = visible(text)
    return code(shown) if _MARKUP.search(shown) else shown


def code(text: str) -> str:
    """Returns visible text as a Markdown code span that nothing in it can close."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def _beginning(text: str) -> str:
    """Returns a text that fits into one line, of any other how its first line begins."""
    line = text.partition("\n")[0]
    head = line[: whole_before(line, LONGEST_IN_LINE)] if len(line) > LONGEST_IN_LINE else line
    return visible(text) if head == text else f"{visible(head)} ‹…›"


def _text(value: object) -> str:
    """Returns a string as it is, and anything else as JSON; a string that could pass for JSON, or for none, as JSON."""
    if not isinstance(value, str):
        return _json(value)
    with suppress(orjson.JSONDecodeError):
        orjson.loads(value)
        return _json(value)
    return value if "\n" in value or (value and value == value.strip(" ")) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _ends(text: str, longest: int) -> tuple[str, str]:
    """Returns the beginning and the end of a text that is too long, the whole text and nothing of one that is not."""
    lines = text.split("\n")
    start, end = len(text), 0
    if len(text) > longest:
        start, end = longest * 3 // 4, longest // 4
    if len(lines) > FIRST_LINES + LAST_LINES:
        start = min(start, len("\n".join(lines[:FIRST_LINES])))
        end = min(end or len(text), len("\n".join(lines[-LAST_LINES:])))
    start, rest = whole_before(text, start), whole_before(text, len(text) - end)
    return (text[:start], text[rest:]) if start < rest else (text, "")


def quoted(text: str) -> Iterator[str]:
    """Yields the lines of a text behind a mark that no text can write there, those over WIDTH in parts."""
    for line in text.split("\n"):
        shown = visible(line)
        shown = f"{shown[:-1]}‹U+0020›" if shown.endswith(" ") else shown
        parts, at = [], 0
        while len(shown) - at > WIDTH:
            end = shown.rfind(" ", at + WIDTH // 2, at + WIDTH) + 1 or whole_before(shown, at + WIDTH)
            parts.append(shown[at:end])
            at = end
        first, *more = [*parts, shown[at:]]
        yield f"  │ {first}" if first else "  │"
        yield from (f"  ┆ {part}" for part in more)
