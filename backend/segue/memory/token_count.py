"""How many tokens a text takes: counted by the model's tokenizer if its file is in TIKTOKEN_CACHE_DIR, else estimated.

Knows nothing of messages and budgets.
"""

import hashlib
import math
import os
import string
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken import Encoding

CountTokens = Callable[[str], int]

# Tokens per character, between what tokenizers of 100,000 and of 200,000 entries take. English words, JSON's marks
# and digits, Arabic or Cyrillic (two bytes), Chinese (three): 0.28, 0.55, 0.55, 1.25; an emoji is 1.95.
PER_LETTER, PER_MARK, PER_HIGH_BYTE, PER_HIGH_CHARACTER = 0.28, 0.55, 0.7, -0.85
CACHED_COUNTS = 1024

_LETTERS = f"{string.ascii_letters} ".encode()
_HIGH = bytes(range(128, 256))
# The name tiktoken gives the file in TIKTOKEN_CACHE_DIR, and the SHA-256 it expects.
_FILES = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}


def estimate(text: str) -> int:
    """Returns the tokens of a text in any script, rather too many than too few. Takes microseconds per kilobyte."""
    encoded = text.encode(errors="replace")
    others = encoded.translate(None, _LETTERS)
    marks = len(others.translate(None, _HIGH))
    letters, high_bytes = len(encoded) - len(others), len(others) - marks
    high_characters = len(text) - letters - marks
    return math.ceil(
        PER_LETTER * letters + PER_MARK * marks + PER_HIGH_BYTE * high_bytes + PER_HIGH_CHARACTER * high_characters
    )


def counter_for(model: str) -> CountTokens:
    """Returns the counter for a model. Loading a tokenizer takes a moment."""
    encoding = _local_encoding(model)
    return estimate if encoding is None else counting_with(encoding)


def counting_with(encoding: "Encoding") -> CountTokens:
    """Returns a counter with a cache: the same few texts are counted turn after turn."""

    @lru_cache(maxsize=CACHED_COUNTS)
    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count


def _local_encoding(model: str) -> "Encoding | None":
    # tiktoken would fetch a missing or wrong file from the network: it is only asked for one that is right.
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder:
        return None
    import tiktoken  # noqa: PLC0415 (most have no such folder)

    try:
        name = tiktoken.encoding_name_for_model(model)
        file, digest = _FILES[name]
        found = Path(folder, file).read_bytes()
    except (KeyError, OSError):
        return None
    return tiktoken.get_encoding(name) if hashlib.sha256(found).hexdigest() == digest else None
