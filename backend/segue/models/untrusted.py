"""The fence around texts of tools, pages and notes in a prompt, and the escapes that keep it shut. Pure.

Text that could pass for the fence, or for the marks that model servers put between the parts of a conversation, has its
first character escaped as in JSON, so JSON still holds the same text. So has, in the user's messages, text that could
pass for the service's notes. The fence only asks the model: approvals are read from the user's messages alone.
"""

import re
import unicodedata
from itertools import chain, islice
from typing import Any, Final

import orjson

NAME: Final = "untrusted"
NOTES: Final = "notes"
OPEN: Final = f"<{NAME}>"  # one name for all: a random one would change every prompt and end every provider's cache
CLOSE: Final = f"</{NAME}>"
OPEN_NOTES, CLOSE_NOTES = f"<{NOTES}>", f"</{NOTES}>"
MAX_SHOWN: Final = 20  # arguments of a call
MAX_KEY_CHARS: Final = 60
EARLIER_RESULTS: Final = "Results from earlier in this session, newest first (load one with get_tool_result):"

_ANGLES: Final = "<＜﹤‹«〈⟨《≺˂ᐸ❮❬⧼"
_UNSEEN: Final = (
    r"\s\u00ad\u0300-\u036f\u115f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f"
)
_SLASHES: Final = r"/\\⁄∕／＼"
# Characters that look like a letter of a name and do not fold to it.
_ALIKE: Final = {"u": "υսᴜцʋ", "n": "ոпռɴ", "t": "тτᴛ", "r": "гᴦʀ", "s": "ѕꜱ", "e": "еєҽᴇ", "d": "ԁժɗᴅ", "o": "οоօᴏ"}
# The blocks of styled letters, which fold to plain ones.
_STYLED: Final = (range(0xC0, 0x180), range(0x2090, 0x2190), range(0x249C, 0x24EA), range(0xFF21, 0xFF5B))
_MATHEMATICAL: Final = (range(0x1D400, 0x1D800), range(0x1F110, 0x1F1A0))
# What follows the first character of the marks of chat templates: `<|im_start|>`, `[INST]`, `</s>` and the like.
_ROLE_MARKS: Final = (
    r"[|｜][^<>|｜\s]{1,40}[|｜]>|/?s>|(?:start|end)_of_turn>|[be]os>|</?SYS>>"
    r"|/?(?:INST|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]|/?(?:minimax:)?tool_call>|/?function(?:=|_calls>)|/?｜DSML｜"
)


def fenced(text: str) -> str:
    """Returns the text in a fence that nothing in it can close."""
    return f"{OPEN}\n{neutralised(text)}\n{CLOSE}"


def unfenced(text: str) -> str:
    """Returns the text inside a fence, or the text itself if there is none."""
    return text.removeprefix(f"{OPEN}\n").removesuffix(f"\n{CLOSE}")


def neutralised(text: str) -> str:
    """Returns the text with every mark escaped that could pass for our fence's or a model's own."""
    return text if text.isascii() and "<" not in text and "[" not in text else _MARK.sub(_escape_first, text)


def without_notes(text: str) -> str:
    """Returns a text of the user's with every mark escaped that could pass for that of the service's notes."""
    return text if text.isascii() and "<" not in text else _NOTES_MARK.sub(_escape_first, text)


def _escape_first(mark: re.Match[str]) -> str:
    return f"\\u{ord(mark.group()):04x}"


def _name_pattern(name: str) -> str:
    styled: dict[str, set[str]] = {letter: set() for letter in name}
    for char in map(chr, chain(*_STYLED, *_MATHEMATICAL)):
        folded = unicodedata.normalize("NFKD", char).casefold().strip("()")[:1]  # the plain letter
        if folded in styled:
            styled[folded].add(char)
    letters = (f"[{letter}{_ALIKE.get(letter, '')}{''.join(sorted(styled[letter]))}]" for letter in name)
    return f"[{_UNSEEN}]{{0,4}}".join(letters)


_MARK: Final = re.compile(rf"[{_ANGLES}\[](?=(?i:[{_UNSEEN}{_SLASHES}]{{0,8}}{_name_pattern(NAME)}|{_ROLE_MARKS}))")
_NOTES_MARK: Final = re.compile(rf"[<＜﹤˂ᐸ](?=(?i:[{_UNSEEN}{_SLASHES}]{{0,8}}{_name_pattern(NOTES)}(?!\w)))")


def without_references(text: str) -> str:
    """Returns a system message without its list of earlier results."""
    before, heading, after = text.partition(f"\n\n{EARLIER_RESULTS}\n{OPEN}\n")
    return before + after.partition(CLOSE)[2] if heading else text


def clipped(args: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """Returns the arguments of a call as the model is shown them later, in about so many characters."""
    if len(orjson.dumps(args).decode()) <= max_chars:
        return args
    share = max_chars // min(len(args), MAX_SHOWN)

    def cut(value: Any) -> Any:
        written = value if isinstance(value, str) else orjson.dumps(value).decode()
        return value if len(written) <= share else f"{written[:share]}…"

    return {key[:MAX_KEY_CHARS]: cut(value) for key, value in islice(args.items(), MAX_SHOWN)}
