"""What proves a call that changed something: a receipt, with the hash of the one before it in its session. The hash is
salted, so the chain holds after the words and the salt are erased, and nothing can be guessed from it. No I/O.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson

from segue.domain.field_types import doc

FIRST: Final = ""  # stands before the first receipt of a session


@dataclass(frozen=True, slots=True)
class _Signed:
    number: Annotated[int, doc("The position of the receipt in the chain of its session, from 1.")]
    hash: Annotated[str, doc("SHA-256 of session_id, number, tool_call_id, content_hash and previous.")]
    signature: Annotated[str | None, doc("The Ed25519 signature, in Base64; null without RECEIPT_KEY.")]
    signed_by: Annotated[str | None, doc("The public key of the signature, in Base64; null without one.")]


@dataclass(frozen=True, slots=True)
class ChainHead(_Signed):
    """The last receipt of a chain when it was read: a file that lacks it was cut."""


@dataclass(frozen=True, slots=True)
class Receipt(_Signed):
    """The receipt of a call: what was shown, who approved it, what was called and what came of it."""

    session_id: Annotated[str, doc("The id of the session, whose receipts form one chain.")]
    tool_call_id: Annotated[str, doc("The id of the call. A call that was settled later has a second receipt.")]
    content: Annotated[dict[str, Any] | None, doc("As docs/receipts.md describes; null once the user is erased.")]
    salt: Annotated[str | None, doc("The salt of `content_hash`; null once the content is erased.")]
    content_hash: Annotated[str, doc("SHA-256 of `salt` and the content as canonical JSON.")]
    previous: Annotated[str, doc("The `hash` of the receipt before; empty in the first one.")]


def canonical(value: object) -> bytes:
    """Returns the same JSON for equal values: keys in order, no spaces, UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def hash_of_content(salt: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(salt.encode() + canonical(content)).hexdigest()


def hash_of(session_id: str, number: int, tool_call_id: str, content_hash: str, previous: str) -> str:
    return hashlib.sha256(canonical([session_id, number, tool_call_id, content_hash, previous])).hexdigest()


def sign(secret: str | None, *about: str | int) -> tuple[str, str] | tuple[None, None]:
    """Returns a signature and its public key. The secret is 32 bytes in Base64; without one there is no signature."""
    if secret is None:
        return None, None
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 (most services sign nothing)

    key = ed25519.Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(secret))
    signature, public = key.sign(_signed(about)), key.public_key().public_bytes_raw()
    return base64.b64encode(signature).decode(), base64.b64encode(public).decode()


def _signed(about: Sequence[str | int]) -> bytes:
    return canonical(["segue receipt", *about])


def _is_signed(given: _Signed, keys: Sequence[str], *about: str | int) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 (as in `sign`)
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(given.signed_by or "", validate=True))
        key.verify(base64.b64decode(given.signature or "", validate=True), _signed(about))
    except (InvalidSignature, ValueError):
        return False
    return not keys or given.signed_by in keys


def faults_in(receipts: Sequence[Receipt], head: ChainHead | None, *, keys: Sequence[str] = ()) -> list[str]:
    """Returns what is wrong with a chain that was read from its first receipt, a sentence each; nothing if it is whole.
    With `keys` everything has to be signed by one of these, else what follows the first that is signed.
    """
    faults, previous, is_signed = list[str](), FIRST, bool(keys)
    for number, each in enumerate(receipts, start=1):
        chain = (each.session_id, each.number, each.tool_call_id, each.content_hash, each.previous)
        is_signed |= each.signature is not None
        found = {
            "is of another session": each.session_id != receipts[0].session_id,
            f"stands where number {number} belongs": each.number != number,
            "does not follow the one before it": each.previous != previous,
            "is not what its hash says": each.hash != hash_of(*chain),
            "does not say what it said": each.content is not None
            and hash_of_content(each.salt or "", each.content) != each.content_hash,
            "has no signature that holds": is_signed and not _is_signed(each, keys, each.hash),
        }
        faults += [f"receipt {each.number} ({each.tool_call_id}) {fault}" for fault, there in found.items() if there]
        previous = each.hash
    last = (len(receipts), previous) if receipts else None
    if last != ((head.number, head.hash) if head else None):
        faults.append("the file ends before the last receipt, or has no `head`")
    elif receipts and head and is_signed and not _is_signed(head, keys, receipts[0].session_id, head.number, head.hash):
        faults.append("the head has no signature that holds")
    return faults
