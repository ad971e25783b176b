"""Results in words: a list as a numbered list with an offer, a text as it is, a failure with its reason. Pure."""

from collections.abc import Sequence
from typing import Any

import orjson

from segue.offline.tools import NAMING_ENDINGS, URL_ARGUMENTS, OfferedTool, ShownResult, follow_up, name_words
from segue.offline.vocabulary import found_sentence, sentence

MAX_SHOWN_ITEMS = 10
MAX_SHOWN_CHARS = 1500
MAX_FIELDS = 4
TEXT_KEYS = ("body", "text", "content")


def present(result: ShownResult, tools: Sequence[OfferedTool], language: str) -> str:
    """Returns what a fresh result says, and an offer if there is a next step."""
    value = result.value
    if isinstance(value, dict) and value.get("status") == "failed" and "error" in value:
        return sentence(language, "failed", error=value["error"])
    items = _items(value)
    if items is None:
        return _text_of(value, language)
    lines = [_found_line(result, items, language)]
    lines += [f"{place}. {_item_line(item, language)}" for place, item in enumerate(items[:MAX_SHOWN_ITEMS], start=1)]
    lines += ["…"] if _total(value, items) > MAX_SHOWN_ITEMS else []
    tool = follow_up(result, tools)
    names = result.names_for(tool) if tool else []
    return "\n".join([*lines, *([sentence(language, f"offer_{_noun(result)}", name=names[0])] if names else [])])


def brief(result: ShownResult, language: str) -> str:
    items = _items(result.value)
    if items is not None:
        return _found_line(result, items, language).rstrip(":：")
    return present(result, [], language).partition("\n")[0]


def _found_line(result: ShownResult, items: Sequence[Any], language: str) -> str:
    return found_sentence(language, noun=_noun(result), number=_total(result.value, items), query=result.query)


def _noun(result: ShownResult) -> str:
    return "email" if "email" in name_words(result.tool) else "thing"


def _total(value: Any, items: Sequence[Any]) -> int:
    total = value["total"] if isinstance(value, dict) and type(value.get("total")) is int else 0
    return max(total, len(items))


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, list):
        return value
    lists = [item for item in value.values() if isinstance(item, list)] if isinstance(value, dict) else []
    return lists[0] if len(lists) == 1 else None


def _item_line(item: Any, language: str) -> str:
    if not isinstance(item, dict):
        return str(item)[:200]
    title = next((str(item[key]) for key in ("subject", "title", "name") if item.get(key)), "")
    sender, date = str(item.get("from") or "").partition(" <")[0], str(item.get("date") or "")[:10]
    comma = sentence(language, "comma")
    shown = [part for part in (title, comma.join(filter(None, (sender, date)))) if part]
    if not shown:
        return comma.join(f"{key}: {_plain(leaf)}" for key, leaf in list(item.items())[:MAX_FIELDS])[:300]
    name = next((str(item[key]) for key in _naming_keys(item) if item[key] not in (None, "", title)), "")
    return (" — ".join(shown) + (f" ({name})" if name else "")).strip()[:300]


def _naming_keys(item: dict[str, Any]) -> list[str]:
    """Returns the keys of an item that name it, `id` first."""
    naming = [key for key in item if key.casefold().endswith(NAMING_ENDINGS) or key in URL_ARGUMENTS]
    return sorted(naming, key=lambda key: key != "id")


def _text_of(value: Any, language: str) -> str:
    if not isinstance(value, dict):
        return _cut(str(value))
    if {"local", "timezone"} <= value.keys():
        date, _, time = str(value["local"]).partition("T")
        return sentence(language, "time", date=date, time=time[:5], zone=value["timezone"])
    heading = [str(value[key]) for key in ("subject", "title", "from") if value.get(key)]
    heading += [str(value["date"])[:16].replace("T", " ")] if value.get("date") else []
    body = next((str(value[key]) for key in TEXT_KEYS if value.get(key)), None)
    if body is None:
        return _cut("\n".join(f"{key}: {_plain(item)}" for key, item in value.items()))
    return "\n\n".join(filter(None, (" — ".join(heading), _cut(body))))


def _plain(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else orjson.dumps(leaf).decode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS].rstrip() + "…"
