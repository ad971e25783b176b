"""The built-in model for when no provider is configured: deterministic, small, and its answers say that it is offline.
Knows the prompts of the agent by their text. Makes plans, a step for each part of a request.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata

from segue.agent import prompts
from segue.around.offline import vocabulary as vocab
from segue.around.offline.fill_arguments import ADDRESS, NUMBER, Request, arguments_for, extract_facts, pick
from segue.around.offline.replies import Talk, answer, call_to
from segue.domain.plan import NOT_STARTED
from segue.language.written_values import dates_in
from segue.memory.fact_cues import days_meant
from segue.models.normal_form import PLACEHOLDERS
from segue.models.reply import AnswerPart, ModelCall, ProviderModel, RequestOptions
from segue.plans.multistep_detector import needs_own_things_first

WORD_DELAY_S = 0.02  # between two words of a stream
MOST_DIGITS = 16  # of a whole number in JSON
NO_STEPS = '{"steps": []}'
_WORD = re.compile(r"\S+\s*|\s+")
_BARRED = re.compile(r"^- No step uses (.+)\.$", re.MULTILINE)
_NAME = re.compile(r"^\"?(.*?)\"?\s*<")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NAME_ALONE = re.compile(r"[^\W\d_a-z][^\W\d_]+(?: [^\W\d_a-z][^\W\d_]+){0,2}")
_CAPITALISED = re.compile(rf"(?<=\w )(?<![.!?] ){_NAME_ALONE.pattern}")
_FILLED = re.compile(r"^Call \S+ for step \d+ \((.*)\) with complete arguments", re.MULTILINE)
_TITLES = ("title", "subject", "summary", "name")  # what a mail or a document gives to what is made from it
_TEXTS = ("body", "text", "content", "description", "notes", "message")


class OfflineModel(ProviderModel):
    by = ""
    takes_sampling = True

    async def answer(
        self, messages: Sequence[BaseMessage], options: RequestOptions, *, is_streamed: bool
    ) -> AsyncGenerator[AnswerPart]:
        reply = await asyncio.to_thread(reply_to, messages, options)  # long if there are hundreds of tools
        for word in _WORD.findall(reply.text) if is_streamed else ():
            yield AnswerPart(word)
            await asyncio.sleep(WORD_DELAY_S)
        calls = [ModelCall(call["name"], call["args"]) for call in reply.tool_calls]
        yield AnswerPart(
            "" if is_streamed else reply.text,
            calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            usage=UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0),  # it costs nothing
        )


def reply_to(sent: Sequence[BaseMessage], options: RequestOptions) -> AIMessage:
    """Returns the whole reply at once."""
    messages = [message for message in sent if message.content not in PLACEHOLDERS]
    if prompts.TEXTS["extractor"] in messages[0].text:
        return AIMessage(extract_facts(messages[-1].text))
    instruction = next((message.text for message in messages[-1:] if isinstance(message, HumanMessage)), "")
    if prompts.TEXTS["amender"] in instruction:
        return AIMessage(correct_plan(messages))
    if prompts.TEXTS["reader"] in instruction or prompts.TEXTS["agreement"] in instruction:
        return AIMessage('{"verdict": "none"}')  # it cannot tell, so the engine asks again in plain words
    if prompts.TEXTS["answer_reader"] in instruction:
        return AIMessage('{"reading": "other"}')
    offered = [vocab.offered_tool(tool["function"]) for tool in options.tools]
    if prompts.TEXTS["planner"] in instruction:
        return AIMessage(draft_plan(messages, offered))
    return fill_call(messages, offered[0]) if options.tool_choice == "required" else answer(messages, offered)


def draft_plan(messages: Sequence[BaseMessage], offered: Sequence[vocab.OfferedTool]) -> str:
    """Returns a plan as JSON. A part that no tool fits is a step without one; the first part needs one."""
    talk = Talk.of(messages, offered)
    if talk.wanted_later:
        return NO_STEPS
    barred = _BARRED.search(talk.instruction)
    usable = [tool for tool in offered if barred is None or tool.name not in barred[1].split(", ")]
    listed = [orjson.loads(line) for line in talk.instruction.splitlines() if line.startswith('{"name":')]
    usable += [vocab.offered_tool({**each, "parameters": each["args"]}) for each in listed]
    talk = replace(talk, tools=usable)
    steps: list[dict[str, Any]] = []
    named = {tool.name: tool.named for tool in talk.tools}
    about: frozenset[str] = frozenset()
    for part in vocab.split_steps(talk.message):
        about |= vocab.concepts(part) & vocab.NOUNS
        added = _steps_for(part, about, talk)
        about = about.union(*(named[step["tool"]] for step in added if step["tool"]))
        steps += added
    if len(steps) < 2 or steps[0]["tool"] is None:  # noqa: PLR2004 (one step is no plan)
        return NO_STEPS
    return orjson.dumps({"steps": [{"id": at, **step} for at, step in enumerate(steps, start=1)]}).decode()


def correct_plan(messages: Sequence[BaseMessage]) -> str:
    """Returns as JSON the steps of a plan that are still open, with each address, day, number or name in the user's
    correction in the place of the one argument of that kind. A kind that several are of changes nothing.
    """
    talk = Talk.of(messages, [])
    known = (orjson.loads(line) for line in talk.instruction.splitlines() if line.startswith('{"id":'))
    steps = [step for step in known if step["status"] in NOT_STARTED and isinstance(step.get("args", {}), dict)]
    corrected = False
    for kind, values in _values_in(talk).items():
        places = [(step["args"], key) for step in steps for key, old in step.get("args", {}).items() if _is(kind, old)]
        if len(values) == len(places) == 1:
            [value], [(args, key)] = values, places
            number = int if value.isdecimal() and len(value) < MOST_DIGITS else float
            args[key] = value if isinstance(args[key], str) else number(value)
            corrected = True
    return orjson.dumps({"steps": steps if corrected else []}).decode()


def _values_in(talk: Talk) -> dict[str, list[str]]:
    """Returns what a message says, by kind: what is a part of an address or a day is neither number nor name."""
    said_on = talk.now.date() if talk.now else date.min
    dates, days = dates_in(talk.message), list(days_meant(talk.message, said_on).values())
    for year, month, day in dates:
        with suppress(ValueError):  # 30 February
            days.append(str(date(year or said_on.year, month, day)))
    addresses = ADDRESS.findall(talk.message)
    rest = ADDRESS.sub(" ", talk.message)
    return {
        "address": addresses,
        "day": days,
        "number": [] if dates or days else NUMBER.findall(rest),
        "name": [] if addresses or dates or days else [*filter(_is_capitalised, _CAPITALISED.findall(rest))],
    }


def _is(kind: str, value: object) -> bool:
    form = {"address": ADDRESS, "day": _DAY, "number": NUMBER, "name": _NAME_ALONE}[kind]
    fits = isinstance(value, str) or (kind == "number" and type(value) in (int, float))
    return fits and form.fullmatch(str(value)) is not None and (kind != "name" or _is_capitalised(str(value)))


def _is_capitalised(words: str) -> bool:
    """A letter of a script without capitals is none."""
    return all(word[0].isupper() for word in words.split())


def fill_call(messages: Sequence[BaseMessage], tool: vocab.OfferedTool) -> AIMessage:
    """Returns a call with arguments from the newest results; a text it has to write only acknowledges receipt."""
    talk = Talk.of(messages, [tool])
    step = _FILLED.search(talk.instruction)
    text = step.group(1) if step else talk.message
    read = next((result.value for result in talk.newest_first if isinstance(result.value, dict)), {})
    listing = next((result for result in talk.newest_first if result.names_for(tool)), None)
    written = {tool.opens: pick(listing, tool, text)} if tool.opens and listing else {}
    shown = frozenset().union(*(result.nouns for result in talk.newest_first))
    if tool.name == vocab.WEB_SEARCH and shown & vocab.concepts(text) & vocab.NOUNS and needs_own_things_first(text):
        return call_to(tool, {"query": _looked_up(read, text)})
    written |= _from_read(read, talk.language)
    required = {name: written[name] for name in tool.required if written.get(name)}
    return call_to(tool, {**required, **arguments_for(tool, Request(text, talk.newest_first, [tool]))})


def _steps_for(part: str, about: frozenset[str], talk: Talk) -> list[dict[str, Any]]:
    nouns = vocab.concepts(part) & vocab.NOUNS  # "Delete the oldest" does not say of what: an earlier part did
    tools = [tool for tool in talk.tools if nouns or not about or about & tool.named]
    tool = vocab.tool_for(part, [], tools, web=talk.wants_web) or _with_nouns(part, about, tools)
    if needs_own_things_first(part):
        tool = next((each for each in tools if each.name == vocab.WEB_SEARCH and "web" in nouns), tool)
        if tool is not None and (first := _own_things(part, tool, talk)):
            return [*first, _step(part, tool, {})]
    return [_step(part, tool, arguments_for(tool, Request(part, [], talk.tools)) if tool else {})]


def _own_things(part: str, target: vocab.OfferedTool, talk: Talk) -> list[dict[str, Any]]:
    """Returns the steps that find and open what a request speaks of before it can be carried out."""
    nouns = (vocab.concepts(part) & vocab.NOUNS) - target.named
    listing = next((tool for tool in talk.tools if tool.only_looks and tool.query and tool.named & nouns), None)
    if listing is None or listing == target or listing.query is None:
        return []
    language = vocab.reply_language([part])
    newest = vocab.SENTENCES[language]["newest"]
    noun = next((newest[noun] for noun in sorted(nouns & listing.named) if noun in newest), newest["thing"])
    opener = vocab.follow_up(vocab.ShownResult(listing.name, {}, None), talk.tools)
    query = vocab.strip_words(part, vocab.VERBS | vocab.NOUNS)
    args = {listing.query: query} if query else {}
    steps = [_step(vocab.sentence(language, "find_newest", newest=noun), listing, args)]
    return steps + ([_step(vocab.sentence(language, "open_newest", newest=noun), opener, {})] if opener else [])


def _step(description: str, tool: vocab.OfferedTool | None, args: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "tool": tool.name if tool else None, "args": args}


def _with_nouns(part: str, about: frozenset[str], tools: Sequence[vocab.OfferedTool]) -> vocab.OfferedTool | None:
    verbs = (vocab.concepts(part) & vocab.VERBS) | ({"send"} if "reply" in vocab.concepts(part) else set())
    fitting = [tool for tool in tools if verbs & tool.verbs and about & tool.named]
    return max(fitting, key=lambda tool: (len(verbs & tool.verbs), len(about & tool.named)), default=None)


def _looked_up(read: dict[str, Any], text: str) -> str:
    """Returns what to search the web for: who wrote what was read, with their organisation, or what it is about."""
    sender = str(read.get("from") or "")
    if not sender or ("subject" in vocab.concepts(text) and "sender" not in vocab.concepts(text)):
        return str(next((read[key] for key in _TITLES if read.get(key)), ""))
    name, domain = _NAME.match(sender), sender.rpartition("@")[2].strip("> ")
    return " ".join(filter(None, (name and name.group(1), domain.rsplit(".", 1)[0].replace("-", " "))))


def _from_read(read: dict[str, Any], language: str) -> dict[str, str]:
    """Returns what a new mail, event or note takes from the result that was read last."""
    title = next((str(read[key]) for key in _TITLES if read.get(key)), "")
    text = next((str(read[key]) for key in _TEXTS if read.get(key)), "")
    values = {**dict.fromkeys(_TITLES, title), **dict.fromkeys(_TEXTS, text)}
    if read.get("from"):
        sender = _NAME.match(str(read["from"]))
        values |= {
            "to": str(read["from"]),
            "subject": f"Re: {str(read.get('subject', '')).removeprefix('Re: ')}",
            "body": vocab.sentence(language, "receipt", name=sender.group(1) if sender else str(read["from"])),
        }
    return values
