"""Guesses the effect of an MCP server's tool from its name, in fifteen languages, if its server says nothing. Pure.

The protocol's default is destructive, and asking before every such tool would teach people to say yes. So a tool asks
only if its name says send, pay, delete, cancel or execute. Annotations and mcp.json win over a name.
"""

import re
from collections.abc import Iterable
from typing import Final

import mcp_types

from segue.domain.tool import Effect
from segue.language.detect_language import ENGLISH
from segue.language.lexicon import Phrase
from segue.language.utterance import is_unspaced, words_of
from segue.mcp.mcp_config import Unannotated
from segue.plans.asked_words import ACTIONS, ANY_ACTION, ActionWords

NameSet = frozenset[str]

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_UPPER: Final = "A-ZÀ-ÞА-Я"
_PARTS: Final = re.compile(  # `mailSend`, `SMSSend`, `2mails`
    rf"(?<![{_UPPER}\W\d_])(?=[{_UPPER}])|(?<=[{_UPPER}])(?=[{_UPPER}][^{_UPPER}\W\d_])|(?<=\d)(?=\D)|(?<=\D)(?=\d)"
)
_READS: Final = frozenset(
    ["check", "count", "describe", "fetch", "find", "get", "list", "query", "read", "search", "show", "view"]
)
_DESTROYS: Final = frozenset(["delete", "destroy", "drop", "erase", "purge", "remove", "truncate", "wipe"])
_ENDS: Final = frozenset(["cancel", "deactivate", "revoke", "terminate", "uninstall", "unsubscribe"])
_SENDS: Final = frozenset(["broadcast", "forward", "invite", "notify", "post", "publish", "reply", "send", "tweet"])
_PAYS: Final = frozenset(["buy", "charge", "pay", "purchase", "refund", "sell", "transfer", "wire", "withdraw"])
_EXECUTES: Final = frozenset(["deploy", "eval", "exec", "execute", "run"])
_FINAL: Final = _DESTROYS | _ENDS | _SENDS | _PAYS | _EXECUTES

# What the lists of actions.toml count as, which has fifteen languages. A name whose first action reads is not final.
_DOES: Final = frozenset(["cancel", "delete", "pay", "refund", "remove", "reply", "send", "share"])
_DOES_ALONE: Final = frozenset(["book", "buy", ANY_ACTION])  # beside no other action: `add_book` books nothing
_NAMED: Final = frozenset(["cancel", "delete", "pay", "refund", "send"])  # as a thing: `process_payment`
_MADE: Final = _NAMED | {"book", "buy", "order"}  # as a thing that is made: `create_order`
_MAKES: Final = frozenset(["add", "create", ANY_ACTION])
_READING: Final = frozenset(["open", "read", "search", "show"])
_IN_ENGLISH: Final = dict.fromkeys(_READS, _READING) | {"place": frozenset(["create"])}
_ELSE_IN_ENGLISH: Final = frozenset(["commander", "doe", "fare", "mandala", "quite", "tire", "tun"])


def effect_of(
    name: str, hints: mcp_types.ToolAnnotations | None, unannotated: Unannotated | None = None
) -> tuple[Effect, bool]:
    """Returns the effect, and whether it is guessed. `unannotated` is what mcp.json says of tools whose server says
    nothing; one that its server says not to only read is not taken for one that does.
    """
    if hints is not None and hints.read_only_hint:
        return "read_only", False
    if hints is not None and hints.destructive_hint is not None:
        return "destructive" if hints.destructive_hint else "write", False
    changes = hints is not None and hints.read_only_hint is False
    if unannotated is None or (changes and unannotated == "read_only"):
        return "destructive" if _sounds_final(name) else "write", True
    return "destructive" if unannotated == "ask" else unannotated, False


def _sounds_final(name: str) -> bool:
    english = [word.lower() for word in _WORD.findall(name)]
    if english and english[0] in _READS:
        return False
    words = words_of(_PARTS.sub(" ", name))
    in_ascii = tuple(re.sub("([aou])e", r"\1", word) for word in words)  # `loesche`, `ueberweise`
    return not _FINAL.isdisjoint(english) or any(map(_acts_finally, {words, in_ascii}))


def _acts_finally(words: Phrase) -> bool:
    """A word that also names a thing names an action only if no other word does: `update_order` buys nothing."""
    verbs, either, things, at = list[NameSet](), list[NameSet](), NameSet(), 0
    while at < len(words):
        found = [(_action_at(lists, words, at), lists.thing_at(words, at)) for lists in ACTIONS.now.values()]
        acting, action = _longest(act for act, thing in found if act[0] > thing[0])
        naming, named = _longest(thing for _, thing in found)
        if acting and acting >= naming:
            verbs.append(action)
        elif naming:
            _, action = _longest(act for act, _ in found if act[0] == naming)
            either += [action] if action and (not at or is_unspaced(words[at])) else []
            things |= named | action if at or named <= _NAMED else NameSet()
        at += max(acting, naming, 1)
    if verbs and verbs[0] & _READING and not verbs[0] & _DOES:
        return False
    done = verbs or either
    return (
        any(each & _DOES for each in done)
        or (bool(done) and all(each & _DOES_ALONE for each in done))
        or (bool(things & (_MADE if verbs else _NAMED)) and all(each & _MAKES for each in verbs))
    )


def _action_at(lists: ActionWords, words: Phrase, at: int) -> tuple[int, NameSet]:
    """Returns how many words from this one on name an action, and the names of its lists."""
    length, names = lists.action_at(words, at)
    if lists is ACTIONS.now[ENGLISH]:
        names -= {ANY_ACTION}  # `complete_task`
        return (1, _IN_ENGLISH[words[at]]) if words[at] in _IN_ENGLISH else (length, names)
    means_little = length == 1 and at and is_unspaced(words[at])  # 发 in 开发
    return (0, NameSet()) if means_little or words[at] in _ELSE_IN_ENGLISH else (length, names)


def _longest(found: Iterable[tuple[int, NameSet]]) -> tuple[int, NameSet]:
    pairs = [(0, NameSet()), *found]
    length = max(each for each, _ in pairs)
    return length, NameSet().union(*(names for each, names in pairs if each == length))
