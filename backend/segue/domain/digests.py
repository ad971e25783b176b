"""SHA-256 of texts and of values, in hexadecimal. Stored and compared by rows, keys and caches of several releases."""

import hashlib
from typing import Any

import orjson


def digest_of_secret(secret: str) -> str:
    """Returns the digest of 256 random bits in a text, which need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def digest_of_json(value: Any) -> str:
    """Returns the digest of a value as JSON. Objects that differ in the order of their members have the same one."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
