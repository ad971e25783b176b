"""Answers of the offline model: it picks a tool by its words, takes ids from earlier results, and offers a next step.
It numbers a list, quotes a text as it is, and gives the reason of a failure. Pure and deterministic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, Self

import orjson
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall

from segue.agent import prompts
from segue.around.offline import vocabulary as vocab
from segue.around.offline.fill_arguments import Request, arguments_for, facts_in, missing_arguments, promise_in
from segue.domain.session import READ_ATTACHMENT
from segue.memory.fact_cues import is_about, may_state_facts, told_after_forgetting
from segue.plans.acknowledgement import classify
from segue.plans.asked_words import last_question

LONGEST_READ = 1_000  # characters of each message
MAX_SHOWN_ITEMS = 10
MAX_SHOWN_CHARS = 1500
MAX_FIELDS = 4
MAX_FACTS_UNASKED = 5  # of which none is what a question is about
_QUESTION = re.compile("[?？؟]")
_SPELLED_OUT = re.compile(r"[\"“”«»「」]|\w\s*=")
_CLAUSE_END = re.compile(r"[,;:.!，；：。！،؛]")
_FIRST_CLAUSE = re.compile(r"^([^,;:.!，；。！،؛]{1,24})[,;:.!，；。！،؛]\s*(\S.*)$", re.DOTALL)
_STEP = re.compile(r"^Do step \d+ now: (.*)$", re.MULTILINE)
_FAILED_STEP = re.compile(r'^\{"id":\d+,.*"status":"(?:failed|unknown)".*\}$', re.MULTILINE)
_NOT_FOUND = re.compile(r"(.+) could not be found for (\S+)")  # as the engine says it
_NOW = re.compile(r"\bIt is \w+, (\d{4}-\d\d-\d\d), (\d\d:\d\d)")
_PROMISED = prompts.TEXTS["promised"].partition("{")[0]
FORGET, PROMISE, LOAD = "forget", "promise", "get_tool_result"
DUE = "⏰ "  # begins the message by which the service asks for what was promised
# It picks none of these by its words: results and facts are in its prompt, and facts are extracted after the turn.
UNUSED_TOOLS = frozenset({LOAD, "remember", "search_conversation", "search_memory", PROMISE, FORGET})


@dataclass(frozen=True)
class Talk:
    """What a prompt shows of a conversation, and the tools that are offered with it."""

    messages: Sequence[BaseMessage]  # without the engine's words, which are `notes` and `instruction`
    notes: str  # on the turn
    instruction: str  # for the reply
    tools: Sequence[vocab.OfferedTool]

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], tools: Sequence[vocab.OfferedTool]) -> Self:
        notes = instruction = ""
        spoken: list[BaseMessage] = []
        for message in messages:
            if isinstance(message, HumanMessage):
                noted, text = prompts.notes_and_message(message.text)
                text, instruction = prompts.message_and_instruction(text)
                text = text[:LONGEST_READ].removeprefix(DUE)
                notes = noted or notes
                spoken += [HumanMessage(text)] if text else []
            else:
                spoken.append(message)
        return cls(spoken, notes, instruction, [tool for tool in tools if tool.name not in UNUSED_TOOLS])

    @cached_property
    def requests(self) -> list[str]:
        return [str(message.content) for message in self.messages if isinstance(message, HumanMessage)]

    @property
    def message(self) -> str:
        return self.requests[-1] if self.requests else ""

    @cached_property
    def language(self) -> str:
        return vocab.reply_language(self.requests)

    @cached_property
    def newest_first(self) -> list[vocab.ShownResult]:
        return vocab.results_in(self.messages)[::-1]

    @cached_property
    def last_answer(self) -> str:
        return next((str(reply.content) for reply in reversed(self.messages) if isinstance(reply, AIMessage)), "")

    @cached_property
    def now(self) -> datetime | None:
        """The user's local time, without a zone."""
        match = _NOW.search(self.notes)
        return datetime.fromisoformat(f"{match[1]}T{match[2]}") if match else None

    @property
    def wanted_later(self) -> Mapping[str, str] | None:
        """The arguments of `promise`. What is due now promises nothing anew."""
        is_due = prompts.TEXTS["unattended"] in self.notes
        return None if is_due or self.now is None else promise_in(self.message, self.now)

    @property
    def fresh(self) -> int:
        """How many results the conversation ends with."""
        return len(list(takewhile(lambda message: isinstance(message, ToolMessage), reversed(self.messages))))

    @property
    def wants_web(self) -> bool:
        return prompts.TEXTS["search_wanted"] in self.notes

    def request(self, text: str) -> Request:
        return Request(text, self.newest_first, self.tools)

    def say(self, key: str, **values: object) -> str:
        return vocab.sentence(self.language, key, **values)

    def listed(self, names: Sequence[str]) -> str:
        return self.say("comma").join(names)


def answer(messages: Sequence[BaseMessage], tools: Sequence[vocab.OfferedTool]) -> AIMessage:
    """Returns the reply to a conversation: a call, or a text that presents fresh results."""
    talk = Talk.of(messages, tools)
    if prompts.TEXTS["carrying_out"] in talk.instruction and (step := _STEP.search(talk.instruction)):
        return AIMessage(talk.say("no_tool_for_step", part=step.group(1)))
    if prompts.TEXTS["carried_out"] in talk.notes:
        return _reply(talk, _account(talk))
    if talk.fresh:
        told = "\n\n".join(_told(talk, each) for each in reversed(talk.newest_first[: talk.fresh]))
        return _regardless_of_sources(talk) or _reply(talk, told)
    if _PROMISED in talk.notes and not vocab.looks_only(talk.message):
        return _reply(talk, f"{DUE}{talk.message}")
    own = {tool.name: tool for tool in tools if tool.name in UNUSED_TOOLS}
    return _by_own_tool(talk, own) or _of_what_was_read(talk, own) or _supplied(talk) or _answer_message(talk)


def _by_own_tool(talk: Talk, own: Mapping[str, vocab.OfferedTool]) -> AIMessage | None:
    if PROMISE in own and (later := talk.wanted_later):
        return call_to(own[PROMISE], later)
    if FORGET not in own or told_after_forgetting(talk.message) is None:
        return None
    about = [fact for fact in facts_in(talk.notes) if is_about(talk.message, fact)]
    return call_to(own[FORGET], {"facts": about}) if about else _reply(talk, talk.say("nothing_to_forget"))


def _of_what_was_read(talk: Talk, own: Mapping[str, vocab.OfferedTool]) -> AIMessage | None:
    """Returns what the newest thing read says of its writer or content, or the call that loads it whole; or None."""
    spoken = vocab.concepts(talk.message)
    openers = {tool.name for tool in talk.tools if tool.opens and tool.only_looks}
    read = [each for each in talk.newest_first if each.tool in openers and not each.has_failed]
    meant = next((each for each in read if not spoken & vocab.NOUNS or spoken & each.nouns), None)
    if meant is None or spoken.isdisjoint({*vocab.DETAILS, "was_read"}):
        return None
    if "was_read" not in spoken and vocab.strip_words(talk.message, meant.nouns | vocab.DETAILS.keys()):
        return None
    if LOAD in own and meant.reference:
        return call_to(own[LOAD], {"tool_call_id": meant.reference})
    return _reply(talk, _told(talk, meant))


def _told(talk: Talk, result: vocab.ShownResult) -> str:
    """Returns what a result says to the message: how many there are, one detail, or all of it."""
    if result.tool == LOAD and isinstance(result.value, dict) and "result" in result.value:
        result = replace(result, tool=result.value["tool_name"], value=result.value["result"])
    spoken = vocab.concepts(talk.message)
    if "count" in spoken and result.items is not None:
        return brief(result, talk.language)
    value = result.value if isinstance(result.value, dict) else {}
    keys = ((detail, key) for detail in sorted(spoken & vocab.DETAILS.keys()) for key in vocab.DETAILS[detail])
    detail, content = next(((detail, value[key]) for detail, key in keys if value.get(key)), ("", ""))
    if not detail or vocab.strip_words(talk.message, result.nouns | vocab.DETAILS.keys()):
        return present(result, talk.tools, talk.language)
    return talk.say(detail, value=str(content)[:16].replace("T", " ") if detail == "dated" else content)


def _regardless_of_sources(talk: Talk) -> AIMessage | None:
    """Returns the call that the message asks for, if nothing has been called for it but what its frontend found."""
    *before, last = talk.messages[: -talk.fresh]
    read = {call["name"] for call in last.tool_calls} if isinstance(last, AIMessage) else set()
    if prompts.TEXTS["sources"] not in talk.notes or read != {READ_ATTACHMENT}:
        return None
    reply = _answer_message(replace(talk, messages=before))
    return reply if reply.tool_calls else None


def _answer_message(talk: Talk) -> AIMessage:
    if classify(talk.message).verdict == "reject":
        return _reply(talk, talk.say("declined"))
    request = talk.message
    if prompts.TEXTS["search_forbidden"] in talk.notes:  # without its "don't search the web"
        parts = (part for part in _CLAUSE_END.split(request) if not {"search", "web"} & vocab.concepts(part))
        request = ",".join(parts).strip()
    text, accepts = _without_yes(request)
    accepted = _accepted(talk, text) if accepts else None
    return accepted or _act(talk, text or talk.message, accepting=accepts)


def _account(talk: Talk) -> str:
    """Returns how a plan ended: what failed, what earlier steps gave in a line each, and the last result in full."""
    since = max((at for at, message in enumerate(talk.messages) if isinstance(message, HumanMessage)), default=0)
    results = [each for each in vocab.results_in(talk.messages[since:]) if each.tool != READ_ATTACHMENT]
    texts = [str(message.content) for message in talk.messages[since:] if isinstance(message, AIMessage)]
    parts = [f"✓ {brief(result, talk.language).rstrip('.。')}" for result in results[:-1]]
    parts += [present(results[-1], [], talk.language)] if results else []
    parts += [text for text in texts if text]
    steps = (orjson.loads(line) for line in _FAILED_STEP.findall(talk.notes))
    shown = "\n".join(parts)
    parts += [_failure(talk, step["error"]) for step in steps if step.get("error") and step["error"] not in shown]
    return "\n\n".join(parts) or talk.say("idle", tools=talk.listed(sorted(tool.name for tool in talk.tools)))


def _failure(talk: Talk, error: str) -> str:
    if not_found := _NOT_FOUND.fullmatch(error):
        return talk.say("missing", arguments=not_found[1], tool=not_found[2])
    return talk.say("failed", error=error)


def _without_yes(message: str) -> tuple[str, bool]:
    """Returns what a message asks for beside a yes, and whether it is one: `ok, read the second one`."""
    if classify(message).verdict == "confirm":
        return (message if vocab.concepts(message) & vocab.VERBS else ""), True
    clauses = _FIRST_CLAUSE.match(message)
    if clauses and classify(clauses.group(1)).verdict == "confirm" and vocab.is_order(clauses.group(2)):
        return clauses.group(2), True
    return message, False


def _accepted(talk: Talk, text: str) -> AIMessage | None:
    """Returns the call that the last answer offered; None if the yes names something else to do."""
    request = talk.request(text)
    question = last_question(talk.last_answer) or ""
    verbs = vocab.concepts(text) & vocab.VERBS or vocab.READ
    for result in talk.newest_first:
        tool = vocab.follow_up(result, talk.tools)
        names = result.names_for(tool) if tool else []
        if tool and tool.opens and names and names[0] in question and tool.does(verbs):
            named = arguments_for(tool, request).get(tool.opens) if text else None
            return call_to(tool, {tool.opens: named or names[0]})
    return None


def _supplied(talk: Talk) -> AIMessage | None:
    """Returns the call whose missing arguments the last answer asked for, if the message gives them."""
    pattern = re.escape(talk.say("missing", tool="\0", arguments="\1"))
    question = re.match(pattern.replace("\0", r"(\S+)").replace("\1", r"(.+?)"), talk.last_answer)
    tool = next((tool for tool in talk.tools if question and tool.name == question.group(1)), None)
    text = talk.message.strip()
    if question is None or tool is None or _QUESTION.search(text) or classify(text).verdict != "none":
        return None
    if vocab.is_order(text) and vocab.tool_for(text, talk.newest_first, talk.tools) is not None:
        return None
    one_text = talk.say("comma") not in question.group(2) and not tool.opens and not _SPELLED_OUT.search(text)
    given = f'"{text}"' if one_text else text
    args = arguments_for(tool, talk.request(f"{talk.requests[-2]} {given}"))
    return None if missing_arguments(tool, args) else call_to(tool, args)


def _act(talk: Talk, text: str, *, accepting: bool) -> AIMessage:
    if "help" in vocab.concepts(text):
        return _reply(talk, _help(talk))
    tool = vocab.tool_for(text, talk.newest_first, talk.tools, web=talk.wants_web)
    if tool is None:
        return _reply(talk, _aside(talk, text, accepting=accepting))
    request = talk.request(text)
    args = arguments_for(tool, request)
    missing = missing_arguments(tool, args)
    if tool.opens in missing and (listing := _listing_for(tool, request)):
        tool, args, missing = listing, arguments_for(listing, request), []
    if missing and accepting:
        return _reply(talk, talk.say("nothing_waiting"))
    if missing:
        return _reply(talk, talk.say("missing", tool=tool.name, arguments=talk.listed(missing)))
    return call_to(tool, args)


def _listing_for(tool: vocab.OfferedTool, request: Request) -> vocab.OfferedTool | None:
    """Returns the tool that lists what another one is to open, if the message says what to look for."""
    found = (
        each
        for each in request.tools
        if each.only_looks and not each.opens and each.named & tool.named & vocab.concepts(request.text) & vocab.NOUNS
        if not missing_arguments(each, args := arguments_for(each, request))
        if args or not each.query or "fresh" in vocab.concepts(request.text)
    )
    return next(found, None)


def _aside(talk: Talk, text: str, *, accepting: bool) -> str:
    """Returns what to say to a message that no tool fits."""
    listed, facts = talk.listed(sorted(tool.name for tool in talk.tools)), facts_in(talk.notes)
    if accepting:
        return talk.say("welcome" if classify(talk.message).rule == "praise" else "nothing_waiting")
    for aspect, key in (("thanks", "welcome"), ("bye", "bye")):
        if aspect in vocab.concepts(text):
            return talk.say(key)
    if vocab.is_order(text) or vocab.concepts(text) & vocab.NOUNS:
        return talk.say("no_tool", part=text.strip(), tools=listed)
    if _QUESTION.search(text):
        if facts:
            about = [fact for fact in facts if is_about(text, fact)] or facts[:MAX_FACTS_UNASKED]
            return talk.say("known", facts="\n".join(f"- {fact}" for fact in about))
        return talk.say("unanswered", tools=listed)
    return talk.say("noted") if may_state_facts(text) else talk.say("idle", tools=listed)


def _help(talk: Talk) -> str:
    """Returns the tools, a line each, and sentences that would use them."""
    tools = sorted(talk.tools, key=lambda tool: tool.name)
    lines = [f"- {tool.name}" + (f": {tool.about}" if tool.about else "") for tool in tools]
    known: Mapping[str, Sequence[str]] = vocab.SENTENCES[talk.language]["try"]
    topics = frozenset().union(*(tool.named for tool in tools))
    examples = [text for topic, texts in known.items() if topic in topics for text in texts]
    other = [tool for tool in tools if tool.only_looks and not tool.required and not tool.named & known.keys()]
    examples += [talk.say("use_tool", tool=tool.name) for tool in other[:2]]
    return talk.say("help", tools="\n".join(lines), examples="\n".join(f"- {text}" for text in examples))


def call_to(tool: vocab.OfferedTool, args: Mapping[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[LangChainCall(name=tool.name, args=dict(args), id="offline", type="tool_call")])


def _reply(talk: Talk, text: str) -> AIMessage:
    return AIMessage(f"{text}\n\n{talk.say('offline')}")


def present(result: vocab.ShownResult, tools: Sequence[vocab.OfferedTool], language: str) -> str:
    """Returns what a fresh result says, and an offer if there is a next step."""
    value, items = result.value, result.items
    if result.has_failed:
        return vocab.sentence(language, "failed", error=value["error"])
    if result.tool == FORGET and isinstance(value, dict) and isinstance(value.get("forgotten"), list):
        return vocab.sentence(language, "forgotten", facts="\n".join(f"- {fact}" for fact in value["forgotten"]))
    if result.tool == PROMISE and isinstance(value, dict) and "show" in value:
        return _promised(str(value["show"]), result.args, language)
    if items is None:
        return _text_of(value, language)
    lines = [_found_line(result, items, language)]
    lines += [f"{place}. {_item_line(item, language)}" for place, item in enumerate(items[:MAX_SHOWN_ITEMS], start=1)]
    lines += ["…"] if max(result.total, len(items)) > MAX_SHOWN_ITEMS else []
    tool = vocab.follow_up(result, tools)
    names = result.names_for(tool) if tool else []
    return "\n".join([*lines, *([vocab.sentence(language, f"offer_{_noun(result)}", name=names[0])] if names else [])])


def _promised(shown: str, args: Mapping[str, Any], language: str) -> str:
    if "every" not in args:
        return shown
    say = vocab.LATER.get(language, vocab.LATER["en"]).table
    return str(say["promised"]).format(what=shown, every=say["repeats"][args["every"]], until=args["until"][:10])


def brief(result: vocab.ShownResult, language: str) -> str:
    if result.items is not None:
        return re.sub("[:：]$", "。" if language == "zh" else ".", _found_line(result, result.items, language))
    return present(result, [], language).partition("\n")[0]


def _found_line(result: vocab.ShownResult, items: Sequence[Any], language: str) -> str:
    return vocab.found_sentence(language, noun=_noun(result), number=max(result.total, len(items)), query=result.query)


def _noun(result: vocab.ShownResult) -> str:
    return "email" if "email" in vocab.name_words(result.tool) else "thing"


def _item_line(item: Any, language: str) -> str:
    if not isinstance(item, dict):
        return str(item)[:200]
    title = next((str(item[key]) for key in ("subject", "title", "name") if item.get(key)), "")
    sender, date = str(item.get("from") or "").partition(" <")[0], str(item.get("date") or "")[:10]
    comma = vocab.sentence(language, "comma")
    shown = [part for part in (title, comma.join(filter(None, (sender, date)))) if part]
    if not shown:
        return comma.join(f"{key}: {_plain(leaf)}" for key, leaf in list(item.items())[:MAX_FIELDS])[:300]
    naming = [key for key in item if key.casefold().endswith(vocab.NAMING_ENDINGS) or key in vocab.URL_ARGUMENTS]
    naming.sort(key=lambda key: key != "id")
    name = next((str(item[key]) for key in naming if item[key] not in (None, "", title)), "")
    return (" — ".join(shown) + (f" ({name})" if name else "")).strip()[:300]


def _text_of(value: Any, language: str) -> str:
    if not isinstance(value, dict):
        return _cut(str(value))
    if {"local", "timezone"} <= value.keys():
        date, _, time = str(value["local"]).partition("T")
        return vocab.sentence(language, "time", date=date, time=time[:5], zone=value["timezone"])
    heading = [str(value[key]) for key in ("subject", "title", "from") if value.get(key)]
    heading += [str(value["date"])[:16].replace("T", " ")] if value.get("date") else []
    body = next((str(value[key]) for key in ("body", "text", "content") if value.get(key)), None)
    if body is None:
        return _cut("\n".join(f"{key}: {_plain(item)}" for key, item in value.items()))
    return "\n\n".join(filter(None, (" — ".join(heading), _cut(body))))


def _plain(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else orjson.dumps(leaf).decode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS].rstrip() + "…"
