"""What the OpenAI-compatible routes answer with, as OpenAI describes it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from segue.domain.doc import doc


class ModelOfAgent(BaseModel):
    """An agent, as OpenAI describes a model."""

    id: Annotated[str, doc("For `model`.")]
    object: Annotated[Literal["model"], doc("Always `model`.")] = "model"
    created: Annotated[int, doc("Always 0.")] = 0
    owned_by: Annotated[Literal["segue"], doc("Always `segue`.")] = "segue"
    name: Annotated[str, doc("What it is called.")]
    description: Annotated[str, doc("What it is for.")]


class ModelList(BaseModel):
    """The agents, as OpenAI lists models."""

    object: Annotated[Literal["list"], doc("Always `list`.")] = "list"
    data: Annotated[list[ModelOfAgent], doc("All of them.")]


class CompletionMessage(BaseModel):
    """What the assistant says."""

    role: Annotated[Literal["assistant"], doc("Always `assistant`.")] = "assistant"
    content: Annotated[str, doc("The text.")]


class CompletionChoice(BaseModel):
    """The answer."""

    index: Annotated[int, doc("Always 0.")] = 0
    message: Annotated[CompletionMessage, doc("The answer.")]
    finish_reason: Annotated[Literal["stop"], doc("Always `stop`.")] = "stop"


class CompletionUsage(BaseModel):
    """What the turn took, as its providers count tokens."""

    prompt_tokens: Annotated[int, doc("Tokens sent, over all calls of the turn.")]
    completion_tokens: Annotated[int, doc("Tokens received.")]
    total_tokens: Annotated[int, doc("Both.")]
    prompt_tokens_details: Annotated[dict[str, int], doc("`cached_tokens`: those the provider had cached.")]
    completion_tokens_details: Annotated[dict[str, int], doc("`reasoning_tokens`: those that were thought.")]


class Completion(BaseModel):
    """A turn, as OpenAI describes a completion."""

    id: Annotated[str, doc("`chatcmpl-` and the id of the turn.")]
    object: Annotated[Literal["chat.completion"], doc("Always `chat.completion`.")] = "chat.completion"
    created: Annotated[int, doc("When it was asked for, in seconds since 1970.")]
    model: Annotated[str, doc("The agent.")]
    choices: Annotated[list[CompletionChoice], doc("The one answer.")]
    usage: Annotated[CompletionUsage, doc("What the turn took.")]


class OpenAIResponse(BaseModel):
    """A turn, as OpenAI describes a response."""

    id: Annotated[str, doc("For `previous_response_id`.")]
    object: Annotated[Literal["response"], doc("Always `response`.")] = "response"
    created_at: Annotated[int, doc("When it was asked for, in seconds since 1970.")]
    status: Annotated[Literal["completed"], doc("Of a response that is not streamed.")] = "completed"
    model: Annotated[str, doc("The agent.")]
    output: Annotated[
        list[dict[str, Any]],
        doc("Each tool that ran, as a `function_call` and its `function_call_output`; the message."),
    ]
    conversation: Annotated[dict[str, str] | None, doc("The session, as `id`; null for a title or the like.")] = None
    usage: Annotated[dict[str, Any], doc("What the turn took.")]


def completion_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """`usage` is that of a ChatAnswer, or a Charge."""
    given, got = usage["input_tokens"], usage["output_tokens"]
    return {
        "prompt_tokens": given,
        "completion_tokens": got,
        "total_tokens": given + got,
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
    }


def response_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The same as the Responses API says it."""
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
    }
