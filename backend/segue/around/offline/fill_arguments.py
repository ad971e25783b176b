"""What the offline model takes from words: the arguments of a call, what is wanted later, and facts. Pure. It never
invents a value: an argument stands in the request or an earlier result, a fact in a sentence of the user's own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import cached_property
from itertools import takewhile
from typing import Any

import orjson

from segue.agent import prompts
from segue.around.offline import vocabulary as vocab
from segue.domain.session import MAX_CONTENT_CHARS
from segue.language.written_values import dates_in
from segue.memory.fact_cues import cued_sentences, is_about, significant_words
from segue.models.untrusted import CLOSE, OPEN

_ID = re.compile(r"\b[a-z]{2,12}[-_](?:[0-9a-f]{6,}|(?=[a-z]*\d)[0-9a-z]{4,40})\b", re.IGNORECASE)
_CODE = re.compile(r"(?<![\w@.-])(?=[A-Za-z_-]*\d)[A-Za-z0-9][A-Za-z0-9_-]{2,39}(?![\w@-])")
ADDRESS = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_QUOTED = re.compile(r"[\"“”«「『]([^\"“”«»「」『』]+)[\"“”»」』]")
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])")
_PAIR = r"(?<!\w){name}\s*[=:：]\s*(?:[\"“«「]([^\"”»」]+)[\"”»」]|([^\s,;，；\"]+))"
_NO_VALUE = object()
_FACTS = re.compile(rf"^{re.escape(prompts.TEXTS['facts'])}\n{OPEN}\n(.*?)\n{CLOSE}$", re.DOTALL | re.MULTILINE)
_KINDS = {"remember": "fact", "correction": "fact"}
_EDGES = " ,;:.!?，；：。！？،؛؟"
_OTHER_DAY = re.compile(r"\d[/.-]\d|\d(?:st|nd|rd|th)\b|[\d号號日]$")  # that is not understood
MORNING = 9  # the hour of a day that is named without one
EARLIEST = 6  # an hour before it is one of the afternoon, if neither is said
NIGHT = 21


@dataclass(frozen=True)
class Request:
    """What the user asks for, what was shown before, and the tools: all that an argument may be taken from."""

    text: str
    newest_first: Sequence[vocab.ShownResult]
    tools: Sequence[vocab.OfferedTool]

    @cached_property
    def quoted(self) -> Iterator[str]:
        return iter([text.strip() for text in _QUOTED.findall(self.text) if not ADDRESS.fullmatch(text)])

    @cached_property
    def numbers(self) -> Iterator[str]:
        return iter(NUMBER.findall(self.text))


def arguments_for(tool: vocab.OfferedTool, request: Request) -> dict[str, Any]:
    found = {name: value for name in tool.properties if (value := _spelled_out(tool, name, request)) is not _NO_VALUE}
    for name in (*tool.required, *((tool.query,) if tool.query else ())):
        if name not in found and (value := _value(tool, name, request)) not in (None, ""):
            found[name] = value
    return found


def query_of(message: str, tool: vocab.OfferedTool) -> str:
    """Returns what a request quotes, or what is left of it without the tool's own words and small ones."""
    quoted = _QUOTED.search(message)
    if quoted:
        return quoted.group(1).strip()
    for name in (tool.name, tool.short_name):
        message = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", " ", message, flags=re.IGNORECASE)
    left = vocab.strip_words(message, vocab.VERBS | tool.named | {"use"})
    return left if vocab.strip_words(left, {"fresh"}) else ""


def _spelled_out(tool: vocab.OfferedTool, name: str, request: Request) -> Any:
    """Returns a value given as `name=value`, or one of a list of values that stands in the message."""
    pair = re.search(_PAIR.format(name=re.escape(name)), request.text, re.IGNORECASE)
    if pair:
        return _typed(tool, name, pair.group(1) or pair.group(2))
    spoken = set(vocab.words_of(request.text))
    choices = (value for value in tool.properties[name].get("enum", ()) if isinstance(value, str))
    return next((value for value in choices if set(vocab.words_of(value)) <= spoken), _NO_VALUE)


def _value(tool: vocab.OfferedTool, name: str, request: Request) -> Any:
    match tool.properties.get(name, {}).get("type"):
        case "integer" | "number":
            number = next(request.numbers, None)
            return None if number is None else _typed(tool, name, number)
        case "array":
            return list(request.quoted)
        case "boolean" | "object":
            return None
        case _ if name == tool.opens:
            return named(tool, request)
        case _ if name in ("to", "recipient", "recipients", "address", "email"):
            return _address(request)
    quoted = None if name in vocab.QUERY_ARGUMENTS else next(request.quoted, None)
    single = name in vocab.QUERY_ARGUMENTS or len(tool.required) == 1
    return quoted or (query_of(request.text, tool) if single else None)


def _typed(tool: vocab.OfferedTool, name: str, text: str) -> Any:
    kind = tool.properties.get(name, {}).get("type")
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(text) if kind in ("integer", "number", "boolean", "array", "object") else text
    return text


def named(tool: vocab.OfferedTool, request: Request) -> str | None:
    """Returns what to open: named in the message, or by its place in the newest list about the same."""
    if tool.opens in vocab.URL_ARGUMENTS:
        patterns = [vocab.URL]
    else:
        by_name = (tool.opens or "").casefold().endswith(("path", "file", "name"))
        patterns = [_ID, vocab.FILE, _CODE] if by_name else [_ID]
    text = ADDRESS.sub(" ", request.text)
    if found := next((match for pattern in patterns if (match := pattern.search(text))), None):
        return found.group()
    listed = _listed(tool, request) or next(request.quoted, None)
    code = None if tool.opens in vocab.URL_ARGUMENTS else _CODE.search(text)
    return listed or (code.group() if code else None)


def _listed(tool: vocab.OfferedTool, request: Request) -> str | None:
    """Returns the id at the place that the message speaks of, in the newest result that lists such things."""
    verbs = (vocab.concepts(request.text) & vocab.VERBS) or vocab.READ
    openers = {each.name for each in request.tools if each.opens}
    one_of_many = vocab.ordinal(request.text) > 0 or "oldest" in vocab.concepts(request.text)
    lists = (each for each in request.newest_first if not (one_of_many and each.tool in openers))
    listing = next((each for each in lists if vocab.follow_up(each, request.tools, verbs) == tool), None)
    # "Delete it" means what was shown last; "read it" may go back to a list.
    if listing is not None and not one_of_many and not verbs & vocab.LOOKS and listing != request.newest_first[0]:
        return None
    if listing is None or not set(vocab.words_of(query_of(request.text, tool))) <= set(vocab.words_of(listing.query)):
        return None
    return pick(listing, tool, request.text)


def pick(listing: vocab.ShownResult, tool: vocab.OfferedTool, text: str) -> str | None:
    """Returns the id of the item that a text means by its place, or by being the oldest if all of them are shown."""
    names = listing.names_for(tool)
    if "oldest" in vocab.concepts(text):
        return _oldest(listing.value, names) if names and listing.total <= len(names) else None
    place = vocab.ordinal(text)
    return names[place] if place < len(names) else None


def _oldest(value: Any, names: Sequence[str]) -> str:
    members = value.values() if isinstance(value, dict) else [value]
    items = (item for each in members if isinstance(each, list) for item in each if isinstance(item, dict))
    dated = [(str(item["date"]), name) for item in items if item.get("date") for name in names if name in item.values()]
    return min(dated)[1] if dated else names[-1]


def _address(request: Request) -> str | None:
    """Returns the address in the message, or whom a reply goes to: the first in the newest result that has one."""
    address = ADDRESS.search(request.text)
    if address or "reply" not in vocab.concepts(request.text):
        return address.group() if address else None
    texts = (orjson.dumps(result.value).decode() for result in request.newest_first)
    return next((found.group() for text in texts if (found := ADDRESS.search(text))), None)


def missing_arguments(tool: vocab.OfferedTool, args: Mapping[str, Any]) -> list[str]:
    return [name for name in tool.required if name not in args]


def promise_in(message: str, now: datetime) -> dict[str, str] | None:
    """Returns the arguments of `promise` if a message asks for something later; what is to be done again and again is
    done for a year. `now` is the user's local time, without a zone.
    """
    text = " ".join(message.split())
    known = (words for words in vocab.LATER.values() if not words.found("bars", text) and not dates_in(text))
    runs = ((words, run) for words in known for run in words.when.finditer(text))
    return next(filter(None, (_promise(words, text, run, now) for words, run in runs)), None)


def _promise(words: vocab.LaterWords, text: str, run: re.Match[str], now: datetime) -> dict[str, str] | None:
    """The words that say when stand first, last, or behind `remind me`."""
    before, after, when = text[: run.start()].strip(_EDGES), text[run.end() :].strip(_EDGES), run.group()
    request = f"{before} {after}".strip()
    reminder, every = words.found("remind", f"{request} "), words.found("every", when)
    led = words.found("remind", f"{before} ")
    is_apart = not before or not after or (led is not None and led[1].end() > len(before))
    signs = (every is not None, words.found("times", when) is not None, not before)
    if not is_apart or _OTHER_DAY.search(before) or not (reminder or (sum(signs) > 1 and vocab.looks_only(request))):
        return None
    what, at = request[reminder[1].end() if reminder else 0 :], _first_moment(words, when, now)
    if not what or at is None:
        return None
    again = {"every": every[0], "until": f"{at + timedelta(days=365):%Y-%m-%dT%H:%M}"} if every else {}
    return {"what": what, "at": f"{at:%Y-%m-%dT%H:%M}", **again}


def _first_moment(words: vocab.LaterWords, when: str, now: datetime) -> datetime | None:
    """Returns the first moment to come that the words mean; None if they mean none, or are not understood."""
    if ahead := words.found("ahead", when):
        minutes, match = ahead
        return now + timedelta(minutes=int(minutes) * words.number(match.groupdict().get("number") or "1"))
    every, clock = words.found("every", when), _clock(words, when)
    day, weekday = words.found("days", when), words.found("weekdays", when)
    if clock is None or (every and every[0] == "hour"):
        return now + timedelta(hours=1) if clock else None
    moment, step = datetime.combine(now, clock), 1
    if day:
        moment, step = moment + timedelta(days=int(day[0])), 0
    elif weekday:
        moment, step = moment + timedelta(days=(int(weekday[0]) - now.weekday()) % 7), 7
        if words.found("next", when) and moment.isocalendar().week == now.isocalendar().week:
            moment += timedelta(days=7)
    moment += timedelta(days=step if moment <= now else 0)
    while every and every[0] == "weekday" and moment.weekday() > 4:  # noqa: PLR2004 (Friday)
        moment += timedelta(days=1)
    return moment if moment > now else None


def _clock(words: vocab.LaterWords, when: str) -> time | None:
    """Returns the time of day that words mean; None if there is no such time."""
    part = int(found[0]) if (found := words.found("parts", when)) else 0
    if (found := words.found("times", when)) is None:
        return time(part or MORNING)
    groups = found[1].groupdict()
    minute = int(groups.get("minute") or words.table["minutes"].get(groups.get("quarter"), 0))
    hour = words.number(groups["hour"])
    half = (groups.get("half") or "").casefold()
    by_part = part >= 12 and (part < NIGHT or hour >= EARLIEST)  # noqa: PLR2004 (noon)
    unsaid = not part and not half and 0 < hour < EARLIEST and not groups["hour"].startswith("0")
    if hour < 12 and (half == "p" or by_part or unsaid):  # noqa: PLR2004
        hour += 12
    hour = 0 if half == "a" and hour == 12 else hour  # noqa: PLR2004
    return time(hour, minute) if hour < 24 and minute < 60 else None  # noqa: PLR2004


def extract_facts(request: str) -> str:
    """Returns as JSON every clause that states a fact; a correction supersedes the first known one that it is about.
    What the user wants done is no fact: `call my wife` notes nothing, `my name is Bob, find my mails` the name.
    """
    fields = orjson.loads(str(request))  # LangChain's text is a subclass of str, which orjson refuses
    facts: list[dict[str, Any]] = []
    for sentence, kind in cued_sentences(fields["user_said"]):
        corrected = fields["known"] if kind == "correction" else ()
        supersedes = next((each["id"] for each in corrected if is_about(sentence, each["fact"])), None)
        more = {"kind": _KINDS.get(kind, kind), "supersedes": supersedes}
        facts += [{"content": each[:MAX_CONTENT_CHARS], **more} for each in _statements(sentence, kind)]
    return orjson.dumps({"facts": facts}).decode()


def _statements(sentence: str, kind: str) -> list[str]:
    """Returns the facts of a sentence, each to be forgotten alone: `I live in Rome`, `I work for Lumen`. A clause
    without a cue of its own belongs to the fact before it, or else to the one after it; a greeting to none.
    """
    stated = _statement(sentence)
    if kind == "correction" or not stated:
        return [stated] if stated else []
    joiners = [joiner.span() for joiner in vocab.JOINER.finditer(stated)]
    starts, ends = [0, *(end for _, end in joiners)], [*(start for start, _ in joiners), len(stated)]
    spans: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        cued_before = spans and any(cued_sentences(stated[slice(*spans[-1])]))
        if spans and not (cued_before and any(cued_sentences(stated[start:end]))):
            spans[-1] = (spans[-1][0], end)
        elif significant_words(stated[start:end]):
            spans.append((start, end))
    return [stated[start:end].strip() for start, end in spans] or [stated]


def _statement(sentence: str) -> str:
    """Returns a sentence up to its first order; empty if it states nothing."""
    parts = vocab.split_steps(sentence)
    steps = list(takewhile(lambda part: not vocab.is_order(part), parts))
    if len(steps) == len(parts):
        return sentence
    stated = sentence[: sentence.find(steps[-1]) + len(steps[-1])] if steps else ""
    return stated if any(cued_sentences(stated)) and significant_words(stated) else ""


def facts_in(notes: str) -> list[str]:
    block = _FACTS.search(notes)
    return [orjson.loads(line)["fact"] for line in block.group(1).splitlines()] if block else []
