"""Facts as the offline model handles them: it proposes the user's own sentences, and reads the facts in a prompt. Pure.

It answers `prompts.EXTRACTOR` and reads what `prompts.facts_block` wrote.
"""

import re
from itertools import takewhile

import orjson

from segue.agent import prompts
from segue.agent.untrusted import CLOSE, OPEN
from segue.domain.memory import MAX_CONTENT_CHARS
from segue.memory.fact_cues import cued_sentences, significant_words
from segue.offline.vocabulary import is_order, split_steps

_FACTS = re.compile(rf"^{re.escape(prompts.FACTS)}\n{OPEN}\n(.*?)\n{CLOSE}$", re.DOTALL | re.MULTILINE)
_KINDS = {"remember": "fact", "correction": "fact"}


def extract_facts(request: str) -> str:
    """Returns as JSON every sentence that states a fact; a correction supersedes the known fact most like it.

    What the user wants done is no fact: `call my wife` notes nothing, `my name is Bob, find my mails` the name.
    """
    given = orjson.loads(str(request))  # LangChain's text is a subclass of str, which orjson refuses
    facts = [
        {
            "content": _told(cued.sentence)[:MAX_CONTENT_CHARS],
            "kind": _KINDS.get(cued.kind, cued.kind),
            "supersedes": _most_like(cued.sentence, given["known"]) if cued.kind == "correction" else None,
        }
        for cued in cued_sentences(given["user_said"])
        if _told(cued.sentence)
    ]
    return orjson.dumps({"facts": facts}).decode()


def _told(sentence: str) -> str:
    """Returns a sentence without what it asks for; empty if nothing is told."""
    steps = list(takewhile(lambda part: not is_order(part), split_steps(sentence)))
    if len(steps) == len(split_steps(sentence)):
        return sentence
    told = sentence[: sentence.find(steps[-1]) + len(steps[-1])] if steps else ""
    return told if any(cued_sentences(told)) and significant_words(told) else ""


def facts_in(notes: str) -> list[str]:
    block = _FACTS.search(notes)
    return [orjson.loads(line)["fact"] for line in block.group(1).splitlines()] if block else []


def _most_like(sentence: str, known: list[dict[str, str]]) -> str | None:
    words = set(significant_words(sentence))
    shared = {fact["id"]: len(words.intersection(significant_words(fact["fact"]))) for fact in known}
    best = max(shared, key=lambda memory_id: shared[memory_id], default=None)
    return best if best and shared[best] else None
