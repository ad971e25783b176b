"""What an endpoint of chat completions refuses of requests, or misses in them, and requests changed by that. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from segue.agent.llm.model_errors import BAD_REQUEST, ProviderRefusal
from segue.agent.llm.providers.opaque import CALL_FIELDS, MESSAGE_FIELDS
from segue.agent.llm.providers.refusals import is_missed, parameter_named

RequestBody = Mapping[str, Any]

# What a request cannot do without.
_ESSENTIAL: Final = frozenset({"model", "messages", "tools", "stream"})
# Under what other name a value goes if the first is refused.
_RENAMED: Final[Mapping[str, str]] = {"max_tokens": "max_completion_tokens"}
# What stands for a part that an endpoint misses, by the name it misses it under: of messages and calls that another
# model or the engine made, or whose own were dropped. The second is Google's own, for histories of other models.
_OF_MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = {"reasoning_content": {"reasoning_content": " "}}
_OF_CALLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "thought_signature": {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
}


@dataclass(frozen=True, slots=True)
class Learned:
    """`refused` are parameters with the refused value, None for any value; `missed` are names of stand-ins."""

    refused: frozenset[tuple[str, object]] = frozenset()
    missed: frozenset[str] = frozenset()

    def __or__(self, other: "Learned") -> "Learned":
        return Learned(self.refused | other.refused, self.missed | other.missed)

    def after(self, refusal: ProviderRefusal, sent: RequestBody) -> tuple["Learned", str] | None:
        """Returns what is known after a refusal of this body, and the name it is about; None if it names nothing."""
        for name in (*_OF_MESSAGES, *_OF_CALLS):
            if name not in self.missed and is_missed(refusal, name):
                return replace(self, missed=self.missed | {name}), name
        named = parameter_named(refusal, _optional_names(sent)) or _suspect(refusal, sent)
        if named is None:
            return None
        return replace(self, refused=self.refused | {_refused_part(sent, named)}), named

    def applied_to(self, body: RequestBody) -> RequestBody:
        sent = dict(body)
        for name, value in self.refused:
            if name in sent and value in (None, sent[name]):
                given = sent.pop(name)
                if (name, given) == ("tool_choice", "none"):
                    sent.pop("tools", None)  # else the model would call what it may only see
                if (other := _RENAMED.get(name)) and (other, None) not in self.refused:
                    sent[other] = given
        messages = body.get("messages", ())
        if unwanted := {name for name, _ in self.refused} - body.keys():
            messages = [_without_fields(message, unwanted) for message in messages]
        if self.missed:
            messages = [self._with_stand_ins(message) for message in messages]
        if messages:
            sent["messages"] = messages
        return sent

    def _with_stand_ins(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] != "assistant":
            return message
        filled = dict(message)
        for name in self.missed & _OF_MESSAGES.keys():
            filled = {**_OF_MESSAGES[name], **filled}
        for name in self.missed & _OF_CALLS.keys():
            stand_in = _OF_CALLS[name]
            calls = filled.get("tool_calls")
            if calls and not any(stand_in.keys() & call.keys() for call in calls):  # the first stands for all of them
                filled["tool_calls"] = [{**calls[0], **stand_in}, *calls[1:]]
        return filled


def _optional_names(body: RequestBody) -> set[str]:
    """Returns what of a request could be left out: parameters, and what was given back as it came."""
    messages = body.get("messages", ())
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    given_back = {name for message in messages for name in message if name not in MESSAGE_FIELDS}
    return given_back.union(body.keys() - _ESSENTIAL, *(call.keys() - CALL_FIELDS for call in calls))


def _suspect(refusal: ProviderRefusal, body: RequestBody) -> str | None:
    """Returns what a refusal may be about that names nothing: few endpoints say that they take no schema of answers."""
    is_vague = refusal.status in BAD_REQUEST and refusal.cause.name == "refused"
    return "response_format" if is_vague and "response_format" in body else None


def _refused_part(body: RequestBody, name: str) -> tuple[str, object]:
    """Returns a parameter with its value, if that is one of a few: another may be welcome."""
    value = body.get(name)
    return name, value if isinstance(value, str) else None


def _without_fields(message: Mapping[str, Any], unwanted: set[str]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in unwanted or name in MESSAGE_FIELDS}
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [{name: value for name, value in call.items() if name not in unwanted} for call in calls]
    return kept
