"""MCP servers, prompts and logins as the API shows them. Without servers, nothing of the protocol is imported."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Literal

from segue.domain.field_types import doc
from segue.tools.catalog import DefinitionChange

MAX_URI_CHARS: Final = 2000  # of a resource
STDERR_SHOWN: Final = 10  # lines, but where all are
CALLBACK_PATH: Final = "/mcp/oauth/callback"
DOCUMENT_PATH: Final = "/mcp/oauth/client.json"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tool that a server lists and that is not offered."""

    name: Annotated[str, doc("What the server calls it.")]
    reason: Annotated[str, doc("Why it is left out.")]


@dataclass(frozen=True, slots=True)
class McpServerStatus:
    """A server of mcp.json, as this process sees it."""

    name: Annotated[str, doc("Its name in mcp.json.")]
    state: Annotated[str, doc("`connecting`, `ready`, or `failed: ` and why.")]
    since: Annotated[datetime, doc("Since when.")]
    tools: Annotated[list[str], doc("The tools that it offers; those it offered last while it is away.")]
    left_out: Annotated[list[LeftOut], doc("Tools that it lists and that cannot be offered, 50 at most.")]
    last_error: Annotated[str | None, doc("Why it failed last; null if it never did.")]
    last_error_at: Annotated[datetime | None, doc("When.")]
    stderr: Annotated[list[str], doc("The last lines that its process wrote there, 50 at most, without secrets.")]
    changes: Annotated[list[DefinitionChange], doc("The tools that it defined otherwise before, and how.")] = field(
        default_factory=list
    )


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


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """Where to log in."""

    url: Annotated[str, doc("Open it in a browser. It is for the caller only, and works once.")]
    expires_at: Annotated[datetime, doc("Until when the login has to be finished.")]


@dataclass(frozen=True, slots=True)
class McpLogin:
    """How a user stands with a server that asks for a login. No token is in it."""

    server: Annotated[str, doc("Its name in mcp.json.")]
    state: Annotated[Literal["logged_in", "logged_out"], doc("Whether the caller is logged in there.")]
    since: Annotated[datetime | None, doc("Since when; null without a login.")]
    scope: Annotated[str | None, doc("What the login allows, in the server's own words.")]


@dataclass(frozen=True, slots=True)
class FinishedLogin:
    """Whose login the callback has finished. `key` is that of the question that steps wait with for it."""

    owner: str
    server: str
    key: str


class LoginRefused(Exception):
    """A callback that gives no user a login; the message says why, with advice."""
