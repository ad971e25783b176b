"""Descriptions of a result that do not show it: a line, a preview, and identifiers that later calls may need. Pure."""

import csv
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice
from typing import Any

from segue.domain.redaction import is_secret_key
from segue.domain.visible import visible

MAX_IDENTIFIERS = 20
MAX_IDENTIFIER_CHARS = 300
MAX_IDENTIFIERS_CHARS = 700
MAX_LEAVES = 10_000
MAX_SEARCHED_CHARS = 50_000
MAX_KEY_CHARS = 60

_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ID_WORDS = frozenset({
    "id", "ids", "uuid", "uuids", "guid", "uid", "uids", "number", "numbers", "key", "keys", "identifier",
    "identifiers", "sha", "sku", "slug", "ref", "refs", "reference", "references", "编号", "单号", "رقم",
})  # fmt: skip
_ADDRESS_WORDS = frozenset({"url", "urls", "uri", "uris", "link", "links", "href", "path", "paths", "cursor", "token"})
_FILE_WORDS = frozenset({"file", "files", "filename", "filenames", "filepath", "folder", "directory"})
_FILE_NAME = re.compile(r"(?=[^\s@/\\.]*[^\W\d])[^\s@]{0,200}[^\s@/\\.]\.[A-Za-z][A-Za-z0-9]{0,7}")
_ID_IN_TEXT = re.compile(  # words need no spaces around them in every script, so an id ends where its own letters do
    r"https?://[^\s\"'<>)\]。，；：！？、،؛؟]*[^\s\"'<>)\]。，；：！？、،؛؟.,;:!?]"
    r"|(?<![0-9A-Za-z_-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z_-])"
    r"|(?<![0-9A-Za-z_/-])[A-Za-z]{2,12}[-_#](?=[0-9a-zA-Z]*[0-9])[0-9a-zA-Z]{3,40}(?:-[0-9]{1,12}){0,3}(?![0-9A-Za-z_])"
    r"|(?<![0-9A-Za-z_/-])[A-Z]{2,12}-[0-9]{2,12}(?:-[0-9]{1,12}){0,3}(?![0-9A-Za-z_])"
)

MAX_SUMMARY_CHARS = 200
MAX_NAME_CHARS = 60
MAX_COLUMN_CHARS = 40
MAX_VALUE_CHARS = 20
TABLE_LINES_READ = 5
MAX_SUBJECTS = 2
MAX_BESIDE_CHARS = 200
MAX_KEYS_READ = 20
MAX_FACTS = 6
_NAMES = ("subject", "title", "name", "summary", "label", "url", "id")
_TITLES = ("title", "subject", "name")
_PAGES = ("url", "link", "href")
MAX_URL_CHARS = 4096
_KINDS = ("media_type", "mime_type", "mimeType")
_OUTPUTS = ("stderr", "stdout", "output")  # of a program: its last line says how it went
_STATES = ("status", "state", "outcome", "result")
_TEXTS = ("content", "text", "contents")  # the keys under which tools wrap the text of a file or a page
_RULE = re.compile(r"[\s|:+=-]*-[\s|:+=-]*")  # the line under the head of a Markdown table


def identifiers(value: Any) -> tuple[str, ...]:
    """Returns the values that a later call may need, each once: ids, ids of other things, addresses, texts that look
    like ids. Identifiers of one kind keep the order of the result, so that the second id belongs to the second item.
    """
    found: tuple[dict[str, None], ...] = ({}, {}, {}, {})
    for key, leaf in islice(_leaves(None, value), MAX_LEAVES):
        for kind, text in _candidates(key, leaf):
            if 0 < len(text) <= MAX_IDENTIFIER_CHARS:
                found[kind][text] = None
        if len(found[0]) == MAX_IDENTIFIERS:
            break
    unique = list(dict.fromkeys(text for kind in found for text in kind))[:MAX_IDENTIFIERS]
    lengths = accumulate(map(len, unique))
    return tuple(text for text, so_far in zip(unique, lengths, strict=True) if so_far <= MAX_IDENTIFIERS_CHARS)


def object_with(identifier: str, value: Any) -> dict[str, Any] | None:
    """Returns the object in a result whose own id this is, the first of several."""
    for item in islice(_objects(value), MAX_LEAVES):
        kinds = {key: kind_of_key(key) for key in item if len(key) <= MAX_KEY_CHARS}
        own = [key for key, kind in kinds.items() if kind == (0 if 0 in kinds.values() else 1)]
        if any(not isinstance(item[key], bool) and str(item[key]) == identifier for key in own):
            return item
    return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)


def named_objects(value: Any) -> Iterator[tuple[str, str, str | None]]:
    """Yields path (JMESPath), title and address of objects that have one; looks at MAX_LEAVES values, deepest last."""
    left, places = MAX_LEAVES, deque[tuple[str, Any]]([("", value)])
    while places:
        path, item = places.popleft()
        if isinstance(item, dict):
            titles, urls = ([item[key] for key in keys if isinstance(item.get(key), str)] for keys in (_TITLES, _PAGES))
            url = next((text for text in urls if text.startswith(("http://", "https://"))), None)
            if title := next(filter(None, titles), url):
                yield path, title, url if url and len(url) <= MAX_URL_CHARS else None
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, inner in islice(pairs, left):
            left -= 1
            if isinstance(inner, dict | list):
                places.append((_path_below(path, key), inner))


def _path_below(path: str, key: str | int) -> str:
    """Returns the JMESPath of an item of the object or list at a path, which is empty for a whole result."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if key.isascii() and key.isidentifier() else json.dumps(key)
    return f"{path}.{name}" if path else name


def place_of(name: str, answer: str) -> int | None:
    """Returns where an address or identifier stands in a text, not as a part of a longer one; None if nowhere."""
    name = name.rstrip("/")
    if name not in answer:
        return None
    found = re.search(rf"(?<![\w-]){re.escape(name)}/?(?![\w/?#&=%~+-]|\.\w)", answer)
    return found.start() if found else None


def _leaves(key: str | None, value: Any) -> Iterator[tuple[str | None, Any]]:
    """Every value that contains no other, under the nearest key; a list's items stand under the key of the list."""
    match value:
        case dict():
            for name, item in value.items():
                yield from _leaves(name, item)
        case list():
            for item in value:
                yield from _leaves(key, item)
        case _:
            yield key, value


def _candidates(key: str | None, leaf: Any) -> Iterator[tuple[int, str]]:
    if isinstance(leaf, bool) or not isinstance(leaf, str | int) or (key and is_secret_key(key[:MAX_KEY_CHARS])):
        return
    kind = kind_of_key(key) if key and len(key) <= MAX_KEY_CHARS else None
    if kind is not None:
        yield kind, str(leaf)
    elif isinstance(leaf, str) and key is None:
        yield from ((3, match.group()) for match in _ID_IN_TEXT.finditer(leaf[:MAX_SEARCHED_CHARS]))
    elif isinstance(leaf, str) and len(leaf) <= MAX_IDENTIFIER_CHARS and _ID_IN_TEXT.fullmatch(leaf):
        yield 3, leaf
    if isinstance(leaf, str) and kind is None and len(leaf) <= MAX_IDENTIFIER_CHARS and _FILE_NAME.fullmatch(leaf):
        yield 3, leaf


@lru_cache(maxsize=4096)
def kind_of_key(key: str) -> int | None:
    """Returns 0 for the key of an id, 1 for that of another thing's id, 2 for an address or a file, None for others."""
    words = _KEY_WORD.findall(key)
    last = words[-1].lower() if words else key.strip()
    if last in _ID_WORDS:
        return 0 if len(words) <= 1 else 1
    if words and words[0].lower() == "id":  # `id_cliente`
        return 1
    return 2 if last in _ADDRESS_WORDS or last in _FILE_WORDS else None


def summarise(value: Any) -> str:
    """Returns a line of MAX_SUMMARY_CHARS at most about a JSON value: how much there is and what it is called."""
    return summary_line(_describe(value))


def summarise_call(name: str, args: Mapping[str, Any], schema: Mapping[str, Any], value: Any) -> str:
    """Returns that line with the action and its subject: "Read file: src/main.py (342 lines)". The subject is in the
    arguments that the tool's schema requires, or in the others if there is none.
    """
    subject = _subject(args, schema)
    if not subject:
        return summarise(value)
    words = " ".join(re.findall(r"[^\W\d_]+?(?=[A-Z][a-z]|[\W\d_]|\Z)|\d+", name))  # of `read_file` and of `readFile`
    done = f"{one_line(words[:1].upper() + words[1:].lower(), MAX_NAME_CHARS) or name}: {subject}"
    text = text_in(value)
    lines = text.count("\n") + (not text.endswith("\n")) if text is not None else 0
    if text is not None and lines > 1 and not table_in(text.strip()):
        return f"{done} ({lines} lines)"
    return summary_line(f"{done} — {_describe(value).removeprefix(f'{subject} — ')}")


def text_in(value: Any) -> str | None:
    """Returns the text of a result that is one, also in an object beside a few short values; None for others."""
    match value:
        case str():
            return value
        case dict():
            strings = [(key, item) for key, item in value.items() if isinstance(item, str)]
            texts = [key for key, item in strings if len(item) > MAX_BESIDE_CHARS or "\n" in item.strip()]
            others = (item for key, item in value.items() if key not in texts)
            if len(texts) == 1 and texts[0] in _TEXTS and not any(isinstance(item, dict | list) for item in others):
                return str(value[texts[0]])
            return None
        case _:
            return None


def _subject(args: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    needed = [key for key in required if key in args] if isinstance(required, list) else []
    others = [key for key in (*known, *args) if key in args and key not in needed]
    for keys in (needed, others):
        named = (_named(key, args[key], known.get(key)) for key in dict.fromkeys(keys))
        if found := list(islice(filter(None, named), MAX_SUBJECTS)):
            return one_line(", ".join(found), 80)
    return ""


def _named(key: str, value: Any, about: Any) -> str | None:
    """Returns an argument as a subject; None for options, numbers that are no ids, and secrets."""
    if is_secret_key(key) or (isinstance(about, dict) and ("enum" in about or "const" in about)):
        return None
    match value:
        case str():
            return one_line(value, MAX_NAME_CHARS)
        case list() if value and all(isinstance(item, str) for item in value[:MAX_IDENTIFIERS]):
            shown = [*value[:MAX_SUBJECTS], *(["…"] if len(value) > MAX_SUBJECTS else [])]
            return one_line(", ".join(shown), MAX_NAME_CHARS)
        case int() if not isinstance(value, bool) and kind_of_key(key) is not None:
            return str(value)[:MAX_NAME_CHARS]
        case _:
            return None


def summarise_failure(tool_name: str, error: str) -> str:
    """Returns the error in one line that names the tool once."""
    return summary_line(error if error.startswith(tool_name) else f"{tool_name} failed: {error}")


def preview(text: str, *, max_chars: int) -> str:
    """Returns the beginning of a text, at most `max_chars` long, in whole lines if they are short enough."""
    if len(text) <= max_chars:
        return text
    head = text[: max_chars - 1]
    whole_lines = head if text[len(head)] == "\n" else head.rpartition("\n")[0]
    return (whole_lines if len(whole_lines) >= max_chars // 2 else head).rstrip() + "…"


def _describe(value: Any) -> str:
    match value:
        case None:
            return "no content"
        case str():
            return _describe_text(value)
        case list():
            return _describe_list("items", value, len(value))
        case dict():
            return _describe_object(value)
        case _:
            return str(value)


def _describe_text(text: str) -> str:
    text = text.strip()
    if not text:
        return "no content"
    if table := table_in(text):
        return table
    lines = text.count("\n") + 1
    if lines > 1:
        return f"{len(text)} characters in {lines} lines: {text.partition(chr(10))[0]}"
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{len(text)} characters: {text}"


def _describe_object(value: dict[str, Any]) -> str:
    kind = next((value[key] for key in _KINDS if isinstance(value.get(key), str)), None)
    if kind and "size_bytes" in value:
        name = _name_of(value)
        return f"{'' if name == kind else f'{name} — '}{kind}, {value['size_bytes']} bytes"
    if (text := text_in(value)) is not None:
        return _describe_text(text)
    lists = [(key, item) for key, item in value.items() if isinstance(item, list)]
    if len(lists) == 1 and value.keys().isdisjoint(_STATES):
        noun, items = lists[0]
        total = value.get("total")
        return _describe_list(noun, items, total if type(total) is int else len(items))
    name = _name_of(value)
    others = ((key, item) for key, item in islice(value.items(), MAX_KEYS_READ) if not name or kind_of_key(key) != 0)
    facts = filter(None, (_fact(key, item, name) for key, item in others))
    description = ", ".join(islice(facts, MAX_FACTS)) or ", ".join(map(_key_words, islice(value, MAX_FACTS)))
    return f"{name} — {description}" if name else description or "empty object"


def _fact(key: str, item: Any, name: str | None) -> str | None:
    """Returns a member of an object in words: "deleted", "exit code: 1", "from: Anna", of a program's output its last
    line; None for what repeats the name, and for texts and objects.
    """
    words = _key_words(key)
    match item:
        case bool():
            return words if item else f"not {words}"
        case int() | float() if len(number := json.dumps(item)) <= MAX_VALUE_CHARS and number != name:
            return f"{words}: {number}"
        case str() if key in _OUTPUTS and item.strip():
            return f"{words}: {one_line(item.strip().rpartition(chr(10))[2], MAX_NAME_CHARS)}"
        case str() if item.strip() and len(item) <= MAX_NAME_CHARS and "\n" not in item and item != name:
            return item if key in _STATES else f"{words}: {item}"
        case list() if item:
            return f"{len(item)} {words}"
        case _:
            return None


def _key_words(key: str) -> str:
    return one_line(key[:MAX_KEY_CHARS].replace("_", " "), MAX_NAME_CHARS)


def _describe_list(noun: str, items: list[Any], total: int) -> str:
    if not items:
        return f"no {noun}"
    count = f"{len(items)} of {total} {noun}" if total > len(items) else f"{len(items)} {noun}"
    names = [name for name in map(_name_of, items[:5]) if name]
    if names:
        return f"{count}: {', '.join(names)}{', …' if len(items) > len(names) else ''}"
    match items:
        case [dict() as columns, *_] if columns:
            return f"{count} with {', '.join(columns)}"
        case [list() as columns, list() as second, *_] if _is_head(columns) and len(columns) == len(second):
            return f"{count} with {', '.join(columns)}"
        case _:
            return count


def _is_head(cells: Sequence[Any]) -> bool:
    """Whether these can be the names of columns: several short texts, each once."""
    named = all(isinstance(cell, str) and 0 < len(cell.strip()) <= MAX_COLUMN_CHARS for cell in cells)
    return len(cells) > 1 and named and len(set(cells)) == len(cells)


def table_in(text: str) -> str | None:
    """Describes a table (Markdown, or separated by tabs, semicolons or commas); None for any other text."""
    head, *rows = [line[:MAX_SEARCHED_CHARS] for line in text.split("\n", TABLE_LINES_READ)[:TABLE_LINES_READ]]
    ruled = bool(rows) and _RULE.fullmatch(rows[0]) is not None
    rows = rows[1:] if ruled else rows
    for delimiter in ("\t", "|", ";", ","):
        columns = _cells(head, delimiter)
        aligned = all(len(_cells(row, delimiter)) == len(columns) for row in rows)
        if aligned and len(rows) > (not ruled) and _is_head(columns):
            return f"table of {text.count(chr(10)) - ruled} rows: {', '.join(column.strip() for column in columns)}"
    return None


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a row; a delimiter in quotes divides nothing."""
    try:
        return next(csv.reader([line.strip().strip("|") if delimiter == "|" else line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _name_of(item: Any) -> str | None:
    match item:
        case dict():
            others = (key for key in islice(item, MAX_KEYS_READ) if kind_of_key(key[:MAX_NAME_CHARS]) is not None)
            named = (item[key] for key in chain(_NAMES, others, _KINDS) if isinstance(item.get(key), str | int | float))
            return next((one_line(str(name), MAX_NAME_CHARS) for name in named if str(name).strip()), None)
        case str() | int() | float():
            return one_line(str(item), MAX_NAME_CHARS)
        case _:
            return None


def shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def shown_line(text: str, limit: int) -> str:
    """Returns `one_line` of a text, with hidden characters written out."""
    return visible(one_line(text, limit))


def summary_line(text: str) -> str:
    return one_line(text, MAX_SUMMARY_CHARS)


def one_line(text: str, limit: int) -> str:
    """Returns at most `limit` characters in one line: every run of white space becomes a space."""
    flat = " ".join(text[: 10 * limit].split())  # what lies far beyond the limit is not read
    return flat if len(flat) <= limit and len(text) <= 10 * limit else flat[: limit - 1].rstrip() + "…"
