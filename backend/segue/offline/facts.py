"""What the offline model makes of facts: it keeps the user's own sentences, and reads those it is given.

Pure. `offline.py` stands above; the prompts it answers are `prompts.EXTRACTOR` and the block of `prompts.facts_block`.
"""

import re

import orjson

from segue.agent import prompts
from segue.agent.untrusted import CLOSE, OPEN
from segue.domain.memory import MAX_CONTENT_CHARS
from segue.memory.fact_cues import cued_sentences, significant_words

_FACTS = re.compile(rf"^{re.escape(prompts.FACTS)}\n{OPEN}\n(.*?)\n{CLOSE}$", re.DOTALL | re.MULTILINE)
_KINDS = {"remember": "fact", "correction": "fact"}


def noted(given: str) -> str:
    """Every sentence that tells something, as it was said; one that corrects replaces the known fact most like it."""
    asked = orjson.loads(str(given))  # LangChain gives a text of a type of its own
    facts = [
        {
            "content": told.sentence[:MAX_CONTENT_CHARS],
            "kind": _KINDS.get(told.kind, told.kind),
            "supersedes": _most_like(told.sentence, asked["known"]) if told.kind == "correction" else None,
        }
        for told in cued_sentences(asked["user_said"])
    ]
    return orjson.dumps({"facts": facts}).decode()


def facts_in(system: str) -> list[str]:
    block = _FACTS.search(system)
    return [orjson.loads(line)["fact"] for line in block.group(1).splitlines()] if block else []


def _most_like(sentence: str, known: list[dict[str, str]]) -> str | None:
    said = set(significant_words(sentence))
    shared = {fact["id"]: len(said.intersection(significant_words(fact["fact"]))) for fact in known}
    best = max(shared, key=lambda memory_id: shared[memory_id], default=None)
    return best if best and shared[best] else None
