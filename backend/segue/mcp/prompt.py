"""The prompts of MCP servers, as users read them. Knows nothing of the protocol."""

from dataclasses import dataclass
from typing import Annotated, Literal

from segue.domain.doc import doc


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """What a prompt is filled with."""

    name: Annotated[str, doc("For `arguments`.")]
    description: Annotated[str, doc("What it is, in the server's words.")]
    required: Annotated[bool, doc("Whether the prompt cannot be filled without it.")]


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that a server offers to users. All texts are the server's."""

    server: Annotated[str, doc("The server that offers it.")]
    name: Annotated[str, doc("What the server calls it.")]
    title: Annotated[str, doc("The same for people; its name if it has no other.")]
    description: Annotated[str, doc("What it is for.")]
    arguments: Annotated[list[PromptArgument], doc("What it is filled with.")]


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a filled prompt."""

    role: Annotated[Literal["user", "assistant"], doc("Who would say it.")]
    content: Annotated[str, doc("Its text; `[image]` and the like stand for what is none.")]


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """What to say, as the server words it. Nothing was sent: that is the user's."""

    description: Annotated[str, doc("What it is for.")]
    messages: Annotated[list[PromptMessage], doc("The messages, in their order.")]
