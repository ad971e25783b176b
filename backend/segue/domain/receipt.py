"""What proves a call that changed something: a receipt, each with the hash of the one before it in its session.

The hash of what a receipt says is salted, so that the chain still holds once the words and the salt are erased, and
nothing can be guessed from it. Whoever has the file can check it: no store and no service is needed. No I/O.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from segue.domain.field_types import doc

FIRST: Final = ""  # stands before the first receipt of a session


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was shown, who approved it, what was called and what came of it."""

    session_id: Annotated[str, doc("The session, whose receipts are one chain.")]
    number: Annotated[int, doc("Its place in the chain, from 1.")]
    tool_call_id: Annotated[str, doc("The call. One whose outcome was settled later has a second receipt.")]
    content: Annotated[dict[str, Any] | None, doc("What it says: docs/receipts.md. Null once the session is deleted.")]
    salt: Annotated[str | None, doc("What `content_hash` is salted with; goes with the content.")]
    content_hash: Annotated[str, doc("SHA-256 of `salt` and the content as canonical JSON.")]
    previous: Annotated[str, doc("The `hash` of the one before; empty in the first.")]
    hash: Annotated[str, doc("SHA-256 of session_id, number, tool_call_id, content_hash and previous.")]
    signature: Annotated[str | None, doc("Ed25519 of `hash`, in Base64; null without RECEIPT_KEY.")] = None
    signed_by: Annotated[str | None, doc("The public key, in Base64.")] = None


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last receipt of a chain when it was read: a file that lacks it was cut."""

    number: Annotated[int, doc("How many receipts there are.")]
    hash: Annotated[str, doc("That of the last one.")]
    signature: Annotated[str | None, doc("Ed25519 of session_id, number and hash; null without RECEIPT_KEY.")] = None
    signed_by: Annotated[str | None, doc("The public key, in Base64.")] = None


def canonical(value: object) -> bytes:
    """Returns the same JSON for equal values: keys in order, no spaces, UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def hash_of_content(salt: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(salt.encode() + canonical(content)).hexdigest()


def hash_of(session_id: str, number: int, tool_call_id: str, content_hash: str, previous: str) -> str:
    return hashlib.sha256(canonical([session_id, number, tool_call_id, content_hash, previous])).hexdigest()


@dataclass(frozen=True, slots=True)
class ReceiptKey:
    """The private key that receipts are signed with: 32 bytes in Base64, or none."""

    secret: str | None

    def sign(self, *signed: str | int) -> tuple[str, str] | tuple[None, None]:
        """Returns the signature and the public key."""
        if self.secret is None:
            return None, None
        key = Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(self.secret))
        return _text(key.sign(_signed(signed))), _text(key.public_key().public_bytes_raw())


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _signed(about: Sequence[str | int]) -> bytes:
    return canonical(["segue receipt", *about])


def is_signed(signature: str | None, signed_by: str | None, *about: str | int) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signed_by or "", validate=True))
        key.verify(base64.b64decode(signature or "", validate=True), _signed(about))
    except (InvalidSignature, ValueError):
        return False
    return True


def faults_in(receipts: Sequence[Receipt], head: ChainHead | None, *, keys: Sequence[str] = ()) -> list[str]:
    """Returns what is wrong with a chain that was read from its first receipt, a sentence each; nothing if it is whole.
    With `keys` everything has to be signed by one of these, else from the first that is signed.
    """
    faults, previous, must_be_signed = list[str](), FIRST, bool(keys)
    for number, each in enumerate(receipts, start=1):
        name = f"receipt {each.number} ({each.tool_call_id})"
        of_chain = (each.session_id, each.number, each.tool_call_id, each.content_hash, each.previous)
        must_be_signed |= each.signature is not None
        if each.session_id != receipts[0].session_id:
            faults.append(f"{name} is of another session")
        if each.number != number:
            faults.append(f"{name} stands where number {number} belongs")
        if each.previous != previous:
            faults.append(f"{name} does not follow the one before it")
        if each.hash != hash_of(*of_chain):
            faults.append(f"{name} is not what its hash says")
        if each.content is not None and hash_of_content(each.salt or "", each.content) != each.content_hash:
            faults.append(f"the content of {name} was changed")
        if must_be_signed and not _is_by(keys, each, each.hash):
            faults.append(f"{name} has no signature that holds")
        previous = each.hash
    if head is None or (head.number, head.hash) != (len(receipts), previous):
        faults.append("the file ends before the last receipt, or has no `head`")
    elif must_be_signed and not _is_by(keys, head, receipts[0].session_id if receipts else "", head.number, head.hash):
        faults.append("the head has no signature that holds")
    return faults


def _is_by(keys: Sequence[str], signed: Receipt | ChainHead, *about: str | int) -> bool:
    is_known = not keys or signed.signed_by in keys
    return is_known and is_signed(signed.signature, signed.signed_by, *about)
