"""Reads answers of chat completions, whole or in deltas; `completions.toml` has the differences between providers.
Their own fields are opaque: joined, bounded, never read. Unreadable answers raise one of `MALFORMED`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

from segue.language.lexicon import load_toml
from segue.models.reply import AnswerPart, CallPiece, Opaque, read_arguments, sendable_name, token_count, written_call

MAX_OPAQUE_BYTES: Final = 64_000

_FIELDS: Final = load_toml("completions.toml", package="segue.models.providers")
MESSAGE_FIELDS, CALL_FIELDS = frozenset(_FIELDS["message"]), frozenset(_FIELDS["call"])
REASONING_FIELDS: Final[Sequence[str]] = _FIELDS["reasoning"]
_STOPPED: Final[Mapping[str, str]] = {said: reason for reason, named in _FIELDS["stopped"].items() for said in named}


def image_in(part: Any) -> str | None:
    """Returns an image that a model has made as a `data:` text; None for any other part, item or block of an answer."""
    match part:
        case {"type": "image_generation_call", "result": str(encoded)}:
            return f"data:image/{part.get('output_format') or 'png'};base64,{encoded}"
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)} if url.startswith("data:image/"):
            return url
        case _:
            return None


def why_ended(reason: object) -> str:
    """Returns why an answer ended, as OpenAI says it; a reason that is not known as it came."""
    return _STOPPED.get(str(reason).partition(":")[0].lower(), str(reason))


def foreign_fields(part: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in known and value is not None}


def joined(so_far: Any, piece: Any, name: str = "") -> Any:
    """Returns a value that came in pieces: texts go on, lists grow, items of a list with one index are one item. May
    change `so_far`. A text beyond the bound stops growing, since it will not be sent back whole.
    """
    match so_far, piece:
        case None, _:
            return piece
        case _, None:
            return so_far
        case str(), str() if name not in _FIELDS["whole"]:
            return so_far if len(so_far) > MAX_OPAQUE_BYTES else so_far + piece
        case dict(), dict():
            for key, value in piece.items():
                so_far[key] = joined(so_far.get(key), value, key)
            return so_far
        case list(), list():
            for item in piece:
                if so_far and _goes_on(so_far[-1], item):
                    so_far[-1] = joined(so_far[-1], item)
                else:
                    so_far.append(item)
            return so_far
        case _:
            return piece


def _goes_on(last: Any, item: Any) -> bool:
    if not isinstance(last, dict) or not isinstance(item, dict):
        return False
    is_piece = "index" in item or item.get("type") in _FIELDS["pieces"]
    return is_piece and all(last.get(name) == item.get(name) for name in ("index", "type"))


def within_bounds(message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns a message's opaque fields, words cut to fit beside its calls', or None if the rest is too large."""
    kept = dict(message)
    for name in REASONING_FIELDS:
        text, room = kept.get(name), MAX_OPAQUE_BYTES - size_of([{**kept, name: ""}, *calls])
        while isinstance(text, str) and text and (size := size_of(text)) > max(room, 0):
            kept[name] = text = text[: len(text) * max(room, 0) // size]
    return kept if size_of([kept, *calls]) <= MAX_OPAQUE_BYTES else None


def size_of(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # half a character, a huge number: nothing that can be sent back
        return MAX_OPAQUE_BYTES + 1


@dataclass(slots=True)
class _OpenCall:
    index: object
    id: str
    name: str
    args: str
    at: int = 0  # its place among the calls
    opaque: dict[str, Any] = field(default_factory=dict)
    latest: str = ""  # piece of the arguments
    is_cumulative: bool = True  # each piece so far began with the one before
    passed_on: int = 0  # characters of the arguments

    def add(self, args: str) -> None:
        if args == self.args and self.is_followed_by(args):
            return  # the whole call is told once more
        self.is_cumulative = self.is_cumulative and args.startswith(self.latest)
        self.args += args
        self.latest = args or self.latest

    @property
    def arguments(self) -> str:
        is_repeated = self.is_cumulative and self.latest != self.args and read_arguments(self.args) is None
        return self.latest if is_repeated else self.args

    def is_followed_by(self, args: str) -> bool:
        """Whether these arguments are those of another call, since this one's are complete."""
        begins = args.lstrip()[:1] in ("{", '"')
        return begins and self.args.rstrip()[-1:] in ("}", '"') and read_arguments(self.args) is not None


def _new_pieces(calls: Iterable[_OpenCall]) -> Iterator[CallPiece]:
    """Yields the new pieces of the calls. A first piece waits for another: that may begin with the same again."""
    for call in calls:
        if call.name and not call.is_cumulative and len(call.args) > call.passed_on:
            yield CallPiece(call.at, sendable_name(call.name), call.args[call.passed_on :])
            call.passed_on = len(call.args)


@dataclass(slots=True)
class CompletionReader:
    """`add` takes a whole answer, or each event of a stream. Of several choices the first that comes is read."""

    wants_thinking: bool = False  # the model gets its thinking back in the text of an answer with calls
    finish_reason: str | None = None
    has_begun: bool = False  # words, thinking, images or calls have come
    _usage: UsageMetadata | None = None
    _model: str | None = None
    _response_id: str | None = None
    _choice: object = None
    _is_in_deltas: bool = False  # a message behind them has all of them again
    _texts: list[str] = field(default_factory=list)
    _calls: list[_OpenCall] = field(default_factory=list)
    _by_index: dict[object, _OpenCall] = field(default_factory=dict)  # the last of those that share it
    _by_id: dict[str, _OpenCall] = field(default_factory=dict)
    _opaque: dict[str, Any] = field(default_factory=dict)

    def add(self, body: Mapping[str, Any]) -> Iterator[AnswerPart]:
        """Yields the words of each message, which may have none."""
        usage = body.get("usage")
        for choice in body.get("choices") or ():
            self._choice = choice.get("index") if self._choice is None else self._choice
            if choice.get("index", self._choice) == self._choice:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                usage = usage or choice.get("usage")
                self._usage = _usage(usage) or self._usage
                self._is_in_deltas = self._is_in_deltas or bool(choice.get("delta"))
                if message := choice.get("delta") or (not self._is_in_deltas and choice.get("message")):
                    yield self._add_message(message)
        self._usage = _usage(usage) or self._usage
        self._model = body.get("model") or self._model
        self._response_id = body.get("id") or self._response_id

    def _add_message(self, message: Mapping[str, Any]) -> AnswerPart:
        calls = message.get("tool_calls") or ()
        touched = [self._add_call(call, position) for position, call in enumerate(calls)]
        if not calls and (legacy := message.get("function_call")):
            self._add_call({"index": 0, "function": legacy}, 0)
        for name, value in foreign_fields(message, MESSAGE_FIELDS).items():
            self._opaque[name] = joined(self._opaque.get(name), value, name)
        words = self._words(message)
        return replace(words, pieces=list(_new_pieces(touched))) if calls else words

    def closing(self, made_by: str) -> AnswerPart:
        """Returns the last part of an answer, with all but its words."""
        text = "".join(self._texts) if self.wants_thinking and self._calls else ""
        thought = {"content": text} if "<think>" in text else {}
        opaque = within_bounds({**self._opaque, **thought}, [call.opaque for call in self._calls])
        return AnswerPart(
            calls=[written_call(call.name, call.arguments, call.opaque) for call in self._calls],
            opaque=None if opaque is None else Opaque(made_by, opaque),
            finish_reason=self.finish_reason and why_ended(self.finish_reason),
            usage=self._usage,
            answered_by=self._model,
            response_id=self._response_id,
        )

    def _words(self, message: Mapping[str, Any]) -> AnswerPart:
        content, images = message.get("content"), list[str]()
        listed = content if isinstance(content, list) else ()
        parts = [{"type": "text", **({"text": part} if isinstance(part, str) else part)} for part in listed]
        if parts or message.get("images"):
            images = list(filter(None, map(image_in, (*(message.get("images") or ()), *parts))))
        text = _texts(parts, _FIELDS["text_parts"]) if parts else plain_words(content)
        text += plain_words(message.get("refusal"))
        reasoning = next((plain_words(message[name]) for name in REASONING_FIELDS if message.get(name)), "")
        thought = _texts(parts, _FIELDS["reasoning_parts"]) if parts else ""
        if thought or "content" in self._opaque:
            blocks = parts or ({"type": "text", "text": text},)  # thinking among parts goes back among them
            kept = [part for part in blocks if part != {"type": "text", "text": ""} and not image_in(part)]
            self._opaque["content"] = joined(self._opaque.get("content"), kept)
        self.has_begun = self.has_begun or bool(text or reasoning or thought or images or self._calls)
        self._texts += [text] * self.wants_thinking
        return AnswerPart(text, reasoning + thought, images=images, usage=self._usage)

    def _add_call(self, call: Mapping[str, Any], position: int) -> _OpenCall:
        function = call.get("function") or call
        args = next((each[key] for each in (function, call) for key in _FIELDS["arguments"] if each.get(key)), "")
        name = plain_words(function.get("name"))
        if not isinstance(args, str):
            args = orjson.dumps(args).decode()
        piece = _OpenCall(call.get("index"), plain_words(call.get("id")), name, args)
        current = self._continued(piece, position)
        if current is None:
            if "function" not in call and not name and piece.index is None:
                raise ValueError("a call without a function")
            piece.index = position if piece.index is None else piece.index
            piece.latest, piece.at = piece.args, len(self._calls)
            self._calls.append(current := piece)
            self._by_index[piece.index] = piece
        else:
            current.id = current.id or piece.id
            current.add(piece.args)
            if not current.name:
                current.name = piece.name
            elif not current.args and piece.name != current.name:
                current.name += piece.name  # OpenAI's own format allows a name in pieces
        for field_name, value in foreign_fields(call, CALL_FIELDS).items():
            current.opaque[field_name] = joined(current.opaque.get(field_name), value, field_name)
        if current.id:
            self._by_id[current.id] = current
        return current

    def _continued(self, piece: _OpenCall, position: int) -> _OpenCall | None:
        """Returns the call that a piece goes on with, or None. Endpoints repeat names and ids, or lack them."""
        current = self._by_index.get(position if piece.index is None else piece.index)
        if not piece.name:  # the index may be missing, or one of the pieces
            is_last = self._calls and (piece.index is None or not piece.id)
            return self._by_id.get(piece.id) or current or (self._calls[-1] if is_last else None)
        if current is None:  # LocalAI tells one call at several indices
            told = self._by_id.get(piece.id)
            return told if told and told.name == piece.name and piece.args.startswith(told.args) else None
        if piece.id and current.id and piece.id != current.id:
            return None
        if current.name and piece.name != current.name and piece.id != current.id:
            return None if current.args else current
        is_again = piece.args == current.args or (current.latest and piece.args.startswith(current.latest))
        if piece.id and piece.id == current.id and is_again:
            return current
        return None if current.is_followed_by(piece.args) else current


def plain_words(value: object) -> str:
    """Returns the words of a text, or of a structure of texts."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(plain_words, value))
        case dict():
            return plain_words(value.get("text") or value.get("content") or value.get("summary"))
        case _:
            return ""


def _texts(parts: Iterable[Any], fields: Mapping[str, str]) -> str:
    found = ((part, fields.get(str(part.get("type")))) for part in parts if isinstance(part, dict))
    return "".join(plain_words(part.get(name) or part) for part, name in found if name is not None)


def _usage(usage: Mapping[str, Any] | None) -> UsageMetadata | None:
    """Returns None if nothing was counted: an answer takes at least one token."""
    if not isinstance(usage, dict):
        return None
    input_tokens, output_tokens = _counted(usage, _FIELDS["input_tokens"]), _counted(usage, _FIELDS["output_tokens"])
    if not input_tokens and not output_tokens:
        return None
    if input_tokens:  # xAI and Google count what the model thought in the total only
        output_tokens = max(output_tokens, token_count(usage.get("total_tokens")) - input_tokens)
    names = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
    read, written, thought = (_counted(usage, _FIELDS[name]) for name in names)
    total = input_tokens + output_tokens
    counts = UsageMetadata(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=total)
    details = InputTokenDetails(cache_read=read, cache_creation=written)
    return {**counts, "input_token_details": details, "output_token_details": OutputTokenDetails(reasoning=thought)}


def _counted(usage: Mapping[str, Any], paths: Iterable[Sequence[str]]) -> int:
    for path in paths:
        value: Any = usage
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value:
            return token_count(value)
    return 0
