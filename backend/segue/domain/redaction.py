"""The one place that decides what a secret is, by the name of its key or its own form, and blanks it. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

REDACTED: Final = "[redacted]"
MIN_RECOGNISABLE_CHARS: Final = 6  # a shorter text may occur elsewhere by chance

_LIKE_A_WORD = re.compile(r"[a-z_-]{0,15}")  # and so may a word
_TOKEN = re.compile(r"(?:\w+\s+)?(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[\w.+=~-]{16,}")
_SECRET_KEY = re.compile(
    r"(?i:authorization|api[_-]?key|passw(?:or)?d|passphrase|secret|cookie|credential|private[_-]?key|(?:^|[_-])token$)"
    r"|[a-z]Token$"
)
_PLACE_KEY = re.compile(r"(?i)(?:page|next|continuation|sync)[_-]?token$")  # where a list goes on
_ASSIGNED_HINTS = ("key", "passw", "passphrase", "secret", "token")
_ASSIGNED = r"api[_-]?key|passw(?:or)?d|passphrase|secret|(?:access|auth|refresh|id)[_-]?token|token"
_WELL_KNOWN = (
    r"(?<![\w-])(?:[sprw]k[-_][\w-]{16,500}|gh[pousr]_\w{20,500}|github_pat_\w{20,500}|glpat-[\w-]{16,500}"
    r"|xox[a-z]-[\w-]{10,500}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|hf_\w{20,500}"
    r"|eyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]{0,4000})"
)
_PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_VALUE = r"""[^\s"',;&]{4,500}"""
_SPOKEN = rf"(?i)\b((?:{_ASSIGNED})\s+(?:is|è|ist|es|est)\s+)(?=\S{{0,500}}\d){_VALUE}"
# Hints that every text with the form contains in lower case, the form, its replacement. Most texts have no hint, which
# saves the search for the form.
_FORMS: Final = tuple(
    (hints, re.compile(form), instead)
    for hints, form, instead in (
        (("-----begin",), _PRIVATE_KEY, REDACTED),
        (("bearer", "basic"), r"\b((?i:bearer|basic)\s+)(?=\S{0,500}\d)[\w.~+/=-]{8,4000}", rf"\1{REDACTED}"),
        (("://",), r"(://[^\s/:@]{0,200}):[^\s/@]{1,500}@", rf"\1:{REDACTED}@"),
        (("k-", "k_", "gh", "glpat", "xox", "akia", "aiza", "hf_", "eyj"), _WELL_KNOWN, REDACTED),
        (_ASSIGNED_HINTS, rf"""(?i)\b((?:{_ASSIGNED})["']?\s{{0,9}}[:=]\s{{0,9}}["']?){_VALUE}""", rf"\1{REDACTED}"),
        (_ASSIGNED_HINTS, _SPOKEN, rf"\1{REDACTED}"),
    )
)

_ANY_HINT: Final = re.compile("|".join(sorted({re.escape(hint) for hints, _, _ in _FORMS for hint in hints})))


@lru_cache(maxsize=4096)
def is_secret_key(name: str) -> bool:
    return _SECRET_KEY.search(name) is not None and _PLACE_KEY.search(name) is None


def without_secrets(value: Any, known: Collection[str] = ()) -> Any:
    """Returns the value with what has a secret key or looks like a secret blanked, and `known` secrets in texts."""
    if not known:
        return _mapped(value, _redacted_text)
    pattern = _any_of(frozenset(known))
    return _mapped(value, lambda text: _redacted_text(pattern.sub(REDACTED, text)))


def without_secret_texts(value: Any) -> Any:
    """Like `without_secrets`, but ignores keys: a JSON schema may describe a password."""
    return _mapped(value, _redacted_text, by_key=False)


def without(value: Any, secrets: Collection[str]) -> Any:
    """Returns the value with these known secrets blanked wherever they occur in a text."""
    if not secrets:
        return value
    known = _any_of(frozenset(secrets))
    return _mapped(value, lambda text: known.sub(REDACTED, text), by_key=False)


@lru_cache(maxsize=256)
def _any_of(secrets: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(secret) for secret in sorted(secrets, key=len, reverse=True)))


def secrets_in(value: Any, *, under_secret: bool = False) -> set[str]:
    """The texts under secret keys: they may occur again in other texts."""
    match value:
        case dict():
            return {
                secret
                for key, item in value.items()
                for secret in secrets_in(item, under_secret=under_secret or is_secret_key(str(key)))
            }
        case list() | tuple():
            return {secret for item in value for secret in secrets_in(item, under_secret=under_secret)}
        case str() if under_secret and is_recognisable(value):
            return {value}
        case _:
            return set()


def is_recognisable(secret: str) -> bool:
    """Whether a text that contains it must mean the secret, and not by chance the same word."""
    return len(secret) >= MIN_RECOGNISABLE_CHARS and _LIKE_A_WORD.fullmatch(secret) is None


def header_secrets(values: Iterable[str]) -> set[str]:
    """The values of headers, and their last words alone: a token behind the name of its kind."""
    return {part for value in values for part in (value, *value.split()[-1:]) if is_recognisable(part)}


def configured_secrets(values: Mapping[str, str]) -> set[str]:
    """The secrets among settings, whole and word by word: those with a secret name, or a value that looks like a token.
    Other values, such as paths and addresses, may rightly occur in what tools answer.
    """
    values_of_secrets = (value for name, value in values.items() if is_secret_key(name) or _TOKEN.fullmatch(value))
    return {part for value in values_of_secrets for part in (value, *value.split()) if is_recognisable(part)}


def _redacted_text(text: str) -> str:
    lowered = text.lower()
    if _ANY_HINT.search(lowered) is None:
        return text
    for hints, form, instead in _FORMS:
        if any(hint in lowered for hint in hints):
            text = form.sub(instead, text)
    return text


def _mapped(value: Any, redacted: Callable[[str], str], *, by_key: bool = True) -> Any:
    match value:
        case str():
            return redacted(value)
        case dict():
            return {
                redacted(key) if isinstance(key, str) else key: (
                    _blanked(item) if by_key and is_secret_key(str(key)) else _mapped(item, redacted, by_key=by_key)
                )
                for key, item in value.items()
            }
        case list():
            return [_mapped(item, redacted, by_key=by_key) for item in value]
        case tuple():
            return tuple(_mapped(item, redacted, by_key=by_key) for item in value)
        case _:
            return value


def _blanked(value: Any) -> Any:
    """Blanks a value but keeps its type, so that what was valid stays valid."""
    match value:
        case None | bool():
            return value
        case int() | float():
            return 0
        case dict():
            return {key: _blanked(item) for key, item in value.items()}
        case list() | tuple():
            return [_blanked(item) for item in value]
        case _:
            return REDACTED
