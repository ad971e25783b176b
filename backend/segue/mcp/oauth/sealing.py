"""Encrypts what must not be read from a row: tokens, secrets of clients, PKCE verifiers. Knows no table.

What is sealed names its owner and server, so that a row cannot be read as that of another user.
"""

from collections.abc import Sequence
from typing import TypeVar

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from pydantic import BaseModel, ValidationError

Sealed = TypeVar("Sealed", bound=BaseModel)


class Seal:
    """The first key seals, each of them opens: a new key is put before the old ones."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys])

    def seal(self, value: BaseModel) -> str:
        return self._keys.encrypt(value.model_dump_json().encode()).decode()

    def open(self, kind: type[Sealed], sealed: str) -> Sealed | None:
        """Returns None for what no key opens, and for what another release has written."""
        try:
            return kind.model_validate_json(self._keys.decrypt(sealed))
        except (InvalidToken, ValidationError):
            return None
