"""The fence around what tools, pages and notes bring into a prompt, and what keeps it shut. Pure.

What could pass for the fence itself, or for the marks that model servers put between the parts of a conversation, loses
its first character to an escape: JSON still holds the same text, and a reader sees what stood there.
"""

import re
import unicodedata
from itertools import chain
from typing import Final

NAME: Final = "untrusted"
OPEN: Final = f"<{NAME}>"
CLOSE: Final = f"</{NAME}>"

_ANGLES: Final = "<＜﹤‹«〈⟨《≺˂ᐸ❮❬⧼"
_UNSEEN: Final = (
    r"\s\u00ad\u0300-\u036f\u115f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f"
)
_SLASHES: Final = r"/\\⁄∕／＼"
# What looks like a letter of the name and does not fold to it.
_ALIKE: Final = {"u": "υսᴜцʋ", "n": "ոпռɴ", "t": "тτᴛ", "r": "гᴦʀ", "s": "ѕꜱ", "e": "еєҽᴇ", "d": "ԁժɗᴅ"}
# Letters in other styles fold to plain ones; they stand in these blocks.
_STYLED: Final = (range(0xC0, 0x180), range(0x2090, 0x2190), range(0x249C, 0x24EA), range(0xFF21, 0xFF5B))
_MATHEMATICAL: Final = (range(0x1D400, 0x1D800), range(0x1F110, 0x1F1A0))
# What follows the first character of the marks that chat templates use: `<|im_start|>`, `[INST]`, `</s>` and the like.
_ROLE_MARKS: Final = (
    r"[|｜][^<>|｜\s]{1,40}[|｜]>|/?s>|(?:start|end)_of_turn>|[be]os>|</?SYS>>"
    r"|/?(?:INST|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
)


def fenced(text: str) -> str:
    return f"{OPEN}\n{neutralised(text)}\n{CLOSE}"


def unfenced(text: str) -> str:
    """What stands in a fence, or the text itself where there is none."""
    return text.removeprefix(f"{OPEN}\n").removesuffix(f"\n{CLOSE}")


def neutralised(text: str) -> str:
    """The text without anything that could pass for a mark of ours or of a model's own."""
    if text.isascii() and "<" not in text and "[" not in text:
        return text
    return _MARK.sub(_without_its_head, text)


def _without_its_head(mark: re.Match[str]) -> str:
    return f"\\u{ord(mark.group()):04x}"


def _name_pattern() -> str:
    styled: dict[str, set[str]] = {letter: set() for letter in NAME}
    for char in map(chr, chain(*_STYLED, *_MATHEMATICAL)):
        folded = _folded(char)
        if folded in styled:
            styled[folded].add(char)
    letters = (f"[{letter}{_ALIKE.get(letter, '')}{''.join(sorted(styled[letter]))}]" for letter in NAME)
    return f"[{_UNSEEN}]{{0,4}}".join(letters)


def _folded(char: str) -> str:
    """The plain letter of a styled or accented one."""
    return unicodedata.normalize("NFKD", char).casefold().strip("()")[:1]


_MARK: Final = re.compile(rf"[{_ANGLES}\[](?=(?i:[{_UNSEEN}{_SLASHES}]{{0,8}}{_name_pattern()}|{_ROLE_MARKS}))")
